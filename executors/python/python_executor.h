// Python scripts, run by mycojobs-pyhost: CPython in a program of its own, never in the agent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "domain/profiles.h"
#include "executors/settings.h"
#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

// What an operator gives the Python of a context ([contexts.N.python]), and the script hosts that come of it.
inline constexpr const char* kVenvPlace = "/venv";  // where jobs see their virtual environment
inline constexpr const char* kVenvPython = "/venv/bin/python3";

// One for each context that has something of its own; the others have the general one.
std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>&);

class PythonExecutor final : public Executor {
 public:
  explicit PythonExecutor(std::string pyhost) : pyhost_(std::move(pyhost)) {}  // path of the program

  std::string_view name() const override { return "python"; }
  std::vector<std::string> script_types() const override { return {"python"}; }
  std::vector<Stage> stages() const override { return {{"python", "python", profile("python")}}; }
  // Starts the host that jobs would have (base/linked_build.h) with --version, which imports what a job would: "CPython
  // 3.11.2", whether it is linked in, and why not. Takes about 0.1 s, 30 s at most.
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string pyhost_;
};

}  // namespace mycojobs
