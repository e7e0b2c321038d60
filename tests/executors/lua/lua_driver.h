// Runs a Lua script with the real executor and the real host. Without the sandbox, this process is the zygote, each job
// is a fork of it, and a folder in /tmp replaces /job. In the sandbox, a job takes its whole path except for the store.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor.h"
#include "model/submitted_files.h"

namespace mycojobs::test {

struct LuaJob {
  std::string script;
  std::string executor = "sal";
  Policy policy = {};     // the grants passed to the script; the sandbox also enforces them
  std::string name = "";  // name of the job
  TextMap environment = {};
  std::map<std::string, JobInput> inputs = {};
  std::vector<Secret> secrets = {};
  // SIGTERM is sent once when stdout contains this text. Used only without the sandbox.
  std::string term_trigger = "";
  std::function<std::string(const std::string&)> agent = {};  // maps a call to its reply, both in JSON
  std::uint64_t wall_ms = 30000;
  Id context = 7;
  std::string warm_key = std::string(64, 'k');  // used if the policy permits warm scripts; only in the sandbox
  std::string flow_data = "";                   // as in the record of a flow's job
  std::vector<std::string> args = {};
  SubmittedFiles files = {};
};

struct LuaRunResult {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> artifacts;
  std::string result_value(const std::string& key) const {
    const auto found = end.result.find(key);
    return found == end.result.end() ? "<none>" : found->second;
  }
};

// Without the sandbox.
LuaRunResult run_lua(const LuaJob&);
LuaRunResult run_lua(std::string script);
// In the sandbox.
LuaRunResult run_lua_confined(const LuaJob&);
LuaRunResult run_lua_confined(std::string script);

}  // namespace mycojobs::test
