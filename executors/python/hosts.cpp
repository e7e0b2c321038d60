#include "executors/python/hosts.h"

namespace mycojobs {

std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>& contexts) {
  std::vector<ScriptHost> hosts;
  for (const auto& [context, settings] : contexts) {
    ScriptHost host{.name = "python", .program = libexec_dir + "/mycojobs-pyhost", .context = context};
    if (!settings.venv.empty()) {
      host.arguments = {"--venv", settings.venv};
      host.folders = {{settings.venv, kVenvPlace}};
    }
    for (const auto& module : settings.preload) {
      host.arguments.emplace_back("--preload");
      host.arguments.push_back(module);
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

}  // namespace mycojobs
