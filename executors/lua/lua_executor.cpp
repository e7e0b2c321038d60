#include "executors/lua/lua_executor.h"

#include "executors/probe_program.h"
#include "executors/script_conversation.h"

namespace mycojobs {

Result<std::string> LuaExecutor::probe() const {
  return probe_program(name_, luahost_, "apt install liblua5.4-0 libcurl4, and install mycojobs with its helpers");
}

Result<std::unique_ptr<Conversation>> LuaExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  return begin_script(facts, {.executor = name_, .profile = name_}, sink);
}

}  // namespace mycojobs
