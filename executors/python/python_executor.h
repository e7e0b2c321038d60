// Runs Python scripts with mycojobs-pyhost: CPython runs in a separate program, never in the agent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "executors/executor_settings.h"
#include "sandbox/sandbox.h"
#include "security/profiles.h"

namespace mycojobs {

inline constexpr const char* kVenvFolder = "/venv";  // path of the virtual environment inside jobs
inline constexpr const char* kVenvPython = "/venv/bin/python3";

// Returns one host for each context with Python settings of its own ([contexts.N.python]). Other contexts use the
// default host.
std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>&);

class PythonExecutor final : public Executor {
 public:
  explicit PythonExecutor(std::string pyhost) : pyhost_(std::move(pyhost)) {}  // pyhost: path of the program

  std::string_view name() const override { return "python"; }
  std::vector<std::string> script_types() const override { return {"python"}; }
  std::vector<Stage> stages() const override { return {{"python", "python", profile("python")}}; }
  // Starts the host that jobs would use (base/linked_build.h) with --version, which imports the same modules as a job.
  // Returns the version ("CPython 3.11.2") and whether it is linked statically, with the reason if not. Takes about 0.1
  // s, at most 30 s.
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  std::string pyhost_;
};

}  // namespace mycojobs
