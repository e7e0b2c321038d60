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

std::uint64_t share_of(const std::vector<std::uint64_t>& sorted, std::size_t percent) {
  return sorted.empty() ? 0 : sorted[std::min(sorted.size() - 1, sorted.size() * percent / 100)];
}

// There are few details. Details of other clients are unbounded, so they are counted together.
void count(std::map<std::string, std::uint64_t>& by, std::string_view detail) {
  constexpr std::size_t kMaxWords = 50, kMaxWord = 60;
  std::string word = to_utf8(std::string(detail.substr(0, kMaxWord)));
  if (word.empty()) word = "unknown";
  if (by.size() >= kMaxWords && !by.contains(word)) word = "others";
  ++by[word];
}

// A cancelled or skipped job has not failed.
bool has_failed(std::string_view status, std::string_view detail) {
  return status == "error" && detail != "cancelled" && detail != "skipped" && detail != "not_needed";
}

void take(const ListedJob& job, Overview& out, std::vector<std::uint64_t>& pickups) {
  const std::uint64_t queued = std::max(number_of(job.record, "queued_ms"), number_of(job.record, "run_at_ms"));
  const std::uint64_t started = number_of(job.record, "started_ms");
  if (queued != 0 && started >= queued) pickups.push_back(started - queued);
  const std::string_view status = field_of(job.record, "status"), detail = field_of(job.record, "detail");
  if (has_failed(status, detail)) count(out.failures, detail);
  if (status == "waiting_for_prerequisites" || (status == "dispatched" && detail != "created"))
    count(out.waits, detail);
  out.since_ms = job.changed_us / 1000;
}

}  // namespace

Result<Overview> overview(Store& store, Id context) {
  Overview out;
  MJ_TRY(tally, store.tally(context, kOverviewSlotMs, kOverviewSlots));
  out.tally = std::move(tally);
  MJ_TRY(kept, stored_usage(store, context));
  out.kept = kept;
  MJ_TRY(runners, store.runners(context));
  out.runners = std::move(runners);
  JobFilter wanted;
  wanted.max_scanned = kOverviewChecks;
  wanted.since_ms = out.tally.now_ms - std::min(out.tally.now_ms, kOverviewSlotMs * kOverviewSlots);
  MJ_TRY(page, store.jobs(context, wanted));
  out.looked_at = page.looked_at;
  out.since_ms = out.tally.now_ms;
  std::vector<std::uint64_t> pickups;
  for (const ListedJob& job : page.jobs) take(job, out, pickups);
  std::sort(pickups.begin(), pickups.end());
  out.picked_up = pickups.size();
  out.p50_ms = share_of(pickups, 50);
  out.p99_ms = share_of(pickups, 99);
  return out;
}

json to_json(const Overview& view) {
  const Tally& tally = view.tally;
  json queues = json::array(), runners = json::array();
  for (const QueueTally& each : tally.queues) {
    queues.push_back({{"queue", to_utf8(each.queue)},
                      {"length", each.length},
                      {"prioritised", each.prioritised},
                      {"paused", each.paused},
                      {"next", to_utf8(each.next)},
                      {"next_since_ms", each.next_since_ms}});
  }
  for (const RunnerInfo& info : view.runners) {
    runners.push_back({{"id", info.runner.id},
                       {"state", to_string(presence(info))},
                       {"host", to_utf8(info.hold.host)},
                       {"claims", info.claims},
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
          {"kept_bytes", view.kept.bytes},
          {"quota_bytes", view.kept.context_quota},
          {"dead", tally.dead},
          {"anomalies", tally.anomalies},
          {"refusals", tally.refusals},
          {"notices", tally.notices},
          {"outbox", tally.outbox},
          {"inbox", tally.inbox},
          {"flows", tally.flows},
          {"flows_active", tally.flows_active},
          {"slot_ms", kOverviewSlotMs},
          {"ends", tally.ends},
          {"queues", std::move(queues)},
          {"runners", std::move(runners)},
          {"looked_at", view.looked_at},
          {"since_ms", view.since_ms},
          {"picked_up", view.picked_up},
          {"p50_ms", view.p50_ms},
          {"p99_ms", view.p99_ms},
          {"failures", view.failures},
          {"waits", view.waits}};
}

}  // namespace mycojobs
