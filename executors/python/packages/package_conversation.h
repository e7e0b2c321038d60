// Runs a Python job with the packages that its script states:
//
//   the environment exists ------------------------------------------------------------> run --> finish
//   installing --the lock file is new, or was published by this agent------------------> run
//       | \------ another agent has published another lock file --> installing from it -> run
//       '-------- failure --> finish; the script does not run
//
// An installation is a run of the stage kInstallStage: pip in a sandbox that reaches the package index alone
// (install.py). Both installations have a stage of their own, since each run of a job needs another stage.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "executors/executor.h"
#include "executors/executor_settings.h"
#include "executors/python/packages/package_locks.h"

namespace mycojobs {

inline constexpr const char* kPythonProgram = "/usr/bin/python3";  // whose pip installs packages

inline constexpr std::size_t kInstallStage = 0, kRepeatedInstallStage = 1, kScriptStage = 2;
inline constexpr std::string_view kInstallProfile = "python.install";

// Returns the policy of an installation.
Policy make_install_policy(const PackageSettings&);

// The installations that this process is running. Thread-safe.
class RunningInstallations {
 public:
  // Ends the installation when it is destroyed.
  class Token {
   public:
    Token(RunningInstallations& installations, Id context, std::string key)
        : installations_(installations), context_(context), key_(std::move(key)) {}
    ~Token() { installations_.remove(context_, key_); }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;

   private:
    RunningInstallations& installations_;
    Id context_;
    std::string key_;
  };
  // Returns null if the context has an installation with this key already.
  std::unique_ptr<Token> begin(Id context, const std::string& key);
  bool has_any(Id context) const;

 private:
  void remove(Id context, const std::string& key);

  mutable std::mutex mutex_;
  std::map<Id, std::set<std::string>> keys_;
};

// The context of a job with packages. All references must outlive the conversation.
struct PackageContext {
  const PackageSettings& settings;
  std::string state_dir;
  std::string python_version;                // "3.11.2"
  std::shared_ptr<PackageLocks> locks = {};  // null: only this host uses the lock files
  RunningInstallations& installations;
};

// Starts the conversation of a job. Errors: invalid (the metadata of the script), unsupported (the latest installation
// has failed a short time ago), unavailable (the packages are being installed for another job, or the store cannot be
// reached), and those of begin_script().
Result<std::unique_ptr<Conversation>> begin_with_packages(const JobFacts&, const PackageContext&, ArtifactSink*);

}  // namespace mycojobs
