#include "cli/executor_trial.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cli/local_run.h"
#include "cli/request_arguments.h"
#include "executors/probe_program.h"
#include "executors/run_specs.h"
#include "text/terminal_text.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTrialTimeoutMs = 30000;
constexpr const char* kEmptyScript = "\n";  // a job with a script of zero bytes is rejected

// A new temporary folder, which the destructor removes. Empty path: it could not be created.
class TrialFolder {
 public:
  TrialFolder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "mycojobs-XXXXXX").string();
    if (!error && ::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TrialFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool runs_empty_script_on_host(const CommandSettings& settings) {
  const TrialFolder folder;
  if (folder.path().empty()) return false;
  const std::string script = (folder.path() / settings.file).string();
  if (!(std::ofstream(script) << kEmptyScript)) return false;
  std::vector<std::string> arguments(settings.command.begin() + 1, settings.command.end());
  for (std::string& argument : arguments) {
    constexpr std::string_view kPlaceholder = "{script}";
    for (auto position = argument.find(kPlaceholder); position != std::string::npos;
         position = argument.find(kPlaceholder, position + script.size()))
      argument.replace(position, kPlaceholder.size(), script);
  }
  return probe_program(settings.command.front(), arguments).has_value();
}

}  // namespace

std::string ExecutorTrials::find_failure(const Executor& executor) {
  const auto& executors = call_.settings.executors;
  const auto entry = std::find_if(executors.begin(), executors.end(),
                                  [&](const CommandSettings& settings) { return settings.name == executor.name(); });
  if (entry == executors.end() || !runs_empty_script_on_host(*entry)) return {};
  return find_failure_in_sandbox(executor).value_or("");
}

// Errors: the reasons why a trial is not possible.
Result<std::string> ExecutorTrials::find_failure_in_sandbox(const Executor& executor) {
  if (!sandbox_) {
    MJ_TRY(sandbox, call_.dependencies.start_sandbox(call_.settings, {}, -1));
    sandbox_ = std::move(sandbox);
  }
  MJ_TRY(stages,
         stage_runs(executor, make_operator_defaults(call_.settings), {}, nullptr, kTrialTimeoutMs, call_.context()));
  for (RunSpec& spec : stages.specs) spec.context = call_.context();
  JobFacts facts;
  facts.job.id = 1;
  facts.job.caller_id = kDefaultCaller;
  facts.job.context_id = call_.context();
  facts.job.name = "trial";
  facts.job.script_type = executor.script_types().front();
  facts.job.script = kEmptyScript;
  facts.deadline_unix_ms = call_.dependencies.clock.unix_ms() + kTrialTimeoutMs;
  facts.max_result_bytes = call_.settings.job_max_result_bytes;
  facts.granted_policy = stages.policy;
  MJ_TRY(conversation, executor.begin(facts, nullptr));
  LocalRunHooks hooks;
  hooks.on_output = [](bool, std::string_view) {};
  hooks.on_note = [](const std::string&) {};
  const std::uint64_t run_id = std::exchange(next_run_id_, next_run_id_ + stages.specs.size());
  MJ_TRY(run, run_locally(*sandbox_, std::move(stages.specs), *conversation, hooks, run_id));
  if (run.end.status == JobStatus::finished) return std::string();
  return "an empty script ends well on this host and fails in its sandbox: " +
         shorten_text(to_printable_line(run.end.error.empty() ? run.end.detail : run.end.error), 200) +
         "; grant what it needs in [executors." + std::string(executor.name()) + ".policy] (docs/executors/command.md)";
}

}  // namespace mycojobs
