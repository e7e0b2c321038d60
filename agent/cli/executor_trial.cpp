#include "cli/executor_trial.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "cli/commands/sandbox_command.h"
#include "cli/store_session.h"
#include "executors/probe_program.h"
#include "executors/run_specs.h"
#include "text/terminal_text.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kTrialMs = 30000;
constexpr const char* kEmptyScript = "\n";  // a job with a script of zero bytes is rejected

// A new temporary folder, which the destructor removes. Empty path: it could not be created.
class TrialFolder {
 public:
  TrialFolder() {
    std::error_code unknown;
    std::string name = (fs::temp_directory_path(unknown) / "mycojobs-XXXXXX").string();
    if (!unknown && ::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TrialFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
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
    constexpr std::string_view kPlace = "{script}";
    for (auto at = argument.find(kPlace); at != std::string::npos; at = argument.find(kPlace, at + script.size()))
      argument.replace(at, kPlace.size(), script);
  }
  return probe_program(settings.command.front(), arguments).has_value();
}

}  // namespace

std::string ExecutorTrials::failure_of(const Executor& executor) {
  const auto& own = call_.settings.executors;
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const CommandSettings& each) { return each.name == executor.name(); });
  if (found == own.end() || !runs_empty_script_on_host(*found)) return {};
  return failure_in_sandbox(executor).value_or("");
}

// Error: the trial was not possible.
Result<std::string> ExecutorTrials::failure_in_sandbox(const Executor& executor) {
  if (!sandbox_) {
    MJ_TRY(started, call_.parts.sandbox(call_.settings, {}, -1));
    sandbox_ = std::move(started);
  }
  MJ_TRY(staged, stage_runs(executor, operator_defaults(call_.settings), {}, nullptr, kTrialMs));
  for (RunSpec& spec : staged.specs) spec.context = context_of(call_);
  JobFacts facts;
  facts.job.id = 1;
  facts.job.caller_id = kDefaultCaller;
  facts.job.context_id = context_of(call_);
  facts.job.name = "trial";
  facts.job.script_type = executor.script_types().front();
  facts.job.script = kEmptyScript;
  facts.deadline_unix_ms = call_.parts.clock.unix_ms() + kTrialMs;
  facts.max_result_bytes = call_.settings.job_max_result_bytes;
  facts.granted = staged.policy;
  MJ_TRY(conversation, executor.begin(facts, nullptr));
  LocalRunHooks hooks;
  hooks.on_output = [](bool, std::string_view) {};
  hooks.on_note = [](const std::string&) {};
  const std::uint64_t first_run = std::exchange(next_run_, next_run_ + staged.specs.size());
  MJ_TRY(run, run_locally(*sandbox_, std::move(staged.specs), *conversation, hooks, first_run));
  if (run.end.status == JobStatus::finished) return std::string();
  return "an empty script ends well on this host and fails in its sandbox: " +
         shortened(one_line(run.end.error.empty() ? run.end.detail : run.end.error), 200) +
         "; grant what it needs in [executors." + std::string(executor.name()) + ".policy] (docs/executors/command.md)";
}

}  // namespace mycojobs
