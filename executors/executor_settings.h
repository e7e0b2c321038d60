// Executor settings from the configuration. Plain data.
#pragma once

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

// [contexts.<id>.python]: Python settings of one context.
struct PythonSettings {
  std::string venv = {};                  // absolute path of a virtual environment on this host; empty if there is none
  std::vector<std::string> preload = {};  // modules to import once, before any job
  bool operator==(const PythonSettings&) const = default;
};

struct ExecutorSettings {
  std::string libexec_dir = {};  // folder of the helper programs
  std::string state_dir = {};    // contexts/<id>/programs, caches
  std::vector<CommandSettings> commands = {};
  std::string plugins_dir = {};           // if empty, libexec_dir/plugins
  std::string v_compiler = {};            // if empty, the default paths are searched
  std::vector<std::string> v_flags = {};  // placed before the executor's own flags
  const Clock& clock;                     // must outlive the executors
};

inline constexpr std::uint64_t kMaxProgramBytes = 256ULL << 20;  // limit of one prebuilt program
// Returns the folder of the prebuilt programs of a context. Each file is named by its hash.
inline std::string programs_folder(const std::string& state_dir, Id context) {
  return state_dir + "/contexts/" + std::to_string(context) + "/programs";
}

}  // namespace mycojobs
