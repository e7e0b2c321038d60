#include "executors/python/python_executor.h"

#include "executors/probe_program.h"
#include "executors/script_conversation.h"

namespace mycojobs {

Result<std::string> PythonExecutor::probe() const {
  auto line = probe_program(pyhost_, {"--version"});
  if (line) return line;
  return fail(Code::unsupported,
              "python: " + line.error().message +
                  "; remedy: apt install python3 libpython3.11, and install mycojobs with its helpers");
}

Result<std::unique_ptr<Conversation>> PythonExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  return begin_script(facts, {.executor = name(), .profile = "python"}, sink);
}

}  // namespace mycojobs
