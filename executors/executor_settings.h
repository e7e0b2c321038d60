// Executor settings from the configuration. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/policy_json.h"
#include "model/records.h"

namespace mycojobs {

// [executors.<name>]: a script type for scripts that a program of this host runs. A name of a built-in executor
// replaces that executor.
struct CommandSettings {
  std::string name;                  // name of the executor and of its script type
  std::vector<std::string> command;  // as in ProgramSpec; [0] absolute
  std::string file = "script";       // file name of the script below /job; some programs need an extension
  // Arguments that print the version of command[0]. If empty, the version is not queried.
  std::vector<std::string> version = {"--version"};
  TextMap environment = {};
  PolicyRequest policy = {};  // applied to the profile `command`
  bool operator==(const CommandSettings&) const = default;
};

// [contexts.<id>.python.packages]: packages that scripts of one context may have installed.
struct PackageSettings {
  std::string index = {};                  // URL of the package index
  std::string netrc = {};                  // file with credentials for index and hosts (netrc); empty: none
  std::string ca = {};                     // file with the CAs of index and hosts, PEM; empty: those of the host
  std::vector<std::string> hosts = {};     // further places to download from, as in the policy field `net`
  std::vector<std::string> allow = {};     // patterns of names of packages, such as "numpy" or "acme-*"
  std::vector<std::string> build = {};     // names of packages that are built from their source distributions
  std::vector<std::string> hashes = {};    // if not empty, only files with these SHA-256 hashes are installed
  std::uint64_t max_bytes = 512ULL << 20;  // limit of one environment on disk
  std::uint64_t cache_bytes = 4ULL << 30;  // limit of all environments of the context on this host
  std::uint64_t cache_age_ms = 14ULL * 24 * 3600 * 1000;  // an environment is deleted after this time without use
  bool operator==(const PackageSettings&) const = default;
};

// [contexts.<id>.python]: Python settings of one context.
struct PythonSettings {
  std::string venv = {};                  // absolute path of a virtual environment on this host; empty if there is none
  std::vector<std::string> preload = {};  // modules to import once, before any job
  std::optional<PackageSettings> packages = {};
  bool operator==(const PythonSettings&) const = default;
};

struct ExecutorSettings {
  std::string libexec_dir = {};  // folder of the helper programs
  std::string state_dir = {};    // contexts/<id>/programs, caches
  std::vector<CommandSettings> commands = {};
  std::string plugins_dir = {};              // if empty, libexec_dir/plugins
  std::string v_compiler = {};               // if empty, the default paths are searched
  std::vector<std::string> v_flags = {};     // placed before the executor's own flags
  std::map<Id, PythonSettings> python = {};  // by context
  const Clock& clock;                        // must outlive the executors
};

inline constexpr std::uint64_t kMaxProgramBytes = 256ULL << 20;  // limit of one prebuilt program
// Returns the folder of the prebuilt programs of a context. Each file is named by its hash.
inline std::string programs_folder(const std::string& state_dir, Id context) {
  return state_dir + "/contexts/" + std::to_string(context) + "/programs";
}

}  // namespace mycojobs
