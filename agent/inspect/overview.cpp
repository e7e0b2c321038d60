#include "inspect/overview.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "inspect/runner_view.h"
#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::uint64_t percentile(const std::vector<std::uint64_t>& sorted, std::size_t percent) {
  return sorted.empty() ? 0 : sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
}

// Counts a detail. Clients may write any number of different details, so further details are counted as "others".
void count_detail(std::map<std::string, std::uint64_t>& counts, std::string_view detail) {
  constexpr std::size_t kMaxDetails = 50, kMaxDetailBytes = 60;
  std::string key = to_utf8(std::string(detail.substr(0, kMaxDetailBytes)));
  if (key.empty()) key = "unknown";
  if (counts.size() >= kMaxDetails && !counts.contains(key)) key = "others";
  ++counts[key];
}

// A cancelled or skipped job has not failed.
bool has_failed(std::string_view status, std::string_view detail) {
  return status == kJobStatusError && detail != "cancelled" && detail != "skipped" && detail != "not_needed";
}

// Adds a job to the statistics. Jobs are added in the order of their changes, the latest first.
void add_job(const ListedJob& job, Overview& out, std::vector<std::uint64_t>& wait_times_ms) {
  const std::uint64_t queued = std::max(number_of(job.record, "queued_ms"), number_of(job.record, "run_at_ms"));
  const std::uint64_t started = number_of(job.record, "started_ms");
  if (queued != 0 && started >= queued) wait_times_ms.push_back(started - queued);
  const std::string_view status = field_of(job.record, "status"), detail = field_of(job.record, "detail");
  if (has_failed(status, detail)) count_detail(out.failures, detail);
  if (status == kJobStatusWaitingForPrerequisites || (status == kJobStatusDispatched && detail != "created"))
    count_detail(out.waits, detail);
  out.since_ms = job.changed_us / 1000;
}

}  // namespace

Result<Overview> read_overview(Store& store, Id context) {
  Overview out;
  MJ_TRY(tally, store.tally(context, kOverviewSlotMs, kOverviewSlots));
  out.tally = std::move(tally);
  MJ_TRY(usage, stored_usage(store, context));
  out.stored_bytes = usage;
  MJ_TRY(runners, store.runners(context));
  out.runners = std::move(runners);
  JobFilter filter;
  filter.max_scanned = kMaxOverviewJobs;
  filter.since_ms = out.tally.now_ms - std::min(out.tally.now_ms, kOverviewSlotMs * kOverviewSlots);
  MJ_TRY(page, store.jobs(context, filter));
  out.rows_read = page.rows_read;
  out.since_ms = out.tally.now_ms;
  std::vector<std::uint64_t> wait_times_ms;
  for (const ListedJob& job : page.jobs) add_job(job, out, wait_times_ms);
  std::sort(wait_times_ms.begin(), wait_times_ms.end());
  out.started_jobs = wait_times_ms.size();
  out.p50_ms = percentile(wait_times_ms, 50);
  out.p99_ms = percentile(wait_times_ms, 99);
  return out;
}

json to_json(const Overview& view) {
  const Tally& tally = view.tally;
  json queues = json::array(), runners = json::array();
  for (const QueueTally& queue : tally.queues) {
    queues.push_back({{"queue", to_utf8(queue.queue)},
                      {"length", queue.length},
                      {"prioritised", queue.prioritised},
                      {"paused", queue.paused},
                      {"next", to_utf8(queue.next_job)},
                      {"next_since_ms", queue.next_waiting_since_ms}});
  }
  for (const RunnerInfo& info : view.runners) {
    runners.push_back({{"id", info.runner.id},
                       {"state", to_string(get_presence(info))},
                       {"host", to_utf8(info.holder.host)},
                       {"claims", info.live_claim_count},
                       {"slots", info.runner.slots},
                       {"seen_ms", info.runner.seen_ms},
                       {"artifact_bytes", number_of(info.runner.unknown, "artifact_bytes")},
                       {"artifact_quota_bytes", number_of(info.runner.unknown, "artifact_quota_bytes")},
                       {"version", to_utf8(info.runner.version)},
                       {"executors", info.runner.executors}});
  }
  return {{"now_ms", tally.now_ms},
          {"changed_ms", tally.changed_us / 1000},
          {"jobs", tally.jobs},
          {"running", tally.running},
          {"delayed", tally.delayed},
          {"prerequisites", tally.prerequisites},
          {"held", tally.held},
          {"missing", tally.missing},
          {"ended", tally.ended},
          {"stored_bytes", view.stored_bytes.bytes},
          {"quota_bytes", view.stored_bytes.context_quota},
          {"dead", tally.dead_letters},
          {"anomalies", tally.anomalies},
          {"refusals", tally.refusals},
          {"notices", tally.notices},
          {"outbox", tally.outbox},
          {"inbox", tally.inbox},
          {"flows", tally.flows},
          {"flows_active", tally.active_flows},
          {"slot_ms", kOverviewSlotMs},
          {"ends", tally.ended_per_slot},
          {"queues", std::move(queues)},
          {"runners", std::move(runners)},
          {"looked_at", view.rows_read},
          {"since_ms", view.since_ms},
          {"picked_up", view.started_jobs},
          {"p50_ms", view.p50_ms},
          {"p99_ms", view.p99_ms},
          {"failures", view.failures},
          {"waits", view.waits}};
}

}  // namespace mycojobs
