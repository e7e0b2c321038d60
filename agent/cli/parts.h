// What the commands are made of. main.cpp fills this in: it alone names the implementations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "executors/plugin/plugin_check.h"
#include "executors/plugin/plugin_folder.h"
#include "mycojobs/clock.h"
#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"
#include "mycojobs/store.h"
#include "mycojobs/transport.h"

namespace mycojobs {

// A private server, our child, for as long as this lives.
class EmbeddedServer {
 public:
  virtual ~EmbeddedServer() = default;
};

struct LayerCheck {
  std::string name;  // as in sandbox.allow_missing
  bool ok = false;
  std::string detail;  // what was seen
  std::string remedy;  // empty if ok
};

struct Parts {
  std::function<std::unique_ptr<StoreFactory>(const Settings&, const std::string& url)> stores;
  // conflict: another process has one on this state folder; its url is embedded_url().
  std::function<Result<std::unique_ptr<EmbeddedServer>>(const Settings&)> embedded;
  std::function<std::string(const Settings&)> embedded_url;
  // warm: contexts whose script hosts are started at once. alive_fd: kept open by every process that outlives the agent
  // for a moment, but by no job (worker/instance_lock.h); -1: none.
  std::function<Result<std::unique_ptr<Sandbox>>(const Settings&, const std::vector<Id>& warm, int alive_fd)> sandbox;
  std::function<std::vector<std::unique_ptr<Executor>>(const Settings&)> executors;
  std::function<std::vector<plugin::PluginReport>(const Settings&)> plugins;  // loaded and probed
  std::function<plugin::PluginCheck(const Settings&, const std::string& file)> check_plugin;
  std::function<std::unique_ptr<Executor>(const plugin::PluginCheck&)> executor_of_plugin;  // null: not loaded
  std::function<std::unique_ptr<Transport>(Store&, const std::vector<Id>& contexts)> transport;
  std::function<Result<std::vector<LayerCheck>>(const Settings&)> probe_layers;
  const Clock& clock;
};

}  // namespace mycojobs
