// mycojobs sandbox run FILE, mycojobs policy learn FILE: one script in a sandbox of this process, without Redis. The
// policy is what the file says, without an operator's ceiling: whoever calls is the operator of this process.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/artifact_files.h"
#include "cli/commands.h"
#include "cli/find_executor.h"
#include "cli/local_run.h"
#include "cli/serve.h"
#include "cli/session.h"
#include "cli/submission.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/policy_fields.h"
#include "domain/result_values.h"
#include "domain/utf8.h"
#include "worker/stages.h"

namespace mycojobs {
namespace {

using nlohmann::json;

struct Tried {
  std::string profile;
  Policy policy;
  LocalRun run;
  std::vector<FolderSink::Kept> artifacts;
  std::vector<std::string> not_kept;
};

Result<Tried> try_file(const Invocation& call, bool learn) {
  MJ_TRY(submission, read_submission(call));
  Job& job = submission.job;
  job.id = 1;
  MJ_TRY(found, find_executor(call, job.script_type, "--type: "));
  const std::unique_ptr<Executor> executor = std::move(found.executor);
  Tried tried;
  tried.profile = executor->stages().back().profile;
  const std::uint64_t timeout_ms = job.timeout ? *job.timeout * 1000ULL : call.settings.job_default_timeout_ms;
  MJ_TRY(staged, stage_runs(*executor, operator_defaults(call.settings), read_policy(job.policy, "policy").request,
                            nullptr, timeout_ms));
  for (RunSpec& spec : staged.specs) {
    spec.context = job.context_id;
    spec.learn = learn;
  }
  tried.policy = staged.policy;
  leave_at_stop_signals();  // the launcher ends with us, and all that it has started
  MJ_TRY(sandbox, call.parts.sandbox(call.settings, {}, -1));
  JobFacts facts;
  facts.job = job;
  facts.deadline_unix_ms = call.parts.clock.unix_ms() + staged.specs.back().limits.wall_ms;
  facts.max_result_bytes = call.settings.job_max_result_bytes;
  facts.granted = staged.policy;
  Secrets secrets(secret_places(call.settings), call.parts.clock);
  MJ_TRY(values, secrets.values(job.context_id, staged.policy.secrets));
  facts.secrets = std::move(values);
  facts.max_artifact_bytes = call.settings.job_max_artifact_bytes;
  std::unique_ptr<FolderSink> sink;
  if (call.has("artifacts")) {
    MJ_TRY(folder, OutputFolder::open(call.get("artifacts")));
    sink = std::make_unique<FolderSink>(std::move(folder), facts.max_artifact_bytes);
  }
  MJ_TRY(conversation, executor->begin(facts, sink.get()));
  LocalRunHooks hooks;
  hooks.output_bytes = tried.policy.output_kill ? tried.policy.output_bytes : 0;
  hooks.on_output = [&call](bool is_err, std::string_view bytes) { print_output(is_err || call.json, bytes); };
  hooks.on_note = [](const std::string& note) { say(paint(Tone::faint, "note: ", true) + printable(note)); };
  MJ_TRY(run, run_locally(*sandbox, std::move(staged.specs), *conversation, hooks));
  tried.run = std::move(run);
  if (sink) tried.artifacts = sink->kept(), tried.not_kept = sink->notes();
  return tried;
}

json to_json(const Outcome& outcome) {
  json object = {
      {"status", word(outcome.status)}, {"reason", to_utf8(outcome.reason)}, {"exit_code", outcome.exit_code},
      {"signal", outcome.signal},       {"stragglers", outcome.stragglers},  {"layers", outcome.layers},
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

int exit_code_of(const Tried& tried) {
  Job job;
  job.status = tried.run.end.status;
  job.detail = tried.run.end.detail;
  return exit_code(job);
}

std::string milliseconds(std::uint64_t us) { return fmt::format("{:.1f} ms", static_cast<double>(us) / 1000); }

void show_outcome(const Tried& tried) {
  const Outcome& outcome = tried.run.outcome;
  const Usage& usage = outcome.usage;
  for (const auto& [key, value] : tried.run.end.result)
    say(paint(Tone::strong, one_line(key), true) + " = " + printable(value));
  for (const auto& [name, bytes] : tried.artifacts)
    say(paint(Tone::strong, "artifact ", true) + one_line(name) + " (" + size_text(bytes) + ")");
  for (const auto& note : tried.not_kept) say(paint(Tone::warn, "note: ", true) + printable(note));
  if (!tried.run.end.error.empty()) say(paint(Tone::bad, "error: ", true) + printable(tried.run.end.error));
  for (const auto& note : outcome.notes) say(paint(Tone::warn, "note: ", true) + printable(note));
  std::string layers;
  for (const auto& layer : outcome.layers) layers += (layers.empty() ? "" : " ") + layer;
  std::uint64_t setup_us = 0;
  for (const auto& step : outcome.setup) setup_us += step.us;
  const auto row = [](std::string_view name, const std::string& text) {
    say(paint(Tone::faint, fmt::format("{:<8}", name), true) + text);
  };
  row("status", std::string(word(outcome.status)));
  row("usage", fmt::format("wall {}, CPU {}, memory at most {:.1f} MiB, processes at most {}, output {} bytes",
                           milliseconds(usage.wall_us), milliseconds(usage.user_us + usage.system_us),
                           static_cast<double>(usage.memory_peak_bytes) / (1 << 20), usage.pids_peak,
                           usage.stdout_bytes + usage.stderr_bytes));
  row("set up", milliseconds(setup_us));
  row("layers", layers);
}

Result<int> run_file(const Invocation& call) {
  MJ_TRY(tried, try_file(call, false));
  if (call.json) {
    json object = to_json(tried.run.outcome);
    object["profile"] = tried.profile;
    object["policy"] = to_json(tried.policy);
    object["detail"] = tried.run.end.detail;
    object["error"] = tried.run.end.error;
    object["result"] = typed_values(tried.run.end.result, tried.run.end.result_json);
    object["artifacts"] = json::object();
    for (const auto& [name, bytes] : tried.artifacts) object["artifacts"][name] = {{"bytes", bytes}};
    object["artifacts_not_kept"] = tried.not_kept;
    print(dump_json(object, 2) + "\n");
  } else {
    show_outcome(tried);
  }
  return exit_code_of(tried);
}

bool may_be_granted(const std::string& path) {
  return !path.starts_with("/var/tmp/") && policies::check_folder(path).has_value();
}

// What the notes of a learning run come to, as a policy.
PolicyRequest learned(const std::vector<std::string>& notes, std::vector<std::string>& remarks) {
  PolicyRequest asked;
  const auto name = [&asked](PolicyField field) { asked.named.set(static_cast<std::size_t>(field)); };
  for (const std::string& note : notes) {
    const std::string kind = note.substr(0, note.find(' '));
    const std::string what = note.substr(std::min(note.size(), kind.size() + 1));
    if (kind == "read" && may_be_granted(what)) {
      asked.values.fs_read.push_back(what), name(PolicyField::fs_read);
    } else if (kind == "write" && may_be_granted(what)) {
      asked.values.fs_write.push_back(what), name(PolicyField::fs_write);
    } else if (kind == "exec") {
      asked.values.exec = true, name(PolicyField::exec);
      if (!what.empty()) remarks.push_back("starts " + what);
    } else if (note == "socket inet") {
      asked.values.network = Network::loopback, name(PolicyField::net);
      remarks.emplace_back("opens internet sockets: name the places, as in net = [\"api.example.org:443\"]");
    } else if (kind == "syscall" && is_never_innocent(what)) {
      remarks.push_back("calls " + what + ", which no script needs that means well: not listed above");
    } else if (kind == "syscall") {
      asked.values.syscalls.push_back(what), name(PolicyField::syscalls);
    } else if (kind != "read" && kind != "write") {
      remarks.push_back(note);
    }
  }
  return asked;
}

Result<int> learn_file(const Invocation& call) {
  MJ_TRY(tried, try_file(call, true));
  const Outcome& outcome = tried.run.outcome;
  std::vector<std::string> remarks;
  const PolicyRequest asked = learned(outcome.notes, remarks);
  const Usage& usage = outcome.usage;
  remarks.push_back(fmt::format("used: memory {:.1f} MiB, CPU {}, processes and threads {}",
                                static_cast<double>(usage.memory_peak_bytes) / (1 << 20),
                                milliseconds(usage.user_us + usage.system_us), usage.pids_peak));
  remarks.push_back("the run ended as " + std::string(word(outcome.status)) +
                    (tried.run.end.error.empty() ? "" : ": " + one_line(tried.run.end.error)) +
                    (asked.named.any() ? "; what was refused may hide more: grant this and learn again" : ""));
  if (call.json) {
    print(dump_json({{"policy", json::parse(write_policy(asked))}, {"remarks", remarks}, {"seen", outcome.notes}}, 2) +
          "\n");
    return 0;
  }
  std::string text = "# what " + one_line(call.arguments.at(0)) + " used beyond the profile " + tried.profile + "\n";
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (asked.names(field)) text += std::string(word(field)) + " = " + value_text(field, asked.values) + "\n";
  }
  for (const auto& remark : remarks) text += "# " + one_line(remark) + "\n";
  print(text);
  return 0;
}

}  // namespace

int sandbox_run_command(Invocation& call) { return finish(run_file(call)); }
int policy_learn_command(Invocation& call) { return finish(learn_file(call)); }

}  // namespace mycojobs
