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

constexpr std::uint32_t kFaultsOfOneJob = 3;
constexpr std::size_t kJobsRemembered = 256;

// Updates the receipt too, since it repeats the status of the end.
void set_status(JobEnd& end, JobStatus status, std::string detail) {
  end.status = status;
  end.detail = std::move(detail);
  if (auto receipt = parse_json(end.receipt); receipt && receipt->is_object()) {
    (*receipt)["status"] = end.detail;
    end.receipt = dump_json(*receipt);
  }
}

void apply(const InterpretReply& read, const Outcome& outcome, JobEnd& end) {
  if (read.result) {
    set_status(end, JobStatus::finished, "ok");
    end.error.clear();
    end.error_info.clear();
    end.result = *read.result;
    end.result_json.clear();  // all values are texts
    end.retry_forbidden = false;
    end.retry_after_ms = std::nullopt;
    return;
  }
  if (!read.message) return;
  set_status(end, JobStatus::error, "exception");
  end.result.clear();
  end.result_json.clear();
  end.error = printable_line(read.type + ": " + *read.message);
  json info = {{"type", read.type}, {"message", *read.message}};
  if (read.line > 0) {
    end.error += fmt::format(" (line {})", read.line);
    info["line"] = read.line;
  }
  if (outcome.status == RunStatus::signal) info["signal"] = outcome.signal;
  if (outcome.status == RunStatus::exit) info["exit"] = outcome.exit_code;
  end.error_info = dump_json(info);
  end.retry_forbidden = read.retry_forbidden;
  end.retry_after_ms = read.retry_after_ms;
}

bool ended_by_itself(const Outcome& outcome) {
  return outcome.status == RunStatus::ok || outcome.status == RunStatus::exit || outcome.status == RunStatus::signal;
}

// The conversation of the program; at its end, the plugin may interpret the outcome.
class PluginConversation final : public Conversation {
 public:
  PluginConversation(std::unique_ptr<Conversation> program, std::shared_ptr<PluginClient> client, PluginUser user,
                     PluginRunEnd ended, std::vector<std::string> notes, std::uint64_t max_result_bytes)
      : program_(std::move(program)),
        user_(user),
        client_(std::move(client)),
        ended_(std::move(ended)),
        notes_(std::move(notes)),
        max_result_bytes_(max_result_bytes) {}

  std::string take_output() override { return program_->take_output(); }
  void feed(std::string_view bytes) override { program_->feed(bytes); }
  std::uint64_t frames() const override { return program_->frames(); }
  std::vector<std::string> take_calls() override { return program_->take_calls(); }
  void answer(std::string_view reply) override { program_->answer(reply); }
  void on_stderr(std::string_view bytes) override {
    program_->on_stderr(bytes);
    ended_.stderr_tail.append(bytes);
    if (ended_.stderr_tail.size() > 2 * kStderrTail)
      ended_.stderr_tail.erase(0, ended_.stderr_tail.size() - kStderrTail);
  }
  std::vector<std::string> take_notes() override {
    std::vector<std::string> all = std::exchange(notes_, {});
    for (std::string& note : program_->take_notes()) all.push_back(std::move(note));
    return all;
  }
  bool next_stage(const Outcome& outcome) override { return program_->next_stage(outcome); }
  JobEnd finish(const Outcome& outcome) const override;

 private:
  std::unique_ptr<Conversation> program_;
  PluginUser user_;
  std::shared_ptr<PluginClient> client_;
  PluginRunEnd ended_;
  std::vector<std::string> notes_;
  std::uint64_t max_result_bytes_;
};

JobEnd PluginConversation::finish(const Outcome& outcome) const {
  JobEnd end = program_->finish(outcome);
  if (!client_->description().interprets || !ended_by_itself(outcome)) return end;
  PluginRunEnd ended = ended_;
  if (ended.stderr_tail.size() > kStderrTail) ended.stderr_tail.erase(0, ended.stderr_tail.size() - kStderrTail);
  ended.result = end.result;
  const auto read = client_->interpret(user_, outcome_question(ended, outcome));
  const auto stands = [&](const std::string& why) {
    log(LogLevel::warn, "plugin", "{}: the default result of a job is used: {}", job_key(ended.caller_id, ended.id),
        why);
    return end;
  };
  if (!read) return stands(read.error().message);
  if (read->result && outcome.status == RunStatus::signal) return stands("interpret: a result after a signal");
  std::uint64_t bytes = 0;
  if (read->result) {
    for (const auto& [key, value] : *read->result) bytes += key.size() + value.size();
  }
  if (bytes > max_result_bytes_) return stands(fmt::format("interpret: its result has {} bytes", bytes));
  apply(*read, outcome, end);
  return end;
}

}  // namespace

Stage PluginExecutor::stage() const {
  return {.profile = std::string(name()),
          .host = kProgramHost,
          .policy = client_->profile(),
          .programs = true,
          .trusted = false};
}

Result<std::string> PluginExecutor::probe() const {
  auto runs = client_->probe();
  if (!runs) return fail(Code::unsupported, client_->file() + ": " + runs.error().message);
  return fmt::format("{} (plugin {} {})", *runs, name(), client_->description().version);
}

// Without this limit, a job that always crashes the plugin would be requeued without end.
Error PluginExecutor::blame_plugin(Error error, const std::string& job) const {
  const std::lock_guard lock(mutex_);
  if (error.code != Code::unavailable) {
    faults_.erase(job);
    return error;
  }
  if (faults_.size() >= kJobsRemembered && !faults_.contains(job)) faults_.erase(faults_.begin());
  if (++faults_[job] < kFaultsOfOneJob) return error;
  faults_.erase(job);
  return {Code::unsupported, fmt::format("{}: {} times over this job", error.message, kFaultsOfOneJob)};
}

Result<std::unique_ptr<Conversation>> PluginExecutor::begin(const JobFacts& facts, ArtifactSink* sink) const {
  const PluginUser user{facts.job.context_id, facts.job.caller_id};
  if (std::string why = client_->backoff_reason_for(user); !why.empty()) return fail(Code::unavailable, std::move(why));
  const std::string job = std::to_string(user.context) + ' ' + job_key(facts.job.caller_id, facts.job.id);
  auto prepared = client_->prepare(user, job_question(facts));
  if (!prepared) return tl::unexpected(blame_plugin(std::move(prepared).error(), job));
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
  return std::make_unique<PluginConversation>(std::move(program), client_, user, ended_of(facts.job),
                                              std::move(prepared->notes), facts.max_result_bytes);
}

}  // namespace mycojobs::plugin
