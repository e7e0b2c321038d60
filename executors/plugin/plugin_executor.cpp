#include "executors/plugin/plugin_executor.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "executors/exec/program_conversation.h"
#include "executors/plugin/plugin_json.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMaxFaultsPerJob = 3;
constexpr std::size_t kMaxTrackedJobs = 256;

// Updates the receipt too, since it repeats the status of the end.
void set_status(JobEnd& end, JobStatus status, std::string detail) {
  end.status = status;
  end.detail = std::move(detail);
  if (auto receipt = parse_json(end.receipt); receipt && receipt->is_object()) {
    (*receipt)["status"] = end.detail;
    end.receipt = dump_json(*receipt);
  }
}

void apply_reply(const InterpretReply& reply, const Outcome& outcome, JobEnd& end) {
  if (reply.result) {
    set_status(end, JobStatus::finished, "ok");
    end.error.clear();
    end.error_info.clear();
    end.result = *reply.result;
    end.result_json.clear();  // all values are texts
    end.retry_forbidden = false;
    end.retry_after_ms = std::nullopt;
    return;
  }
  if (!reply.error_message) return;
  set_status(end, JobStatus::error, "exception");
  end.result.clear();
  end.result_json.clear();
  end.error = printable_line(reply.error_type + ": " + *reply.error_message);
  json info = {{"type", reply.error_type}, {"message", *reply.error_message}};
  if (reply.error_line > 0) {
    end.error += fmt::format(" (line {})", reply.error_line);
    info["line"] = reply.error_line;
  }
  if (outcome.status == RunStatus::signal) info["signal"] = outcome.signal;
  if (outcome.status == RunStatus::exit) info["exit"] = outcome.exit_code;
  end.error_info = dump_json(info);
  end.retry_forbidden = reply.retry_forbidden;
  end.retry_after_ms = reply.retry_after_ms;
}

bool has_exited(const Outcome& outcome) {
  return outcome.status == RunStatus::ok || outcome.status == RunStatus::exit || outcome.status == RunStatus::signal;
}

// The conversation of the program; at its end, the plugin may interpret the outcome.
class PluginConversation final : public Conversation {
 public:
  PluginConversation(std::unique_ptr<Conversation> program, std::shared_ptr<PluginClient> client, PluginUser user,
                     InterpretRequestJob request_job, std::vector<std::string> notes, std::uint64_t max_result_bytes)
      : program_(std::move(program)),
        user_(user),
        client_(std::move(client)),
        request_job_(std::move(request_job)),
        notes_(std::move(notes)),
        max_result_bytes_(max_result_bytes) {}

  std::string consume_output() override { return program_->consume_output(); }
  void feed(std::string_view bytes) override { program_->feed(bytes); }
  std::uint64_t frame_count() const override { return program_->frame_count(); }
  std::vector<std::string> consume_calls() override { return program_->consume_calls(); }
  void answer(std::string_view reply) override { program_->answer(reply); }
  void on_stderr(std::string_view bytes) override {
    program_->on_stderr(bytes);
    request_job_.stderr_tail.append(bytes);
    if (request_job_.stderr_tail.size() > 2 * kMaxStderrTailBytes)
      request_job_.stderr_tail.erase(0, request_job_.stderr_tail.size() - kMaxStderrTailBytes);
  }
  std::vector<std::string> consume_notes() override {
    std::vector<std::string> notes = std::exchange(notes_, {});
    for (std::string& note : program_->consume_notes()) notes.push_back(std::move(note));
    return notes;
  }
  bool next_stage(const Outcome& outcome) override { return program_->next_stage(outcome); }
  JobEnd finish(const Outcome& outcome) const override;

 private:
  std::unique_ptr<Conversation> program_;
  PluginUser user_;
  std::shared_ptr<PluginClient> client_;
  InterpretRequestJob request_job_;
  std::vector<std::string> notes_;
  std::uint64_t max_result_bytes_;
};

JobEnd PluginConversation::finish(const Outcome& outcome) const {
  JobEnd end = program_->finish(outcome);
  if (!client_->description().interprets || !has_exited(outcome)) return end;
  InterpretRequestJob request_job = request_job_;
  if (request_job.stderr_tail.size() > kMaxStderrTailBytes)
    request_job.stderr_tail.erase(0, request_job.stderr_tail.size() - kMaxStderrTailBytes);
  request_job.result = end.result;
  const auto reply = client_->interpret(user_, encode_interpret_request(request_job, outcome));
  const auto keep_default = [&](const std::string& reason) {
    log(LogLevel::warn, "plugin", "{}: the default result of a job is used: {}",
        job_key(request_job.caller_id, request_job.id), reason);
    return end;
  };
  if (!reply) return keep_default(reply.error().message);
  if (reply->result && outcome.status == RunStatus::signal) return keep_default("interpret: a result after a signal");
  std::uint64_t bytes = 0;
  if (reply->result) {
    for (const auto& [key, value] : *reply->result) bytes += key.size() + value.size();
  }
  if (bytes > max_result_bytes_) return keep_default(fmt::format("interpret: its result has {} bytes", bytes));
  apply_reply(*reply, outcome, end);
  return end;
}

}  // namespace

Stage PluginExecutor::stage() const {
  return {.profile = std::string(name()),
          .host = kProgramHost,
          .policy = client_->profile(),
          .needs_exec = true,
          .is_trusted = false};
}

Result<std::string> PluginExecutor::probe() const {
  auto program = client_->probe();
  if (!program) return fail(Code::unsupported, client_->file() + ": " + program.error().message);
  return fmt::format("{} (plugin {} {})", *program, name(), client_->description().version);
}

// Without this limit, a job that always crashes the plugin would be requeued without end.
Error PluginExecutor::count_fault(Error error, const std::string& job) const {
  const std::lock_guard lock(mutex_);
  if (error.code != Code::unavailable) {
    faults_.erase(job);
    return error;
  }
  if (faults_.size() >= kMaxTrackedJobs && !faults_.contains(job)) faults_.erase(faults_.begin());
  if (++faults_[job] < kMaxFaultsPerJob) return error;
  faults_.erase(job);
  return {Code::unsupported, fmt::format("{}: {} times over this job", error.message, kMaxFaultsPerJob)};
}

Result<std::unique_ptr<Conversation>> PluginExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  const PluginUser user{facts.job.context_id, facts.job.caller_id};
  if (std::string reason = client_->get_backoff_reason(user); !reason.empty())
    return fail(Code::unavailable, std::move(reason));
  const std::string job = std::to_string(user.context) + ' ' + job_key(facts.job.caller_id, facts.job.id);
  auto prepared = client_->prepare(user, encode_prepare_request(facts));
  if (!prepared) return tl::unexpected(count_fault(std::move(prepared).error(), job));
  {
    const std::lock_guard lock(mutex_);
    faults_.erase(job);
  }
  ProgramSpec spec;
  spec.executor = spec.profile = name();
  spec.command = std::move(prepared->command);
  spec.environment = std::move(prepared->environment);
  if (!prepared->script_file.empty()) spec.script_file = std::move(prepared->script_file);
  for (PluginFile& file : prepared->files)
    spec.files.push_back({std::move(file.path), std::move(file.bytes), file.mode});
  MJ_TRY(program, begin_program(facts, spec, sink));
  return std::make_unique<PluginConversation>(std::move(program), client_, user, make_interpret_request_job(facts.job),
                                              std::move(prepared->notes), facts.max_result_bytes);
}

}  // namespace mycojobs::plugin
