// Lua scripts, run by mycojobs-luahost: sal, with the names of the System Abstraction Layer, and osis, with the object
// store of the context. Two rows of the table, one host.
#pragma once

#include <string>

#include "domain/profiles.h"
#include "mycojobs/executor.h"

namespace mycojobs {

class LuaExecutor final : public Executor {
 public:
  // name: "sal" or "osis", and so is its profile; luahost: path of the program.
  LuaExecutor(std::string name, std::string luahost) : name_(std::move(name)), luahost_(std::move(luahost)) {}

  std::string_view name() const override { return name_; }
  std::vector<std::string> script_types() const override { return {name_}; }
  std::vector<Stage> stages() const override { return {{name_, "lua", profile(name_)}}; }
  bool calls_objects() const override { return name_ == "osis"; }
  // Starts the host with --version, which loads what a job meets: "Lua 5.4.4".
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string name_, luahost_;
};

}  // namespace mycojobs
