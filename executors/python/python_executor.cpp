#include "executors/python/python_executor.h"

#include "base/linked_build.h"
#include "executors/probe_program.h"
#include "executors/script_conversation.h"

namespace mycojobs {

std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>& contexts) {
  std::vector<ScriptHost> hosts;
  for (const auto& [context, settings] : contexts) {
    ScriptHost host{.name = "python", .program = libexec_dir + "/mycojobs-pyhost", .context = context};
    if (!settings.venv.empty()) {
      host.arguments = {"--venv", settings.venv};
      host.folders = {{settings.venv, kVenvFolder}};
    }
    for (const auto& module : settings.preload) {
      host.arguments.emplace_back("--preload");
      host.arguments.push_back(module);
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

Result<std::string> PythonExecutor::probe() const {
  const ProgramBuild build = select_program_build(pyhost_);
  auto version = probe_program(build.program, {"--version"});
  if (version && build.has_linked_libraries) return *version + ", linked in, the same build as the installed one";
  if (version && !build.reason.empty())
    return *version + ", the installed shared library, which uses more CPU: " + build.reason +
           "; to have it linked in, build or install mycojobs again";
  if (version) return *version + ", the installed shared library";
  return fail(Code::unsupported, "python: " + version.error().message +
                                     "; remedy: apt install python3 libpython" MYCOJOBS_PYTHON_VERSION
                                     " libexpat1 zlib1g, and install mycojobs with its helpers");
}

Result<std::unique_ptr<Conversation>> PythonExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  return begin_script(facts, {.executor = name(), .profile = "python"}, sink);
}

}  // namespace mycojobs
