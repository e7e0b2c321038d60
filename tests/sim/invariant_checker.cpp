#include "invariant_checker.h"

#include <algorithm>

#include "inspect/verify/job_verify.h"

namespace mycojobs::sim {
namespace {

constexpr std::uint32_t kMaxFactsPerRead = 1000;

std::string get_field(const Fact& fact, std::string_view name) { return std::string(field_of(fact.fields, name)); }

std::string to_text(const Fact& fact) {
  std::string out = "    " + fact.job_key + ' ' + fact.kind + " @" + std::to_string(fact.revision);
  for (const char* name : {"why", "detail", "e", "a", "d"}) {
    const std::string value = get_field(fact, name);
    if (!value.empty()) out += ' ' + std::string(name) + '=' + value;
  }
  return out;
}

bool can_start_life(const Fact& fact) {
  const auto kind = parse_fact_kind(fact.kind);
  return kind && *kind != FactKind::requeued && *kind != FactKind::queued && *kind != FactKind::heartbeat;
}

}  // namespace

InvariantChecker::InvariantChecker(World& world, std::vector<std::string> queues)
    : world_(world), store_(world.server().open().value()) {
  for (std::string& queue : queues) journals_[std::move(queue)] = {};
  world_.after_step = [this] { check_new_facts(); };
}

void InvariantChecker::check_new_facts() {
  const std::uint64_t writes = world_.server().writes();
  if (writes == checked_writes_ || world_.is_violated()) return;
  checked_writes_ = writes;
  for (auto& [queue, journal] : journals_) {
    const auto entries = world_.server().entries(kContext, "mj:journal:" + queue);
    are_facts_missing_ = are_facts_missing_ || entries.kept < entries.added || entries.added < journal.entries.added;
    journal.is_new = entries != std::exchange(journal.entries, entries);
  }
  for (auto& [queue, journal] : journals_) {
    if (!journal.is_new) continue;
    const auto facts = store_->journal(kContext, queue, journal.revision, kMaxFactsPerRead);
    if (!facts) return world_.report_violation("the journal of " + queue + ": " + facts.error().message);
    for (const Fact& fact : *facts) {
      journal.revision = fact.revision;
      process_fact(queue, fact);
    }
  }
}

void InvariantChecker::process_fact(const std::string& queue, const Fact& fact) {
  ++fact_count_;
  world_.note(to_text(fact));
  FoldedJob& job = jobs_[fact.job_key];
  std::string& job_queue = queue_by_job_[fact.job_key];
  // The job may have ended and been retired within one step.
  const bool may_be_new =
      are_facts_missing_ && job.state != JobState::none && job.state != JobState::live && can_start_life(fact);
  if (may_be_new && was_retired(fact.job_key)) {
    job = {};
    latest_epochs_.erase(fact.job_key);
    job_queue.clear();
  }
  if (job_queue.empty()) job_queue = queue;
  if (job_queue != queue) return world_.report_violation(fact.job_key + " has facts in two journals");
  const auto problem = fold(job, fact);
  if (problem) return world_.report_violation(fact.job_key + ": " + std::string(problem->rule) + ": " + problem->text);
  check_fact(fact, job);
}

// Returns whether the job's facts have left the journal and the job was created again.
bool InvariantChecker::was_retired(const std::string& job) {
  const std::vector<std::string> keys{job};
  const auto job_states = store_->job_states(kContext, keys, false);
  if (!job_states) return false;
  const ClaimView& claim = job_states->front().claim;
  const auto& known_revisions = jobs_[job].revisions;
  return claim.queue != queue_by_job_[job] || claim.revisions.size() < known_revisions.size() ||
         !std::equal(known_revisions.begin(), known_revisions.end(), claim.revisions.begin());
}

void InvariantChecker::check_fact(const Fact& fact, const FoldedJob& job) {
  const auto running = running_processes_.find(fact.job_key);
  if (running != running_processes_.end() && (job.state != JobState::live || job.epoch != running->second.epoch)) {
    world_.report_violation(fact.job_key + ": " + fact.kind + " while its process on " + running->second.host +
                            " still exists");
  }
  if (fact.kind == to_string(FactKind::completed) && !successful_runs_.contains({fact.job_key, job.epoch})) {
    world_.report_violation(fact.job_key + ": completed by epoch " + std::to_string(job.epoch) +
                            ", of which no run succeeded");
  }
}

void InvariantChecker::on_process_started(const std::string& job, std::uint64_t epoch, const std::string& host) {
  check_new_facts();
  ++run_count_;
  world_.note("    " + job + " begins on " + host + ", epoch " + std::to_string(epoch));
  const FoldedJob& folded = jobs_[job];
  if (running_processes_.contains(job)) {
    return world_.report_violation(job + " begins on " + host + " while it runs on " + running_processes_[job].host);
  }
  if (folded.state != JobState::live || folded.epoch != epoch) {
    world_.report_violation(job + " begins on " + host + " with epoch " + std::to_string(epoch) + ", and is " +
                            std::string(to_string(folded.state)) + " with epoch " + std::to_string(folded.epoch));
  }
  if (epoch <= latest_epochs_[job])
    world_.report_violation(job + " begins with an epoch that is not above the one before");
  latest_epochs_[job] = epoch;
  running_processes_[job] = {epoch, host};
}

void InvariantChecker::on_process_ended(const std::string& job, std::uint64_t epoch, bool succeeded) {
  running_processes_.erase(job);
  if (succeeded) successful_runs_.insert({job, epoch});
}

std::vector<std::string> find_violations(Store& store) {
  std::vector<std::string> out;
  const auto add = [&](const Finding& each) {
    if (each.violation) out.push_back(each.rule + ": " + each.text);
  };
  const auto collect = [&]() -> Result<void> {
    MJ_TRY(inventory, read_key_inventory(store, kContext, {}));
    for (const auto& [queue, revision] : inventory.stray_facts) out.push_back("fact-field: " + queue);
    JobGroups groups(store, kContext, inventory);
    std::vector<std::string> keys;
    for (const auto& [key, history] : inventory.jobs) keys.push_back(key);
    MJ_TRY(job_states, store.job_states(kContext, keys, true));
    for (const JobStoreState& job : job_states) {
      JobHistory& history = inventory.jobs[job.job_key];
      MJ_TRY(listing, read_new_facts(store, kContext, inventory, job, true, history));
      const JobVerdict verdict = check_invariants(inventory.make_inspection(job, history, listing, true));
      for (const JobFinding& each : verdict.findings) {
        if (each.rule != "held-with-free-slots") add(each);  // the groups check this rule more precisely
      }
      groups.add_job(job);
    }
    for (const std::string& job : groups.find_waiting_for_ended()) out.push_back("waiting-ended: " + job);
    MJ_TRY(group_findings, groups.check([] {}));
    for (const Finding& each : group_findings) add(each);
    return {};
  };
  if (const auto collected = collect(); !collected) out.push_back(collected.error().message);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace mycojobs::sim
