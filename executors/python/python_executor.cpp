#include "executors/python/python_executor.h"

#include <algorithm>

#include "base/linked_build.h"
#include "executors/exec/program_conversation.h"
#include "executors/probe_program.h"
#include "executors/python/packages/script_requirements.h"
#include "executors/script_conversation.h"

namespace mycojobs {
namespace {

bool may_need_packages(const JobFacts& facts) {
  return !facts.granted_policy.python_requirements.empty() || may_have_requirements(facts.job.script);
}

}  // namespace

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

Result<std::string> find_pip() {
  // "pip 23.0.1 from /usr/lib/python3/dist-packages/pip (python 3.11)"
  const auto pip = probe_program(kPythonProgram, {"-I", "-m", "pip", "--version"});
  if (pip) return pip->substr(0, pip->find(" from "));
  return fail(Code::unsupported,
              "packages cannot be installed: pip does not work: " + pip.error().message + "; apt install python3-pip");
}

Result<std::string> PythonExecutor::probe() const {
  MJ_TRY(interpreter, probe_interpreter());
  const bool has_packages =
      std::any_of(contexts_.begin(), contexts_.end(), [](const auto& entry) { return entry.second.packages; });
  if (!has_packages) return std::move(interpreter);
  const auto pip = find_pip();
  return interpreter + "; " + (pip ? "packages by " + *pip : pip.error().message);
}

Result<std::string> PythonExecutor::probe_interpreter() const {
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
  const PackageSettings* packages = find_packages(facts.job.context_id);
  ScriptExtras extras{.executor = name(), .profile = "python"};
  if (packages == nullptr) {
    if (facts.granted_policy.python_requirements.empty()) return begin_script(facts, extras, sink);
    const std::string context = std::to_string(facts.job.context_id);
    return fail(Code::denied, "policy.python.requirements: context " + context +
                                  " has no packages: leave it out, or let the operator add [contexts." + context +
                                  ".python.packages]");
  }
  // Such a job has no strand (can_block_for()), so nothing may block here.
  if (!may_need_packages(facts)) {
    extras.packages = "";
    extras.stage = kScriptStage;
    return begin_script(facts, extras, sink);
  }
  if (state_dir_.empty()) return fail(Code::unsupported, "packages: this agent has no folder for them: set state_dir");
  MJ_TRY(version, get_python_version());
  return begin_with_packages(
      facts, {*packages, state_dir_, version, get_wheel_platform(), lock_file_registry_, installations_}, sink);
}

std::vector<Stage> PythonExecutor::get_context_stages(Id context) const {
  std::vector<Stage> all = stages();
  const PackageSettings* packages = find_packages(context);
  if (packages == nullptr) return all;
  Stage install{
      .profile = std::string(kInstallProfile), .host = kProgramHost, .policy = make_install_policy(*packages)};
  install.is_operator_defined = true;
  all.insert(all.begin(), kScriptStage, install);
  return all;
}

bool PythonExecutor::can_block_for(const JobFacts& facts) const {
  return find_packages(facts.job.context_id) != nullptr && may_need_packages(facts);
}

const PackageSettings* PythonExecutor::find_packages(Id context) const {
  const auto settings = contexts_.find(context);
  return settings == contexts_.end() || !settings->second.packages ? nullptr : &*settings->second.packages;
}

Result<std::string> PythonExecutor::get_python_version() const {
  const std::lock_guard lock(mutex_);
  if (python_version_.empty()) {
    MJ_TRY(version,
           probe_program(kPythonProgram, {"-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"}));
    python_version_ = std::move(version);
  }
  return python_version_;
}

}  // namespace mycojobs
