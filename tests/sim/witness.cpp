#include "witness.h"

#include <algorithm>

#include "inspect/verify/job_verify.h"

namespace mycojobs::sim {
namespace {

constexpr std::uint32_t kPage = 1000;

std::string text_of(const Fact& fact, std::string_view name) { return std::string(field_of(fact.fields, name)); }

std::string to_text(const Fact& fact) {
  std::string out = "    " + fact.job_key + ' ' + fact.kind + " @" + std::to_string(fact.revision);
  for (const char* name : {"why", "detail", "e", "a", "d"}) {
    const std::string value = text_of(fact, name);
    if (!value.empty()) out += ' ' + std::string(name) + '=' + value;
  }
  return out;
}

bool begins_a_life(const Fact& fact) {
  const auto kind = parse_fact_kind(fact.kind);
  return kind && *kind != FactKind::requeued && *kind != FactKind::queued && *kind != FactKind::heartbeat;
}

}  // namespace

Witness::Witness(World& world, std::vector<std::string> queues) : world_(world), store_(world.server().open().value()) {
  for (std::string& queue : queues) heads_[std::move(queue)] = {};
  world_.after_step = [this] { look(); };
}

void Witness::look() {
  const std::uint64_t writes = world_.server().writes();
  if (writes == seen_writes_ || world_.is_violated()) return;
  seen_writes_ = writes;
  for (auto& [queue, head] : heads_) {
    const auto entries = world_.server().entries(kContext, "mj:journal:" + queue);
    facts_gone_ = facts_gone_ || entries.kept < entries.added || entries.added < head.entries.added;
    head.is_new = entries != std::exchange(head.entries, entries);
  }
  for (auto& [queue, head] : heads_) {
    if (!head.is_new) continue;
    const auto facts = store_->journal(kContext, queue, head.revision, kPage);
    if (!facts) return world_.report_violation("the journal of " + queue + ": " + facts.error().message);
    for (const Fact& fact : *facts) {
      head.revision = fact.revision;
      take(queue, fact);
    }
  }
}

void Witness::take(const std::string& queue, const Fact& fact) {
  ++facts_;
  world_.note(to_text(fact));
  FoldedJob& job = jobs_[fact.job_key];
  std::string& queue_of = queue_of_[fact.job_key];
  // The job may have ended and been retired within one step.
  const bool may_be_new =
      facts_gone_ && job.state != JobState::none && job.state != JobState::live && begins_a_life(fact);
  if (may_be_new && was_retired(fact.job_key)) {
    job = {};
    latest_epochs_.erase(fact.job_key);
    queue_of.clear();
  }
  if (queue_of.empty()) queue_of = queue;
  if (queue_of != queue) return world_.report_violation(fact.job_key + " has facts in two journals");
  const auto problem = fold(job, fact);
  if (problem) return world_.report_violation(fact.job_key + ": " + std::string(problem->rule) + ": " + problem->text);
  check(fact, job);
}

// Returns whether the job's facts have left the journal and the job was created again.
bool Witness::was_retired(const std::string& job) {
  const std::vector<std::string> keys{job};
  const auto places = store_->job_states(kContext, keys, false);
  if (!places) return false;
  const ClaimView& claim = places->front().claim;
  const auto& known = jobs_[job].revisions;
  return claim.queue != queue_of_[job] || claim.revisions.size() < known.size() ||
         !std::equal(known.begin(), known.end(), claim.revisions.begin());
}

void Witness::check(const Fact& fact, const FoldedJob& job) {
  const auto running = running_.find(fact.job_key);
  if (running != running_.end() && (job.state != JobState::live || job.epoch != running->second.epoch)) {
    world_.report_violation(fact.job_key + ": " + fact.kind + " while its process on " + running->second.where +
                            " is still there");
  }
  if (fact.kind == to_string(FactKind::completed) && !finished_.contains({fact.job_key, job.epoch})) {
    world_.report_violation(fact.job_key + ": completed by epoch " + std::to_string(job.epoch) +
                            ", of which no run ended well");
  }
}

void Witness::began(const std::string& job, std::uint64_t epoch, const std::string& where) {
  look();
  ++runs_;
  world_.note("    " + job + " begins on " + where + ", epoch " + std::to_string(epoch));
  const FoldedJob& folded = jobs_[job];
  if (running_.contains(job)) {
    return world_.report_violation(job + " begins on " + where + " while it runs on " + running_[job].where);
  }
  if (folded.state != JobState::live || folded.epoch != epoch) {
    world_.report_violation(job + " begins on " + where + " with epoch " + std::to_string(epoch) + ", and is " +
                            std::string(to_string(folded.state)) + " with epoch " + std::to_string(folded.epoch));
  }
  if (epoch <= latest_epochs_[job])
    world_.report_violation(job + " begins with an epoch that is not above the one before");
  latest_epochs_[job] = epoch;
  running_[job] = {epoch, where};
}

void Witness::ended(const std::string& job, std::uint64_t epoch, bool well) {
  running_.erase(job);
  if (well) finished_.insert({job, epoch});
}

std::vector<std::string> violations(Store& store) {
  std::vector<std::string> out;
  const auto add = [&](const Finding& each) {
    if (each.violation) out.push_back(each.rule + ": " + each.text);
  };
  const auto look = [&]() -> Result<void> {
    MJ_TRY(census, read_key_inventory(store, kContext, {}));
    for (const auto& [queue, revision] : census.stray_facts) out.push_back("fact-field: " + queue);
    JobGroups groups(store, kContext, census);
    std::vector<std::string> keys;
    for (const auto& [key, history] : census.jobs) keys.push_back(key);
    MJ_TRY(places, store.job_states(kContext, keys, true));
    for (const JobStoreState& job : places) {
      JobHistory& history = census.jobs[job.job_key];
      MJ_TRY(listing, read_new_facts(store, kContext, census, job, true, history));
      const JobVerdict verdict = check_invariants(census.make_inspection(job, history, listing, true));
      for (const JobFinding& each : verdict.findings) {
        if (each.rule != "held-with-free-slots") add(each);  // the groups check this rule more precisely
      }
      groups.add_job(job);
    }
    for (const std::string& job : groups.find_waiting_for_ended()) out.push_back("waiting-ended: " + job);
    MJ_TRY(between, groups.check([] {}));
    for (const Finding& each : between) add(each);
    return {};
  };
  if (const auto done = look(); !done) out.push_back(done.error().message);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace mycojobs::sim
