#include "executors/lua/lua_executor.h"

#include "executors/probe_program.h"
#include "executors/script_conversation.h"

namespace mycojobs {

const Result<std::string>& LuaHost::probe() {
  std::call_once(probe_once_, [this] { version_ = probe_program(program_, {"--version"}); });
  return version_;
}

Result<std::string> LuaExecutor::probe() const {
  constexpr const char* kInstallRemedy =
      "; remedy: apt install liblua5.4-0 libcurl4, and install mycojobs with its helpers";
  const Result<std::string>& version = host_->probe();
  if (version) return version;
  return fail(Code::unsupported, name_ + ": " + version.error().message + kInstallRemedy);
}

Result<std::unique_ptr<Conversation>> LuaExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  return begin_script(facts, {.executor = name_, .profile = name_}, sink);
}

}  // namespace mycojobs
