// Runs a Python job with a script that declares packages. The packages are installed before the script runs, unless
// this host already has an environment with the packages:
//
//   the environment exists ----------------------------------------------------------> run the script --> finish
//   install --> the registry stores the new lock file, or has the same one ----------> run the script --> finish
//      |  '---> the registry has a different lock file --> install from that file ---> run the script --> finish
//      '------> pip fails, or the lock file is rejected ------------------------------------------------> finish
//
// The registry is the LockFileRegistry that the agents of a context share. The first installation uses the lock file of
// the registry; if the registry has none, pip resolves the requirements of the script. If the store is unavailable
// after an installation, the script runs with the new lock file. An installation runs pip (install.py) in a sandbox
// that can reach only the package index and the hosts of the settings. A job runs each stage at most once, so the first
// and the second installation are separate stages.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "executors/executor.h"
#include "executors/executor_settings.h"
#include "executors/python/packages/lock_file_registry.h"

namespace mycojobs {

inline constexpr const char* kPythonProgram = "/usr/bin/python3";  // packages are installed with the pip of this Python

// Stages of a job in a context with packages, in the order of their runs.
inline constexpr std::size_t kInstallStage = 0, kSecondInstallStage = 1, kScriptStage = 2;
inline constexpr std::string_view kInstallProfile = "python.install";  // profile of both installation stages

// Returns the policy of the installation stages: network access to the index and the hosts of the settings, fixed
// limits of time, memory and disk, and max_bytes of the settings as the maximum size of a file.
Policy make_install_policy(const PackageSettings&);

// The installations that run in this process, identified by the context and the key of the requirements. Prevents two
// jobs from installing the same packages at the same time. Thread-safe.
class RunningInstallations {
 public:
  // Registers an installation while the token exists. The destructor only removes the registration; it does not stop
  // pip. REQUIRES: the RunningInstallations object outlives the token.
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
  // Registers an installation. Returns null if an installation with the same context and key is registered.
  std::unique_ptr<Token> try_begin(Id context, const std::string& key);
  // Returns whether an installation of the context is registered.
  bool has_any(Id context) const;

 private:
  void remove(Id context, const std::string& key);

  mutable std::mutex mutex_;
  std::map<Id, std::set<std::string>> keys_;  // keys of the registered installations, by context
};

// Objects and settings that the conversation of a job with packages uses. The referenced objects must outlive the
// conversation.
struct PackageDependencies {
  const PackageSettings& settings;
  std::string state_dir;
  std::string python_version;  // version of the interpreter that runs scripts, such as "3.11.2"
  std::string platform;        // result of get_wheel_platform()
  // Lock files that all agents of the context share. If null, lock files are stored only in the cache of this host.
  std::shared_ptr<LockFileRegistry> lock_file_registry = {};
  RunningInstallations& installations;
};

// Returns architecture and C library of this host, such as "x86_64-glibc2.36". Binary wheels depend on both, so
// packages that one host can install may have no wheel for another host.
std::string get_wheel_platform();

// Starts the conversation of a job, with an installation as the first stage if the packages are missing. Errors:
//   invalid      The metadata of the script is invalid, or the script requires another version of Python.
//   denied       The settings do not allow a package or a hash of the stored lock file, or that file is malformed.
//   unsupported  An installation of the same requirements failed within EnvironmentCache::kRetryDelaySeconds, or the
//                registry of lock files cannot be used.
//   unavailable  Another job is installing the same packages, or the store cannot be reached.
//   io           The folder of the installation cannot be created.
// Errors of begin_script() are returned unchanged.
Result<std::unique_ptr<Conversation>> begin_with_packages(const JobFacts&, const PackageDependencies&, ArtifactSink*);

}  // namespace mycojobs
