#include "cli/commands/sandbox_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/fd.h"
#include "cli/artifact_output.h"
#include "cli/commands/command_table.h"
#include "cli/commands/executor_commands.h"
#include "cli/job_submission.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "executors/run_specs.h"
#include "model/codec.h"
#include "model/policy_json.h"
#include "model/result_values.h"
#include "sandbox/withheld_calls.h"
#include "text/json.h"
#include "text/utf8.h"
#include "worker/runs/job_output.h"

namespace mycojobs {
namespace {

constexpr const char* kNoAgent = "this run has no agent and no store behind it: use `mycojobs run` or submit the job";

class OutputFollower {
 public:
  OutputFollower(Sandbox& sandbox, const RunSpec& spec, Conversation& conversation, const RunPipes& pipes,
                 const LocalRunHooks& hooks)
      : sandbox_(sandbox),
        run_(spec.run),
        conversation_(conversation),
        out_(pipes.out),
        err_(pipes.err),
        channel_(pipes.channel),
        requests_(pipes.requests),
        hooks_(hooks) {}

  Outcome to_the_end() {
    std::optional<Outcome> outcome;
    while (!outcome) {
      send_request();  // before the wait, because the script may wait for it
      wait();
      read_all();
      if (hooks_.output_bytes != 0 && written() > hooks_.output_bytes) sandbox_.kill(run_, KillReason::output_limit, 0);
      for (auto& ended : sandbox_.read_ended()) {
        if (ended.run == run_ && ended.outcome.status != RunStatus::unkillable) outcome = std::move(ended.outcome);
      }
    }
    while (read_all()) {
    }
    outcome->usage.stdout_bytes = out_bytes_;
    outcome->usage.stderr_bytes = err_bytes_;
    return std::move(*outcome);
  }

 private:
  std::uint64_t written() const { return out_bytes_ + err_bytes_; }

  void wait() {
    const bool more_to_send = sent_ < outgoing_.size();
    std::array<pollfd, 5> sources{{{sandbox_.event_fd(), POLLIN, 0},
                                   {out_.get(), POLLIN, 0},
                                   {err_.get(), POLLIN, 0},
                                   {channel_.get(), POLLIN, 0},
                                   {more_to_send ? requests_.get() : -1, POLLOUT, 0}}};
    ::poll(sources.data(), sources.size(), -1);  // a closed descriptor is -1, which poll() ignores
  }
  void send_request() {
    while (requests_) {
      if (sent_ == outgoing_.size()) outgoing_ = conversation_.take_output(), sent_ = 0;
      if (outgoing_.empty()) return;
      const ssize_t sent = send_bytes(requests_.get(), std::string_view(outgoing_).substr(sent_), attachment_);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) sent_ = outgoing_.size();  // the outcome contains the reason
      if (sent < 0) return;
      attachment_ = -1;
      sent_ += static_cast<std::size_t>(sent);
    }
  }
  bool read_all() {
    const bool out = read(out_, [this](std::string_view bytes) {
      out_bytes_ += bytes.size();
      conversation_.on_stdout(bytes);
      hooks_.on_output(false, bytes);
      cancel_if_due(bytes);
    });
    const bool err = read(err_, [this](std::string_view bytes) {
      err_bytes_ += bytes.size();
      conversation_.on_stderr(bytes);
      hooks_.on_output(true, bytes);
    });
    const bool channel = read(channel_, [this](std::string_view bytes) { listen(bytes); });
    return out || err || channel;
  }
  void listen(std::string_view bytes) {
    conversation_.feed(bytes);
    for (const auto& note : conversation_.take_notes()) hooks_.on_note(note);
    for (const auto& call : conversation_.take_calls()) {
      const auto asked = parse_json(call);
      const auto id = asked && asked->is_object() && asked->contains("id") ? (*asked)["id"] : nlohmann::json(0);
      conversation_.answer(dump_json({{"id", id}, {"error", {{"code", "unavailable"}, {"message", kNoAgent}}}}));
    }
  }
  void cancel_if_due(std::string_view bytes) {
    constexpr std::uint32_t kGraceMs = 5000;
    if (hooks_.cancel_at.empty() || cancelled_) return;
    seen_ += bytes;
    cancelled_ = seen_.find(hooks_.cancel_at) != std::string::npos;
    if (cancelled_) sandbox_.kill(run_, KillReason::cancelled, kGraceMs);
  }
  template <class Take>
  bool read(Fd& fd, const Take& take) {
    if (!fd) return false;
    std::array<char, 65536> buffer;  // NOLINT(*-member-init): filled by read
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) return fd.reset(), false;
    take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    return true;
  }

  Sandbox& sandbox_;
  std::uint64_t run_;
  Conversation& conversation_;
  Fd out_, err_, channel_, requests_;
  const LocalRunHooks& hooks_;
  std::string seen_;  // stdout, if cancel_at is set
  bool cancelled_ = false;
  std::string outgoing_;
  std::size_t sent_ = 0;
  int attachment_ = conversation_.attachment();  // -1 after it was sent
  std::uint64_t out_bytes_ = 0, err_bytes_ = 0;
};

}  // namespace

Result<LocalRun> run_locally(Sandbox& sandbox, std::vector<RunSpec> stages, Conversation& conversation,
                             const LocalRunHooks& hooks, std::uint64_t first_run) {
  LocalRun done;
  do {
    RunSpec& spec = stages.at(conversation.stage());
    spec.run = first_run++;
    MJ_TRY(pipes, sandbox.launch(spec));
    done.outcome = OutputFollower(sandbox, spec, conversation, pipes, hooks).to_the_end();
    apply_output_limit(done.outcome, hooks.output_bytes);
  } while (conversation.next_stage(done.outcome));
  done.end = conversation.finish(done.outcome);
  return done;
}

// mycojobs sandbox run FILE, mycojobs policy learn FILE: runs one script in a sandbox of this process, without Redis.
// The policy of the file applies without a ceiling, because the user is the operator of this process.

namespace {

using nlohmann::json;

struct RunTrial {
  std::string profile;
  Policy policy;
  LocalRun run;
  std::vector<FolderSink::StoredFile> artifacts;
  std::vector<std::string> not_stored;
};

Result<RunTrial> try_file(const Invocation& call, bool learn) {
  MJ_TRY(submission, read_submission(call));
  Job& job = submission.job;
  job.id = 1;
  MJ_TRY(found, find_executor(call, job.script_type, "--type: "));
  const std::unique_ptr<Executor> executor = std::move(found.executor);
  RunTrial tried;
  tried.profile = executor->stages().back().profile;
  const std::uint64_t timeout_ms = job.timeout ? *job.timeout * 1000ULL : call.settings.job_default_timeout_ms;
  MJ_TRY(staged, stage_runs(*executor, operator_defaults(call.settings), read_policy(job.policy, "policy").request,
                            nullptr, timeout_ms));
  for (RunSpec& spec : staged.specs) {
    spec.context = job.context_id;
    spec.learn = learn;
    spec.warm = {};  // a warm script has a single run here
  }
  tried.policy = staged.policy;
  exit_on_stop_signals();  // the launcher and all its processes end with this process
  MJ_TRY(sandbox, call.parts.sandbox(call.settings, {}, -1));
  JobFacts facts;
  facts.job = job;
  facts.deadline_unix_ms = call.parts.clock.unix_ms() + staged.specs.back().limits.wall_ms;
  facts.max_result_bytes = call.settings.job_max_result_bytes;
  facts.granted = staged.policy;
  if (!staged.policy.secrets.empty()) {
    MJ_TRY(values, Secrets(secret_states(call.settings), job.context_id).rescan()->values(staged.policy.secrets));
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
  hooks.output_bytes = tried.policy.output_kill ? tried.policy.output_bytes : 0;
  hooks.on_output = [&call](bool is_err, std::string_view bytes) { print_output(is_err || call.json, bytes); };
  hooks.on_note = [](const std::string& note) {
    print_message(paint(OutputStyle::faint, "note: ", true) + printable(note));
  };
  MJ_TRY(run, run_locally(*sandbox, std::move(staged.specs), *conversation, hooks));
  tried.run = std::move(run);
  if (sink) tried.artifacts = sink->kept(), tried.not_stored = sink->notes();
  return tried;
}

json report_of(const Outcome& outcome) {
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

int exit_code_of(const RunTrial& tried) {
  Job job;
  job.status = tried.run.end.status;
  job.detail = tried.run.end.detail;
  return exit_code(job);
}

std::string milliseconds(std::uint64_t us) { return fmt::format("{:.1f} ms", static_cast<double>(us) / 1000); }

void show_outcome(const RunTrial& tried) {
  const Outcome& outcome = tried.run.outcome;
  const Usage& usage = outcome.usage;
  for (const auto& [key, value] : tried.run.end.result)
    print_message(paint(OutputStyle::strong, one_line(key), true) + " = " + printable(value));
  for (const auto& [name, bytes] : tried.artifacts)
    print_message(paint(OutputStyle::strong, "artifact ", true) + one_line(name) + " (" + size_text(bytes) + ")");
  for (const auto& note : tried.not_stored) print_message(paint(OutputStyle::warn, "note: ", true) + printable(note));
  if (!tried.run.end.error.empty())
    print_message(paint(OutputStyle::bad, "error: ", true) + printable(tried.run.end.error));
  for (const auto& note : outcome.notes) print_message(paint(OutputStyle::warn, "note: ", true) + printable(note));
  std::string layers;
  for (const auto& layer : outcome.layers) layers += (layers.empty() ? "" : " ") + layer;
  std::uint64_t setup_us = 0;
  for (const auto& step : outcome.setup) setup_us += step.us;
  const auto row = [](std::string_view name, const std::string& text) {
    print_message(paint(OutputStyle::faint, fmt::format("{:<8}", name), true) + text);
  };
  row("status", std::string(to_string(outcome.status)));
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
    json object = report_of(tried.run.outcome);
    object["profile"] = tried.profile;
    object["policy"] = to_json(tried.policy);
    object["detail"] = tried.run.end.detail;
    object["error"] = tried.run.end.error;
    object["result"] = typed_values(tried.run.end.result, tried.run.end.result_json);
    object["artifacts"] = json::object();
    for (const auto& [name, bytes] : tried.artifacts) object["artifacts"][name] = {{"bytes", bytes}};
    object["artifacts_not_kept"] = tried.not_stored;
    print(dump_json(object, 2) + "\n");
  } else {
    show_outcome(tried);
  }
  return exit_code_of(tried);
}

bool may_be_granted(const std::string& path) {
  return !path.starts_with("/var/tmp/") && policies::check_folder(path).has_value();
}

// Derives a policy from the notes of a learning run.
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
    } else if (kind == "syscall" && is_never_granted(what)) {
      remarks.push_back("calls " + what + ", which is never granted: not listed above");
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
  remarks.push_back("the run ended as " + std::string(to_string(outcome.status)) +
                    (tried.run.end.error.empty() ? "" : ": " + one_line(tried.run.end.error)) +
                    (asked.named.any() ? "; refused calls may hide further ones: grant this and learn again" : ""));
  if (call.json) {
    print(dump_json({{"policy", json::parse(write_policy(asked))}, {"remarks", remarks}, {"seen", outcome.notes}}, 2) +
          "\n");
    return 0;
  }
  std::string text = "# what " + one_line(call.arguments.at(0)) + " used beyond the profile " + tried.profile + "\n";
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (asked.names(field)) text += std::string(to_string(field)) + " = " + value_text(field, asked.values) + "\n";
  }
  for (const auto& remark : remarks) text += "# " + one_line(remark) + "\n";
  print(text);
  return 0;
}

}  // namespace

int sandbox_run_command(Invocation& call) { return finish(run_file(call)); }
int policy_learn_command(Invocation& call) { return finish(learn_file(call)); }

}  // namespace mycojobs
