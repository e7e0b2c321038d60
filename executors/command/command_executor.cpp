#include "executors/command/command_executor.h"

#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "executors/exec/program_conversation.h"
#include "executors/probe_program.h"
#include "security/ceilings.h"
#include "security/profiles.h"

namespace mycojobs {

std::vector<Stage> CommandExecutor::stages() const {
  return {{.profile = settings_.name,
           .host = kProgramHost,
           .policy = apply_request(profile("command"), settings_.policy),
           .needs_exec = true}};
}

Result<std::string> CommandExecutor::probe() const {
  const std::string& program = settings_.command.front();
  const std::string remedy = "; remedy: install it, or correct [executors." + settings_.name + "] command";
  if (::access(program.c_str(), X_OK) != 0)
    return fail(Code::unsupported, settings_.name + ": " + program + ": " + errno_text(errno) + remedy);
  if (settings_.version.empty()) return program;
  auto version = probe_program(program, settings_.version);
  // Shells such as dash have no --version. A shell that runs `true` works, but its version is unknown.
  if (!version && settings_.version == CommandSettings().version && probe_program(program, {"-c", "true"}))
    return program;
  if (!version) return fail(Code::unsupported, settings_.name + ": " + version.error().message + remedy);
  return version;
}

Result<std::unique_ptr<Conversation>> CommandExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  return begin_program(facts,
                       {.executor = settings_.name,
                        .profile = settings_.name,
                        .command = settings_.command,
                        .script_file = settings_.file,
                        .environment = settings_.environment},
                       sink);
}

}  // namespace mycojobs
