#include "inspect/verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <set>
#include <thread>

#include "inspect/verify_groups.h"
#include "inspect/verify_job.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBatch = 64;          // jobs that are looked at in one step
constexpr std::size_t kPositionsBatch = 8;  // of those whose queue is searched for them meanwhile
constexpr int kLooks = 6;
constexpr std::chrono::milliseconds kPause{200};

constexpr auto kRules = std::to_array<VerifyRule>({
    {kFactKind, true, "a fact of a kind that nobody knows"},
    {kFactField, true, "a fact that lacks a field, or with a malformed one"},
    {kFactRevision, true, "revisions of a job's facts that do not rise"},
    {kFactOrder, true, "a fact that is not possible in the state that the job was in"},
    {kFactClaim, true, "an owner's fact by a claim that is not the latest, or not live"},
    {kFactEpoch, true, "epochs of a job's claims that do not grow"},
    {kFactCount, true, "attempts or deliveries that do not follow each other"},
    {kAfterEnd, true, "a fact of a job that had ended"},
    {kSecondEnd, true, "two terminal facts in one life of a job"},
    {"fact-missing", true, "a claim lists a fact that its journal does not hold"},
    {"fact-unlisted", true, "a fact that its job's claim does not list: it would outlive the job"},
    {"fact-elsewhere", true, "facts of one job in the journals of two queues"},
    {"claim-type", true, "the key of a claim holds something else"},
    {"claim-missing", true, "facts tell of a job whose claim is gone"},
    {"claim-facts", true, "a claim that is not what the facts of its job say"},
    {"no-place", true, "a job that is not where its state says: nobody will find it"},
    {"two-places", true, "a job that is also in the place of another state"},
    {"lease-index", true, "a live claim and the index of leases disagree"},
    {"lease-overdue", true, "a lease that ran out more than a lease and a second ago: nobody recovers it"},
    {"started-unclaimed", true, "a record that says started without a live claim"},
    {"waiting-ended", true, "a job is parked on one that has ended: nothing will wake it"},
    {"held-free", true, "a job is held by its concurrency key, of which slots are free"},
    {"slot-stray", true, "a job takes a slot and does not run"},
    {"slot-missing", true, "a job runs and takes no slot"},
    {"record-epoch", true, "a record with a higher epoch than its claim: the fence has gone back"},
    {"message-count", true, "the mark of a message does not count its jobs that have not ended"},
    {"object-index", true, "objects and their indexes disagree"},
    {"flow-mark", true, "a flow whose mark is gone, or does not have a job for each node"},
    {"flow-definition", true, "the definition of a flow is gone, or is not what it was"},
    {"flow-journal", true, "entries of a flow's journal that are no facts, or facts that are gone"},
    {"flow-fact", true, "a fact of a flow that is not possible in the state that the run was in"},
    {"flow-checkpoint", true, "a checkpoint that does not say what the facts say"},
    {"flow-index", true, "a flow's mark or indexes are not what its journal says"},
    {"flow-due", true, "there is something to do for a flow, and nobody will look at it"},
    {"flow-job", true, "a job of a flow that is not where its node says"},
    {"flow-unheard", true, "a job of a flow has ended, and its flow will not hear of it"},
    {"flow-orphan", true, "a planned job whose flow is gone or has ended: it will never run"},
    {"waits-circle", false, "jobs that wait for each other: their submitter made it so"},
    {"flow-record", false, "a flow's record that a client has overwritten or deleted; its journal decides"},
    {"flow-job-again", false, "a job whose node has settled was run again by an operator"},
    {"record-words", false, "a record that a client has overwritten; its claim decides"},
    {"record-gone", false, "the record of a job that has not ended was deleted"},
    {"record-type", false, "another client has overwritten a record"},
    {"entry-second", false, "a queue entry too many, which will be dropped"},
    {"entry-stray", false, "a queue entry that names no job or has no record: a dead letter to be"},
    {"bare-unqueued", false, "a record that was never pushed onto a queue"},
    {"not-listed", false, "a job that `job list` does not show: the index by what happened last lacks it"},
    {"log-open", false, "the log of an ended job lacks its last line"},
});

// About what the list of a queue holds: to look again, it must be searched.
bool is_about_entries(const Finding& finding, const JobPlaces& job) {
  static constexpr std::array<std::string_view, 3> kRulesOfEntries{"entry-second", "entry-stray", "bare-unqueued"};
  if (finding.rule == "no-place") return job.claim.state == word(JobState::queued);
  return std::find(kRulesOfEntries.begin(), kRulesOfEntries.end(), finding.rule) != kRulesOfEntries.end();
}
bool are_about_entries(const std::vector<Finding>& findings, const JobPlaces& job) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return is_about_entries(f, job); });
}

class Verification {
 public:
  Verification(Store& store, Id context, const Progress& progress, Census census)
      : store_(store),
        context_(context),
        progress_(progress),
        census_(std::move(census)),
        groups_(store, context, census_) {}
  Result<VerifyReport> run();

 private:
  struct Suspect {
    bool positions = false;
    std::vector<Finding> seen;  // at the look before
    std::vector<std::uint64_t> revisions;
  };
  using Suspects = std::map<std::string, Suspect>;

  void judge_strays();
  Result<void> scan();
  Result<void> scan_some(const std::vector<std::string>& jobs);
  Result<void> look_again();
  Result<void> look_at_some(const std::vector<std::string>& jobs, bool positions);
  void compare(const JobPlaces& job, std::vector<Finding> now);
  JobLook look(const JobPlaces&, const JobHistory&, const Listing&) const;
  void report(std::string_view phase, std::uint64_t done, std::uint64_t total) const {
    if (progress_) progress_(phase, done, total);
  }

  Store& store_;
  const Id context_;
  const Progress& progress_;
  Census census_;
  JobGroups groups_;
  Suspects suspects_;
  bool last_look_ = false;
  VerifyReport report_;
};

Result<VerifyReport> Verification::run() {
  judge_strays();
  MJ_CHECK(scan());
  for (const std::string& job : groups_.wait_for_ended()) suspects_[job];
  MJ_CHECK(look_again());
  MJ_TRY(between, groups_.judge([] { std::this_thread::sleep_for(kPause); }));
  std::move(between.begin(), between.end(), std::back_inserter(report_.findings));
  std::stable_sort(report_.findings.begin(), report_.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.subject < b.subject; });
  report_.jobs = census_.jobs.size();
  report_.facts = census_.facts;
  report_.queues = census_.queues.size();
  return std::move(report_);
}

// What names no job at all cannot move.
void Verification::judge_strays() {
  for (const auto& [queue, revision] : census_.stray_facts) {
    report_.findings.push_back(finding(
        kFactField, queue,
        "the journal of " + queue + " holds a fact at revision " + std::to_string(revision) + " that names no job"));
  }
  for (const auto& [queue, entry] : census_.stray_entries) {
    report_.findings.push_back(finding(
        "entry-stray", queue, queue + " holds " + entry.substr(0, 80) + ", which names no job: a dead letter to be"));
  }
}

JobLook Verification::look(const JobPlaces& places, const JobHistory& history, const Listing& listing) const {
  const std::string queue = census_.queue_of(history, places);
  const bool own = census_.queue_name(history.entry_queue) == queue;
  const bool other = history.other_entries || (history.entries > 0 && !own);
  return {places, history, listing, queue, own ? history.entries : 0, other};
}

Result<void> Verification::scan() {
  std::vector<std::string> some;
  std::uint64_t done = 0;
  for (const auto& [job, history] : census_.jobs) {
    some.push_back(job);
    if (++done % kBatch != 0 && done != census_.jobs.size()) continue;
    MJ_CHECK(scan_some(some));
    some.clear();
    report("jobs", done, census_.jobs.size());
  }
  return {};
}

Result<void> Verification::scan_some(const std::vector<std::string>& jobs) {
  MJ_TRY(places, store_.places(context_, jobs, false));
  for (const JobPlaces& job : places) {
    JobHistory& history = census_.jobs.at(job.job_key);
    MJ_TRY(listing, catch_up(store_, context_, census_, job, false, history));
    const auto findings = judge(look(job, history, listing));
    if (!findings.empty()) suspects_[job.job_key].positions = are_about_entries(findings, job);
    groups_.note(job);
  }
  return {};
}

Result<void> Verification::look_again() {
  for (int round = 0; round < kLooks && !suspects_.empty(); ++round) {
    if (round > 0) std::this_thread::sleep_for(kPause);
    last_look_ = round == kLooks - 1;
    std::vector<std::string> jobs;
    bool entries = false;
    for (const auto& [job, suspect] : suspects_) {
      jobs.push_back(job);
      entries = entries || suspect.positions;
    }
    // One step sees the queue where a job belongs; other queues that it may stand in are read as a whole.
    if (entries) MJ_CHECK(read_entries(store_, context_, census_, progress_));
    for (std::size_t from = 0; from < jobs.size();) {
      // One step for jobs of one kind, with the jobs that they wait for.
      const bool positions = suspects_[jobs[from]].positions;
      std::vector<std::string> some;
      std::size_t keys = 0;
      for (; from < jobs.size() && some.size() < (positions ? kPositionsBatch : kBatch); ++from) {
        keys += 1 + groups_.waits_of(jobs[from]).size();
        if (suspects_[jobs[from]].positions != positions || (keys > kBatch && !some.empty())) break;
        some.push_back(jobs[from]);
      }
      MJ_CHECK(look_at_some(some, positions));
      report("looking again", from, jobs.size());
    }
  }
  return {};
}

Result<void> Verification::look_at_some(const std::vector<std::string>& jobs, bool positions) {
  std::vector<std::string> keys = jobs;
  for (const std::string& job : jobs) {
    const auto& waits = groups_.waits_of(job);
    keys.insert(keys.end(), waits.begin(), waits.end());
  }
  MJ_TRY(places, store_.places(context_, keys, positions));
  std::set<std::string> ended;
  for (const JobPlaces& job : places) {
    if (has_ended(job)) ended.insert(job.job_key);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const JobPlaces& job = places[i];
    JobHistory& history = census_.jobs.at(job.job_key);
    MJ_TRY(listing, catch_up(store_, context_, census_, job, true, history));
    JobLook now = look(job, history, listing);
    now.in_queue = positions ? std::optional(job.in_queue) : std::nullopt;
    std::vector<Finding> findings = judge(now);
    for (const std::string& dep : job.waits_for) {
      if (!ended.contains(dep)) continue;
      findings.push_back(finding("waiting-ended", job.job_key,
                                 job.job_key + " waits for " + dep + ", which has ended: nothing will wake it"));
      break;
    }
    compare(job, std::move(findings));
  }
  return {};
}

// What was seen before of a job that has not moved since stands, unless it rests on what a queue held at some look
// before: the queue is searched first. A job that was retired has no revisions that would tell that it has moved.
void Verification::compare(const JobPlaces& job, std::vector<Finding> now) {
  Suspect& suspect = suspects_[job.job_key];
  if (now.empty()) {
    suspects_.erase(job.job_key);
    return;
  }
  const bool unsearched = !suspect.positions && are_about_entries(now, job);
  const bool moved = suspect.revisions != job.claim.revisions;
  if (suspect.seen.empty() || ((moved || unsearched) && !last_look_)) {
    suspect = {suspect.positions || unsearched, std::move(now), job.claim.revisions};
    return;
  }
  for (Finding& each : now) {
    const bool again = std::any_of(suspect.seen.begin(), suspect.seen.end(),
                                   [&](const Finding& before) { return before.rule == each.rule; });
    if (again && !(unsearched && is_about_entries(each, job))) report_.findings.push_back(std::move(each));
  }
  suspects_.erase(job.job_key);
}

}  // namespace

std::span<const VerifyRule> verify_rules() { return kRules; }

Result<VerifyReport> verify(Store& store, Id context, const Progress& progress) {
  MJ_TRY(census, take_census(store, context, progress));
  return Verification(store, context, progress, std::move(census)).run();
}

}  // namespace mycojobs
