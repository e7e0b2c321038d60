// Runs Lua scripts with mycojobs-luahost: sal, with the names of the System Abstraction Layer, and osis, with the
// object store of the context. Both executors share one host.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "executors/executor.h"
#include "security/profiles.h"

namespace mycojobs {

class LuaHost {
 public:
  explicit LuaHost(std::string program) : program_(std::move(program)) {}
  // Starts the host once with --version, which loads the same modules as a job, and returns "Lua 5.4.4". Thread-safe.
  const Result<std::string>& probe();

 private:
  std::string program_;
  std::once_flag probe_once_;
  Result<std::string> version_;
};

class LuaExecutor final : public Executor {
 public:
  // name: "sal" or "osis"; also the name of the sandbox profile.
  LuaExecutor(std::string name, std::shared_ptr<LuaHost> host) : name_(std::move(name)), host_(std::move(host)) {}

  std::string_view name() const override { return name_; }
  std::vector<std::string> script_types() const override { return {name_}; }
  std::vector<Stage> stages() const override { return {{name_, "lua", profile(name_)}}; }
  bool uses_object_store() const override { return name_ == "osis"; }
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string name_;
  std::shared_ptr<LuaHost> host_;
};

}  // namespace mycojobs
