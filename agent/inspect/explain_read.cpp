// explain(): what is read for it. Each answer of the store is of one moment; the whole is read again until it fits.
#include <algorithm>
#include <set>

#include "base/ids.h"
#include "domain/codec.h"
#include "inspect/explain.h"
#include "inspect/explain_parts.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kLookedLatelyMs = 5000;  // as prerequisites_due.lua has it
constexpr int kExplainLooks = 5;                 // at a job that moves while we read
constexpr std::uint32_t kQueuePage = 1000;       // of queue entries
constexpr std::uint64_t kDeepest = 1000000;      // position that is looked for in a queue
constexpr std::size_t kPlacesBatch = 100;        // jobs whose places are read in one step
constexpr std::size_t kMaxWaits = 10000;         // jobs that are followed for a circle
constexpr std::size_t kMaxDead = 10000;          // the newest: a longer answer would hold up Redis
constexpr std::size_t kMaxAnomalies = 1000;
constexpr std::size_t kShownAnomalies = 3;

Result<std::vector<JobPlaces>> places_of(Store& store, Id context, std::span<const std::string> keys) {
  std::vector<JobPlaces> all;
  for (std::size_t from = 0; from < keys.size(); from += kPlacesBatch) {
    MJ_TRY(batch, store.places(context, keys.subspan(from, std::min(kPlacesBatch, keys.size() - from)), false));
    std::move(batch.begin(), batch.end(), std::back_inserter(all));
  }
  return all;
}

Result<void> read_queue(Store& store, Situation& about) {
  if (about.queue.empty()) return {};
  MJ_TRY(queues, store.queues(about.context));
  for (const QueueInfo& info : queues) {
    if (info.queue != about.queue) continue;
    about.queue_paused = info.paused;
    about.queue_length = info.length;
    about.prioritised = info.prioritised;
  }
  if (about.job.in_queue == 0) return {};
  for (std::uint64_t from = 0; from < kDeepest; from += kQueuePage) {
    MJ_TRY(entries, store.queue_entries(about.context, about.queue, from, kQueuePage));
    const auto found = std::find(entries.begin(), entries.end(), about.job.job_key);
    if (found != entries.end()) {
      about.ahead = from + static_cast<std::uint64_t>(found - entries.begin());
      about.queue_length = std::max(about.queue_length, *about.ahead + 1);  // it has grown since
      return {};
    }
    if (entries.size() < kQueuePage) return {};
  }
  return {};
}

// Follows what jobs wait for, from this one on.
Result<void> read_waits(Store& store, Situation& about) {
  Waits waits{{about.job.job_key, about.job.waits_for}};
  std::set<std::string> seen{about.job.job_key};
  std::vector<std::string> next = about.job.waits_for;
  MJ_TRY(awaited, places_of(store, about.context, next));
  about.awaited = awaited;
  while (!awaited.empty() && seen.size() < kMaxWaits) {
    next.clear();
    for (const JobPlaces& job : awaited) {
      if (!seen.insert(job.job_key).second) continue;
      waits.emplace_back(job.job_key, job.waits_for);
      next.insert(next.end(), job.waits_for.begin(), job.waits_for.end());
    }
    std::erase_if(next, [&](const std::string& key) { return seen.contains(key); });
    MJ_TRY(further, places_of(store, about.context, next));
    awaited = std::move(further);
  }
  about.cycle = find_cycle(waits, about.job.job_key);
  return {};
}

Result<void> read_slots(Store& store, Situation& about) {
  const std::string key = explaining::field(about, "concurrency_key");
  MJ_TRY(leases, store.leases(about.context));
  std::vector<std::string> keys;
  keys.reserve(leases.size());
  for (const Lease& lease : leases) keys.push_back(lease.job_key);
  MJ_TRY(running, places_of(store, about.context, keys));
  for (const JobPlaces& job : running) {
    if (job.takes_slot && job.claim.concurrency_key == key) about.slot_takers.push_back(job.job_key);
  }
  return {};
}

bool names(const std::string& line, const std::string& job_key) {
  for (auto at = line.find(job_key); at != std::string::npos; at = line.find(job_key, at + 1)) {
    const auto end = at + job_key.size();
    if (end >= line.size() || line[end] < '0' || line[end] > '9') return true;
  }
  return false;
}

Result<void> read_letters(Store& store, Situation& about) {
  const ClaimView& claim = about.job.claim;
  if (claim.state.empty() || (claim.state == "ended" && claim.detail == "dead_letter")) {
    MJ_TRY(letters, store.dead_letters(about.context, kMaxDead));
    for (const DeadLetter& letter : letters) {
      if (letter.job_key == about.job.job_key) about.dead_letter = letter;
    }
  }
  MJ_TRY(anomalies, store.anomalies(about.context, kMaxAnomalies));
  std::erase_if(anomalies, [&](const std::string& line) { return !names(line, about.job.job_key); });
  if (anomalies.size() > kShownAnomalies) anomalies.erase(anomalies.begin(), anomalies.end() - kShownAnomalies);
  about.anomalies = std::move(anomalies);
  return {};
}

void look_in_database_0(Store& store, Situation& about) {
  static constexpr std::string_view kFields[] = {"script_type"};
  const auto there = store.load_fields(0, about.job.job_key, kFields);
  if (!there) return;
  about.in_database_0 = true;
  for (const auto& [name, value] : *there) {
    if (name == "script_type") about.queue = queue_key(value);
  }
}

// Whether one looks after prerequisites in place of the agents.
Result<void> read_coordinator(Store& store, Situation& about) {
  static constexpr std::string_view kAt[] = {"at"};
  auto fields = store.load_fields(about.context, "mj:looking", kAt);
  if (!fields && fields.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(fields).error());
  std::uint64_t at = 0;
  const bool looked = fields && !fields->empty() && parse_u64(fields->front().second, at);
  about.coordinator_looks = looked && about.job.now_ms < at + kLookedLatelyMs;
  return {};
}

Result<Situation> look_once(Store& store, Id context, const std::string& job_key) {
  Situation about;
  about.context = context;
  MJ_TRY(first, store.places(context, std::span(&job_key, 1), true));
  if (first.size() != 1) return fail(Code::internal, "places: one job was asked about");
  about.job = std::move(first.front());
  const bool claimed = !about.job.claim.state.empty();
  const std::string type = explaining::field(about, "script_type");
  about.queue = claimed ? about.job.claim.queue : type.empty() ? "" : queue_key(type);
  const std::string& state = about.job.claim.state;
  MJ_TRY(runners, store.runners(context));
  about.runners = std::move(runners);
  if (state.empty() || state == "queued") MJ_CHECK(read_queue(store, about));
  if (state == "waiting") MJ_CHECK(read_waits(store, about));
  if (state == "held") MJ_CHECK(read_slots(store, about));
  if (state == "prerequisites") MJ_CHECK(read_coordinator(store, about));
  MJ_CHECK(read_letters(store, about));
  if (state.empty() && about.job.record_type == "none") look_in_database_0(store, about);
  return about;
}

}  // namespace

Result<Situation> look_at(Store& store, Id context, const std::string& job_key) {
  for (int look = 1;; ++look) {
    MJ_TRY(about, look_once(store, context, job_key));
    MJ_TRY(now, store.places(context, std::span(&job_key, 1), false));
    if (now.size() != 1) return fail(Code::internal, "places: one job was asked about");
    const ClaimView& before = about.job.claim;
    const ClaimView& after = now.front().claim;
    const bool same =
        before.state == after.state && before.epoch == after.epoch && about.job.record_type == now.front().record_type;
    if (same || look == kExplainLooks) return std::move(about);
  }
}

Result<Explanation> explain(Store& store, Id context, const std::string& job_key) {
  MJ_TRY(about, look_at(store, context, job_key));
  return explain(about);
}

Result<std::uint64_t> store_now_ms(Store& store, Id context) {
  const std::string any = job_key(1, 1);
  MJ_TRY(places, store.places(context, std::span(&any, 1), false));
  if (places.size() != 1) return fail(Code::internal, "places: one job was asked about");
  return places.front().now_ms;
}

}  // namespace mycojobs
