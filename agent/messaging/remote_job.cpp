#include "messaging/remote_job.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "messaging/message_codec.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/output_gap.h"
#include "model/result_values.h"
#include "net/json_rpc_client.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kCallTimeoutMs = 15000, kMinRetryPauseMs = 50, kMaxPollPauseMs = 1000,
                        kMaxUnavailablePauseMs = 10000;
constexpr std::size_t kLogPageLines = 500, kLogTailLines = 1000, kMaxLogLines = 5000, kMaxKeyBytes = 48;
// Limits for a supervisor that is slow or returns too much data. The middle of a long log is dropped, and a larger end
// is refused.
constexpr std::uint64_t kLogTimeoutMs = 15000;
constexpr std::size_t kMaxLogBytes = 8U << 20, kMaxEndBytes = 16U << 20;

// Returns the field as text, or an empty text if it is missing or null.
std::string text_or_json_field(const json& object, const char* name) {
  const auto position = object.find(name);
  if (position == object.end() || position->is_null()) return {};
  return position->is_string() ? position->get<std::string>() : dump_json(*position);
}

// Returns context and key of the remote job as in its receipt, for example "9 job:5:1", or an empty text if the
// supervisor did not return them.
std::string format_remote_job(const json& result) {
  const json context = result.value("context_id", json()), key = result.value("key", json());
  if (!context.is_number_unsigned() || !key.is_string() || key.get_ref<const std::string&>().size() > kMaxKeyBytes)
    return {};
  return context.dump() + ' ' + key.get<std::string>();
}

json make_start_params(const RemoteRequest& request) {
  const Job sent = make_sent_job(request.job);
  json params{
      {"script", sent.script}, {"script_type", sent.script_type}, {"name", sent.name}, {"env_vars", sent.env_vars}};
  if (!sent.args.empty()) params["args"] = sent.args;
  if (!sent.policy.empty()) {
    const auto policy = parse_json(sent.policy);
    if (policy && policy->is_object()) params["policy"] = *policy;
  }
  params["timeout"] = std::max<std::uint64_t>(1, request.timeout_ms / 1000);
  params["idempotency_key"] =
      "route:" + std::to_string(request.context) + ':' + request.job_key + ':' + std::to_string(request.attempt);
  return params;
}

// Returns whether a request about a started job must not be repeated: the supervisor does not have the job, or the
// response is too large. Other errors can be caused by a wrong setting on either host (networks, a token), which an
// operator can correct.
bool is_permanent(const Error& error) {
  return error.code == Code::not_found || error.code == Code::invalid || error.code == Code::too_large;
}

// Lines of a log, of which the middle is dropped beyond kMaxLogBytes or kMaxLogLines.
class BoundedLog {
 public:
  void add(Log line) {
    const std::size_t bytes = line.text.size();
    if (tail_.empty() && head_bytes_ + bytes <= kMaxLogBytes / 2 && head_.size() < kMaxLogLines / 2) {
      head_bytes_ += bytes;
      head_.push_back(std::move(line));
      return;
    }
    tail_bytes_ += bytes;
    tail_.push_back(std::move(line));
    while (tail_bytes_ > kMaxLogBytes / 2 || tail_.size() > kMaxLogLines / 2) {
      const Log& oldest = tail_.front();
      tail_bytes_ -= oldest.text.size();
      dropped_bytes_ += oldest.text.size();
      gap_ = Log{oldest.ts_ms, oldest.seq, LogStream::system, format_output_gap(dropped_bytes_)};
      tail_.pop_front();
    }
  }
  std::vector<Log> finish() {
    if (dropped_bytes_ > 0) head_.push_back(std::move(gap_));
    std::move(tail_.begin(), tail_.end(), std::back_inserter(head_));
    return std::move(head_);
  }

 private:
  std::vector<Log> head_;
  std::deque<Log> tail_;
  Log gap_;  // set if dropped_bytes_ is not 0
  std::size_t head_bytes_ = 0, tail_bytes_ = 0;
  std::uint64_t dropped_bytes_ = 0;
};

}  // namespace

Job make_sent_job(const Job& job) {
  Job sent;
  sent.script = job.script;
  sent.script_type = job.script_type;
  sent.env_vars = flow_environment(parse_flow_data(job));
  sent.env_vars.insert(job.env_vars.begin(), job.env_vars.end());
  sent.args = job.args;
  sent.name = job.name;
  sent.policy = job.policy;
  return sent;
}

Result<json> RemoteJob::call(const char* method, const json& params) {
  return call_rpc(
      http_, {request_.url, request_.secret, method, kCallTimeoutMs, &request_.allowed_networks, request_.ca}, params);
}

void RemoteJob::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  wake_.notify_all();
}

void RemoteJob::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  wake_.notify_all();
}

std::optional<JobEnd> RemoteJob::pop_end() {
  const std::lock_guard lock(mutex_);
  return std::exchange(end_, std::nullopt);
}

std::vector<Log> RemoteJob::pop_log() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

void RemoteJob::run() {
  deadline_ms_ = clock_.boot_ms() + request_.timeout_ms;
  if (const auto remote_key = start(); remote_key && poll_until_end(*remote_key)) fetch_result(*remote_key);
  is_done_ = true;
}

bool RemoteJob::wait_before_retry(RetryReason reason) {
  const std::uint32_t max_ms = reason == RetryReason::running ? kMaxPollPauseMs : kMaxUnavailablePauseMs;
  pause_ms_ = std::min(std::max(pause_ms_ * 2, kMinRetryPauseMs), max_ms);
  std::unique_lock lock(mutex_);
  const bool was_cancelled = cancelled_;
  wake_.wait_for(lock, std::chrono::milliseconds(pause_ms_), [&] { return abandoned_ || cancelled_ != was_cancelled; });
  return !abandoned_;
}

void RemoteJob::set_error_end(std::string detail, std::string error) {
  const std::lock_guard lock(mutex_);
  JobEnd job_end;
  job_end.detail = std::move(detail);
  job_end.error = std::move(error);
  end_ = std::move(job_end);
}

std::optional<std::string> RemoteJob::start() {
  const json params = make_start_params(request_);
  while (true) {
    if (is_abandoned()) return std::nullopt;
    auto started = call("job.start", params);
    if (started && started->is_object() && started->contains("key")) {
      pause_ms_ = 0;
      return text_or_json_field(*started, "key");
    }
    const Error error = started ? Error{Code::internal, "the answer of the supervisor names no job"} : started.error();
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      cancelled = cancelled_;
    }
    const bool is_retriable = request_.possibly_started && error.code == Code::denied;
    if (error.code != Code::unavailable && !is_retriable) {
      set_error_end("setup_error", "supervisor " + request_.url + ": " + error.message);
      return std::nullopt;
    }
    // If the answer to a call was lost, the job may run at the supervisor. Its own time limit then ends it.
    if (cancelled) return set_error_end("cancelled", "cancelled before the supervisor answered"), std::nullopt;
    if (is_past_deadline())
      return set_error_end("timeout", "supervisor " + request_.url + " was unavailable: " + error.message),
             std::nullopt;
    if (!wait_before_retry(RetryReason::failed_call)) return std::nullopt;
  }
}

bool RemoteJob::poll_until_end(const std::string& remote_key) {
  const json params{{"id", remote_key.substr(remote_key.starts_with("job:") ? 4 : 0)}};
  bool cancel_sent = false;
  std::uint64_t deadline_ms = deadline_ms_ + kCancelTimeoutMs;
  while (true) {
    bool should_cancel = is_past_deadline();
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return false;
      should_cancel = should_cancel || cancelled_;
    }
    if (should_cancel && !cancel_sent) {
      cancel_sent = call("job.cancel", params).has_value();
      deadline_ms = std::min(deadline_ms, clock_.boot_ms() + kCancelTimeoutMs);
    }
    auto status = call("job.status", params);
    if (status && status->is_object() && status->value("ended", json(false)) == true) return true;
    if (!status && is_permanent(status.error())) {
      set_error_end("lost", "supervisor " + request_.url + ": " + status.error().message);
      return false;
    }
    if (clock_.boot_ms() >= deadline_ms) {
      set_error_end(is_past_deadline() ? "timeout" : "cancelled", "supervisor " + request_.url +
                                                                      " did not report how the job ended" +
                                                                      (status ? "" : ": " + status.error().message));
      return false;
    }
    if (status && pause_ms_ > kMaxPollPauseMs) pause_ms_ = 0;
    if (!wait_before_retry(status ? RetryReason::running : RetryReason::failed_call)) return false;
  }
}

std::vector<Log> RemoteJob::fetch_log(const std::string& remote_id) {
  BoundedLog log;
  std::uint64_t last_seq = 0;
  bool is_late = false;
  const std::uint64_t deadline_ms = clock_.boot_ms() + kLogTimeoutMs;
  for (bool has_more = true; has_more && !is_abandoned() && clock_.boot_ms() < deadline_ms;) {
    auto page = call("job.logs", {{"id", remote_id}, {"after_seq", last_seq}, {"limit", kLogPageLines}});
    has_more = page && page->is_object() && page->contains("lines") && (*page)["lines"].is_array() &&
               !(*page)["lines"].empty();
    for (std::size_t i = 0; has_more && i < (*page)["lines"].size(); ++i) {
      Log line = decode_json<Log>((*page)["lines"][i]).record;
      has_more = line.seq > last_seq;
      last_seq = line.seq;
      if (has_more) log.add(std::move(line));
    }
    is_late = has_more && clock_.boot_ms() >= deadline_ms;
  }
  if (!is_late) return log.finish();
  for (Log& line : fetch_last_lines(remote_id, last_seq)) log.add(std::move(line));
  return log.finish();
}

std::vector<Log> RemoteJob::fetch_last_lines(const std::string& remote_id, std::uint64_t last_seq) {
  auto page = call("job.logs", {{"id", remote_id}, {"after_seq", last_seq}, {"tail", kLogTailLines}});
  const bool is_page = page && page->is_object() && page->contains("lines") && (*page)["lines"].is_array();
  std::vector<Log> lines;
  for (std::size_t i = 0; is_page && i < (*page)["lines"].size(); ++i) {
    Log line = decode_json<Log>((*page)["lines"][i]).record;
    const std::uint64_t begin_seq = line.seq - std::min(line.seq, std::max<std::uint64_t>(line.size, 1));
    if (line.seq <= last_seq) continue;
    if (begin_seq > last_seq)
      lines.push_back({line.ts_ms, begin_seq, LogStream::system, format_output_gap(begin_seq - last_seq)});
    last_seq = line.seq;
    lines.push_back(std::move(line));
  }
  if (lines.empty())
    lines.push_back(
        {clock_.unix_ms(), last_seq + 1, LogStream::system, "the rest of this log was not received in time\n"});
  return lines;
}

void RemoteJob::fetch_result(const std::string& remote_key) {
  const std::string remote_id = remote_key.substr(remote_key.starts_with("job:") ? 4 : 0);
  std::vector<Log> lines = fetch_log(remote_id);
  while (!is_abandoned()) {
    auto result = call("job.result", {{"id", remote_id}});
    if (result && result->is_object()) return set_result_end(*result, std::move(lines));
    const bool is_final = result || is_permanent(result.error());
    if (is_final || clock_.boot_ms() >= deadline_ms_ + kCancelTimeoutMs)
      return set_error_end("lost", "supervisor " + request_.url + " does not report the result" +
                                       (result ? "" : ": " + result.error().message));
    if (!wait_before_retry(RetryReason::failed_call)) return;
  }
}

void RemoteJob::set_result_end(const json& result, std::vector<Log> lines) {
  const bool finished = text_or_json_field(result, "status") == kJobStatusFinished;
  if (const std::size_t size = dump_json(result).size(); size > kMaxEndBytes) {
    return set_error_end("too_large", "supervisor " + request_.url + ": the job ended as " +
                                          (finished ? "finished" : "error") + ", and its result and error have " +
                                          std::to_string(size) + " bytes; " + std::to_string(kMaxEndBytes) +
                                          " is the maximum");
  }
  JobEnd job_end;
  job_end.status = finished ? JobStatus::finished : JobStatus::error;
  job_end.detail = filter_peer_detail(job_end.status, text_or_json_field(result, "detail"));
  job_end.error = text_or_json_field(result, "error");
  job_end.error_info = text_or_json_field(result, "error_info");
  job_end.usage = text_or_json_field(result, "usage");
  job_end.layers = text_or_json_field(result, "layers");
  if (result.value("receipt", json()).is_object()) job_end.receipt = text_or_json_field(result, "receipt");
  job_end.ran_as = format_remote_job(result);
  if (const auto field = result.find("result"); field != result.end()) {
    ResultValues values = parse_result_values(*field);
    job_end.result = std::move(values.texts);
    job_end.result_json = std::move(values.json);
  }
  const std::lock_guard lock(mutex_);
  log_ = std::move(lines);
  end_ = std::move(job_end);
}

}  // namespace mycojobs
