// One plugin, over as many hosts as it takes. A host that dies, hangs or speaks nonsense is killed, and the next call
// starts another; after three faults in a row the plugin rests (rest.h), and calls fail at once.
//
// Errors of its calls, by what the caller can do next:
//   unavailable   the plugin's fault: it says nothing about the job, which may be run again at once
//   unsupported   it rests: not before its pause is over
//   invalid       the plugin says that this job can never run, or on probe(), that this host cannot run its scripts
//   too_large     the job is more than a plugin can be told
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "executors/plugin/host_process.h"
#include "executors/plugin/replies.h"
#include "executors/plugin/rest.h"
#include "mycojobs/clock.h"
#include "mycojobs/policy.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

struct PluginOptions {
  std::string host;  // path of mycojobs-pluginhost
  std::string file;  // path of the plugin
  std::uint32_t load_ms = 5000, probe_ms = 5000, prepare_ms = 2000, interpret_ms = 1000;
  bool rests = true;  // after faults; false: each call is tried
};

// Safe to share between threads: calls queue up.
class PluginClient {
 public:
  // Checks the file, loads it, checks the description. The file stays open: what is loaded again later is the same one,
  // also if another has been put in its place. Error: invalid or not_found, it is refused, with the remedy;
  // unavailable, it crashed, hung or ended its host; io.
  static Result<std::unique_ptr<PluginClient>> load(PluginOptions, const Clock&);

  const Description& description() const { return description_; }
  const Policy& profile() const { return profile_; }
  const std::string& file() const { return options_.file; }

  Result<std::string> probe();  // what runs the scripts, in one line
  Result<Prepared> prepare(std::string_view job_json);
  // Without interpret: nothing, at once.
  Result<Interpreted> interpret(std::string_view outcome_json);

 private:
  PluginClient(PluginOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {}
  Result<void> ensure_host();
  Result<std::string> ask(WireKind, std::string_view text, std::uint32_t limit_ms);
  tl::unexpected<Error> fault(const std::string& how);
  template <class T>
  Result<T> understood(Result<T>, std::string_view function);

  PluginOptions options_;
  const Clock& clock_;
  Fd opened_;
  Description description_;
  Policy profile_;

  std::mutex mutex_;  // of what follows
  std::unique_ptr<HostProcess> host_;
  Rest rest_;
  std::string last_fault_;
};

}  // namespace mycojobs::plugin
