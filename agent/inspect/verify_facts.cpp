#include "inspect/verify_facts.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "inspect/explain.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kPage = 1000;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

void take_in(JobHistory& history, const Fact& fact) {
  auto problem = fold(history.folded, fact);
  if (!problem && fact.kind == word(FactKind::restored)) {
    history.problem.reset();
    history.problems = 0;
  }
  if (!problem) return;
  ++history.problems;
  if (!history.problem) history.problem = std::move(problem);
}

void take_in(Census& census, std::uint32_t queue, const Fact& fact) {
  ++census.facts;
  if (!is_job_key(fact.job_key)) {
    census.stray_facts.emplace_back(census.queues[queue].queue, fact.revision);
    return;
  }
  JobHistory& history = census.jobs[fact.job_key];
  if (!history.told()) history.queue = queue;
  if (history.queue != queue) {
    history.elsewhere = queue;
    return;
  }
  const auto& read = history.folded.revisions;
  if (!std::binary_search(read.begin(), read.end(), fact.revision)) take_in(history, fact);
}

Result<void> read_list(Store& store, Id context, std::uint32_t queue, Census& census) {
  const std::string& name = census.queues[queue].queue;
  for (std::uint64_t from = 0;; from += kPage) {
    MJ_TRY(entries, store.queue_entries(context, name, from, kPage));
    for (std::string& entry : entries) {
      if (!is_job_key(entry)) {
        census.stray_entries.emplace_back(name, std::move(entry));
        continue;
      }
      JobHistory& history = census.jobs[entry];
      if (history.entries == 0) history.entry_queue = queue;
      if (history.entry_queue == queue) {
        ++history.entries;
      } else {
        history.other_entries = true;
      }
    }
    if (entries.size() < kPage) return {};
  }
}

// The fact at this revision, whose ever it is, if it stands there.
Result<std::optional<Fact>> fact_at(Store& store, Id context, const std::string& queue, std::uint64_t revision) {
  if (queue.empty() || revision == 0) return std::optional<Fact>();
  MJ_TRY(facts, store.journal(context, queue, revision - 1, 1));
  const bool there = !facts.empty() && facts[0].revision == revision;
  return there ? std::optional(std::move(facts[0])) : std::nullopt;
}

}  // namespace

std::string Census::queue_name(std::uint32_t queue) const { return queue < queues.size() ? queues[queue].queue : ""; }

std::uint32_t Census::queue_index(const std::string& name) const {
  const auto found =
      std::find_if(queues.begin(), queues.end(), [&](const QueueInfo& each) { return each.queue == name; });
  return found == queues.end() ? JobHistory::kNoQueue : static_cast<std::uint32_t>(found - queues.begin());
}

std::string Census::queue_of(const JobHistory& history, const JobPlaces& job) const {
  return history.queue == JobHistory::kNoQueue ? job.claim.queue : queue_name(history.queue);
}

JobSight Census::sight(const JobPlaces& places, const JobHistory& history, const Listing& listing, bool whole) const {
  const std::string queue = queue_of(history, places);
  const bool own = queue_name(history.entry_queue) == queue;
  const bool other = history.other_entries || (history.entries > 0 && !own);
  return {places, history, listing, queue, whole ? places.in_queue : own ? history.entries : 0, other};
}

std::string own_prefix(std::string_view of) {
  for (const OwnKey& key : own_keys()) {
    if (key.type == "hash" && key.pattern.ends_with(of)) {
      return std::string(key.pattern.substr(0, key.pattern.size() - of.size()));
    }
  }
  return {};
}

Result<void> read_on(Store& store, Id context, std::uint32_t queue, Census& census, const Progress& progress) {
  std::uint64_t total = 0;
  for (const QueueInfo& each : census.queues) total += each.facts;
  std::uint64_t& read_to = census.read_to[queue];
  while (true) {
    MJ_TRY(facts, store.journal(context, census.queues[queue].queue, read_to, kPage));
    for (const Fact& fact : facts) take_in(census, queue, fact);
    if (!facts.empty()) read_to = facts.back().revision;
    if (progress) progress("journals", census.facts, std::max(total, census.facts));
    if (facts.size() < kPage) return {};
  }
}

Result<void> read_entries(Store& store, Id context, Census& census, const Progress& progress) {
  census.stray_entries.clear();
  for (auto& [job, history] : census.jobs) {
    history.entries = 0;
    history.entry_queue = JobHistory::kNoQueue;
    history.other_entries = false;
  }
  for (std::uint32_t i = 0; i < census.queues.size(); ++i) {
    if (progress) progress("queues", i, census.queues.size());
    MJ_CHECK(read_list(store, context, i, census));
  }
  return {};
}

Result<Census> take_census(Store& store, Id context, const Progress& progress) {
  Census census;
  MJ_TRY(began, store_now_ms(store, context));
  census.began_ms = began;
  MJ_TRY(queues, store.queues(context));
  census.queues = std::move(queues);
  census.read_to.resize(census.queues.size());
  for (std::uint32_t i = 0; i < census.queues.size(); ++i) {
    MJ_CHECK(read_on(store, context, i, census, progress));
    // Facts that were retired at its end count as read.
    census.read_to[i] = std::max(census.read_to[i], census.queues[i].journal_head);
  }
  const std::string claims = own_prefix("<job key>");
  for (const std::string& prefix : {std::string("job:"), claims + "job:"}) {
    if (progress) progress("keys", census.jobs.size(), 0);
    MJ_TRY(keys, store.keys(context, prefix, kAll));
    for (const std::string& key : keys) {
      const std::string_view job = std::string_view(key).substr(prefix.size() - 4);
      if (is_job_key(job)) census.jobs.try_emplace(std::string(job));
    }
  }
  MJ_TRY(leases, store.leases(context));
  for (const Lease& lease : leases) census.jobs.try_emplace(lease.job_key);
  MJ_CHECK(read_entries(store, context, census, progress));
  return census;
}

Result<Listing> catch_up(Store& store, Id context, const Census& census, const JobPlaces& places, bool again,
                         JobHistory& history) {
  std::vector<std::uint64_t> listed = places.claim.revisions;
  std::sort(listed.begin(), listed.end());  // a client may have written them
  const auto read = [&](std::uint64_t revision) {
    const auto& revisions = history.folded.revisions;
    return std::binary_search(revisions.begin(), revisions.end(), revision);
  };
  Listing listing;
  if (again) {
    // Facts that are gone were retired with their job; what its key names now is another one.
    for (const std::uint64_t revision : history.folded.revisions) {
      if (std::binary_search(listed.begin(), listed.end(), revision)) continue;
      MJ_TRY(fact, fact_at(store, context, census.queue_of(history, places), revision));
      if (fact && fact->job_key == places.job_key) continue;
      history.folded = FoldedJob{};
      history.problem.reset();
      history.problems = 0;
      history.queue = history.elsewhere = JobHistory::kNoQueue;
      break;
    }
  }
  if (!history.told()) history.queue = census.queue_index(places.claim.queue);
  const std::string queue = census.queue_of(history, places);
  for (const std::uint64_t revision : listed) {
    if (read(revision)) continue;
    MJ_TRY(fact, fact_at(store, context, queue, revision));
    const bool later = !history.told() || revision > history.folded.revisions.back();
    if (revision == 0 || (fact && fact->job_key != places.job_key)) {
      listing.foreign.push_back(revision);
    } else if (fact && later) {
      take_in(history, *fact);
    } else {
      listing.missing.push_back(revision);
    }
  }
  std::set_difference(history.folded.revisions.begin(), history.folded.revisions.end(), listed.begin(), listed.end(),
                      std::back_inserter(listing.unlisted));
  return listing;
}

}  // namespace mycojobs
