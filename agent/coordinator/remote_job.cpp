#include "coordinator/remote_job.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/result_values.h"
#include "transport/rpc_client.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kCallMs = 15000, kFirstPauseMs = 50, kLongestFollowMs = 1000, kLongestAwayMs = 10000;
constexpr std::uint64_t kAfterCancelMs = 30000;  // for the supervisor to end what was cancelled
constexpr std::size_t kLogPage = 500, kMaxLogLines = 5000;

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  return found->is_string() ? found->get<std::string>() : dump_json(*found);
}

// What the job asks for, without what belongs to its place here.
json params_of(const RemoteRequest& wanted) {
  Job job;
  job.script = wanted.job.script;
  job.script_type = wanted.job.script_type;
  job.env_vars = flow_environment(flow_data_of(wanted.job));
  job.env_vars.insert(wanted.job.env_vars.begin(), wanted.job.env_vars.end());
  job.name = wanted.job.name;
  job.policy = wanted.job.policy;
  json params{{"script", job.script}, {"script_type", job.script_type}, {"name", job.name}, {"env_vars", job.env_vars}};
  if (!job.policy.empty()) {
    const auto policy = parse_json(job.policy);
    if (policy && policy->is_object()) params["policy"] = *policy;
  }
  params["timeout"] = std::max<std::uint64_t>(1, wanted.timeout_ms / 1000);
  params["idempotency_key"] =
      "route:" + std::to_string(wanted.context) + ':' + wanted.job_key + ':' + std::to_string(wanted.attempt);
  return params;
}

}  // namespace

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

std::optional<JobEnd> RemoteJob::take_end() {
  const std::lock_guard lock(mutex_);
  return std::exchange(end_, std::nullopt);
}

std::vector<Log> RemoteJob::take_log() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

void RemoteJob::run() {
  until_ms_ = clock_.boot_ms() + wanted_.timeout_ms;
  if (const auto key = start(); key && follow(*key)) fetch(*key);
  over_ = true;
}

bool RemoteJob::rest(Pace pace) {
  const std::uint32_t most = pace == Pace::quick ? kLongestFollowMs : kLongestAwayMs;
  pause_ms_ = std::min(std::max(pause_ms_ * 2, kFirstPauseMs), most);
  std::unique_lock lock(mutex_);
  const bool was_cancelled = cancelled_;
  wake_.wait_for(lock, std::chrono::milliseconds(pause_ms_), [&] { return abandoned_ || cancelled_ != was_cancelled; });
  return !abandoned_;
}

void RemoteJob::end(std::string detail, std::string error) {
  const std::lock_guard lock(mutex_);
  JobEnd made;
  made.detail = std::move(detail);
  made.error = std::move(error);
  end_ = std::move(made);
}

std::optional<std::string> RemoteJob::start() {
  const json params = params_of(wanted_);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return std::nullopt;
    }
    auto started = call_rpc(http_, {wanted_.url, wanted_.secret, "job.start", kCallMs, &wanted_.networks}, params);
    if (started && started->is_object() && started->contains("key")) {
      pause_ms_ = 0;
      return text_of(*started, "key");
    }
    const Error error = started ? Error{Code::internal, "the supervisor names no job"} : started.error();
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      cancelled = cancelled_;
    }
    if (error.code != Code::unavailable) {
      end("setup_error", "supervisor " + wanted_.url + ": " + error.message);
      return std::nullopt;
    }
    // It may have been started all the same, by a call whose answer was lost: then it ends by its own time limit.
    if (cancelled) return end("cancelled", "cancelled before the supervisor answered"), std::nullopt;
    if (late()) return end("timeout", "supervisor " + wanted_.url + " was away: " + error.message), std::nullopt;
    if (!rest(Pace::patient)) return std::nullopt;
  }
}

bool RemoteJob::follow(const std::string& key) {
  const json id{{"id", key.substr(key.starts_with("job:") ? 4 : 0)}};
  bool told = false;
  std::uint64_t until = until_ms_ + kAfterCancelMs;
  while (true) {
    bool cancel = late();
    {
      const std::lock_guard lock(mutex_);
      if (abandoned_) return false;
      cancel = cancel || cancelled_;
    }
    if (cancel && !told) {
      told = call_rpc(http_, {wanted_.url, wanted_.secret, "job.cancel", kCallMs, &wanted_.networks}, id).has_value();
      until = std::min(until, clock_.boot_ms() + kAfterCancelMs);
    }
    auto status = call_rpc(http_, {wanted_.url, wanted_.secret, "job.status", kCallMs, &wanted_.networks}, id);
    if (status && status->is_object() && status->value("ended", json(false)) == true) return true;
    if (!status && status.error().code != Code::unavailable) {
      end("lost", "supervisor " + wanted_.url + ": " + status.error().message);
      return false;
    }
    if (clock_.boot_ms() >= until) {
      end(late() ? "timeout" : "cancelled", "supervisor " + wanted_.url + " did not say how the job ended");
      return false;
    }
    if (status && pause_ms_ > kLongestFollowMs) pause_ms_ = 0;
    if (!rest(status ? Pace::quick : Pace::patient)) return false;
  }
}

void RemoteJob::fetch(const std::string& key) {
  const std::string id = key.substr(key.starts_with("job:") ? 4 : 0);
  std::vector<Log> lines;
  std::uint64_t after = 0;
  for (bool more = true; more && lines.size() < kMaxLogLines;) {
    auto page = call_rpc(http_, {wanted_.url, wanted_.secret, "job.logs", kCallMs, &wanted_.networks},
                         {{"id", id}, {"after_seq", after}, {"limit", kLogPage}});
    more = page && page->is_object() && page->contains("lines") && (*page)["lines"].is_array() &&
           !(*page)["lines"].empty();
    for (std::size_t i = 0; more && i < (*page)["lines"].size(); ++i) {
      Log line = decode_json<Log>((*page)["lines"][i]).record;
      more = line.seq > after;
      after = line.seq;
      if (more) lines.push_back(std::move(line));
    }
  }
  while (true) {
    auto result =
        call_rpc(http_, {wanted_.url, wanted_.secret, "job.result", kCallMs, &wanted_.networks}, {{"id", id}});
    if (result && result->is_object()) {
      const std::lock_guard lock(mutex_);
      JobEnd made;
      made.status = text_of(*result, "status") == "finished" ? JobStatus::finished : JobStatus::error;
      made.detail = text_of(*result, "detail");
      made.error = text_of(*result, "error");
      made.error_info = text_of(*result, "error_info");
      made.usage = text_of(*result, "usage");
      const auto values = result->find("result");
      if (values != result->end()) {
        HandedBack told = handed_back(*values);
        made.result = std::move(told.texts);
        made.result_json = std::move(told.json);
      }
      log_ = std::move(lines);
      end_ = std::move(made);
      return;
    }
    const bool away = !result && result.error().code == Code::unavailable;
    if (!away || clock_.boot_ms() >= until_ms_ + kAfterCancelMs)
      return end("lost", "supervisor " + wanted_.url + " does not tell the result");
    if (!rest(Pace::patient)) return;
  }
}

}  // namespace mycojobs
