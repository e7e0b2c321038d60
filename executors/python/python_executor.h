// Runs Python scripts with mycojobs-pyhost: CPython runs in a separate program, never in the agent.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "executors/executor_settings.h"
#include "executors/python/packages/package_conversation.h"
#include "sandbox/sandbox.h"
#include "security/profiles.h"

namespace mycojobs {

inline constexpr const char* kVenvFolder = "/venv";  // path of the virtual environment inside jobs
inline constexpr const char* kVenvPython = "/venv/bin/python3";

// Returns one host for each context with Python settings of its own ([contexts.N.python]). Other contexts use the
// default host.
std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>&);

// Returns the version of pip ("pip 23.0.1"). Error unsupported: pip is missing; the message has the remedy.
Result<std::string> find_pip();

class PythonExecutor final : public Executor {
 public:
  // pyhost: path of the program. contexts: their settings; without packages, no state_dir is needed.
  explicit PythonExecutor(std::string pyhost, std::map<Id, PythonSettings> contexts = {}, std::string state_dir = {})
      : pyhost_(std::move(pyhost)), contexts_(std::move(contexts)), state_dir_(std::move(state_dir)) {}

  std::string_view name() const override { return "python"; }
  std::vector<std::string> script_types() const override { return {"python"}; }
  std::vector<Stage> stages() const override { return {{"python", "python", profile("python")}}; }
  // Adds the stages of installations (packages/package_conversation.h) in a context with packages.
  std::vector<Stage> get_context_stages(Id context) const override;
  bool can_block_for(const JobFacts&) const override;
  // While packages are installed, other jobs that need the same packages are delayed, and not their queue.
  bool is_paused(Id context, Id /*caller*/) const override { return installations_.has_any(context); }
  void set_lock_file_registry(std::shared_ptr<LockFileRegistry> registry) override {
    lock_file_registry_ = std::move(registry);
  }
  // Starts the host that jobs would use (base/linked_build.h) with --version, which imports the same modules as a job.
  // Returns the version ("CPython 3.11.2") and whether it is linked statically, with the reason if not. Takes about 0.1
  // s, at most 30 s. If a context has packages, the text names pip, or the remedy if it is missing.
  Result<std::string> probe() const override;
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;

 private:
  Result<std::string> probe_interpreter() const;
  const PackageSettings* find_packages(Id context) const;  // null if the context has none
  Result<std::string> get_python_version() const;

  std::string pyhost_;
  std::map<Id, PythonSettings> contexts_;
  std::string state_dir_;
  std::shared_ptr<LockFileRegistry> lock_file_registry_;
  mutable RunningInstallations installations_;
  mutable std::mutex mutex_;
  mutable std::string python_version_;  // "3.11.2", once it is known
};

}  // namespace mycojobs
