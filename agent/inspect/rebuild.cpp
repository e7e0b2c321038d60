#include "inspect/rebuild.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "inspect/verify_job.h"

namespace mycojobs {
namespace {

constexpr std::size_t kRebuildBatch = 64;
constexpr int kRebuildLooks = 5;  // at a job that moves

class Rebuilding {
 public:
  Rebuilding(Store& store, Id context, bool dry_run, const Progress& progress, Census census)
      : store_(store), context_(context), dry_run_(dry_run), progress_(progress), census_(std::move(census)) {}
  Result<RebuildReport> run();

 private:
  std::vector<const std::string*> in_order() const;
  Result<void> mend(const JobPlaces& first);
  bool is_retired(const JobPlaces&, const JobHistory&) const;
  bool is_queued_elsewhere(const JobPlaces&, const JobHistory&) const;
  Repair repair_of(const JobPlaces&, const JobHistory&, const Listing&);

  Store& store_;
  const Id context_;
  const bool dry_run_;
  const Progress& progress_;
  Census census_;
  RebuildReport report_;
};

// Ended jobs first, then live ones: what waits for an end or a slot is judged by them. Then those that were given back,
// to be taken next, and the others as they came to be where they are, so that queues get their order back.
std::vector<const std::string*> Rebuilding::in_order() const {
  std::vector<const std::string*> jobs;
  jobs.reserve(census_.jobs.size());
  for (const auto& [job, history] : census_.jobs) jobs.push_back(&job);
  const auto rank = [&](const std::string* job) {
    const JobHistory& history = census_.jobs.at(*job);
    const FoldedJob& folded = history.folded;
    if (!history.told()) return std::tuple(4, std::uint64_t{0}, std::uint64_t{0});
    const bool given_back = folded.reason == word(FactKind::released) || folded.reason == word(FactKind::expired);
    const int group = folded.state == JobState::ended ? 0 : folded.state == JobState::live ? 1 : given_back ? 2 : 3;
    return std::tuple(group, folded.since_ms, folded.revisions.back());
  };
  std::sort(jobs.begin(), jobs.end(), [&](const std::string* a, const std::string* b) {
    const auto left = rank(a);
    const auto right = rank(b);
    return left != right ? left < right : *a < *b;
  });
  return jobs;
}

Result<RebuildReport> Rebuilding::run() {
  const auto order = in_order();
  for (std::size_t from = 0; from < order.size(); from += kRebuildBatch) {
    std::vector<std::string> some;
    for (std::size_t i = from; i < std::min(from + kRebuildBatch, order.size()); ++i) some.push_back(*order[i]);
    MJ_TRY(places, store_.places(context_, some, false));
    for (const JobPlaces& job : places) MJ_CHECK(mend(job));
    if (progress_) progress_("jobs", from + some.size(), order.size());
  }
  report_.jobs = order.size();
  return std::move(report_);
}

Result<void> Rebuilding::mend(const JobPlaces& first) {
  JobPlaces job = first;
  JobHistory& history = census_.jobs.at(job.job_key);
  const std::vector<std::string> key{job.job_key};
  for (int look = 0; look < kRebuildLooks; ++look) {
    MJ_TRY(listing, catch_up(store_, context_, census_, job, look > 0, history));
    if (is_retired(job, history) || is_queued_elsewhere(job, history)) return {};
    const Repair repair = repair_of(job, history, listing);
    auto answer = store_.repair(context_, job.job_key, repair, dry_run_);
    if (!answer && answer.error().code != Code::invalid) return tl::unexpected(answer.error());
    if (!answer) {  // another client's key stands in the way: the message names it
      report_.differences.push_back(job.job_key + ": cannot be mended: " + answer.error().message);
      return {};
    }
    RepairReply& reply = *answer;
    if (!reply.moved) {
      std::move(reply.differences.begin(), reply.differences.end(), std::back_inserter(report_.differences));
      return {};
    }
    if (history.queue != JobHistory::kNoQueue) MJ_CHECK(read_on(store_, context_, history.queue, census_, {}));
    MJ_TRY(again, store_.places(context_, key, false));
    job = std::move(again.at(0));
  }
  report_.differences.push_back(job.job_key + ": its facts change faster than they are read: left as it is");
  return {};
}

// Its facts were all that was left of it, and may be on their way out.
bool Rebuilding::is_retired(const JobPlaces& job, const JobHistory& history) const {
  if (job.record_type != "none" || job.claim_type != "none" || history.queue == JobHistory::kNoQueue) return false;
  const std::uint64_t horizon = census_.queues[history.queue].horizon_ms;
  return history.folded.state == JobState::ended && history.folded.since_ms <= horizon;
}

// Another client's job in a queue other than its script type names: whoever serves that one will take it.
bool Rebuilding::is_queued_elsewhere(const JobPlaces& job, const JobHistory& history) const {
  return job.record_type == "hash" && job.claim_type == "none" && !history.told() && history.entries > 0 &&
         census_.queue_name(history.entry_queue) != job.claim.queue;
}

Repair Rebuilding::repair_of(const JobPlaces& job, const JobHistory& history, const Listing& listing) {
  Repair repair;
  if (history.queue != JobHistory::kNoQueue) repair.journal_head = census_.read_to[history.queue];
  // Those that are listed and not there were looked for.
  for (const auto* looked_for : {&history.folded.revisions, &listing.missing, &listing.foreign}) {
    if (!looked_for->empty()) repair.last_revision = std::max(repair.last_revision, looked_for->back());
  }
  // Facts may be whole and yet not the latest: a revision that was given twice is of the claim that was given up. A
  // list that names facts of others may be a client's nonsense, or what is left of a step whose fact was lost.
  const FoldedJob& folded = history.folded;
  const bool is_newer =
      job.claim.epoch > folded.epoch && field_of(job.record, "epoch") == std::to_string(job.claim.epoch);
  const bool differs = job.claim.state != word(folded.state) || job.claim.claim_id != folded.claim_id;
  const bool doubtful = is_newer || (!listing.foreign.empty() && differs);
  if ((are_whole(history, listing) && !doubtful) || (history.told() && job.claim.state.empty())) {
    repair.claim = claim_of(history.folded, census_.queue_of(history, job));
    repair.due_ms = history.folded.due_ms;
    return repair;
  }
  const std::string kept = ": its claim is kept as it is";
  if (!listing.missing.empty()) {
    report_.differences.push_back(job.job_key + ": the journal lacks revision " +
                                  std::to_string(listing.missing.front()) + kept);
  } else if (history.problem) {
    report_.differences.push_back(job.job_key + ": " + history.problem->text + kept);
  }
  if (!listing.missing.empty() || history.problem || doubtful) {
    repair.claim.revisions = folded.revisions;
    if (repair.claim.revisions.empty()) repair.claim.revisions = {0};  // none is left
  }
  repair.due_ms = job.due_ms.value_or(history.folded.due_ms);
  return repair;
}

}  // namespace

Result<RebuildReport> rebuild(Store& store, Id context, bool dry_run, const Progress& progress) {
  MJ_TRY(census, take_census(store, context, progress));
  return Rebuilding(store, context, dry_run, progress, std::move(census)).run();
}

}  // namespace mycojobs
