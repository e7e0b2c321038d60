// Runs a Lua script through the real executor and the real host. Without a sandbox: this process is the zygote, each
// job a fork of it, and a folder in /tmp is its /job. In the sandbox: the whole way of a job but the store.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/executor.h"

namespace mycojobs::test {

struct LuaJob {
  std::string script;
  std::string executor = "sal";
  Policy policy = {};     // what it is told that it was granted, and gets in the sandbox
  std::string name = "";  // of the job
  TextMap environment = {};
  std::map<std::string, JobInput> inputs = {};
  std::vector<SecretValue> secrets = {};
  std::string term_at = "";  // SIGTERM is sent once when this text is in stdout; without the sandbox only
  std::function<std::string(const std::string&)> agent = {};  // call -> reply, as JSON
  std::uint64_t wall_ms = 30000;
  Id context = 7;
  std::string warm_key = std::string(64, 'k');  // if its policy says warm; in the sandbox only
  std::string flow_data = "";                   // as on the record of a flow's job
};

struct LuaRan {
  Outcome outcome;
  JobEnd end;
  std::string out, err;
  std::vector<std::string> notes;
  std::vector<std::pair<std::string, std::string>> artifacts;
  std::string result(const std::string& key) const {
    const auto found = end.result.find(key);
    return found == end.result.end() ? "<none>" : found->second;
  }
};

LuaRan run_lua(const LuaJob&);
LuaRan run_lua(std::string script);
LuaRan run_lua_confined(const LuaJob&);
LuaRan run_lua_confined(std::string script);

}  // namespace mycojobs::test
