#include "chaos/workload.h"

namespace mycojobs::test {
namespace {

constexpr std::int64_t kSubmitRetryUs = 500'000;    // delay before an unanswered submission is repeated
constexpr std::int64_t kCancelRetryUs = 4'000'000;  // delay before a cancellation, which may be lost, is repeated
// writes that appendfsync everysec may not have stored yet, with a margin
constexpr std::int64_t kRecentUs = 4'000'000;

}  // namespace

Workload::Workload(const TempDir& folder, const RedisServer& redis, Random& random)
    : random_(random), client_(folder, redis), plan_(random) {}

void Workload::run_once(bool plan_more) {
  const std::int64_t now_us = boot_time_us();
  if (plan_more && now_us >= next_us_) {
    for (auto& job : plan_.plan_next(now_us)) jobs_.push_back(std::move(job));
    next_us_ = now_us + pick_between(random_, 40'000, 240'000);
  }
  for (auto& job : jobs_) {
    if (!job.acknowledged && now_us >= job.submit_us) {
      client_.submit(job);
      job.submit_us = boot_time_us() + kSubmitRetryUs;
      return;
    }
    if (job.acknowledged && job.cancel_us != 0 && now_us >= job.cancel_us) {
      client_.cancel(job);
      job.cancel_us = boot_time_us() + kCancelRetryUs;
      return;
    }
  }
}

bool Workload::all_ended() {
  for (auto& job : jobs_) {
    if (!job.acknowledged) return false;
    if (job.ended) continue;
    const auto status = client_.plain_redis().command(job.name.context, {"HGET", job.key(), "status"});
    if (!status || (status->text() != "finished" && status->text() != "error")) return false;
    job.ended = true;
    job.cancel_us = 0;
  }
  return true;
}

void Workload::recheck_acknowledged(bool may_have_lost, std::vector<std::string>& problems) {
  const std::int64_t now_us = boot_time_us();
  for (auto& job : jobs_) {
    if (!job.acknowledged || now_us - job.acknowledged_us > kRecentUs) continue;
    const auto has_record = client_.has_record(job);
    if (has_record && !*has_record && !may_have_lost) problems.push_back(job.key() + " was acknowledged and is gone");
    job.acknowledged = false;
    job.submit_us = now_us;
  }
}

}  // namespace mycojobs::test
