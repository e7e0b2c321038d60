#include "inspect/invariants.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "flows/flow_decider.h"
#include "jobs/dispatch_journal.h"
#include "jobs/state_machines.h"
#include "model/codec.h"
#include "store/keys.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr auto kVerifyRules = std::to_array<VerifyRule>({
    {kFactKind, true, "a fact of an unknown kind"},
    {kFactField, true, "a fact that lacks a field, or with a malformed one"},
    {kFactRevision, true, "revisions of a job's facts that do not rise"},
    {kFactOrder, true, "a fact that is not possible in the job's state"},
    {kFactClaim, true, "an owner's fact by a claim that is not the latest, or not live"},
    {kFactEpoch, true, "epochs of a job's claims that do not grow"},
    {kFactCount, true, "attempts or deliveries that do not follow each other"},
    {kAfterEnd, true, "a fact of a job that had ended"},
    {kSecondEnd, true, "two terminal facts in one life of a job"},
    {"fact-missing", true, "a claim lists a fact that its journal does not hold"},
    {"fact-unlisted", true, "a fact that its job's claim does not list: it would outlive the job"},
    {"fact-in-other-journal", true, "facts of one job in the journals of two queues"},
    {"queue-type", true, "the key of a queue has another type: no job can be added to it"},
    {"claim-type", true, "the key of a claim has another type"},
    {"claim-missing", true, "the journal has facts of a job whose claim is missing"},
    {"claim-facts", true, "a claim that differs from the facts of its job"},
    {"job-not-indexed", true, "a job that is not in the index of its state, so no agent finds it"},
    {"job-indexed-twice", true, "a job that is also in the index of another state"},
    {"lease-index", true, "a live claim and the index of leases disagree"},
    {"lease-overdue", true, "a lease that expired more than a lease and a second ago and was not recovered"},
    {"started-unclaimed", true, "a record with the status started and without a live claim"},
    {"waiting-ended", true, "a job is parked on a job that has ended, so it is never released"},
    {"held-with-free-slots", true, "a job is held by its concurrency key, of which slots are free"},
    {"slot-stray", true, "a job occupies a slot and does not run"},
    {"slot-missing", true, "a job runs without a slot"},
    {"record-epoch", true, "a record with a higher epoch than its claim: the epoch has decreased"},
    {"message-count", true, "the mark of a message does not count its jobs that have not ended"},
    {"message-outbox", true, "a message with unsent parts that is missing in the outbox"},
    {"message-inbox", true, "a received message that is missing in the inbox"},
    {"message-index", true, "a message that retention does not delete, or that would be accepted twice"},
    {"idempotency-key", true, "the idempotency key of a job leads nowhere: the same request would make another job"},
    {"object-index", true, "objects and their indexes disagree"},
    {"flow-mark", true, "a flow whose state key is missing or does not have a job for each node"},
    {"flow-catalog", true, "an entry of the catalog that names no flow, or names one a second time"},
    {"schedule-index", true, "a schedule that is not listed, or whose definition does not list it as a user"},
    {"flow-definition", true, "the definition of a flow is missing or was changed"},
    {"flow-journal", true, "invalid entries or missing facts in a flow's journal"},
    {"flow-fact", true, "a fact of a flow that is not possible in the state of the run"},
    {"flow-checkpoint", true, "a checkpoint that differs from the facts"},
    {"flow-index", true, "the state key or the indexes of a flow differ from its journal"},
    {"flow-due", true, "a flow has pending work and is missing in the index of due flows"},
    {"flow-job", true, "a job of a flow whose state differs from its node"},
    {"flow-event-missing", true, "a job of a flow has ended and its flow has no event of the end"},
    {"flow-orphan", true, "a planned job whose flow or message is missing or has ended, so it never runs"},
    {"deployment-journal", true, "facts of a deployment that are missing, invalid or not consecutive"},
    {"deployment-index", true, "the indexes of a deployment differ from its journal"},
    {"deployment-snapshot", true, "a snapshot that is missing or differs from the journal"},
    {"deployment-manifest", true, "a manifest that instances run is missing or was changed"},
    {"deployment-blob", true, "the state of an instance is missing or was changed"},
    {"deployment-effect", true, "an effect whose job or flow is missing or does not name the effect"},
    {"deployment-event-missing", true,
     "the job or flow of an effect has ended and its deployment has no event of the end"},
    {"deployment-due", true, "a deployment has pending work and is missing in the index"},
    {"actor-key", true, "public keys of actors differ from their index: signatures of these actors are rejected"},
    {"deployment-inbox", false, "an invalid entry in the inbox of a deployment, which is dropped"},
    {"dependency-cycle", false, "jobs whose dependencies form a cycle, as they were submitted"},
    {"flow-record", false, "a flow's record that a client has overwritten or deleted; its journal decides"},
    {"flow-history", false, "facts of a flow are missing; its checkpoint or its end replaces them"},
    {"flow-job-rerun", false, "a job whose node has settled was run again by an operator"},
    {"record-overwritten", false, "a record that a client has overwritten; its claim decides"},
    {"record-deleted", false, "the record of a job was deleted before it had ended, or before it was retired"},
    {"record-type", false, "another client has overwritten a record"},
    {"queue-entry-duplicate", false, "a queue entry too many, which will be dropped"},
    {"queue-entry-stray", false, "a queue entry that names no job or has no record; its claim makes it a dead letter"},
    {"record-not-queued", false, "a record that was never pushed onto a queue"},
    {"wait-not-indexed", false, "a job whose time limit of waiting differs from the index of limited waits"},
    {"job-not-listed", false, "a job that `job list` does not show, since it is missing in the index of changes"},
    {"kept-bytes", false, "the counted bytes of stored jobs are wrong, so quotas apply too early or too late"},
    {"log-incomplete", false, "the log of an ended job lacks its last line"},
});

}  // namespace

std::span<const VerifyRule> verify_rules() { return kVerifyRules; }

nlohmann::json to_json(const Finding& finding) {
  return {
      {"violation", finding.violation}, {"rule", finding.rule}, {"subject", finding.subject}, {"text", finding.text}};
}

Finding make_finding(std::string_view rule, std::string subject, const std::string& text) {
  const auto rules = verify_rules();
  const auto row =
      std::find_if(rules.begin(), rules.end(), [&](const VerifyRule& entry) { return entry.name == rule; });
  // The store may contain text by any client, so the text is reduced to one printable line.
  return {row == rules.end() || row->violation, std::string(rule), std::move(subject), to_ascii(text, text.size())};
}

namespace {

using JobFixKind = JobFix::Kind;
using JobIndexEntry = JobFix::JobIndex;

constexpr std::uint64_t kRecoveryMs = 1000;  // time after the end of a lease within which an agent recovers the job
constexpr std::string_view kClaimUnchanged = "; its claim is kept as it is";

JobFix add_to_index(JobIndexEntry index, std::uint64_t score = 0) {
  return {JobFixKind::add_to_index, index, {}, score, {}};
}
JobFix add_to_index(JobIndexEntry index, std::string argument) {
  return {JobFixKind::add_to_index, index, std::move(argument), 0, {}};
}
JobFix remove_from_index(JobIndexEntry index, std::string argument = {}) {
  return {JobFixKind::remove_from_index, index, std::move(argument), 0, {}};
}
JobFix make_field_fix(JobFixKind kind, Fields fields) { return {kind, JobIndexEntry::none, {}, 0, std::move(fields)}; }
JobFix make_queue_fix(std::string reason) {
  return {JobFixKind::enqueue, JobIndexEntry::none, std::move(reason), 0, {}};
}

// Returns the priority as the scripts read it: a whole number from -kMaxPriority to kMaxPriority, otherwise 0.
std::string normalize_priority(std::string_view text) {
  int value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_valid = result.ec == std::errc() && result.ptr == text.data() + text.size() && value >= -kMaxPriority &&
                        value <= kMaxPriority;
  return std::to_string(is_valid ? value : 0);
}

class JobChecker {
 public:
  explicit JobChecker(const JobInspection& inspection)
      : inspection_(inspection),
        job_(inspection.store_state),
        claim_(inspection.store_state.claim),
        has_trusted_facts_(has_trusted_facts(inspection)),
        expected_claim_(has_trusted_facts_ ? to_claim_view(inspection.history.folded, inspection.queue) : claim_) {}
  JobVerdict run();

 private:
  static bool has_trusted_facts(const JobInspection&);
  static std::string format_value(std::string_view text) {
    return text.empty() ? "nothing" : std::string(text.substr(0, 80));
  }
  static std::string format_revisions(const std::vector<std::uint64_t>& revisions) {
    return "revision " + std::to_string(revisions.front()) +
           (revisions.size() > 1 ? " and " + std::to_string(revisions.size() - 1) + " more" : "");
  }
  std::string_view record_field(std::string_view name) const { return field_of(job_.record, name); }
  std::uint64_t record_number(std::string_view name) const { return number_of(job_.record, name); }
  std::string_view claim_field(std::string_view name) const { return field_of(job_.claim_fields, name); }
  bool has_record() const { return job_.record_type == "hash"; }
  // Returns whether the priority of the job is not 0. If the claim has no priority, the priority of the record is used.
  bool has_priority() const {
    const std::string_view claim_priority = claim_field("priority");
    return (claim_priority.empty() ? normalize_priority(record_field("priority")) : std::string(claim_priority)) != "0";
  }
  std::uint64_t get_last_change_us() const;

  void add_finding(std::string_view rule, const std::string& text, std::vector<JobFix> fixes = {}) {
    verdict_.findings.push_back({make_finding(rule, job_.job_key, job_.job_key + ' ' + text), std::move(fixes)});
  }
  void add_silent_fix(JobFix fix) { verdict_.silent_fixes.push_back(std::move(fix)); }

  bool check_claim();  // returns false if there is no usable claim
  Fields make_expected_fields() const;
  std::vector<JobFix> make_claim_fixes() const;
  std::vector<JobFix> make_restore_fix() const;
  bool can_drop_field(std::string_view name) const;
  void check_journal();
  void check_claim_facts();
  void check_fact_list();
  void check_states(JobState);
  std::vector<JobFix> make_add_fixes(JobState) const;
  std::vector<JobFix> make_remove_fixes(JobState) const;
  void check_queued();
  void check_dependencies();
  void check_lease(JobState);
  void check_slot(JobState);
  void check_live_slot();
  void check_wait(JobState);
  void check_entries(JobState);
  void check_unclaimed_job();
  void check_record(JobState);
  void check_no_record(JobState);
  void check_record_status(JobState);

  const JobInspection& inspection_;
  const JobStoreState& job_;
  const ClaimView& claim_;
  const bool has_trusted_facts_;    // the facts are authoritative
  const ClaimView expected_claim_;  // derived from the facts if they are authoritative, otherwise a copy of the claim
  JobVerdict verdict_;
};

// Returns whether the facts are authoritative. Complete facts can still be outdated: if a revision was assigned twice,
// its fact belongs to an older claim. A claim that lists facts of other jobs was either damaged by a client, or belongs
// to a step whose fact was lost.
bool JobChecker::has_trusted_facts(const JobInspection& inspection) {
  const FoldedJob& folded = inspection.history.folded;
  const ClaimView& claim = inspection.store_state.claim;
  if (!inspection.history.has_facts()) return false;
  if (claim.state.empty()) return true;
  if (inspection.history.problem || !inspection.fact_list_difference.missing.empty()) return false;
  if (!parse_job_state(claim.state)) return true;
  const bool is_newer =
      claim.epoch > folded.epoch && field_of(inspection.store_state.record, "epoch") == std::to_string(claim.epoch);
  const bool differs = claim.state != to_string(folded.state) || claim.claim_id != folded.claim_id;
  return !is_newer && (inspection.fact_list_difference.foreign.empty() || !differs);
}

JobVerdict JobChecker::run() {
  if (!check_claim()) return std::move(verdict_);
  check_journal();
  const auto state = parse_job_state(expected_claim_.state);
  if (!state) {
    add_finding("claim-facts", "has a claim in state " + format_value(claim_.state) + ", which is not a known kind");
    return std::move(verdict_);
  }
  if (*state != JobState::none && claim_field("priority").empty()) {
    add_silent_fix(make_field_fix(JobFixKind::set_claim, {{"priority", normalize_priority(record_field("priority"))}}));
  }
  check_states(*state);
  check_dependencies();
  check_lease(*state);
  check_slot(*state);
  check_wait(*state);
  if (has_record() && !job_.in_job_index) {
    // A job that another client pushed and that was not read yet need not be in the index.
    const JobFix fix = add_to_index(JobIndexEntry::jobs, get_last_change_us());
    if (*state == JobState::none) {
      add_silent_fix(fix);
    } else {
      add_finding("job-not-listed", "is missing in the index of changes", {fix});
    }
  }
  check_entries(*state);
  if (*state == JobState::none) {
    check_unclaimed_job();
  } else {
    check_record(*state);
  }
  return std::move(verdict_);
}

// Returns the time of the latest change in microseconds, according to the record.
std::uint64_t JobChecker::get_last_change_us() const {
  return 1000 * std::max({record_number("ended_ms"), record_number("started_ms"), record_number("queued_ms"),
                          1000 * job_.updated_s, 1000 * record_number("created_at"), std::uint64_t{1}});
}

bool JobChecker::check_claim() {
  if (job_.claim_type != "hash" && job_.claim_type != "none") {
    std::vector<JobFix> fixes{{JobFixKind::delete_claim}};
    if (has_trusted_facts_) {
      const auto claim_fixes = make_claim_fixes();
      fixes.insert(fixes.end(), claim_fixes.begin(), claim_fixes.end());
    }
    add_finding("claim-type", "has a claim that is a " + format_value(job_.claim_type) + ": another client wrote it",
                std::move(fixes));
    return false;
  }
  if (claim_.state.empty() && inspection_.history.has_facts()) {
    add_finding("claim-missing",
                "has no claim, and " +
                    count_with_noun(inspection_.history.folded.revisions.size(), "fact tells", "facts tell") + " of it",
                make_claim_fixes());
    return false;
  }
  return true;
}

// Returns the fields that the claim should have according to the facts. The value is empty for a field that the facts
// do not determine, and for all fields of a job without a claim.
Fields JobChecker::make_expected_fields() const {
  const ClaimView& expected = expected_claim_;
  std::string revisions;
  for (const std::uint64_t revision : expected.revisions)
    revisions += (revisions.empty() ? "" : " ") + std::to_string(revision);
  const auto text = [](std::uint64_t value) { return value > 0 ? std::to_string(value) : std::string(); };
  const bool is_live = expected.state == to_string(JobState::live);
  const bool is_ended = expected.state == to_string(JobState::ended);
  return {
      {"state", expected.state},
      {"queue", expected.queue},
      {"claim_id", expected.claim_id},
      {"token", expected.token_hash},
      {"epoch", text(expected.epoch)},
      {"attempt", text(expected.attempt)},
      {"deliveries", expected.attempt > 0 ? std::to_string(expected.deliveries) : ""},
      {"runner", text(expected.runner)},
      // The claim may have lost the instance that ended the job.
      {"instance", is_live ? expected.instance : ""},
      {"status", expected.status},
      {"detail", expected.detail},
      {"end", expected.end_digest},
      {"ended_ms", text(expected.ended_ms)},
      {"message", is_ended ? "" : expected.message},  // the message has counted this end
      {"flow", expected.flow},
      {"reason", expected.reason},
      {"lease_ms", is_live && claim_.lease_ms == 0 ? text(expected.lease_ms) : ""},  // the owner may have changed it
      {"revs", revisions}};
}

// Returns whether a field of the claim may be dropped although the facts do not determine it.
bool JobChecker::can_drop_field(std::string_view name) const {
  static constexpr std::array<std::string_view, 5> kRunFields{"epoch", "attempt", "deliveries", "runner", "instance"};
  if (name == "claim_id" || name == "token") return true;
  if (name == "detail") return expected_claim_.state == to_string(JobState::ended);
  const bool was_never_claimed = !has_trusted_facts_ || expected_claim_.epoch == 0;
  return was_never_claimed && std::find(kRunFields.begin(), kRunFields.end(), name) != kRunFields.end();
}

// Returns the fixes that write the claim as the facts determine it.
std::vector<JobFix> JobChecker::make_claim_fixes() const {
  Fields set;
  Fields drop;
  for (auto& [name, value] : make_expected_fields()) {
    if (!value.empty()) {
      set.emplace_back(name, std::move(value));
    } else if (can_drop_field(name) && !claim_field(name).empty()) {
      drop.emplace_back(name, "");
    }
  }
  if (claim_field("priority").empty()) set.emplace_back("priority", normalize_priority(record_field("priority")));
  std::vector<JobFix> fixes;
  if (!drop.empty()) fixes.push_back(make_field_fix(JobFixKind::drop_claim, std::move(drop)));
  fixes.push_back(make_field_fix(JobFixKind::set_claim, std::move(set)));
  if (expected_claim_.state == to_string(JobState::live)) fixes.push_back({JobFixKind::set_lease});
  return fixes;
}

// Returns a fix that appends a fact with the state of the claim, because the facts have gaps or are out of order.
std::vector<JobFix> JobChecker::make_restore_fix() const {
  if (claim_.state.empty() || !parse_job_state(claim_.state)) return {};
  JobFix fix{JobFixKind::append_fact};
  for (const std::uint64_t revision : inspection_.history.folded.revisions) {
    fix.argument += (fix.argument.empty() ? "" : " ") + std::to_string(revision);
  }
  return {std::move(fix)};
}

void JobChecker::check_journal() {
  const JobHistory& history = inspection_.history;
  const std::vector<JobFix> restore_fixes = make_restore_fix();
  if (!inspection_.fact_list_difference.missing.empty()) {
    add_finding("fact-missing",
                "has a claim that lists " + format_revisions(inspection_.fact_list_difference.missing) +
                    ", which the journal of " + format_value(inspection_.queue) + " does not hold" +
                    std::string(kClaimUnchanged),
                restore_fixes);
  } else if (history.problem) {
    const std::string further_count =
        history.problem_count > 1 ? "; " + std::to_string(history.problem_count - 1) + " more do not fit" : "";
    add_finding(history.problem->rule,
                "in the journal of " + format_value(inspection_.queue) + ", " + history.problem->text + further_count +
                    std::string(kClaimUnchanged),
                restore_fixes);
  } else {
    check_claim_facts();
  }
  check_fact_list();
  if (history.second_queue != JobHistory::kNoQueue) {
    add_finding("fact-in-other-journal",
                "has facts in the journal of another queue than " + format_value(inspection_.queue));
  }
}

// Compares the claim with the facts. A finding does not contain the token, because the token is secret.
void JobChecker::check_claim_facts() {
  const bool is_unclaimed = expected_claim_.state.empty();
  if (!has_trusted_facts_ && !is_unclaimed) {
    if (!parse_job_state(claim_.state)) return;  // run() reports the unknown state
    const std::string reason =
        inspection_.history.has_facts() ? ", and its facts say less than it" : ", and the journal has no fact of it";
    return add_finding("claim-facts",
                       "has a claim in state " + format_value(claim_.state) + reason + std::string(kClaimUnchanged),
                       make_restore_fix());
  }
  std::string differences;
  Fields set;
  Fields drop;
  for (const auto& [name, fact_value] : make_expected_fields()) {
    const std::string expected = is_unclaimed ? "" : fact_value;
    const std::string_view actual = claim_field(name);
    std::uint64_t value = 0;
    const bool has_content = !actual.empty() && !(parse_u64(actual, value) && value == 0);
    if (name == "revs" || actual == expected || (expected.empty() && (!can_drop_field(name) || !has_content))) continue;
    const bool is_secret = name == "token";
    differences += (differences.empty() ? "" : "; ") + name + ' ' + (is_secret ? "another" : format_value(actual)) +
                   ", its facts say " + (is_secret ? "one" : format_value(expected));
    (expected.empty() ? drop : set).emplace_back(name, expected);
  }
  if (differences.empty()) return;
  std::vector<JobFix> fixes;
  if (!drop.empty()) fixes.push_back(make_field_fix(JobFixKind::drop_claim, std::move(drop)));
  if (!set.empty()) fixes.push_back(make_field_fix(JobFixKind::set_claim, std::move(set)));
  if (expected_claim_.state == to_string(JobState::live)) fixes.push_back({JobFixKind::set_lease});
  add_finding("claim-facts", "has a claim with " + differences, std::move(fixes));
}

// Checks the list of facts in the claim. If the facts are not trusted, the fix that restores the claim also replaces
// the list.
void JobChecker::check_fact_list() {
  std::vector<JobFix> fixes;
  const Fields expected = has_trusted_facts_ ? make_expected_fields() : Fields{};
  const std::string_view revisions = field_of(expected, "revs");
  if (has_trusted_facts_ && claim_field("revs") != revisions) {
    fixes.push_back(make_field_fix(JobFixKind::set_claim, {{"revs", std::string(revisions)}}));
  } else if (claim_.state.empty() && !inspection_.fact_list_difference.foreign.empty()) {
    fixes.push_back(make_field_fix(JobFixKind::drop_claim, {{"revs", ""}}));
  }
  if (!inspection_.fact_list_difference.foreign.empty()) {
    add_finding(
        "claim-facts",
        "has a claim that lists " + format_revisions(inspection_.fact_list_difference.foreign) + ", no fact of it",
        fixes);
  }
  if (!inspection_.fact_list_difference.unlisted.empty()) {
    add_finding("fact-unlisted",
                "has a claim that does not list " + format_revisions(inspection_.fact_list_difference.unlisted) +
                    " of the journal of " + format_value(inspection_.queue),
                fixes);
  }
  if (!fixes.empty() && inspection_.fact_list_difference.foreign.empty() &&
      inspection_.fact_list_difference.unlisted.empty()) {
    add_finding("claim-facts", "has a claim that lists its facts as " + format_value(claim_field("revs")), fixes);
  }
}

// Checks that the job is in the index of its state and in no other. check_entries() checks the lists of queues.
void JobChecker::check_states(JobState state) {
  struct StateIndex {
    JobState state;
    bool is_present;
    std::string_view name;
  };
  const auto indexes = std::to_array<StateIndex>({
      {JobState::delayed, job_.due_ms.has_value(), "the index of delayed jobs"},
      {JobState::waiting, !job_.awaited_jobs.empty(), "the jobs that wait for others"},
      {JobState::prerequisites, job_.check_ms.has_value(), "the index of prerequisites"},
      {JobState::held, state == JobState::held ? job_.is_held : !job_.held_by_keys.empty(),
       "those held by its concurrency key"},
      {JobState::ended, job_.in_ended_index, "the index of ended jobs"},
  });
  for (const StateIndex& index : indexes) {
    const bool expected = index.state == state;
    if (expected && !index.is_present) {
      add_finding("job-not-indexed", "is " + std::string(to_string(state)) + " and not in " + std::string(index.name),
                  make_add_fixes(state));
    }
    if (!expected && index.is_present) {
      add_finding("job-indexed-twice",
                  "is " + format_value(to_string(state)) + " and also in " + std::string(index.name),
                  make_remove_fixes(index.state));
    }
  }
  if (job_.in_priority_index && state != JobState::queued) {
    add_finding("job-indexed-twice",
                "is " + format_value(to_string(state)) + " and also prioritised in " + format_value(inspection_.queue),
                {remove_from_index(JobIndexEntry::priority, inspection_.queue)});
  }
  if (state == JobState::queued) check_queued();
  if (state == JobState::held && job_.has_free_slot && has_record()) {
    add_finding("held-with-free-slots", "is held, but its concurrency key has a free slot", {make_queue_fix("held")});
  }
}

// Returns the fixes that add the job to the index of its state.
std::vector<JobFix> JobChecker::make_add_fixes(JobState state) const {
  switch (state) {
    case JobState::delayed:
      return {add_to_index(JobIndexEntry::delayed, std::max<std::uint64_t>(inspection_.history.folded.due_ms, 1))};
    case JobState::prerequisites:
      return {add_to_index(JobIndexEntry::prerequisites, job_.now_ms)};
    case JobState::ended:
      return {add_to_index(JobIndexEntry::ended, std::max<std::uint64_t>(expected_claim_.ended_ms, 1))};
    case JobState::held: {
      const std::string key(record_field("concurrency_key"));
      if (!job_.has_limit) return {};  // no key holds it: its slot is free
      return {make_field_fix(JobFixKind::set_claim, {{"held", key}}), add_to_index(JobIndexEntry::held, key)};
    }
    default:
      return {};  // for waiting: see check_dependencies()
  }
}

// Returns the fixes that remove the job from the index of a state.
std::vector<JobFix> JobChecker::make_remove_fixes(JobState state) const {
  std::vector<JobFix> fixes;
  if (state == JobState::delayed) fixes.push_back(remove_from_index(JobIndexEntry::delayed));
  if (state == JobState::prerequisites) fixes.push_back(remove_from_index(JobIndexEntry::prerequisites));
  if (state == JobState::ended) fixes.push_back(remove_from_index(JobIndexEntry::ended));
  if (state == JobState::waiting) {
    for (const std::string& dependency : job_.awaited_jobs)
      fixes.push_back(remove_from_index(JobIndexEntry::waits, dependency));
  }
  if (state == JobState::held) {
    for (const std::string& key : job_.held_by_keys) fixes.push_back(remove_from_index(JobIndexEntry::held, key));
  }
  return fixes;
}

void JobChecker::check_queued() {
  const std::uint32_t entries = inspection_.entry_count.value_or(1);
  const bool is_prioritised = has_priority();
  if (!job_.in_priority_index && !job_.awaits_record && entries == 0) {
    add_finding("job-not-indexed", "is queued and not in " + format_value(inspection_.queue),
                {add_to_index(is_prioritised ? JobIndexEntry::priority : JobIndexEntry::queue, inspection_.queue)});
  }
  if (job_.in_priority_index && !is_prioritised) {
    std::vector<JobFix> fixes{remove_from_index(JobIndexEntry::priority, inspection_.queue)};
    if (entries == 0) fixes.insert(fixes.begin(), add_to_index(JobIndexEntry::queue, inspection_.queue));
    add_finding("queue-entry-duplicate", "has no priority and is prioritised in " + format_value(inspection_.queue),
                std::move(fixes));
  }
  if (is_prioritised && !job_.in_priority_index &&
      inspection_.entry_count.value_or(0) > 0) {  // the job runs, but not by its priority
    add_silent_fix(add_to_index(JobIndexEntry::priority, inspection_.queue));
    add_silent_fix(remove_from_index(JobIndexEntry::queue, inspection_.queue));
  }
}

// Checks the dependencies of a waiting job. Does nothing if the job was not read completely (JobStoreState::digest).
void JobChecker::check_dependencies() {
  const bool is_waiting =
      claim_.state == to_string(JobState::waiting) && expected_claim_.state == claim_.state && !job_.digest.empty();
  if (!is_waiting || !has_record()) return;
  const JobStoreState::Dependency* ended_dependency = nullptr;
  std::vector<JobFix> fixes;
  bool has_open_dependency = false;
  for (const JobStoreState::Dependency& dependency : job_.dependencies) {
    if (dependency.ended && dependency.is_parked) {
      if (ended_dependency == nullptr) ended_dependency = &dependency;
      fixes.push_back(remove_from_index(JobIndexEntry::waits, dependency.job));
    }
    has_open_dependency = has_open_dependency || (dependency.in_record && !dependency.ended);
  }
  if (!has_open_dependency) fixes = {make_queue_fix("dependencies")};
  if (ended_dependency != nullptr) {
    add_finding("waiting-ended", "waits for " + ended_dependency->job + ", which has ended, so it is never released",
                fixes);
  } else if (!has_open_dependency) {
    add_finding("waiting-ended", "waits, but all its dependencies have ended, so it is never released", fixes);
  }
  for (const JobStoreState::Dependency& dependency : job_.dependencies) {
    if (!dependency.in_record || dependency.ended || (dependency.is_parked && dependency.wakes_job)) continue;
    add_finding("job-not-indexed", "is waiting, but no index entry says that it waits for " + dependency.job,
                {add_to_index(JobIndexEntry::waits, dependency.job)});
  }
}

void JobChecker::check_lease(JobState state) {
  if (state != JobState::live) {
    if (job_.lease_until_ms) {
      add_finding("lease-index", "is " + format_value(to_string(state)) + " and is in the index of leases",
                  {remove_from_index(JobIndexEntry::leases)});
    }
    return;
  }
  const std::vector<JobFix> lease_fixes{{JobFixKind::set_lease}};
  if (!job_.lease_until_ms)
    return add_finding("lease-index", "is live and its lease is not among the leases", lease_fixes);
  if (*job_.lease_until_ms != claim_.lease_until_ms) {  // either value may be the right one
    return add_finding("lease-index",
                       "has a lease until " + std::to_string(claim_.lease_until_ms) + " that is indexed as " +
                           std::to_string(*job_.lease_until_ms),
                       lease_fixes);
  }
  if (job_.now_ms > claim_.lease_until_ms + claim_.lease_ms + kRecoveryMs) {
    add_finding("lease-overdue", "has a lease that ran out " + std::to_string(job_.now_ms - claim_.lease_until_ms) +
                                     " ms ago: no agent of this context recovers it");
  }
}

void JobChecker::check_slot(JobState state) {
  if (state == JobState::live) return check_live_slot();
  const JobFix drop_key_fix = make_field_fix(JobFixKind::drop_claim, {{"ckey", ""}});
  std::vector<JobFix> fixes;
  for (const std::string& key : job_.slot_keys) fixes.push_back(remove_from_index(JobIndexEntry::slots, key));
  const bool has_claim_key = has_record() && !claim_field("ckey").empty();
  if (has_claim_key) fixes.push_back(drop_key_fix);
  if (fixes.empty()) return;
  add_finding(
      "slot-stray",
      "is " + format_value(to_string(state)) + " and occupies a slot of " +
          (job_.slot_keys.empty() ? format_value(claim_field("ckey")) + " by its claim" : "its concurrency key"),
      std::move(fixes));
}

// A live job must have the slot of the key that its record names, and no other slot.
void JobChecker::check_live_slot() {
  const std::string claim_key(claim_field("ckey"));
  const std::string key = !has_record()    ? claim_key
                          : job_.has_limit ? std::string(record_field("concurrency_key"))
                                           : "";
  const auto has_slot = [&](const std::string& slot_key) {
    return !slot_key.empty() &&
           std::find(job_.slot_keys.begin(), job_.slot_keys.end(), slot_key) != job_.slot_keys.end();
  };
  const JobFix key_fix = key.empty() ? make_field_fix(JobFixKind::drop_claim, {{"ckey", ""}})
                                     : make_field_fix(JobFixKind::set_claim, {{"ckey", key}});
  if (!claim_key.empty() && claim_key != key) {
    std::vector<JobFix> fixes{key_fix};
    if (has_slot(claim_key)) fixes.push_back(remove_from_index(JobIndexEntry::slots, claim_key));
    add_finding("slot-stray", "runs, and its claim occupies a slot of " + format_value(claim_key), std::move(fixes));
  }
  if (key.empty()) return;
  if (!has_slot(key)) {
    return add_finding("slot-missing", "runs without a slot of its concurrency key " + format_value(key),
                       {add_to_index(JobIndexEntry::slots, key), key_fix});
  }
  if (claim_key.empty()) add_silent_fix(key_fix);
}

// Checks the index of jobs whose first run must start within queue_timeout_ms.
void JobChecker::check_wait(JobState state) {
  const std::uint64_t max_wait_ms = record_number("queue_timeout_ms");
  const bool has_never_run = expected_claim_.attempt <= 1 && expected_claim_.deliveries == 0;
  const bool is_before_start =
      state != JobState::none && state != JobState::planned && state != JobState::live && state != JobState::ended;
  const bool has_time_limit = max_wait_ms > 0 && has_never_run && is_before_start;
  const JobFix key_fix = make_field_fix(JobFixKind::set_claim, {{"overdue", "1"}});
  if (has_time_limit && !job_.wait_until_ms) {
    const std::uint64_t start_ms = std::max(record_number("queued_ms"), record_number("run_at_ms"));
    add_finding("wait-not-indexed",
                "is " + format_value(to_string(state)) + " and its time limit of waiting is not enforced",
                {add_to_index(JobIndexEntry::overdue, start_ms + max_wait_ms), key_fix});
  } else if (has_time_limit && claim_field("overdue").empty()) {
    add_silent_fix(key_fix);
  } else if (!has_time_limit && job_.wait_until_ms && (state != JobState::none || max_wait_ms == 0)) {
    add_finding("wait-not-indexed", "is " + format_value(to_string(state)) + " and is in the index of limited waits",
                {remove_from_index(JobIndexEntry::overdue)});
  }
}

void JobChecker::check_entries(JobState state) {
  const std::uint32_t entries = inspection_.entry_count.value_or(0);
  const bool has_unclaimed_end = state == JobState::none && has_ended(job_);
  const bool is_dropped = (state != JobState::queued && state != JobState::none) || has_unclaimed_end;
  if (is_dropped && entries > 0 && !claim_.has_stale_entry) {
    std::vector<JobFix> fixes;
    if (!has_unclaimed_end) fixes.push_back(remove_from_index(JobIndexEntry::queue, inspection_.queue));
    add_finding("queue-entry-duplicate",
                "is " + (has_unclaimed_end ? std::string("over") : format_value(to_string(state))) + " and is in " +
                    format_value(inspection_.queue) + ": a client pushed it again; the entry will be dropped",
                std::move(fixes));
  }
  if (!is_dropped && (entries > 1 || (entries == 1 && job_.in_priority_index))) {
    add_finding("queue-entry-duplicate", "is in " + format_value(inspection_.queue) + " more than once: it runs once");
  }
  if (state != JobState::none && inspection_.in_other_list) {
    add_finding("queue-entry-duplicate", "belongs to " + format_value(inspection_.queue) +
                                             " and is in another queue too: that entry will be dropped");
  }
}

// Checks a job that another client pushed and that was not claimed yet. It has only a record.
void JobChecker::check_unclaimed_job() {
  const std::string_view status = record_field("status");
  const bool is_queued = inspection_.entry_count.value_or(1) > 0 || inspection_.in_other_list || job_.awaits_record ||
                         job_.in_priority_index;
  if (job_.record_type == "none") {
    if (inspection_.entry_count.value_or(0) > 0 || inspection_.in_other_list) {
      add_finding("queue-entry-stray",
                  "is queued and has no record: a dead letter, unless it is written before it is taken");
    }
    return;
  }
  if (!has_record() || has_ended(job_) || record_field("detail") == "created") {
    if (status == kJobStatusStarted)
      add_finding("started-unclaimed", "has a record with the status started and no claim");
    return;
  }
  // The job may be in another queue than that of its script type: an agent that serves that queue will claim it.
  std::vector<JobFix> fixes;
  if (status != to_string(JobStatus::dispatched) && !inspection_.in_other_list) {
    fixes.push_back(
        make_field_fix(JobFixKind::set_record, {{"status", std::string(to_string(JobStatus::dispatched))}}));
  }
  if (!is_queued) fixes.push_back(add_to_index(JobIndexEntry::queue, inspection_.queue));
  if (status == kJobStatusStarted) {
    add_finding("started-unclaimed", "has a record with the status started and no claim", std::move(fixes));
  } else if (!is_queued) {
    add_finding("record-not-queued",
                "has a record with the status " + format_value(status) +
                    " and is in no queue, so it never runs; push it, or run doctor --rebuild",
                std::move(fixes));
  } else if (!fixes.empty()) {
    add_finding("record-overwritten",
                "has a record with the status " + format_value(status) + ", and no runner has claimed it",
                std::move(fixes));
  }
}

void JobChecker::check_record(JobState state) {
  if (job_.record_type == "none") return check_no_record(state);
  if (job_.record_type != "hash") {
    return add_finding(
        "record-type", "is a " + format_value(job_.record_type) + ": another client wrote it",
        job_.in_job_index ? std::vector<JobFix>{remove_from_index(JobIndexEntry::jobs)} : std::vector<JobFix>{});
  }
  std::uint64_t epoch = 0;
  if (parse_u64(record_field("epoch"), epoch) && epoch > expected_claim_.epoch) {
    add_finding("record-epoch", "was run with epoch " + std::to_string(epoch) + ", and its claim has " +
                                    std::to_string(expected_claim_.epoch) + ": the epoch has decreased");
  } else if (epoch != expected_claim_.epoch) {
    add_finding("record-overwritten", "has a record with epoch " + std::to_string(epoch) +
                                          "; its claim decides: " + std::to_string(expected_claim_.epoch));
  }
  check_record_status(state);
  if (state == JobState::ended && !job_.log_ended) {
    add_finding("log-incomplete", "has ended and its log has no last line: another client wrote or deleted it");
  }
}

// Checks a job whose record was deleted. The owner of a live job writes the record again.
void JobChecker::check_no_record(JobState state) {
  std::vector<JobFix> fixes;
  if (job_.in_job_index) fixes.push_back(remove_from_index(JobIndexEntry::jobs));
  if (state == JobState::ended && fixes.empty()) return;
  if (state != JobState::ended && state != JobState::live) {
    fixes = {{JobFixKind::end_as_dead_letter, JobIndexEntry::none, "its record was deleted", 0, {}}};
  }
  add_finding("record-deleted", "is " + std::string(to_string(state)) + " and its record was deleted",
              std::move(fixes));
}

// Checks status and detail, which other clients read.
void JobChecker::check_record_status(JobState state) {
  const std::string_view status = record_field("status");
  const std::string_view detail = record_field("detail");
  const bool is_ended = state == JobState::ended;
  const std::string expected(
      to_string(to_job_status(state, parse<JobStatus>(expected_claim_.status).value_or(JobStatus::error))));
  if (status == expected && (!is_ended || detail == expected_claim_.detail)) return;
  Fields fields{{"status", expected}};
  if (is_ended) fields.emplace_back("detail", expected_claim_.detail);
  const std::vector<JobFix> fixes{make_field_fix(JobFixKind::set_record, std::move(fields))};
  if (status == kJobStatusStarted && state != JobState::live) {
    return add_finding("started-unclaimed",
                       "has a record with the status started, but is " + std::string(to_string(state)), fixes);
  }
  add_finding("record-overwritten",
              "has a record with the status " + format_value(status) + ' ' + format_value(detail) +
                  "; its claim decides: " + expected + ' ' +
                  format_value(is_ended ? expected_claim_.detail : expected_claim_.state),
              fixes);
}

bool moves_job(const JobFix& fix) {
  return fix.kind == JobFixKind::enqueue || fix.kind == JobFixKind::end_as_dead_letter;
}
// Returns the position of a fix in the order of execution: fixes of the claim first, because other fixes depend on
// them, and last the fact that records the state of the claim.
int get_fix_rank(const JobFix& fix) {
  if (fix.kind == JobFixKind::delete_claim) return 0;
  if (fix.kind == JobFixKind::set_claim || fix.kind == JobFixKind::drop_claim) return 1;
  return fix.kind == JobFixKind::append_fact ? 4 : moves_job(fix) ? 3 : 2;
}
bool changes_claim(const JobFix& fix) { return get_fix_rank(fix) <= 1 || fix.kind == JobFixKind::set_lease; }

}  // namespace

JobVerdict check_invariants(const JobInspection& inspection) { return JobChecker(inspection).run(); }

JobRepairPlan make_repair_plan(const JobVerdict& verdict) {
  const auto has_fix = [](const JobFinding& finding, auto predicate) {
    return std::any_of(finding.fixes.begin(), finding.fixes.end(), predicate);
  };
  const auto moving_finding = std::find_if(verdict.findings.begin(), verdict.findings.end(),
                                           [&](const JobFinding& finding) { return has_fix(finding, moves_job); });
  JobRepairPlan plan;
  const auto add_fixes = [&](const std::vector<JobFix>& fixes) {
    for (const JobFix& fix : fixes) {
      if (std::find(plan.fixes.begin(), plan.fixes.end(), fix) == plan.fixes.end()) plan.fixes.push_back(fix);
    }
  };
  for (const JobFinding& finding : verdict.findings) {
    if (finding.fixes.empty()) continue;
    const bool is_combinable = moving_finding == verdict.findings.end() || &finding == &*moving_finding ||
                               std::all_of(finding.fixes.begin(), finding.fixes.end(), changes_claim);
    if (!is_combinable) continue;
    plan.findings.push_back(&finding);
    add_fixes(finding.fixes);
  }
  for (const JobFix& fix : verdict.silent_fixes) {
    if (moving_finding == verdict.findings.end() || changes_claim(fix)) add_fixes({fix});
  }
  std::stable_sort(plan.fixes.begin(), plan.fixes.end(),
                   [](const JobFix& a, const JobFix& b) { return get_fix_rank(a) < get_fix_rank(b); });
  return plan;
}

std::vector<MessageFinding> check_invariants(const MessageStoreState& message) {
  std::vector<MessageFinding> findings;
  const auto has_value = [&](std::string_view name, std::string_view value) {
    return field_of(message.mark, name) == value;
  };
  const auto has_field = [&](std::string_view name) { return !field_of(message.mark, name).empty(); };
  const auto check_outbox = [&](std::string_view kind, const char* text) {
    if (std::find(message.outbox.begin(), message.outbox.end(), kind) != message.outbox.end()) return;
    findings.push_back(
        {make_finding("message-outbox", message.message_key, message.message_key + ' ' + text), std::string(kind)});
  };
  if (has_value("state", kMessageStateAway) && !has_field("delivered_ms"))
    check_outbox("send", "must be sent, but is missing in the outbox");
  if (has_value("state", kMessageStateAway) && has_field("delivered_ms") && has_field("result_ms"))
    check_outbox("expire", "has a time limit for its answer that is not enforced");
  if (has_value("answer", kAnswerStateDue))
    check_outbox("answer", "has ended, but its answer is missing in the outbox");
  if (has_value("answer", kAnswerStateWanted) && has_value("state", kMessageStateTaken) && has_field("stream"))
    check_outbox("logs", "has jobs with requested log lines, but is missing in the outbox");
  if (has_value("state", kMessageStateArrived) && !message.in_inbox)
    findings.push_back({make_finding("message-inbox", message.message_key,
                                     message.message_key + " was received, but is missing in the inbox"),
                        "inbox"});
  const auto is_in_index = [&](std::string_view index) {
    return std::find(message.outbox.begin(), message.outbox.end(), index) != message.outbox.end();
  };
  const auto add_finding = [&](const char* kind, const std::string& text) {
    findings.push_back({make_finding("message-index", message.message_key, message.message_key + ' ' + text), kind});
  };
  const bool has_running_flow = has_field("flow") && !has_field("flow_ended");
  const bool has_ended = has_value("state", kMessageStateRefused) || has_value("state", kMessageStateOver) ||
                         (has_value("state", kMessageStateTaken) && has_value("left", "0") && !has_running_flow);
  if (has_ended && !is_in_index("messages"))
    add_finding("messages", "has ended, and is not in " + std::string(kMessagesKey) + ": retention forgets it");
  if (has_field("origin") && has_field("content") && !is_in_index("came"))
    add_finding("came", "was received from another context, but its content is missing in " +
                            std::string(kReceivedKey) + ": it would be accepted twice");
  return findings;
}

std::string get_slot_key(const JobStoreState& job) {
  const auto state = parse_job_state(job.claim.state);
  if (state == JobState::live && !job.claim.concurrency_key.empty()) return job.claim.concurrency_key;
  if (state == JobState::held && job.is_held && !job.held_by_keys.empty()) return job.held_by_keys.front();
  return std::string(field_of(job.record, "concurrency_key"));
}

bool has_ended(const JobStoreState& job) {
  if (!job.claim.state.empty()) return job.claim.state == to_string(JobState::ended);
  const auto status = parse<JobStatus>(field_of(job.record, "status"));
  return status && is_terminal(*status);
}

namespace {

bool has_recorded_end(const FlowInspection& inspection) { return get_flow_state(inspection) == kFlowStateEnded; }

// Returns whether all revisions in the range are present.
bool has_all_revisions(const std::vector<RunFact>& facts, std::uint64_t first, std::uint64_t last) {
  std::uint64_t next = first;
  for (const RunFact& fact : facts) {
    if (fact.revision < first || fact.revision > last) continue;
    if (fact.revision != next++) return false;
  }
  return next == last + 1;
}

}  // namespace

std::string get_flow_state(const FlowInspection& inspection) {
  if (!inspection.index_entries.state.empty()) return inspection.index_entries.state;
  if (inspection.record && field_of(*inspection.record, "detail") == "creating") return std::string(kFlowStateCreating);
  const auto status = parse<FlowStatus>(inspection.record ? field_of(*inspection.record, "status") : "");
  if (status == FlowStatus::started) return std::string(kFlowStateActive);
  return status && is_terminal(*status) ? std::string(kFlowStateEnded) : std::string(kFlowStateNew);
}

FoldedFlow fold_run(const FlowInspection& inspection) {
  const FlowPlan& plan = *inspection.plan;
  FoldedFlow out;
  const std::uint64_t checkpoint_revision = inspection.checkpoint.empty() ? 0 : inspection.checkpoint_revision;
  auto restored = checkpoint_revision == 0 ? std::nullopt : restore(plan, inspection.checkpoint);
  const bool is_usable =
      restored && restored->revision == checkpoint_revision && checkpoint_revision <= inspection.revision;
  out.lacks_history = is_usable && !has_all_revisions(inspection.facts, 1, checkpoint_revision) &&
                      has_all_revisions(inspection.facts, checkpoint_revision + 1, inspection.revision);
  out.state = out.lacks_history ? std::move(*restored) : initial_state(plan);
  for (const RunFact& fact : inspection.facts) {
    if (!out.lacks_history || fact.revision > checkpoint_revision) fold(plan, out.state, fact);
  }
  out.is_lost = inspection.revision == 0 && get_flow_state(inspection) != kFlowStateNew &&
                get_flow_state(inspection) != kFlowStateCreating;
  return out;
}

namespace {

using FixKind = FlowFix::Kind;
using FlowIndexKind = FlowFix::FlowIndex;

FlowFix add_to_flow_index(FlowIndexKind index) { return {FixKind::add_to_index, index, {}, {}}; }
FlowFix remove_from_flow_index(FlowIndexKind index) { return {FixKind::remove_from_index, index, {}, {}}; }

class FlowChecker {
 public:
  explicit FlowChecker(const FlowInspection& inspection)
      : inspection_(inspection), is_creating_(get_flow_state(inspection) == kFlowStateCreating) {}
  FlowChecker(const FlowChecker&) = delete;
  FlowChecker& operator=(const FlowChecker&) = delete;
  std::vector<FlowFinding> run();

 private:
  void add_finding(std::string_view rule, const std::string& text, std::vector<FlowFix> fixes = {}) {
    findings_.push_back(make_flow_finding(rule, inspection_.flow, text, std::move(fixes)));
  }
  void check_journal();
  void check_checkpoint();
  void check_index();
  void check_jobs();
  void check_job(std::uint32_t node);
  void check_settled_node(const std::string& description, const NodeState&, const FlowJobView&, bool has_ended);
  void check_due();
  void check_record();

  void check_mark();
  void check_awaited_flows();

  const FlowInspection& inspection_;
  const bool is_creating_;
  FoldedFlow folded_;
  RunState& state_ = folded_.state;
  std::string expected_state_;    // the state that the mark of the flow should have
  bool must_redispatch_ = false;  // a job must be dispatched again
  std::vector<FlowFinding> findings_;
};

std::vector<FlowFinding> FlowChecker::run() {
  if (!is_creating_) folded_ = fold_run(inspection_);
  check_journal();
  if (!is_creating_) {
    check_checkpoint();
    if (!state_.anomalies.empty()) {
      add_finding("flow-fact", state_.anomalies.front() + format_more_count(state_.anomalies.size()));
    }
  }
  const bool has_ended = inspection_.revision == 0 ? has_recorded_end(inspection_) : is_terminal(state_.status);
  expected_state_ = is_creating_                ? kFlowStateCreating
                    : has_ended                 ? kFlowStateEnded
                    : inspection_.revision == 0 ? kFlowStateNew
                                                : kFlowStateActive;
  check_mark();
  check_index();
  if (!is_creating_) {
    if (!(folded_.is_lost && expected_state_ == kFlowStateEnded)) check_jobs();
    check_awaited_flows();
    if (expected_state_ == kFlowStateActive) check_due();
  }
  check_record();
  return std::move(findings_);
}

void FlowChecker::check_journal() {
  std::vector<FlowFix> fixes;
  if (inspection_.index_entries.has_invalid_event_key) fixes.push_back(remove_from_flow_index(FlowIndexKind::events));
  const std::string problem = inspection_.anomalies.empty()
                                  ? ""
                                  : inspection_.anomalies.front() + format_more_count(inspection_.anomalies.size());
  if (folded_.lacks_history) {
    add_finding("flow-history", "resumes from its checkpoint, since older facts are missing: " + problem);
  } else if (folded_.is_lost && has_recorded_end(inspection_)) {
    add_finding("flow-history", "has ended, and its journal is missing: only its record has its end");
  } else if (folded_.is_lost && inspection_.revision == 0) {
    const std::string start = "`mycojobs flow start " + std::to_string(inspection_.flow) + "`";
    add_finding("flow-journal",
                "has lost its journal and has no checkpoint: its run restarts from the beginning; " + start +
                    " starts it again with the ends of its jobs, and requests approvals and signals again");
  } else if (!problem.empty()) {
    add_finding("flow-journal", ": " + problem, fixes);
    return;
  }
  if (inspection_.index_entries.has_invalid_event_key)
    add_finding("flow-journal", "cannot receive events of its jobs: another client wrote to the key of its events",
                std::move(fixes));
}

// Checks that the checkpoint and the facts after it give the same state as all facts.
void FlowChecker::check_checkpoint() {
  if (inspection_.checkpoint.empty() || folded_.lacks_history) return;
  const FlowPlan& plan = *inspection_.plan;
  auto restored = restore(plan, inspection_.checkpoint);
  const bool is_readable = restored.has_value();
  bool is_same = is_readable && restored->revision == inspection_.checkpoint_revision;
  if (is_same) {
    for (const RunFact& fact : inspection_.facts) {
      if (fact.revision > restored->revision) fold(plan, *restored, fact);
    }
    is_same = describe(plan, *restored) == describe(plan, state_);
  }
  if (is_same || inspection_.checkpoint_changed) return;
  add_finding("flow-checkpoint",
              "has a checkpoint of revision " + std::to_string(inspection_.checkpoint_revision) +
                  (is_readable ? " that differs from the facts" : " that cannot be read"),
              {remove_from_flow_index(FlowIndexKind::checkpoint)});
}

void FlowChecker::check_mark() {
  if (!inspection_.index_entries.state.empty()) return;
  Fields fields = inspection_.derived_mark;
  fields.emplace_back("state", expected_state_);
  add_finding(
      "flow-mark", "has lost its state key; it can be derived from its record and its journal",
      {{FixKind::set_mark, FlowIndexKind::none, {}, std::move(fields)}, add_to_flow_index(FlowIndexKind::users)});
}

// Checks the child flows and the flows that the gates wait for.
void FlowChecker::check_awaited_flows() {
  for (const FlowWait& wait : inspection_.awaited_flows) {
    const std::string awaited_flow = "flow:" + std::to_string(wait.awaited_flow);
    if (!inspection_.has_all_events || inspection_.ended_in_inbox.contains(awaited_flow)) continue;
    const bool has_ended = wait.state.empty() || wait.state == kFlowStateEnded;
    if (!has_ended && (wait.is_registered || inspection_.children.contains(wait.awaited_flow))) continue;
    FlowFix fix{FixKind::await_flow};
    fix.awaited_flow = wait.awaited_flow;
    add_finding("flow-event-missing",
                "waits for " + awaited_flow + ", which " + (has_ended ? "is over" : "does not list it") +
                    ": it has no event of that end",
                {std::move(fix)});
  }
}

void FlowChecker::check_index() {
  const FlowIndexEntries& index_entries = inspection_.index_entries;
  if (index_entries.revision != inspection_.revision)
    return;  // the flow has changed since; the next inspection checks it
  std::string differences;
  std::vector<FlowFix> fixes;
  const auto check = [&](bool is_correct, const std::string& text, FlowFix fix) {
    if (is_correct) return;
    differences += (differences.empty() ? "" : "; ") + text;
    fixes.push_back(std::move(fix));
  };
  const auto make_index_fix = [](bool is_expected, FlowIndexKind index) {
    return is_expected ? add_to_flow_index(index) : remove_from_flow_index(index);
  };
  const bool is_active = expected_state_ == kFlowStateActive;
  const bool is_ended = expected_state_ == kFlowStateEnded || is_creating_;
  check(index_entries.state.empty() || index_entries.state == expected_state_,
        "its state key says " + index_entries.state,
        {FixKind::set_mark, FlowIndexKind::none, {}, {{"state", expected_state_}}});
  check(index_entries.in_active_index == is_active, "its entry in the index of active flows is wrong",
        make_index_fix(is_active, FlowIndexKind::active));
  check(index_entries.in_ended_index == is_ended, "its entry in the index of ended flows is wrong",
        make_index_fix(is_ended, FlowIndexKind::ended));
  check(!index_entries.due_ms || is_active, "it is due", remove_from_flow_index(FlowIndexKind::due));
  check(index_entries.in_catalog || is_creating_, "the catalog lacks it", add_to_flow_index(FlowIndexKind::catalog));
  check(index_entries.in_name_catalog || is_creating_, "the catalog of its name lacks it",
        add_to_flow_index(FlowIndexKind::index));
  check(index_entries.in_definition_users || is_creating_, "its definition does not name it as a user",
        add_to_flow_index(FlowIndexKind::users));
  check(index_entries.has_idempotency_entry, "its idempotency key leads nowhere",
        add_to_flow_index(FlowIndexKind::keys));
  if (!differences.empty())
    add_finding("flow-index", "is " + expected_state_ + ", and " + differences, std::move(fixes));
}

void FlowChecker::check_jobs() {
  for (std::uint32_t i = 0; i < inspection_.jobs.size(); ++i) check_job(i);
}

void FlowChecker::check_job(std::uint32_t i) {
  const PlanNode& planned_node = inspection_.plan->nodes[i];
  const NodeState& node = state_.nodes[i];
  const FlowJobView& job = inspection_.jobs[i];
  const std::string description = "node " + planned_node.name + " is " + std::string(to_string(node.status)) + " and " +
                                  job.job_key + " is " + (job.state.empty() ? "not claimed" : job.state);
  const bool has_unclaimed_end =
      job.state.empty() && (job.status == kJobStatusFinished || job.status == kJobStatusError);
  const bool has_ended = job.state == kJobStateEnded || has_unclaimed_end;
  const bool is_planned = job.state == kJobStatePlanned;
  if (job.state == "absent" && planned_node.each_node && node.runs == 0) return;  // written with its first dispatch
  if (is_terminal(node.status)) return check_settled_node(description, node, job, has_ended);
  const bool is_dispatched = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
  if (!is_dispatched && !is_planned && (folded_.lacks_history || inspection_.revision == 0)) {
    // When the run reaches the node again, a dispatch of the node finds the job in its present state.
    must_redispatch_ = true;
    return;
  }
  const std::vector<FlowFix> dispatch{{FixKind::dispatch, FlowIndexKind::none, job.job_key, {}}};
  if (has_ended) {
    if (!inspection_.has_all_events || inspection_.ended_in_inbox.contains(job.job_key)) return;
    must_redispatch_ = true;
    return add_finding("flow-event-missing", "missed an end: " + description + ", and it has no event of it", dispatch);
  }
  const bool runs_on_runner = planned_node.kind == NodeKind::job && planned_node.supervisor_url.empty();
  if (is_dispatched && runs_on_runner && is_planned) {
    must_redispatch_ = true;
    return add_finding("flow-job", "has a job astray: " + description, dispatch);
  }
  if (!is_dispatched && !is_planned) add_finding("flow-job", "has a job astray: " + description);
}

void FlowChecker::check_settled_node(const std::string& description, const NodeState& node, const FlowJobView& job,
                                     bool has_ended) {
  const bool is_absent = job.state == "absent";
  const bool has_succeeded = node.status == NodeStatus::completed && node.detail == "ok";
  if (job.state == kJobStatePlanned || (is_absent && expected_state_ != kFlowStateEnded)) {
    return add_finding("flow-job", "has a job astray: " + description);
  }
  if (is_absent) return;
  if (!has_ended) return add_finding("flow-job-rerun", "has another state: " + description);
  if (has_succeeded != (job.status == kJobStatusFinished))
    add_finding("flow-job-rerun", "has another state: " + description + " as " + job.status);
}

void FlowChecker::check_due() {
  const FlowIndexEntries& index_entries = inspection_.index_entries;
  const bool is_due_now = index_entries.event_count > 0 || !inspection_.ended_in_inbox.empty() ||
                          has_immediate_action(*inspection_.plan, state_) || must_redispatch_;
  const std::uint64_t max_due_ms = is_due_now ? index_entries.now_ms : next_timer_ms(state_);
  if (max_due_ms == 0 || (index_entries.due_ms && *index_entries.due_ms <= max_due_ms)) return;
  add_finding("flow-due",
              is_due_now ? "has pending work, but is missing in the index of due flows"
                         : "waits for a time that is missing in the index of due flows",
              {add_to_flow_index(FlowIndexKind::due)});
}

// Checks the identity of the flow against its mark, and its status against its journal.
void FlowChecker::check_record() {
  Fields expected = inspection_.index_entries.identity;
  expected.emplace_back("context_id", std::to_string(inspection_.context));
  const bool is_authoritative = !is_creating_ && !(folded_.is_lost && expected_state_ == kFlowStateEnded);
  if (is_authoritative) {
    expected.emplace_back("status", to_string(state_.status));
    expected.emplace_back("detail", state_.detail);
    expected.emplace_back("error", state_.error);
  }
  std::string differences;
  FlowFix fix{FixKind::set_record, FlowIndexKind::none, {}, {}};
  for (auto& [name, value] : expected) {
    const std::string_view actual = inspection_.record ? field_of(*inspection_.record, name) : std::string_view();
    if (actual == value) continue;
    differences += (differences.empty() ? "" : "; ") + name + ' ' +
                   (actual.empty() ? "nothing" : std::string(actual.substr(0, 80))) +
                   ", its journal decides: " + (value.empty() ? "nothing" : value.substr(0, 80));
    fix.fields.emplace_back(name, std::move(value));
  }
  if (!inspection_.record) {
    add_finding("flow-record", "has no record: another client deleted it", {std::move(fix)});
  } else if (!differences.empty()) {
    add_finding("flow-record", "has a record with other values: " + differences, {std::move(fix)});
  }
}

}  // namespace

std::vector<FlowFinding> check_invariants(const FlowInspection& inspection) { return FlowChecker(inspection).run(); }

FlowFinding make_flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes) {
  const std::string name = "flow:" + std::to_string(flow);
  return {make_finding(rule, name, name + ' ' + text), std::move(fixes)};
}

std::string format_more_count(std::size_t count) {
  return count > 1 ? " (and " + std::to_string(count - 1) + " more)" : "";
}

}  // namespace mycojobs
