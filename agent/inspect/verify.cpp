#include "inspect/verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <thread>

#include "inspect/verify_groups.h"

namespace mycojobs {
namespace {

constexpr std::size_t kBatch = 64;          // jobs that are looked at in one step
constexpr std::size_t kPositionsBatch = 8;  // of those whose queue is searched for them meanwhile
constexpr int kLooks = 6;
constexpr std::chrono::milliseconds kPause{200};

// Of a held job it takes a look at all jobs of its key: inspect/verify_groups.h.
std::vector<Finding> findings_of(const JobSight& sight) {
  std::vector<Finding> findings;
  for (JobFinding& each : judge(sight).findings) {
    if (each.rule != "held-free") findings.push_back(std::move(each));
  }
  return findings;
}

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
  for (const std::string& job : groups_.wait_for_ended()) suspects_[job].positions = true;
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
    const auto findings = findings_of(census_.sight(job, history, listing, false));
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
      const bool positions = suspects_[jobs[from]].positions;  // one step for jobs of one kind
      std::vector<std::string> some;
      for (; from < jobs.size() && some.size() < (positions ? kPositionsBatch : kBatch); ++from) {
        if (suspects_[jobs[from]].positions != positions) break;
        some.push_back(jobs[from]);
      }
      MJ_CHECK(look_at_some(some, positions));
      report("looking again", from, jobs.size());
    }
  }
  return {};
}

Result<void> Verification::look_at_some(const std::vector<std::string>& jobs, bool positions) {
  MJ_TRY(places, store_.places(context_, jobs, positions));
  for (const JobPlaces& job : places) {
    JobHistory& history = census_.jobs.at(job.job_key);
    MJ_TRY(listing, catch_up(store_, context_, census_, job, true, history));
    JobSight now = census_.sight(job, history, listing, positions);
    if (!positions) now.in_queue.reset();
    compare(job, findings_of(now));
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

Result<VerifyReport> verify(Store& store, Id context, const Progress& progress) {
  MJ_TRY(census, take_census(store, context, progress));
  return Verification(store, context, progress, std::move(census)).run();
}

}  // namespace mycojobs
