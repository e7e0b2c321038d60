#include "inspect/verify/job_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "base/parse.h"
#include "inspect/explain.h"
#include "inspect/verify/job_keys.h"
#include "inspect/verify/kept_bytes.h"
#include "store/keys.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kPage = 1000;
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

void take_in(JobHistory& history, const Fact& fact) {
  auto problem = fold(history.folded, fact);
  if (!problem && fact.kind == to_string(FactKind::restored)) {
    history.problem.reset();
    history.problems = 0;
  }
  if (!problem) return;
  ++history.problems;
  if (!history.problem) history.problem = std::move(problem);
}

void take_in(KeyInventory& inventory, std::uint32_t queue, const Fact& fact) {
  ++inventory.facts;
  if (!is_job_key(fact.job_key)) {
    inventory.stray_facts.emplace_back(inventory.queues[queue].queue, fact.revision);
    return;
  }
  JobHistory& history = inventory.jobs[fact.job_key];
  if (!history.has_facts()) history.queue = queue;
  if (history.queue != queue) {
    history.elsewhere = queue;
    return;
  }
  const auto& read = history.folded.revisions;
  if (!std::binary_search(read.begin(), read.end(), fact.revision)) take_in(history, fact);
}

Result<void> read_list(Store& store, Id context, std::uint32_t queue, KeyInventory& inventory) {
  const std::string& name = inventory.queues[queue].queue;
  if (!inventory.queues[queue].wrong_type.empty()) return {};
  for (std::uint64_t from = 0;; from += kPage) {
    MJ_TRY(entries, store.queue_entries(context, name, from, kPage));
    for (std::string& entry : entries) {
      if (!is_job_key(entry)) {
        inventory.stray_entries.emplace_back(name, std::move(entry));
        continue;
      }
      JobHistory& history = inventory.jobs[entry];
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

// Returns the existing facts at these revisions, of any job.
Result<std::map<std::uint64_t, Fact>> facts_at(Store& store, Id context, const std::string& queue,
                                               std::vector<std::uint64_t> revisions) {
  std::map<std::uint64_t, Fact> found;
  std::erase(revisions, 0U);
  if (queue.empty() || revisions.empty()) return found;
  MJ_TRY(facts, store.journal_at(context, queue, revisions));
  for (Fact& fact : facts) found.emplace(fact.revision, std::move(fact));
  return found;
}

}  // namespace

std::string KeyInventory::queue_name(std::uint32_t queue) const {
  return queue < queues.size() ? queues[queue].queue : "";
}

std::uint32_t KeyInventory::queue_index(const std::string& name) const {
  const auto found =
      std::find_if(queues.begin(), queues.end(), [&](const QueueInfo& each) { return each.queue == name; });
  return found == queues.end() ? JobHistory::kNoQueue : static_cast<std::uint32_t>(found - queues.begin());
}

std::string KeyInventory::queue_of(const JobHistory& history, const JobStoreState& job) const {
  return history.queue == JobHistory::kNoQueue ? job.claim.queue : queue_name(history.queue);
}

JobInspection KeyInventory::inspection(const JobStoreState& places, const JobHistory& history,
                                       const FactListDifference& listing, bool whole) const {
  const std::string queue = queue_of(history, places);
  const bool own = queue_name(history.entry_queue) == queue;
  const bool other = history.other_entries || (history.entries > 0 && !own);
  return {places, history, listing, queue, whole ? places.in_queue : own ? history.entries : 0, other};
}

std::string own_prefix(std::string_view of) {
  for (const InternalKey& key : own_keys()) {
    if (key.type == "hash" && key.pattern.ends_with(of)) {
      return std::string(key.pattern.substr(0, key.pattern.size() - of.size()));
    }
  }
  return {};
}

Result<void> read_more_entries(Store& store, Id context, std::uint32_t queue, KeyInventory& inventory,
                               const ProgressCallback& progress) {
  std::uint64_t total = 0;
  for (const QueueInfo& each : inventory.queues) total += each.facts;
  std::uint64_t& read_to = inventory.read_to[queue];
  while (true) {
    MJ_TRY(facts, store.journal(context, inventory.queues[queue].queue, read_to, kPage));
    for (const Fact& fact : facts) take_in(inventory, queue, fact);
    if (!facts.empty()) read_to = facts.back().revision;
    if (progress) progress("journals", inventory.facts, std::max(total, inventory.facts));
    if (facts.size() < kPage) return {};
  }
}

Result<void> read_entries(Store& store, Id context, KeyInventory& inventory, const ProgressCallback& progress) {
  inventory.stray_entries.clear();
  for (auto& [job, history] : inventory.jobs) {
    history.entries = 0;
    history.entry_queue = JobHistory::kNoQueue;
    history.other_entries = false;
  }
  for (std::uint32_t i = 0; i < inventory.queues.size(); ++i) {
    if (progress) progress("queues", i, inventory.queues.size());
    MJ_CHECK(read_list(store, context, i, inventory));
  }
  return {};
}

Result<KeyInventory> read_key_inventory(Store& store, Id context, const ProgressCallback& progress) {
  KeyInventory inventory;
  MJ_TRY(began, store_now_ms(store, context));
  inventory.began_ms = began;
  MJ_TRY(queues, store.queues(context));
  inventory.queues = std::move(queues);
  inventory.read_to.resize(inventory.queues.size());
  for (std::uint32_t i = 0; i < inventory.queues.size(); ++i) {
    MJ_CHECK(read_more_entries(store, context, i, inventory, progress));
    // Facts that were retired at the end of the journal count as read.
    inventory.read_to[i] = std::max(inventory.read_to[i], inventory.queues[i].journal_head);
  }
  const std::string claims = own_prefix("<job key>");
  for (const std::string& prefix : {std::string("job:"), claims + "job:"}) {
    if (progress) progress("keys", inventory.jobs.size(), 0);
    MJ_TRY(keys, store.keys(context, prefix, kAll));
    for (const std::string& key : keys) {
      const std::string_view job = std::string_view(key).substr(prefix.size() - 4);
      if (is_job_key(job)) inventory.jobs.try_emplace(std::string(job));
    }
  }
  MJ_TRY(leases, store.leases(context));
  for (const Lease& lease : leases) inventory.jobs.try_emplace(lease.job_key);
  MJ_CHECK(read_entries(store, context, inventory, progress));
  return inventory;
}

Result<FactListDifference> read_new_entries(Store& store, Id context, const KeyInventory& inventory,
                                            const JobStoreState& places, bool again, JobHistory& history) {
  std::vector<std::uint64_t> listed = places.claim.revisions;
  std::sort(listed.begin(), listed.end());  // a client may have written them
  const auto read = [&](std::uint64_t revision) {
    const auto& revisions = history.folded.revisions;
    return std::binary_search(revisions.begin(), revisions.end(), revision);
  };
  FactListDifference listing;
  if (again) {
    // Missing facts were retired with their job; its key may now name a new job.
    std::vector<std::uint64_t> unlisted;
    std::set_difference(history.folded.revisions.begin(), history.folded.revisions.end(), listed.begin(), listed.end(),
                        std::back_inserter(unlisted));
    MJ_TRY(facts, facts_at(store, context, inventory.queue_of(history, places), unlisted));
    for (const std::uint64_t revision : unlisted) {
      const auto fact = facts.find(revision);
      if (fact != facts.end() && fact->second.job_key == places.job_key) continue;
      history.folded = FoldedJob{};
      history.problem.reset();
      history.problems = 0;
      history.queue = history.elsewhere = JobHistory::kNoQueue;
      break;
    }
  }
  if (!history.has_facts()) history.queue = inventory.queue_index(places.claim.queue);
  const std::string queue = inventory.queue_of(history, places);
  std::vector<std::uint64_t> unread;
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(unread),
               [&](std::uint64_t each) { return !read(each); });
  MJ_TRY(facts, facts_at(store, context, queue, unread));
  for (const std::uint64_t revision : unread) {
    if (read(revision)) continue;  // listed twice
    const auto found = facts.find(revision);
    const Fact* fact = found == facts.end() ? nullptr : &found->second;
    const bool later = !history.has_facts() || revision > history.folded.revisions.back();
    if (revision == 0 || (fact != nullptr && fact->job_key != places.job_key)) {
      listing.foreign.push_back(revision);
    } else if (fact != nullptr && later) {
      take_in(history, *fact);
    } else {
      listing.missing.push_back(revision);
    }
  }
  std::set_difference(history.folded.revisions.begin(), history.folded.revisions.end(), listed.begin(), listed.end(),
                      std::back_inserter(listing.unlisted));
  return listing;
}

namespace {

constexpr std::size_t kGroupBatch = 64;

std::uint32_t limit_of(const JobStoreState& job) {
  std::uint64_t limit = 0;
  if (!parse_u64(field_of(job.record, "concurrency_limit"), limit)) limit = 0;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(limit, 1, UINT32_MAX));
}

}  // namespace

void JobGroups::note(const JobStoreState& job) {
  const bool ended = has_ended(job);
  inventory_.jobs[job.job_key].ended = ended;
  if (ended) return;
  if (!job.waits_for.empty()) waits_[job.job_key] = job.waits_for;
  if (!job.claim.message.empty()) messages_[job.claim.message].push_back(job.job_key);
  note_slots(job, slots_);
}

void JobGroups::note_slots(const JobStoreState& job, SlotsByKey& slots) {
  const std::string key = slot_key(job);
  if (key.empty()) return;
  Slots& group = slots[key];
  group.members.push_back(job.job_key);
  if (job.takes_slot) ++group.taken;
  const auto state = parse_job_state(job.claim.state);
  if (state == JobState::held) {
    group.held[job.job_key] = job.claim.revisions;
    group.limit = group.limit == 0 ? limit_of(job) : std::min(group.limit, limit_of(job));
  } else if (!has_ended(job) && (state == JobState::queued || state == JobState::none)) {
    ++group.comers;
  }
}

const std::vector<std::string>& JobGroups::waits_of(const std::string& job) const {
  static const std::vector<std::string> none;
  const auto found = waits_.find(job);
  return found == waits_.end() ? none : found->second;
}

std::vector<std::string> JobGroups::wait_for_ended() const {
  std::vector<std::string> jobs;
  for (const auto& [job, deps] : waits_) {
    const bool wrong = std::any_of(deps.begin(), deps.end(), [&](const std::string& dep) {
      const auto found = inventory_.jobs.find(dep);
      return found != inventory_.jobs.end() && found->second.ended;
    });
    if (wrong) jobs.push_back(job);
  }
  return jobs;
}

Result<std::vector<Finding>> JobGroups::judge(const std::function<void()>& pause) {
  MJ_TRY(all, check_slots(pause));
  MJ_TRY(messages, check_messages(pause));
  MJ_TRY(waits, check_cycles());
  for (auto* more : {&messages, &waits}) std::move(more->begin(), more->end(), std::back_inserter(all));
  return std::move(all);
}

Result<std::vector<JobStoreState>> JobGroups::index_entries_of(const std::vector<std::string>& jobs) {
  return store_.job_states(context_, jobs, false);
}

Result<std::vector<std::string>> JobGroups::new_jobs() {
  MJ_TRY(keys, store_.keys(context_, "job:", std::numeric_limits<std::size_t>::max()));
  std::erase_if(keys, [&](const std::string& key) { return !is_job_key(key) || inventory_.jobs.contains(key); });
  return std::move(keys);
}

// Counts the slots of these keys again.
Result<JobGroups::SlotsByKey> JobGroups::count_slots(const SlotsByKey& of) {
  MJ_TRY(jobs, new_jobs());
  for (const auto& [key, group] : of) jobs.insert(jobs.end(), group.members.begin(), group.members.end());
  SlotsByKey counted;
  for (std::size_t from = 0; from < jobs.size(); from += kGroupBatch) {
    const std::vector<std::string> some(
        jobs.begin() + static_cast<std::ptrdiff_t>(from),
        jobs.begin() + static_cast<std::ptrdiff_t>(std::min(from + kGroupBatch, jobs.size())));
    MJ_TRY(places, index_entries_of(some));
    for (const JobStoreState& job : places) note_slots(job, counted);
  }
  std::erase_if(counted, [&](const auto& each) { return !of.contains(each.first) || !each.second.wrong(); });
  return counted;
}

Result<std::vector<Finding>> JobGroups::check_slots(const std::function<void()>& pause) {
  std::vector<Finding> findings;
  SlotsByKey wrong = slots_;
  std::erase_if(wrong, [](const auto& each) { return !each.second.wrong(); });
  if (wrong.empty()) return findings;
  MJ_TRY(first, count_slots(wrong));
  if (first.empty()) return findings;
  pause();
  MJ_TRY(second, count_slots(first));
  for (const auto& [key, group] : second) {
    const auto& before = first.at(key).held;
    const bool unchanged = std::any_of(group.held.begin(), group.held.end(), [&](const auto& job) {
      const auto found = before.find(job.first);
      return found != before.end() && found->second == job.second;
    });
    if (!unchanged) continue;
    findings.push_back(finding("held-free", key,
                               count_with_noun(group.held.size(), "job is", "jobs are") +
                                   " held by the concurrency key " + key + ", " + group.held.begin()->first +
                                   " for one; of its slots " + std::to_string(group.taken) + " of " +
                                   std::to_string(group.limit) + " are occupied: they are never released"));
  }
  return findings;
}

Result<std::string> JobGroups::message_trouble(const std::string& message, const std::vector<std::string>& jobs) {
  MJ_TRY(places, index_entries_of(jobs));
  const auto open = std::count_if(places.begin(), places.end(), [&](const JobStoreState& job) {
    return job.claim.message == message && !has_ended(job);
  });
  auto mark = store_.load(context_, own_prefix("<message key>") + message);
  if (!mark && mark.error().code == Code::unavailable) return tl::unexpected(mark.error());
  if (!mark) return std::string(open > 0 ? "has jobs that have not ended and no mark that counts them" : "");
  const std::string left(field_of(*mark, "left"));
  if (left == std::to_string(open)) return std::string();
  return "has a mark that counts as not ended: " + (left.empty() ? "no" : left) + " of its jobs; there are " +
         std::to_string(open);
}

Result<std::vector<Finding>> JobGroups::check_messages(const std::function<void()>& pause) {
  // Adds marks that count jobs although no job names the message. Messages that were accepted since the census are
  // skipped, since their jobs were not counted.
  const std::string prefix = own_prefix("<message key>");
  MJ_TRY(marks, store_.keys(context_, prefix, std::numeric_limits<std::size_t>::max()));
  for (const std::string& mark : marks) {
    const std::string message = mark.substr(prefix.size());
    if (messages_.contains(message)) continue;
    static constexpr std::array<std::string_view, 2> kAsked{"left", "taken_ms"};
    auto fields = store_.load_fields(context_, mark, kAsked);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected(fields.error());
    if (!fields) continue;  // another client's key, or deleted
    std::uint64_t left = 0;
    std::uint64_t taken_ms = 0;
    parse_u64(field_of(*fields, "left"), left);
    parse_u64(field_of(*fields, "taken_ms"), taken_ms);
    if (left > 0 && taken_ms < inventory_.began_ms) messages_[message];
  }
  std::map<std::string, std::string> wrong;
  for (const auto& [message, jobs] : messages_) {
    MJ_TRY(trouble, message_trouble(message, jobs));
    if (!trouble.empty()) wrong[message] = trouble;
  }
  std::vector<Finding> findings;
  if (!wrong.empty()) pause();
  for (const auto& [message, before] : wrong) {
    MJ_TRY(trouble, message_trouble(message, messages_[message]));
    if (trouble == before) findings.push_back(finding("message-count", message, message + ' ' + trouble));
  }
  return findings;
}

// Returns each cycle once, starting with its first job by name.
std::vector<std::vector<std::string>> JobGroups::find_cycles() const {
  enum class Visit { open, done };
  std::unordered_map<std::string, Visit> marks;
  std::set<std::vector<std::string>> found;
  struct Step {
    std::string job;
    std::size_t next = 0;
  };
  for (const auto& [start, deps] : waits_) {
    if (marks.contains(start)) continue;
    std::vector<Step> path{{start, 0}};
    marks[start] = Visit::open;
    while (!path.empty()) {
      const auto& next = waits_of(path.back().job);
      if (path.back().next == next.size()) {
        marks[path.back().job] = Visit::done;
        path.pop_back();
        continue;
      }
      const std::string& dep = next[path.back().next++];
      const auto mark = marks.find(dep);
      if (mark == marks.end()) {
        marks[dep] = Visit::open;
        path.push_back({dep, 0});
      } else if (mark->second == Visit::open) {
        std::vector<std::string> circle;
        const auto from = std::find_if(path.begin(), path.end(), [&](const Step& step) { return step.job == dep; });
        std::transform(from, path.end(), std::back_inserter(circle), [](const Step& step) { return step.job; });
        std::rotate(circle.begin(), std::min_element(circle.begin(), circle.end()), circle.end());
        found.insert(std::move(circle));
      }
    }
  }
  return {found.begin(), found.end()};
}

Result<std::vector<Finding>> JobGroups::check_cycles() {
  std::vector<Finding> findings;
  for (const auto& circle : find_cycles()) {
    MJ_TRY(places, index_entries_of(circle));
    std::string text;
    bool closed = true;
    for (std::size_t i = 0; i < circle.size(); ++i) {
      const auto& waits = places[i].waits_for;
      closed = closed && std::find(waits.begin(), waits.end(), circle[(i + 1) % circle.size()]) != waits.end();
      text += circle[i] + " waits for ";
    }
    if (!closed) continue;
    findings.push_back(
        finding("waits-circle", circle.front(), text + circle.front() + ": none can run; cancel one of them"));
  }
  return findings;
}

namespace {

constexpr std::size_t kBatch = 64;          // jobs read in one step
constexpr std::size_t kPositionsBatch = 8;  // same, if their queues are searched for them
constexpr int kChecks = 6;
constexpr std::chrono::milliseconds kPause{200};

// A held job needs a read of all jobs of its key, which JobGroups does.
std::vector<Finding> findings_of(const JobInspection& sight) {
  std::vector<Finding> findings;
  for (JobFinding& each : check_invariants(sight).findings) {
    if (each.rule != "held-free") findings.push_back(std::move(each));
  }
  return findings;
}

// Returns whether a finding is about the list of a queue, so that a second read must search the list.
bool is_about_entries(const Finding& finding, const JobStoreState& job) {
  static constexpr std::array<std::string_view, 3> kRulesOfEntries{"entry-second", "entry-stray", "bare-unqueued"};
  if (finding.rule == "no-place") return job.claim.state == to_string(JobState::queued);
  return std::find(kRulesOfEntries.begin(), kRulesOfEntries.end(), finding.rule) != kRulesOfEntries.end();
}
bool are_about_entries(const std::vector<Finding>& findings, const JobStoreState& job) {
  return std::any_of(findings.begin(), findings.end(), [&](const Finding& f) { return is_about_entries(f, job); });
}

class ContextVerifier {
 public:
  ContextVerifier(Store& store, Id context, const ProgressCallback& progress, KeyInventory inventory)
      : store_(store),
        context_(context),
        progress_(progress),
        inventory_(std::move(inventory)),
        groups_(store, context, inventory_) {}
  Result<VerifyReport> run();

 private:
  struct Suspect {
    bool positions = false;
    std::vector<Finding> seen;  // findings of the previous read
    std::vector<std::uint64_t> revisions;
  };
  using Suspects = std::map<std::string, Suspect>;

  void check_stray_entries();
  Result<void> scan();
  Result<void> scan_some(const std::vector<std::string>& jobs);
  Result<void> check_again();
  Result<void> check_some(const std::vector<std::string>& jobs, bool positions);
  void compare(const JobStoreState& job, std::vector<Finding> now);
  void report(std::string_view phase, std::uint64_t done, std::uint64_t total) const {
    if (progress_) progress_(phase, done, total);
  }

  Store& store_;
  const Id context_;
  const ProgressCallback& progress_;
  KeyInventory inventory_;
  JobGroups groups_;
  Suspects suspects_;
  bool last_check_ = false;
  VerifyReport report_;
};

Result<VerifyReport> ContextVerifier::run() {
  check_stray_entries();
  MJ_CHECK(scan());
  for (const std::string& job : groups_.wait_for_ended()) suspects_[job].positions = true;
  MJ_CHECK(check_again());
  MJ_TRY(messages, read_message_states(store_, context_));
  for (const MessageProblem& each : messages)
    report_.findings.insert(report_.findings.end(), each.findings.begin(), each.findings.end());
  MJ_TRY(keys, find_job_key_problems(store_, context_));
  for (const JobKeyProblem& each : keys) report_.findings.push_back(each.finding);
  MJ_TRY(kept, find_stored_bytes_problems(store_, context_, [] { std::this_thread::sleep_for(kPause); }));
  for (const StoredBytesProblem& each : kept) report_.findings.push_back(each.finding);
  MJ_TRY(between, groups_.judge([] { std::this_thread::sleep_for(kPause); }));
  std::move(between.begin(), between.end(), std::back_inserter(report_.findings));
  std::stable_sort(report_.findings.begin(), report_.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.subject < b.subject; });
  report_.jobs = inventory_.jobs.size();
  report_.facts = inventory_.facts;
  report_.queues = inventory_.queues.size();
  return std::move(report_);
}

// Entries and facts that name no job cannot change, so that one read is enough.
void ContextVerifier::check_stray_entries() {
  for (const QueueInfo& each : inventory_.queues) {
    if (each.wrong_type.empty()) continue;
    report_.findings.push_back(finding("queue-type", each.queue,
                                       each.queue + " is a " + each.wrong_type +
                                           " where a list belongs: another client wrote it; delete or rename it"));
  }
  for (const auto& [queue, revision] : inventory_.stray_facts) {
    report_.findings.push_back(finding(
        kFactField, queue,
        "the journal of " + queue + " holds a fact at revision " + std::to_string(revision) + " that names no job"));
  }
  for (const auto& [queue, entry] : inventory_.stray_entries) {
    report_.findings.push_back(finding(
        "entry-stray", queue, queue + " holds " + entry.substr(0, 80) + ", which names no job: a dead letter to be"));
  }
}

Result<void> ContextVerifier::scan() {
  std::vector<std::string> some;
  std::uint64_t done = 0;
  for (const auto& [job, history] : inventory_.jobs) {
    some.push_back(job);
    if (++done % kBatch != 0 && done != inventory_.jobs.size()) continue;
    MJ_CHECK(scan_some(some));
    some.clear();
    report("jobs", done, inventory_.jobs.size());
  }
  return {};
}

Result<void> ContextVerifier::scan_some(const std::vector<std::string>& jobs) {
  MJ_TRY(places, store_.job_states(context_, jobs, false));
  for (const JobStoreState& job : places) {
    JobHistory& history = inventory_.jobs.at(job.job_key);
    MJ_TRY(listing, read_new_entries(store_, context_, inventory_, job, false, history));
    const auto findings = findings_of(inventory_.inspection(job, history, listing, false));
    if (!findings.empty()) suspects_[job.job_key].positions = are_about_entries(findings, job);
    groups_.note(job);
  }
  return {};
}

Result<void> ContextVerifier::check_again() {
  for (int round = 0; round < kChecks && !suspects_.empty(); ++round) {
    if (round > 0) std::this_thread::sleep_for(kPause);
    last_check_ = round == kChecks - 1;
    std::vector<std::string> jobs;
    bool entries = false;
    for (const auto& [job, suspect] : suspects_) {
      jobs.push_back(job);
      entries = entries || suspect.positions;
    }
    // Each step reads the queue of a job; other queues that may contain the job are read completely.
    if (entries) MJ_CHECK(read_entries(store_, context_, inventory_, progress_));
    for (std::size_t from = 0; from < jobs.size();) {
      const bool positions = suspects_[jobs[from]].positions;  // each step reads jobs of the same kind
      std::vector<std::string> some;
      for (; from < jobs.size() && some.size() < (positions ? kPositionsBatch : kBatch); ++from) {
        if (suspects_[jobs[from]].positions != positions) break;
        some.push_back(jobs[from]);
      }
      MJ_CHECK(check_some(some, positions));
      report("checking again", from, jobs.size());
    }
  }
  return {};
}

Result<void> ContextVerifier::check_some(const std::vector<std::string>& jobs, bool positions) {
  MJ_TRY(places, store_.job_states(context_, jobs, positions));
  for (const JobStoreState& job : places) {
    JobHistory& history = inventory_.jobs.at(job.job_key);
    MJ_TRY(listing, read_new_entries(store_, context_, inventory_, job, true, history));
    JobInspection now = inventory_.inspection(job, history, listing, positions);
    if (!positions) now.in_queue.reset();
    compare(job, findings_of(now));
  }
  return {};
}

// A finding of an earlier read is confirmed if the job has not changed since, unless the finding depends on the content
// of a queue in an earlier read; the queue is searched first. A retired job has no revisions that show a change.
void ContextVerifier::compare(const JobStoreState& job, std::vector<Finding> now) {
  Suspect& suspect = suspects_[job.job_key];
  if (now.empty()) {
    suspects_.erase(job.job_key);
    return;
  }
  const bool unsearched = !suspect.positions && are_about_entries(now, job);
  const bool moved = suspect.revisions != job.claim.revisions;
  if (suspect.seen.empty() || ((moved || unsearched) && !last_check_)) {
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

Result<std::vector<MessageProblem>> read_message_states(Store& store, Id context) {
  const std::string prefix = own_prefix("<message key>");
  MJ_TRY(keys, store.keys(context, prefix, std::numeric_limits<std::size_t>::max()));
  for (std::string& key : keys) key.erase(0, prefix.size());
  MJ_TRY(places, store.message_states(context, keys));
  std::vector<MessageProblem> out;
  for (MessageStoreState& each : places) {
    auto findings = check_invariants(each);
    if (!findings.empty()) out.push_back({std::move(each), std::move(findings)});
  }
  return out;
}

Result<VerifyReport> verify(Store& store, Id context, const ProgressCallback& progress) {
  MJ_TRY(inventory, read_key_inventory(store, context, progress));
  return ContextVerifier(store, context, progress, std::move(inventory)).run();
}

}  // namespace mycojobs
