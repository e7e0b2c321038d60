#include "inspect/verify/rebuild.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "inspect/verify/job_keys.h"
#include "inspect/verify/kept_bytes.h"

namespace mycojobs {
namespace {

constexpr std::size_t kRebuildBatch = 64;
// Reads of one job: the job may change, and the event that continues it is repaired in a separate step.
constexpr int kRebuildChecks = 8;

class ContextRebuilder {
 public:
  ContextRebuilder(Store& store, Id context, bool dry_run, const ProgressCallback& progress, KeyInventory inventory)
      : store_(store), context_(context), dry_run_(dry_run), progress_(progress), inventory_(std::move(inventory)) {}
  Result<RebuildReport> run();

 private:
  std::vector<const std::string*> in_order() const;
  Result<void> mend(const JobStoreState& first);
  Result<void> repair_messages();
  Result<void> repair_keys();
  Result<void> repair_stored();
  enum class Step { done, again, moved };
  Result<Step> repair_once(const JobStoreState&, bool moved, std::vector<std::string>& repaired);
  bool is_retired(const JobStoreState&, const JobHistory&) const;

  Store& store_;
  const Id context_;
  const bool dry_run_;
  const ProgressCallback& progress_;
  KeyInventory inventory_;
  RebuildReport report_;
};

// Ended jobs are first, then live jobs, since jobs that wait for an end or a slot are judged by them. Released jobs
// follow, to be claimed next, then the other jobs in the order in which they entered their state, so that the order of
// queues is restored.
std::vector<const std::string*> ContextRebuilder::in_order() const {
  std::vector<const std::string*> jobs;
  jobs.reserve(inventory_.jobs.size());
  for (const auto& [job, history] : inventory_.jobs) jobs.push_back(&job);
  const auto rank = [&](const std::string* job) {
    const JobHistory& history = inventory_.jobs.at(*job);
    const FoldedJob& folded = history.folded;
    if (!history.has_facts()) return std::tuple(4, std::uint64_t{0}, std::uint64_t{0});
    const bool given_back =
        folded.reason == to_string(FactKind::released) || folded.reason == to_string(FactKind::expired);
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

Result<RebuildReport> ContextRebuilder::run() {
  const auto order = in_order();
  for (std::size_t from = 0; from < order.size(); from += kRebuildBatch) {
    std::vector<std::string> some;
    for (std::size_t i = from; i < std::min(from + kRebuildBatch, order.size()); ++i) some.push_back(*order[i]);
    MJ_TRY(places, store_.job_states(context_, some, false));
    for (const JobStoreState& job : places) MJ_CHECK(mend(job));
    if (progress_) progress_("jobs", from + some.size(), order.size());
  }
  MJ_CHECK(repair_messages());
  MJ_CHECK(repair_keys());
  MJ_CHECK(repair_stored());
  report_.jobs = order.size();
  return std::move(report_);
}

// A message that has changed since it was read is handled by the component that changed it.
Result<void> ContextRebuilder::repair_messages() {
  MJ_TRY(troubles, read_message_states(store_, context_));
  for (const MessageProblem& each : troubles) {
    std::vector<std::string> kinds;
    for (const MessageFinding& one : each.findings) kinds.push_back(one.kind);
    const std::string& key = each.places.message_key;
    Result<bool> done = dry_run_ ? Result<bool>(true) : store_.repair_message(context_, key, each.places.seen, kinds);
    if (!done && done.error().code != Code::invalid) return tl::unexpected(done.error());
    if (done && !*done) continue;
    for (const MessageFinding& one : each.findings) report_.differences.push_back(one.text);
    if (!done) report_.differences.push_back(key + ": cannot be repaired: " + done.error().message);
  }
  return {};
}

Result<void> ContextRebuilder::repair_keys() {
  MJ_TRY(troubles, find_job_key_problems(store_, context_));
  for (const JobKeyProblem& each : troubles) {
    if (!dry_run_) MJ_CHECK(repair_job_key(store_, context_, each));
    report_.differences.push_back(each.finding.text);
  }
  return {};
}

Result<void> ContextRebuilder::repair_stored() {
  constexpr std::chrono::milliseconds kPause{200};
  MJ_TRY(troubles, find_stored_bytes_problems(store_, context_, [&] { std::this_thread::sleep_for(kPause); }));
  for (const StoredBytesProblem& each : troubles) {
    if (!dry_run_) MJ_CHECK(repair_stored_bytes(store_, context_, each));
    report_.differences.push_back(each.finding.text);
  }
  return {};
}

// A read of many jobs finds the jobs that need a read of their own. Repairs of earlier jobs may have changed the jobs
// that this job waits for.
Result<void> ContextRebuilder::mend(const JobStoreState& first) {
  JobHistory& history = inventory_.jobs.at(first.job_key);
  MJ_TRY(listing, read_new_entries(store_, context_, inventory_, first, false, history));
  const auto state = parse_job_state(first.claim.state);
  const bool waits = state == JobState::waiting || state == JobState::held;
  if (!waits && repair_plan(check_invariants(inventory_.inspection(first, history, listing, false))).fixes.empty())
    return {};
  const std::vector<std::string> key{first.job_key};
  std::vector<std::string> repaired;
  Step last = Step::again;
  for (int look = 0; look < kRebuildChecks; ++look) {
    MJ_TRY(places, store_.job_states(context_, key, true));
    MJ_TRY(step, repair_once(places.at(0), last == Step::moved, repaired));
    if (step == Step::done) return {};
    last = step;
  }
  if (last == Step::moved) {
    report_.differences.push_back(first.job_key + ": it changes faster than it is read, so it was not changed");
  }
  return {};
}

// mended: problems of this job that were repaired. A problem that occurs again is not repaired in the same way.
Result<ContextRebuilder::Step> ContextRebuilder::repair_once(const JobStoreState& job, bool moved,
                                                             std::vector<std::string>& repaired) {
  JobHistory& history = inventory_.jobs.at(job.job_key);
  // A missing job may have been retired since its facts were read.
  const bool gone = job.record_type == "none" && job.claim_type == "none";
  MJ_TRY(listing, read_new_entries(store_, context_, inventory_, job, moved || gone, history));
  if (is_retired(job, history)) return Step::done;
  const JobInspection sight = inventory_.inspection(job, history, listing, true);
  const JobVerdict verdict = check_invariants(sight);
  const JobRepairPlan mending = repair_plan(verdict);
  const bool again = std::any_of(mending.of.begin(), mending.of.end(), [&](const JobFinding* each) {
    return std::find(repaired.begin(), repaired.end(), each->text) != repaired.end();
  });
  if (mending.fixes.empty() || again) return Step::done;
  Repair repair{job.seen, sight.queue, 0, mending.fixes};
  if (history.queue != JobHistory::kNoQueue) repair.journal_head = inventory_.read_to[history.queue];
  Result<bool> done = dry_run_ ? Result<bool>(true) : store_.repair(context_, job.job_key, repair);
  if (!done && done.error().code != Code::invalid) return tl::unexpected(done.error());
  if (done && !*done) {
    if (history.queue != JobHistory::kNoQueue)
      MJ_CHECK(read_more_entries(store_, context_, history.queue, inventory_, {}));
    return Step::moved;
  }
  for (const JobFinding* each : mending.of) {
    repaired.push_back(each->text);
    report_.differences.push_back(each->text);
  }
  // A key of another client prevents the repair; the message names it.
  if (!done) report_.differences.push_back(job.job_key + ": cannot be repaired: " + done.error().message);
  return done && !dry_run_ && !mending.of.empty() ? Step::again : Step::done;
}

// Returns whether only the facts of the job are left. They may be about to be retired.
bool ContextRebuilder::is_retired(const JobStoreState& job, const JobHistory& history) const {
  if (job.record_type != "none" || job.claim_type != "none" || history.queue == JobHistory::kNoQueue) return false;
  const std::uint64_t horizon = inventory_.queues[history.queue].horizon_ms;
  return history.folded.state == JobState::ended && history.folded.since_ms <= horizon;
}

}  // namespace

Result<RebuildReport> rebuild(Store& store, Id context, bool dry_run, const ProgressCallback& progress) {
  MJ_TRY(inventory, read_key_inventory(store, context, progress));
  return ContextRebuilder(store, context, dry_run, progress, std::move(inventory)).run();
}

}  // namespace mycojobs
