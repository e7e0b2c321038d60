#include "inspect/verify/job_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "inspect/explain.h"
#include "inspect/verify/job_keys.h"
#include "inspect/verify/kept_bytes.h"
#include "store/keys.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxEntriesPerRead = 1000;  // entries of a list, or facts of a journal
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

void add_fact(JobHistory& history, const Fact& fact) {
  auto problem = fold(history.folded, fact);
  if (!problem && fact.kind == to_string(FactKind::restored)) {
    history.problem.reset();
    history.problem_count = 0;
  }
  if (!problem) return;
  ++history.problem_count;
  if (!history.problem) history.problem = std::move(problem);
}

void add_fact(KeyInventory& inventory, std::uint32_t queue, const Fact& fact) {
  ++inventory.fact_count;
  if (!is_job_key(fact.job_key)) {
    inventory.stray_facts.emplace_back(inventory.queues[queue].queue, fact.revision);
    return;
  }
  JobHistory& history = inventory.jobs[fact.job_key];
  if (!history.has_facts()) history.queue = queue;
  if (history.queue != queue) {
    history.second_queue = queue;
    return;
  }
  const auto& revisions = history.folded.revisions;
  if (!std::binary_search(revisions.begin(), revisions.end(), fact.revision)) add_fact(history, fact);
}

Result<void> read_queue_list(Store& store, Id context, std::uint32_t queue, KeyInventory& inventory) {
  const std::string& name = inventory.queues[queue].queue;
  if (!inventory.queues[queue].wrong_type.empty()) return {};
  for (std::uint64_t offset = 0;; offset += kMaxEntriesPerRead) {
    MJ_TRY(entries, store.queue_entries(context, name, offset, kMaxEntriesPerRead));
    for (std::string& entry : entries) {
      if (!is_job_key(entry)) {
        inventory.stray_entries.emplace_back(name, std::move(entry));
        continue;
      }
      JobHistory& history = inventory.jobs[entry];
      if (history.entry_count == 0) history.entry_queue = queue;
      if (history.entry_queue == queue) {
        ++history.entry_count;
      } else {
        history.in_other_list = true;
      }
    }
    if (entries.size() < kMaxEntriesPerRead) return {};
  }
}

// Returns the facts that the journal of the queue has at these revisions. They can be facts of any job.
Result<std::map<std::uint64_t, Fact>> read_facts_at(Store& store, Id context, const std::string& queue,
                                                    std::vector<std::uint64_t> revisions) {
  std::map<std::uint64_t, Fact> result;
  std::erase(revisions, 0U);
  if (queue.empty() || revisions.empty()) return result;
  MJ_TRY(facts, store.journal_at(context, queue, revisions));
  for (Fact& fact : facts) result.emplace(fact.revision, std::move(fact));
  return result;
}

}  // namespace

std::string KeyInventory::queue_name(std::uint32_t queue) const {
  return queue < queues.size() ? queues[queue].queue : "";
}

std::uint32_t KeyInventory::queue_index(const std::string& name) const {
  const auto queue =
      std::find_if(queues.begin(), queues.end(), [&](const QueueInfo& info) { return info.queue == name; });
  return queue == queues.end() ? JobHistory::kNoQueue : static_cast<std::uint32_t>(queue - queues.begin());
}

std::string KeyInventory::get_queue(const JobHistory& history, const JobStoreState& job) const {
  return history.queue == JobHistory::kNoQueue ? job.claim.queue : queue_name(history.queue);
}

JobInspection KeyInventory::make_inspection(const JobStoreState& store_state, const JobHistory& history,
                                            const FactListDifference& difference, bool is_complete) const {
  const std::string queue = get_queue(history, store_state);
  const bool is_in_own_list = queue_name(history.entry_queue) == queue;
  const bool in_other_list = history.in_other_list || (history.entry_count > 0 && !is_in_own_list);
  return {store_state,
          history,
          difference,
          queue,
          is_complete      ? store_state.queue_entry_count
          : is_in_own_list ? history.entry_count
                           : 0,
          in_other_list};
}

Result<void> read_more_facts(Store& store, Id context, std::uint32_t queue, KeyInventory& inventory,
                             const ProgressCallback& progress) {
  std::uint64_t total = 0;
  for (const QueueInfo& info : inventory.queues) total += info.facts;
  std::uint64_t& last_revision = inventory.last_revisions[queue];
  while (true) {
    MJ_TRY(facts, store.journal(context, inventory.queues[queue].queue, last_revision, kMaxEntriesPerRead));
    for (const Fact& fact : facts) add_fact(inventory, queue, fact);
    if (!facts.empty()) last_revision = facts.back().revision;
    if (progress) progress("journals", inventory.fact_count, std::max(total, inventory.fact_count));
    if (facts.size() < kMaxEntriesPerRead) return {};
  }
}

Result<void> read_entries(Store& store, Id context, KeyInventory& inventory, const ProgressCallback& progress) {
  inventory.stray_entries.clear();
  for (auto& [job, history] : inventory.jobs) {
    history.entry_count = 0;
    history.entry_queue = JobHistory::kNoQueue;
    history.in_other_list = false;
  }
  for (std::uint32_t i = 0; i < inventory.queues.size(); ++i) {
    if (progress) progress("queues", i, inventory.queues.size());
    MJ_CHECK(read_queue_list(store, context, i, inventory));
  }
  return {};
}

Result<KeyInventory> read_key_inventory(Store& store, Id context, const ProgressCallback& progress) {
  KeyInventory inventory;
  MJ_TRY(start, store_now_ms(store, context));
  inventory.start_ms = start;
  MJ_TRY(queues, store.queues(context));
  inventory.queues = std::move(queues);
  inventory.last_revisions.resize(inventory.queues.size());
  for (std::uint32_t i = 0; i < inventory.queues.size(); ++i) {
    MJ_CHECK(read_more_facts(store, context, i, inventory, progress));
    // Facts that were retired at the end of the journal count as read.
    inventory.last_revisions[i] = std::max(inventory.last_revisions[i], inventory.queues[i].journal_head);
  }
  for (const std::string& prefix : {std::string("job:"), job_claims_prefix()}) {
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

Result<FactListDifference> read_new_facts(Store& store, Id context, const KeyInventory& inventory,
                                          const JobStoreState& store_state, bool check_unlisted, JobHistory& history) {
  std::vector<std::uint64_t> listed = store_state.claim.revisions;
  std::sort(listed.begin(), listed.end());  // a client may have written the list in another order
  const auto is_read = [&](std::uint64_t revision) {
    const auto& revisions = history.folded.revisions;
    return std::binary_search(revisions.begin(), revisions.end(), revision);
  };
  FactListDifference difference;
  if (check_unlisted) {
    // If an unlisted fact is missing in the journal, the job was retired, and its key may now name a new job. The
    // history is then started again from the facts that the claim lists.
    std::vector<std::uint64_t> unlisted;
    std::set_difference(history.folded.revisions.begin(), history.folded.revisions.end(), listed.begin(), listed.end(),
                        std::back_inserter(unlisted));
    MJ_TRY(facts, read_facts_at(store, context, inventory.get_queue(history, store_state), unlisted));
    for (const std::uint64_t revision : unlisted) {
      const auto fact = facts.find(revision);
      if (fact != facts.end() && fact->second.job_key == store_state.job_key) continue;
      history.folded = FoldedJob{};
      history.problem.reset();
      history.problem_count = 0;
      history.queue = history.second_queue = JobHistory::kNoQueue;
      break;
    }
  }
  if (!history.has_facts()) history.queue = inventory.queue_index(store_state.claim.queue);
  const std::string queue = inventory.get_queue(history, store_state);
  std::vector<std::uint64_t> unread;
  std::copy_if(listed.begin(), listed.end(), std::back_inserter(unread),
               [&](std::uint64_t revision) { return !is_read(revision); });
  MJ_TRY(facts, read_facts_at(store, context, queue, unread));
  for (const std::uint64_t revision : unread) {
    if (is_read(revision)) continue;  // the list names the revision twice
    const auto entry = facts.find(revision);
    const Fact* fact = entry == facts.end() ? nullptr : &entry->second;
    const bool is_newer = !history.has_facts() || revision > history.folded.revisions.back();
    if (revision == 0 || (fact != nullptr && fact->job_key != store_state.job_key)) {
      difference.foreign.push_back(revision);
    } else if (fact != nullptr && is_newer) {
      add_fact(history, *fact);
    } else {
      difference.missing.push_back(revision);
    }
  }
  std::set_difference(history.folded.revisions.begin(), history.folded.revisions.end(), listed.begin(), listed.end(),
                      std::back_inserter(difference.unlisted));
  return difference;
}

namespace {

constexpr std::size_t kMaxGroupBatch = 64;  // number of jobs that are read in one step

std::uint32_t get_concurrency_limit(const JobStoreState& job) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(number_of(job.record, "concurrency_limit"), 1, UINT32_MAX));
}

}  // namespace

void JobGroups::add_job(const JobStoreState& job) {
  const bool is_ended = has_ended(job);
  inventory_.jobs[job.job_key].has_ended = is_ended;
  if (is_ended) return;
  if (!job.awaited_jobs.empty()) waits_[job.job_key] = job.awaited_jobs;
  if (!job.claim.message.empty()) messages_[job.claim.message].push_back(job.job_key);
  add_slots(job, slots_);
}

void JobGroups::add_slots(const JobStoreState& job, SlotsByKey& slots) {
  const std::string key = get_slot_key(job);
  if (key.empty()) return;
  Slots& group = slots[key];
  group.members.push_back(job.job_key);
  if (job.occupies_slot) ++group.occupied;
  const auto state = parse_job_state(job.claim.state);
  if (state == JobState::held) {
    group.held[job.job_key] = job.claim.revisions;
    const std::uint32_t limit = get_concurrency_limit(job);
    group.limit = group.limit == 0 ? limit : std::min(group.limit, limit);
  } else if (!has_ended(job) && (state == JobState::queued || state == JobState::none)) {
    ++group.candidates;
  }
}

const std::vector<std::string>& JobGroups::get_awaited_jobs(const std::string& job) const {
  static const std::vector<std::string> kNoJobs;
  const auto found = waits_.find(job);
  return found == waits_.end() ? kNoJobs : found->second;
}

std::vector<std::string> JobGroups::find_waiting_for_ended() const {
  std::vector<std::string> jobs;
  for (const auto& [job, awaited_jobs] : waits_) {
    const bool waits_for_ended = std::any_of(awaited_jobs.begin(), awaited_jobs.end(), [&](const std::string& awaited) {
      const auto entry = inventory_.jobs.find(awaited);
      return entry != inventory_.jobs.end() && entry->second.has_ended;
    });
    if (waits_for_ended) jobs.push_back(job);
  }
  return jobs;
}

Result<std::vector<Finding>> JobGroups::check(const std::function<void()>& pause) {
  MJ_TRY(findings, check_slots(pause));
  MJ_TRY(message_findings, check_messages(pause));
  MJ_TRY(cycle_findings, check_cycles());
  for (auto* source : {&message_findings, &cycle_findings})
    std::move(source->begin(), source->end(), std::back_inserter(findings));
  return std::move(findings);
}

Result<std::vector<JobStoreState>> JobGroups::read_job_states(const std::vector<std::string>& jobs) {
  return store_.job_states(context_, jobs, false);
}

Result<std::vector<std::string>> JobGroups::read_new_jobs() {
  MJ_TRY(keys, store_.keys(context_, "job:", std::numeric_limits<std::size_t>::max()));
  std::erase_if(keys, [&](const std::string& key) { return !is_job_key(key) || inventory_.jobs.contains(key); });
  return std::move(keys);
}

// Reads the members of these concurrency keys again, together with the jobs that were added since the inventory.
// Returns the keys that still have held jobs and unused slots.
Result<JobGroups::SlotsByKey> JobGroups::count_slots(const SlotsByKey& suspects) {
  MJ_TRY(jobs, read_new_jobs());
  for (const auto& [key, group] : suspects) jobs.insert(jobs.end(), group.members.begin(), group.members.end());
  SlotsByKey counted;
  for (std::size_t begin = 0; begin < jobs.size(); begin += kMaxGroupBatch) {
    const std::vector<std::string> batch(
        jobs.begin() + static_cast<std::ptrdiff_t>(begin),
        jobs.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kMaxGroupBatch, jobs.size())));
    MJ_TRY(states, read_job_states(batch));
    for (const JobStoreState& job : states) add_slots(job, counted);
  }
  std::erase_if(counted,
                [&](const auto& entry) { return !suspects.contains(entry.first) || !entry.second.has_unused_slots(); });
  return counted;
}

Result<std::vector<Finding>> JobGroups::check_slots(const std::function<void()>& pause) {
  std::vector<Finding> findings;
  SlotsByKey suspects = slots_;
  std::erase_if(suspects, [](const auto& entry) { return !entry.second.has_unused_slots(); });
  if (suspects.empty()) return findings;
  MJ_TRY(first_count, count_slots(suspects));
  if (first_count.empty()) return findings;
  pause();
  MJ_TRY(second_count, count_slots(first_count));
  for (const auto& [key, group] : second_count) {
    const auto& earlier_held = first_count.at(key).held;
    const bool has_unchanged_job = std::any_of(group.held.begin(), group.held.end(), [&](const auto& job) {
      const auto match = earlier_held.find(job.first);
      return match != earlier_held.end() && match->second == job.second;
    });
    if (!has_unchanged_job) continue;
    findings.push_back(make_finding("held-with-free-slots", key,
                                    count_with_noun(group.held.size(), "job is", "jobs are") +
                                        " held by the concurrency key " + key + ", " + group.held.begin()->first +
                                        " for one; of its slots " + std::to_string(group.occupied) + " of " +
                                        std::to_string(group.limit) + " are occupied: they are never released"));
  }
  return findings;
}

Result<std::string> JobGroups::check_message_mark(const std::string& message, const std::vector<std::string>& jobs) {
  MJ_TRY(states, read_job_states(jobs));
  const auto active_count = std::count_if(states.begin(), states.end(), [&](const JobStoreState& job) {
    return job.claim.message == message && !has_ended(job);
  });
  auto message_state = store_.load(context_, message_state_key(message));
  if (!message_state && message_state.error().code == Code::unavailable) return tl::unexpected(message_state.error());
  if (!message_state)
    return std::string(active_count > 0 ? "has jobs that have not ended and no mark that counts them" : "");
  const std::string count_text(field_of(*message_state, "left"));
  if (count_text == std::to_string(active_count)) return std::string();
  return "has a mark that counts as not ended: " + (count_text.empty() ? "no" : count_text) +
         " of its jobs; there are " + std::to_string(active_count);
}

Result<std::vector<Finding>> JobGroups::check_messages(const std::function<void()>& pause) {
  // The field `left` of a message's state counts its jobs that have not ended. Adds the messages with such a count that
  // no job names. A message that was accepted after the inventory was read is skipped, because its jobs are not in the
  // inventory.
  constexpr std::string_view prefix = kMessageKey;
  MJ_TRY(state_keys, store_.keys(context_, prefix, std::numeric_limits<std::size_t>::max()));
  for (const std::string& state_key : state_keys) {
    const std::string message = state_key.substr(prefix.size());
    if (messages_.contains(message)) continue;
    static constexpr std::array<std::string_view, 2> kStateFields{"left", "taken_ms"};
    auto fields = store_.load_fields(context_, state_key, kStateFields);
    if (!fields && fields.error().code == Code::unavailable) return tl::unexpected(fields.error());
    if (!fields) continue;  // another client's key, or deleted
    if (number_of(*fields, "left") > 0 && number_of(*fields, "taken_ms") < inventory_.start_ms) messages_[message];
  }
  std::map<std::string, std::string> suspects;
  for (const auto& [message, jobs] : messages_) {
    MJ_TRY(problem, check_message_mark(message, jobs));
    if (!problem.empty()) suspects[message] = problem;
  }
  std::vector<Finding> findings;
  if (!suspects.empty()) pause();
  for (const auto& [message, first_problem] : suspects) {
    MJ_TRY(problem, check_message_mark(message, messages_[message]));
    if (problem == first_problem) findings.push_back(make_finding("message-count", message, message + ' ' + problem));
  }
  return findings;
}

// Returns the cycles of jobs that wait for each other. Each cycle is returned once and starts with its smallest job
// key.
std::vector<std::vector<std::string>> JobGroups::find_cycles() const {
  enum class Visit { open, done };
  std::unordered_map<std::string, Visit> visits;
  std::set<std::vector<std::string>> cycles;
  struct Step {
    std::string job;
    std::size_t next_index = 0;
  };
  for (const auto& [start, dependencies] : waits_) {
    if (visits.contains(start)) continue;
    std::vector<Step> path{{start, 0}};
    visits[start] = Visit::open;
    while (!path.empty()) {
      const auto& next_jobs = get_awaited_jobs(path.back().job);
      if (path.back().next_index == next_jobs.size()) {
        visits[path.back().job] = Visit::done;
        path.pop_back();
        continue;
      }
      const std::string& dependency = next_jobs[path.back().next_index++];
      const auto visit = visits.find(dependency);
      if (visit == visits.end()) {
        visits[dependency] = Visit::open;
        path.push_back({dependency, 0});
      } else if (visit->second == Visit::open) {
        std::vector<std::string> cycle;
        const auto cycle_start =
            std::find_if(path.begin(), path.end(), [&](const Step& step) { return step.job == dependency; });
        std::transform(cycle_start, path.end(), std::back_inserter(cycle), [](const Step& step) { return step.job; });
        std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
        cycles.insert(std::move(cycle));
      }
    }
  }
  return {cycles.begin(), cycles.end()};
}

Result<std::vector<Finding>> JobGroups::check_cycles() {
  std::vector<Finding> findings;
  for (const auto& cycle : find_cycles()) {
    MJ_TRY(states, read_job_states(cycle));
    std::string text;
    bool is_closed = true;
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      const auto& awaited = states[i].awaited_jobs;
      is_closed =
          is_closed && std::find(awaited.begin(), awaited.end(), cycle[(i + 1) % cycle.size()]) != awaited.end();
      text += cycle[i] + " waits for ";
    }
    if (!is_closed) continue;
    findings.push_back(
        make_finding("dependency-cycle", cycle.front(), text + cycle.front() + ": none can run; cancel one of them"));
  }
  return findings;
}

namespace {

constexpr std::size_t kMaxVerifyBatch = 64;  // number of jobs that are read in one step
constexpr std::size_t kMaxSearchBatch = 8;   // number of jobs per step if the queues are searched for the jobs
constexpr int kMaxVerifyChecks = 6;          // number of reads of a job with unconfirmed findings
constexpr std::chrono::milliseconds kVerifyInterval{200};

// Returns the findings about a single job. Held jobs are checked by JobGroups, which reads all jobs of a concurrency
// key.
std::vector<Finding> find_job_problems(const JobInspection& inspection) {
  std::vector<Finding> findings;
  for (JobFinding& finding : check_invariants(inspection).findings) {
    if (finding.rule != "held-with-free-slots") findings.push_back(std::move(finding));
  }
  return findings;
}

// Returns whether a finding is about the list of a queue, so that a second read must search the list.
bool concerns_queue_entries(const Finding& finding, const JobStoreState& job) {
  static constexpr std::array<std::string_view, 3> kQueueEntryRules{"queue-entry-duplicate", "queue-entry-stray",
                                                                    "record-not-queued"};
  if (finding.rule == "job-not-indexed") return job.claim.state == to_string(JobState::queued);
  return std::find(kQueueEntryRules.begin(), kQueueEntryRules.end(), finding.rule) != kQueueEntryRules.end();
}
bool concern_queue_entries(const std::vector<Finding>& findings, const JobStoreState& job) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const Finding& finding) { return concerns_queue_entries(finding, job); });
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
  // A job with findings that the next read must confirm.
  struct Suspect {
    bool search_queues = false;             // the next read must search the queues for the job
    std::vector<Finding> earlier_findings;  // findings of the previous read
    std::vector<std::uint64_t> revisions;
  };
  using Suspects = std::map<std::string, Suspect>;

  void check_stray_entries();
  Result<void> scan();
  Result<void> scan_batch(const std::vector<std::string>& jobs);
  Result<void> check_suspects();
  Result<void> check_batch(const std::vector<std::string>& jobs, bool search_queues);
  void compare_findings(const JobStoreState& job, std::vector<Finding> findings);
  void report(std::string_view phase, std::uint64_t done, std::uint64_t total) const {
    if (progress_) progress_(phase, done, total);
  }

  Store& store_;
  const Id context_;
  const ProgressCallback& progress_;
  KeyInventory inventory_;
  JobGroups groups_;
  Suspects suspects_;
  bool is_last_check_ = false;
  VerifyReport report_;
};

Result<VerifyReport> ContextVerifier::run() {
  check_stray_entries();
  MJ_CHECK(scan());
  for (const std::string& job : groups_.find_waiting_for_ended()) suspects_[job].search_queues = true;
  MJ_CHECK(check_suspects());
  MJ_TRY(message_problems, read_message_states(store_, context_));
  for (const MessageProblem& problem : message_problems)
    report_.findings.insert(report_.findings.end(), problem.findings.begin(), problem.findings.end());
  MJ_TRY(key_problems, find_job_key_problems(store_, context_));
  for (const JobKeyProblem& problem : key_problems) report_.findings.push_back(problem.finding);
  MJ_TRY(byte_problems,
         find_stored_bytes_problems(store_, context_, [] { std::this_thread::sleep_for(kVerifyInterval); }));
  for (const StoredBytesProblem& problem : byte_problems) report_.findings.push_back(problem.finding);
  MJ_TRY(group_findings, groups_.check([] { std::this_thread::sleep_for(kVerifyInterval); }));
  std::move(group_findings.begin(), group_findings.end(), std::back_inserter(report_.findings));
  std::stable_sort(report_.findings.begin(), report_.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.subject < b.subject; });
  report_.jobs = inventory_.jobs.size();
  report_.facts = inventory_.fact_count;
  report_.queues = inventory_.queues.size();
  return std::move(report_);
}

// Reports entries and facts that name no job. These do not change, so one read is sufficient.
void ContextVerifier::check_stray_entries() {
  for (const QueueInfo& info : inventory_.queues) {
    if (info.wrong_type.empty()) continue;
    report_.findings.push_back(make_finding("queue-type", info.queue,
                                            info.queue + " is a " + info.wrong_type +
                                                " where a list belongs: another client wrote it; delete or rename it"));
  }
  for (const auto& [queue, revision] : inventory_.stray_facts) {
    report_.findings.push_back(make_finding(
        kFactField, queue,
        "the journal of " + queue + " holds a fact at revision " + std::to_string(revision) + " that names no job"));
  }
  for (const auto& [queue, entry] : inventory_.stray_entries) {
    report_.findings.push_back(
        make_finding("queue-entry-stray", queue,
                     queue + " holds " + entry.substr(0, 80) + ", which names no job: a dead letter to be"));
  }
}

Result<void> ContextVerifier::scan() {
  std::vector<std::string> batch;
  std::uint64_t job_count = 0;
  for (const auto& [job, history] : inventory_.jobs) {
    batch.push_back(job);
    if (++job_count % kMaxVerifyBatch != 0 && job_count != inventory_.jobs.size()) continue;
    MJ_CHECK(scan_batch(batch));
    batch.clear();
    report("jobs", job_count, inventory_.jobs.size());
  }
  return {};
}

Result<void> ContextVerifier::scan_batch(const std::vector<std::string>& jobs) {
  MJ_TRY(states, store_.job_states(context_, jobs, false));
  for (const JobStoreState& job : states) {
    JobHistory& history = inventory_.jobs.at(job.job_key);
    MJ_TRY(difference, read_new_facts(store_, context_, inventory_, job, false, history));
    const auto findings = find_job_problems(inventory_.make_inspection(job, history, difference, false));
    if (!findings.empty()) suspects_[job.job_key].search_queues = concern_queue_entries(findings, job);
    groups_.add_job(job);
  }
  return {};
}

Result<void> ContextVerifier::check_suspects() {
  for (int check = 0; check < kMaxVerifyChecks && !suspects_.empty(); ++check) {
    if (check > 0) std::this_thread::sleep_for(kVerifyInterval);
    is_last_check_ = check == kMaxVerifyChecks - 1;
    std::vector<std::string> jobs;
    bool needs_search = false;
    for (const auto& [job, suspect] : suspects_) {
      jobs.push_back(job);
      needs_search = needs_search || suspect.search_queues;
    }
    // Each step reads the queue of a job; other queues that may contain the job are read completely.
    if (needs_search) MJ_CHECK(read_entries(store_, context_, inventory_, progress_));
    for (std::size_t begin = 0; begin < jobs.size();) {
      const bool search_queues = suspects_[jobs[begin]].search_queues;  // each step reads jobs of the same kind
      std::vector<std::string> batch;
      for (; begin < jobs.size() && batch.size() < (search_queues ? kMaxSearchBatch : kMaxVerifyBatch); ++begin) {
        if (suspects_[jobs[begin]].search_queues != search_queues) break;
        batch.push_back(jobs[begin]);
      }
      MJ_CHECK(check_batch(batch, search_queues));
      report("checking again", begin, jobs.size());
    }
  }
  return {};
}

Result<void> ContextVerifier::check_batch(const std::vector<std::string>& jobs, bool search_queues) {
  MJ_TRY(states, store_.job_states(context_, jobs, search_queues));
  for (const JobStoreState& job : states) {
    JobHistory& history = inventory_.jobs.at(job.job_key);
    MJ_TRY(difference, read_new_facts(store_, context_, inventory_, job, true, history));
    JobInspection inspection = inventory_.make_inspection(job, history, difference, search_queues);
    if (!search_queues) inspection.entry_count.reset();
    compare_findings(job, find_job_problems(inspection));
  }
  return {};
}

// Reports a finding that two reads in sequence have found if the job has not changed between them, or after the last
// read. A finding about the content of a queue is reported only after reads that search the queue. The revisions of a
// retired job are empty, so they show no change.
void ContextVerifier::compare_findings(const JobStoreState& job, std::vector<Finding> findings) {
  Suspect& suspect = suspects_[job.job_key];
  if (findings.empty()) {
    suspects_.erase(job.job_key);
    return;
  }
  const bool needs_search = !suspect.search_queues && concern_queue_entries(findings, job);
  const bool has_changed = suspect.revisions != job.claim.revisions;
  if (suspect.earlier_findings.empty() || ((has_changed || needs_search) && !is_last_check_)) {
    suspect = {suspect.search_queues || needs_search, std::move(findings), job.claim.revisions};
    return;
  }
  for (Finding& finding : findings) {
    const bool is_confirmed = std::any_of(suspect.earlier_findings.begin(), suspect.earlier_findings.end(),
                                          [&](const Finding& earlier) { return earlier.rule == finding.rule; });
    if (is_confirmed && !(needs_search && concerns_queue_entries(finding, job)))
      report_.findings.push_back(std::move(finding));
  }
  suspects_.erase(job.job_key);
}

}  // namespace

Result<std::vector<MessageProblem>> read_message_states(Store& store, Id context) {
  constexpr std::string_view prefix = kMessageKey;
  MJ_TRY(keys, store.keys(context, prefix, std::numeric_limits<std::size_t>::max()));
  for (std::string& key : keys) key.erase(0, prefix.size());
  MJ_TRY(states, store.message_states(context, keys));
  std::vector<MessageProblem> out;
  for (MessageStoreState& state : states) {
    auto findings = check_invariants(state);
    if (!findings.empty()) out.push_back({std::move(state), std::move(findings)});
  }
  return out;
}

Result<VerifyReport> verify(Store& store, Id context, const ProgressCallback& progress) {
  MJ_TRY(inventory, read_key_inventory(store, context, progress));
  return ContextVerifier(store, context, progress, std::move(inventory)).run();
}

}  // namespace mycojobs
