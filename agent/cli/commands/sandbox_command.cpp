#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/artifact_output.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/executor_lookup.h"
#include "cli/job_submission.h"
#include "cli/local_run.h"
#include "cli/run_service.h"
#include "cli/service_setup.h"
#include "cli/terminal.h"
#include "executors/run_specs.h"
#include "model/codec.h"
#include "model/policy_json.h"
#include "model/result_values.h"
#include "sandbox/withheld_calls.h"
#include "text/utf8.h"

namespace mycojobs {

// mycojobs sandbox run FILE, mycojobs policy learn FILE: runs one script in a sandbox of this process, without Redis.
// The policy of the file applies without a ceiling, because the user is the operator of this process.

namespace {

using nlohmann::json;

// Result of a script that ran in the sandbox of this process.
struct RunTrial {
  std::string profile;
  Policy policy;
  LocalRun local_run;
  std::vector<FolderSink::StoredFile> artifacts;
  std::vector<std::string> artifact_notes;  // rejected artifacts with the reasons
};

// Looks up the owners of all files, and checks those of the folders in which the job may create files.
Result<void> resolve_job_owners(Settings& settings, Id context, const Policy& policy) {
  std::vector<std::string> needed;
  for (const std::string& volume : policy.volumes)
    needed.push_back(fmt::format("contexts.{}.volumes.{}.owner", context, volume));
  // Files of jobs of an ordinary user belong to the user.
  if (!policy.fs_write.empty() && ::geteuid() == 0) needed.push_back(fmt::format("contexts.{}.files.owner", context));
  auto rejected = resolve_owners(settings, {context});
  for (const std::string& name : needed) {
    for (RejectedSetting& setting : rejected) {
      if (setting.name == name) return fail(std::move(setting.error), name);
    }
  }
  return {};
}

// Runs FILE. is_learning: accesses that the policy does not grant are recorded instead of refused where possible.
Result<RunTrial> run_trial(Invocation& call, bool is_learning) {
  MJ_TRY(submission, read_submission(call));
  Job& job = submission.job;
  job.id = 1;
  MJ_TRY(found_executor, find_executor(call, job.script_type, "--type: "));
  const std::unique_ptr<Executor> executor = std::move(found_executor.executor);
  RunTrial trial;
  trial.profile = executor->stages().back().profile;
  const std::uint64_t timeout_ms = job.timeout ? *job.timeout * 1000ULL : call.settings.job_default_timeout_ms;
  MJ_TRY(stages, stage_runs(*executor, make_operator_defaults(call.settings), read_policy(job.policy, "policy").request,
                            nullptr, timeout_ms, job.context_id));
  MJ_CHECK(resolve_job_owners(call.settings, job.context_id, stages.policy));
  MJ_CHECK(add_volumes(stages.policy, call.settings.ceilings.get(job.context_id).volumes, stages.specs.back()));
  for (RunSpec& spec : stages.specs) {
    spec.context = job.context_id;
    spec.learn = is_learning;
    spec.warm = {};  // a warm script has a single run here
  }
  trial.policy = stages.policy;
  exit_on_stop_signals();  // the launcher and all its processes end with this process
  MJ_TRY(sandbox, call.dependencies.start_sandbox(call.settings, {}, -1));
  JobFacts facts;
  facts.job = job;
  facts.deadline_unix_ms = call.dependencies.clock.unix_ms() + stages.specs.back().limits.wall_ms;
  facts.max_result_bytes = call.settings.job_max_result_bytes;
  facts.granted_policy = stages.policy;
  if (!stages.policy.secrets.empty()) {
    MJ_TRY(
        values,
        SecretReader(get_secret_sources(call.settings), job.context_id).rescan()->get_secrets(stages.policy.secrets));
    facts.secrets = std::move(values);
  }
  facts.max_artifact_bytes = call.settings.job_max_artifact_bytes;
  std::unique_ptr<FolderSink> sink;
  if (call.has("artifacts")) {
    MJ_TRY(folder, OutputFolder::open(call.get("artifacts")));
    sink = std::make_unique<FolderSink>(std::move(folder), facts.max_artifact_bytes);
  }
  MJ_TRY(conversation, executor->begin(facts, sink.get()));
  LocalRunHooks hooks;
  hooks.max_output_bytes = trial.policy.output_kill ? trial.policy.output_bytes : 0;
  hooks.on_output = [&call](bool is_err, std::string_view bytes) { print_output(is_err || call.json, bytes); };
  hooks.on_note = [](const std::string& note) {
    print_message(paint(OutputStyle::faint, "note: ", true) + to_printable(note));
  };
  MJ_TRY(local_run, run_locally(*sandbox, std::move(stages.specs), *conversation, hooks));
  trial.local_run = std::move(local_run);
  if (sink) trial.artifacts = sink->files(), trial.artifact_notes = sink->notes();
  return trial;
}

json to_json_report(const Outcome& outcome) {
  json object = {{"status", to_string(outcome.status)},
                 {"reason", to_utf8(outcome.reason)},
                 {"exit_code", outcome.exit_code},
                 {"signal", outcome.signal},
                 {"stragglers", outcome.stragglers},
                 {"layers", outcome.layers},
                 {"notes", outcome.notes}};
  const Usage& usage = outcome.usage;
  object["usage"] = {{"wall_us", usage.wall_us},          {"user_us", usage.user_us},
                     {"system_us", usage.system_us},      {"memory_peak_bytes", usage.memory_peak_bytes},
                     {"pids_peak", usage.pids_peak},      {"stdout_bytes", usage.stdout_bytes},
                     {"stderr_bytes", usage.stderr_bytes}};
  for (const auto& step : outcome.setup) object["setup"].push_back({{"step", step.step}, {"us", step.us}});
  if (outcome.violation) {
    const Violation& violation = *outcome.violation;
    object["violation"] = {{"syscall", violation.syscall},
                           {"args", violation.args},
                           {"pid", violation.pid},
                           {"comm", to_utf8(violation.comm)}};
  }
  if (outcome.setup_error) {
    const SetupError& error = *outcome.setup_error;
    object["setup_error"] = {{"step", error.step}, {"errno", error.error}, {"remedy", error.remedy}};
  }
  return object;
}

int get_exit_code(const RunTrial& trial) {
  Job job;
  job.status = trial.local_run.end.status;
  job.detail = trial.local_run.end.detail;
  return exit_code(job);
}

std::string format_milliseconds(std::uint64_t us) { return fmt::format("{:.1f} ms", static_cast<double>(us) / 1000); }

void print_outcome(const RunTrial& trial) {
  const Outcome& outcome = trial.local_run.outcome;
  const Usage& usage = outcome.usage;
  for (const auto& [key, value] : trial.local_run.end.result)
    print_message(paint(OutputStyle::strong, to_printable_line(key), true) + " = " + to_printable(value));
  for (const auto& [name, bytes] : trial.artifacts)
    print_message(paint(OutputStyle::strong, "artifact ", true) + to_printable_line(name) + " (" + format_size(bytes) +
                  ")");
  for (const auto& note : trial.artifact_notes)
    print_message(paint(OutputStyle::warn, "note: ", true) + to_printable(note));
  if (!trial.local_run.end.error.empty())
    print_message(paint(OutputStyle::bad, "error: ", true) + to_printable(trial.local_run.end.error));
  for (const auto& note : outcome.notes) print_message(paint(OutputStyle::warn, "note: ", true) + to_printable(note));
  std::string layers;
  for (const auto& layer : outcome.layers) layers += (layers.empty() ? "" : " ") + layer;
  std::uint64_t setup_us = 0;
  for (const auto& step : outcome.setup) setup_us += step.us;
  const auto print_row = [](std::string_view name, const std::string& text) {
    print_message(paint(OutputStyle::faint, fmt::format("{:<8}", name), true) + text);
  };
  print_row("status", std::string(to_string(outcome.status)));
  print_row("usage",
            fmt::format("wall {}, CPU {}, memory at most {:.1f} MiB, processes at most {}, output {} bytes",
                        format_milliseconds(usage.wall_us), format_milliseconds(usage.user_us + usage.system_us),
                        static_cast<double>(usage.memory_peak_bytes) / (1 << 20), usage.pids_peak,
                        usage.stdout_bytes + usage.stderr_bytes));
  print_row("set up", format_milliseconds(setup_us));
  print_row("layers", layers);
}

bool is_grantable(const std::string& path) {
  return !path.starts_with("/var/tmp/") && policies::check_folder(path).has_value();
}

// Derives a policy from the notes of a learning run. remarks: notes that cannot be granted by a policy.
PolicyRequest derive_policy(const std::vector<std::string>& notes, std::vector<std::string>& remarks) {
  PolicyRequest request;
  const auto set_field = [&request](PolicyField field) { request.named_fields.set(static_cast<std::size_t>(field)); };
  for (const std::string& note : notes) {
    const std::string kind = note.substr(0, note.find(' '));
    const std::string value = note.substr(std::min(note.size(), kind.size() + 1));
    if (kind == "read" && is_grantable(value)) {
      request.values.fs_read.push_back(value), set_field(PolicyField::fs_read);
    } else if (kind == "write" && is_grantable(value)) {
      request.values.fs_write.push_back(value), set_field(PolicyField::fs_write);
    } else if (kind == "exec") {
      request.values.exec = true, set_field(PolicyField::exec);
      if (!value.empty()) remarks.push_back("starts " + value);
    } else if (note == "socket inet") {
      request.values.network = Network::loopback, set_field(PolicyField::net);
      remarks.emplace_back("opens internet sockets: name the places, as in net = [\"api.example.org:443\"]");
    } else if (kind == "syscall" && is_forbidden_syscall(value)) {
      remarks.push_back("calls " + value + ", which no script needs that means well: not listed above");
    } else if (kind == "syscall" && !never_granted_reason(value).empty()) {
      remarks.push_back("calls " + value + ", which is never granted: not listed above");
    } else if (kind == "syscall") {
      request.values.syscalls.push_back(value), set_field(PolicyField::syscalls);
    } else if (kind != "read" && kind != "write") {
      remarks.push_back(note);
    }
  }
  return request;
}

}  // namespace

Result<int> sandbox_run_command(Invocation& call) {
  MJ_TRY(trial, run_trial(call, false));
  if (call.json) {
    json object = to_json_report(trial.local_run.outcome);
    object["profile"] = trial.profile;
    object["policy"] = to_json(trial.policy);
    object["detail"] = trial.local_run.end.detail;
    object["error"] = trial.local_run.end.error;
    object["result"] = to_typed_json(trial.local_run.end.result, trial.local_run.end.result_json);
    object["artifacts"] = json::object();
    for (const auto& [name, bytes] : trial.artifacts) object["artifacts"][name] = {{"bytes", bytes}};
    object["artifacts_not_kept"] = trial.artifact_notes;
    print_json(object);
  } else {
    print_outcome(trial);
  }
  return get_exit_code(trial);
}

Result<int> policy_learn_command(Invocation& call) {
  MJ_TRY(trial, run_trial(call, true));
  const Outcome& outcome = trial.local_run.outcome;
  std::vector<std::string> remarks;
  const PolicyRequest request = derive_policy(outcome.notes, remarks);
  const Usage& usage = outcome.usage;
  remarks.push_back(fmt::format("used: memory {:.1f} MiB, CPU {}, processes and threads {}",
                                static_cast<double>(usage.memory_peak_bytes) / (1 << 20),
                                format_milliseconds(usage.user_us + usage.system_us), usage.pids_peak));
  remarks.push_back(
      "the run ended as " + std::string(to_string(outcome.status)) +
      (trial.local_run.end.error.empty() ? "" : ": " + to_printable_line(trial.local_run.end.error)) +
      (request.named_fields.any() ? "; refused calls may hide further ones: grant this and learn again" : ""));
  if (call.json)
    return print_json({{"policy", json::parse(write_policy(request))}, {"remarks", remarks}, {"seen", outcome.notes}});
  std::string text =
      "# what " + to_printable_line(call.arguments.at(0)) + " used beyond the profile " + trial.profile + "\n";
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (request.names(field))
      text += std::string(to_string(field)) + " = " + format_policy_value(field, request.values) + "\n";
  }
  for (const auto& remark : remarks) text += "# " + to_printable_line(remark) + "\n";
  print(text);
  return 0;
}

}  // namespace mycojobs
