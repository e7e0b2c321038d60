#include "inspect/verify/rebuild.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "inspect/verify/job_keys.h"
#include "inspect/verify/kept_bytes.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxRebuildBatch = 64;
// Maximum number of reads of one job: the job may change, and the event that continues it is repaired in a separate
// step.
constexpr int kMaxRepairChecks = 8;

class ContextRebuilder {
 public:
  ContextRebuilder(Store& store, Id context, bool dry_run, const ProgressCallback& progress, KeyInventory inventory)
      : store_(store), context_(context), dry_run_(dry_run), progress_(progress), inventory_(std::move(inventory)) {}
  Result<RebuildReport> run();

 private:
  std::vector<const std::string*> sort_jobs() const;
  Result<void> repair_job(const JobStoreState& batch_state);
  Result<void> repair_messages();
  Result<void> repair_keys();
  Result<void> repair_stored_bytes_counters();
  // Result of an attempt. retry: the job was repaired and must be read again. conflict: the job changed between its
  // read and the repair.
  enum class AttemptResult { done, retry, conflict };
  Result<AttemptResult> repair_once(const JobStoreState&, bool has_changed, std::vector<std::string>& repaired_texts);
  bool is_retired(const JobStoreState&, const JobHistory&) const;

  Store& store_;
  const Id context_;
  const bool dry_run_;
  const ProgressCallback& progress_;
  KeyInventory inventory_;
  RebuildReport report_;
};

// Ended jobs are first, then live jobs, since the state of jobs that wait for an end or a slot depends on them.
// Released jobs follow, to be claimed next, then the other jobs in the order in which they entered their state, so that
// the order of queues is restored.
std::vector<const std::string*> ContextRebuilder::sort_jobs() const {
  std::vector<const std::string*> jobs;
  jobs.reserve(inventory_.jobs.size());
  for (const auto& [job, history] : inventory_.jobs) jobs.push_back(&job);
  const auto rank = [&](const std::string* job) {
    const JobHistory& history = inventory_.jobs.at(*job);
    const FoldedJob& folded = history.folded;
    if (!history.has_facts()) return std::tuple(4, std::uint64_t{0}, std::uint64_t{0});
    const bool is_released =
        folded.reason == to_string(FactKind::released) || folded.reason == to_string(FactKind::expired);
    const int group = folded.state == JobState::ended ? 0 : folded.state == JobState::live ? 1 : is_released ? 2 : 3;
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
  const auto order = sort_jobs();
  for (std::size_t begin = 0; begin < order.size(); begin += kMaxRebuildBatch) {
    std::vector<std::string> batch;
    for (std::size_t i = begin; i < std::min(begin + kMaxRebuildBatch, order.size()); ++i) batch.push_back(*order[i]);
    MJ_TRY(states, store_.job_states(context_, batch, false));
    for (const JobStoreState& job : states) MJ_CHECK(repair_job(job));
    if (progress_) progress_("jobs", begin + batch.size(), order.size());
  }
  MJ_CHECK(repair_messages());
  MJ_CHECK(repair_keys());
  MJ_CHECK(repair_stored_bytes_counters());
  report_.jobs = order.size();
  return std::move(report_);
}

// A message that has changed since it was read is handled by the component that changed it.
Result<void> ContextRebuilder::repair_messages() {
  MJ_TRY(problems, read_message_states(store_, context_));
  for (const MessageProblem& problem : problems) {
    std::vector<std::string> kinds;
    for (const MessageFinding& finding : problem.findings) kinds.push_back(finding.missing_entry);
    const std::string& key = problem.store_state.message_key;
    Result<bool> result =
        dry_run_ ? Result<bool>(true) : store_.repair_message(context_, key, problem.store_state.digest, kinds);
    if (!result && result.error().code != Code::invalid) return tl::unexpected(result.error());
    if (result && !*result) continue;
    for (const MessageFinding& finding : problem.findings) report_.differences.push_back(finding.text);
    if (!result) report_.differences.push_back(key + ": cannot be repaired: " + result.error().message);
  }
  return {};
}

Result<void> ContextRebuilder::repair_keys() {
  MJ_TRY(problems, find_job_key_problems(store_, context_));
  for (const JobKeyProblem& problem : problems) {
    if (!dry_run_) MJ_CHECK(repair_job_key(store_, context_, problem));
    report_.differences.push_back(problem.finding.text);
  }
  return {};
}

Result<void> ContextRebuilder::repair_stored_bytes_counters() {
  constexpr std::chrono::milliseconds kCheckInterval{200};
  MJ_TRY(problems, find_stored_bytes_problems(store_, context_, [&] { std::this_thread::sleep_for(kCheckInterval); }));
  for (const StoredBytesProblem& problem : problems) {
    if (!dry_run_) MJ_CHECK(repair_stored_bytes(store_, context_, problem));
    report_.differences.push_back(problem.finding.text);
  }
  return {};
}

// Repairs a job that a read of many jobs has found. If the job has no problem in batch_state, it is not read again,
// unless it waits for other jobs or for a slot: the repairs of other jobs may have changed its state.
Result<void> ContextRebuilder::repair_job(const JobStoreState& batch_state) {
  JobHistory& history = inventory_.jobs.at(batch_state.job_key);
  MJ_TRY(difference, read_new_facts(store_, context_, inventory_, batch_state, false, history));
  const auto state = parse_job_state(batch_state.claim.state);
  const bool needs_second_read = state == JobState::waiting || state == JobState::held;
  if (!needs_second_read &&
      make_repair_plan(check_invariants(inventory_.make_inspection(batch_state, history, difference, false)))
          .fixes.empty())
    return {};
  const std::vector<std::string> keys{batch_state.job_key};
  std::vector<std::string> repaired_texts;
  AttemptResult last_result = AttemptResult::retry;
  for (int attempt = 0; attempt < kMaxRepairChecks; ++attempt) {
    MJ_TRY(states, store_.job_states(context_, keys, true));
    MJ_TRY(result, repair_once(states.at(0), last_result == AttemptResult::conflict, repaired_texts));
    if (result == AttemptResult::done) return {};
    last_result = result;
  }
  if (last_result == AttemptResult::conflict) {
    report_.differences.push_back(batch_state.job_key + ": it changes faster than it is read, so it was not changed");
  }
  return {};
}

// Repairs the job as it was read. has_changed: the job changed during the previous attempt. repaired_texts: texts of
// the findings that were repaired so far. If a finding occurs again after its repair, the loop ends, since the same
// repair would fail again.
Result<ContextRebuilder::AttemptResult> ContextRebuilder::repair_once(const JobStoreState& job, bool has_changed,
                                                                      std::vector<std::string>& repaired_texts) {
  JobHistory& history = inventory_.jobs.at(job.job_key);
  // A missing job may have been retired since its facts were read.
  const bool is_missing = job.record_type == "none" && job.claim_type == "none";
  MJ_TRY(difference, read_new_facts(store_, context_, inventory_, job, has_changed || is_missing, history));
  if (is_retired(job, history)) return AttemptResult::done;
  const JobInspection inspection = inventory_.make_inspection(job, history, difference, true);
  const JobVerdict verdict = check_invariants(inspection);
  const JobRepairPlan plan = make_repair_plan(verdict);
  const bool is_repeated = std::any_of(plan.findings.begin(), plan.findings.end(), [&](const JobFinding* finding) {
    return std::find(repaired_texts.begin(), repaired_texts.end(), finding->text) != repaired_texts.end();
  });
  if (plan.fixes.empty() || is_repeated) return AttemptResult::done;
  Repair repair{job.digest, inspection.queue, 0, plan.fixes};
  if (history.queue != JobHistory::kNoQueue) repair.journal_head = inventory_.last_revisions[history.queue];
  Result<bool> result = dry_run_ ? Result<bool>(true) : store_.repair(context_, job.job_key, repair);
  if (!result && result.error().code != Code::invalid) return tl::unexpected(result.error());
  if (result && !*result) {
    if (history.queue != JobHistory::kNoQueue)
      MJ_CHECK(read_more_facts(store_, context_, history.queue, inventory_, {}));
    return AttemptResult::conflict;
  }
  for (const JobFinding* finding : plan.findings) {
    repaired_texts.push_back(finding->text);
    report_.differences.push_back(finding->text);
  }
  // A key of another client prevents the repair; the message names it.
  if (!result) report_.differences.push_back(job.job_key + ": cannot be repaired: " + result.error().message);
  return result && !dry_run_ && !plan.findings.empty() ? AttemptResult::retry : AttemptResult::done;
}

// Returns whether nothing but the facts of an ended job exists, and the facts are old enough to be retired.
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
