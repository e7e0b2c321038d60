// What an operator says about executors. Plain data.
#pragma once

#include <string>
#include <vector>

#include "domain/policy.h"
#include "mycojobs/clock.h"
#include "mycojobs/records.h"

namespace mycojobs {

// [executors.<name>]: a script type that is served by a program of this host, from configuration alone. With the name
// of one of ours it stands instead of it.
struct CommandSettings {
  std::string name;                                  // of the executor and its script type
  std::vector<std::string> command;                  // as in ProgramSpec; [0] absolute
  std::string file = "script";                       // the script's name below /job: some programs want an ending
  std::vector<std::string> version = {"--version"};  // what makes command[0] say who it is; empty: it is not asked
  TextMap environment = {};
  PolicyRequest policy = {};  // over the profile `command`
  bool operator==(const CommandSettings&) const = default;
};

// [contexts.<id>.python]: what the Python of one context has of its own.
struct PythonSettings {
  std::string venv = {};                  // a virtual environment on this host; absolute; empty: none
  std::vector<std::string> preload = {};  // modules that are imported once, before any job
  bool operator==(const PythonSettings&) const = default;
};

struct ExecutorSettings {
  std::string libexec_dir = {};  // where the helper programs are
  std::string state_dir = {};    // contexts/<id>/programs, caches
  std::vector<CommandSettings> commands = {};
  std::string plugins_dir = {};           // empty: plugins in libexec_dir
  std::string v_compiler = {};            // empty: where it is usually found
  std::vector<std::string> v_flags = {};  // in front of what the executor says
  const Clock& clock;                     // lives longer than the executors
};

// Prebuilt programs of a context, each under its hash.
inline constexpr std::uint64_t kMaxProgramBytes = 256ULL << 20;
inline std::string programs_folder(const std::string& state_dir, Id context) {
  return state_dir + "/contexts/" + std::to_string(context) + "/programs";
}

}  // namespace mycojobs
