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
    {"fact-elsewhere", true, "facts of one job in the journals of two queues"},
    {"queue-type", true, "the key of a queue has another type: no job can be added to it"},
    {"claim-type", true, "the key of a claim has another type"},
    {"claim-missing", true, "the journal has facts of a job whose claim is missing"},
    {"claim-facts", true, "a claim that differs from the facts of its job"},
    {"no-place", true, "a job that is not in the index of its state, so no agent finds it"},
    {"two-places", true, "a job that is also in the index of another state"},
    {"lease-index", true, "a live claim and the index of leases disagree"},
    {"lease-overdue", true, "a lease that expired more than a lease and a second ago and was not recovered"},
    {"started-unclaimed", true, "a record with the status started and without a live claim"},
    {"waiting-ended", true, "a job is parked on a job that has ended, so it is never released"},
    {"held-free", true, "a job is held by its concurrency key, of which slots are free"},
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
    {"flow-unheard", true, "a job of a flow has ended and its flow has no event of the end"},
    {"flow-orphan", true, "a planned job whose flow or message is missing or has ended, so it never runs"},
    {"world-journal", true, "facts of a deployment that are missing, invalid or not consecutive"},
    {"world-index", true, "the indexes of a deployment differ from its journal"},
    {"world-snapshot", true, "a snapshot that is missing or differs from the journal"},
    {"world-manifest", true, "a manifest that instances run is missing or was changed"},
    {"world-blob", true, "the state of an instance is missing or was changed"},
    {"world-effect", true, "an effect whose job or flow is missing or does not name the effect"},
    {"world-unheard", true, "the job or flow of an effect has ended and its deployment has no event of the end"},
    {"world-due", true, "a deployment has pending work and is missing in the index"},
    {"actor-key", true, "public keys of actors differ from their index: signatures of these actors are rejected"},
    {"world-mail", false, "an invalid entry in the inbox of a deployment, which is dropped"},
    {"waits-circle", false, "jobs that wait for each other: their submitter made it so"},
    {"flow-record", false, "a flow's record that a client has overwritten or deleted; its journal decides"},
    {"flow-history", false, "facts of a flow are missing; its checkpoint or its end replaces them"},
    {"flow-job-again", false, "a job whose node has settled was run again by an operator"},
    {"record-words", false, "a record that a client has overwritten; its claim decides"},
    {"record-gone", false, "the record of a job was deleted before it had ended, or before it was retired"},
    {"record-type", false, "another client has overwritten a record"},
    {"entry-second", false, "a queue entry too many, which will be dropped"},
    {"entry-stray", false, "a queue entry that names no job or has no record: a dead letter to be"},
    {"bare-unqueued", false, "a record that was never pushed onto a queue"},
    {"wait-unwatched", false, "a job whose time limit of waiting differs from the index of limited waits"},
    {"not-listed", false, "a job that `job list` does not show, since it is missing in the index of changes"},
    {"kept-bytes", false, "the counted bytes of stored jobs are wrong, so quotas apply too early or too late"},
    {"log-open", false, "the log of an ended job lacks its last line"},
});

}  // namespace

std::span<const VerifyRule> verify_rules() { return kVerifyRules; }

nlohmann::json to_json(const Finding& finding) {
  return {
      {"violation", finding.violation}, {"rule", finding.rule}, {"subject", finding.subject}, {"text", finding.text}};
}

Finding finding(std::string_view rule, std::string subject, const std::string& text) {
  const auto rules = verify_rules();
  const auto row = std::find_if(rules.begin(), rules.end(), [&](const VerifyRule& each) { return each.name == rule; });
  // The store may contain text by any client, so the text is reduced to one printable line.
  return {row == rules.end() || row->violation, std::string(rule), std::move(subject), ascii(text, text.size())};
}

namespace {

using JobFixKind = JobFix::Kind;
using JobIndexEntry = JobFix::JobIndex;

constexpr std::uint64_t kRecoveryMs = 1000;  // time after the end of a lease within which an agent recovers the job
constexpr std::string_view kClaimUnchanged = "; its claim is kept as it is";

JobFix enter(JobIndexEntry place, std::uint64_t score = 0) { return {JobFixKind::enter, place, {}, score, {}}; }
JobFix enter(JobIndexEntry place, std::string of) { return {JobFixKind::enter, place, std::move(of), 0, {}}; }
JobFix leave(JobIndexEntry place, std::string of = {}) { return {JobFixKind::leave, place, std::move(of), 0, {}}; }
JobFix with_words(JobFixKind kind, Fields words) { return {kind, JobIndexEntry::none, {}, 0, std::move(words)}; }
JobFix to_queue(std::string why) { return {JobFixKind::enqueue, JobIndexEntry::none, std::move(why), 0, {}}; }

// Returns the priority as the scripts read it: a whole number from -100 to 100, otherwise 0.
std::string valid_priority(std::string_view text) {
  int value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = read.ec == std::errc() && read.ptr == text.data() + text.size() && value >= -100 && value <= 100;
  return std::to_string(good ? value : 0);
}

class JobChecker {
 public:
  explicit JobChecker(const JobInspection& inspection)
      : inspection_(inspection),
        job_(inspection.places),
        claim_(inspection.places.claim),
        trusted_(may_trust(inspection)),
        truth_(trusted_ ? claim_of(inspection.history.folded, inspection.queue) : claim_) {}
  JobVerdict run();

 private:
  static bool may_trust(const JobInspection&);
  static std::string number(std::uint64_t value) { return std::to_string(value); }
  static std::string shown(std::string_view text) { return text.empty() ? "nothing" : std::string(text.substr(0, 80)); }
  static std::string first_of(const std::vector<std::uint64_t>& revisions) {
    return "revision " + number(revisions.front()) +
           (revisions.size() > 1 ? " and " + number(revisions.size() - 1) + " more" : "");
  }
  std::string_view written(std::string_view name) const { return field_of(job_.record, name); }
  std::uint64_t written_number(std::string_view name) const {
    std::uint64_t value = 0;
    return parse_u64(written(name), value) ? value : 0;
  }
  std::string_view claimed(std::string_view name) const { return field_of(job_.claim_fields, name); }
  bool has_record() const { return job_.record_type == "hash"; }
  // The claim lacks the priority if another client has written the record or deleted the field.
  bool has_priority() const {
    const std::string_view own = claimed("priority");
    return (own.empty() ? valid_priority(written("priority")) : std::string(own)) != "0";
  }
  std::uint64_t moment_us() const;

  void add(std::string_view rule, const std::string& text, std::vector<JobFix> fixes = {}) {
    out_.findings.push_back({finding(rule, job_.job_key, job_.job_key + ' ' + text), std::move(fixes)});
  }
  void besides(JobFix fix) { out_.besides.push_back(std::move(fix)); }

  bool check_claim();  // returns false if there is no usable claim
  Fields wanted() const;
  std::vector<JobFix> claim_from_facts() const;
  std::vector<JobFix> restored() const;
  bool may_drop(std::string_view name) const;
  void check_journal();
  void check_claim_facts();
  void check_listing();
  void check_states(JobState);
  std::vector<JobFix> place_fixes(JobState) const;
  std::vector<JobFix> displace_fixes(JobState) const;
  void check_queued();
  void check_dependencies();
  void check_lease(JobState);
  void check_slot(JobState);
  void check_own_slot();
  void check_wait(JobState);
  void check_entries(JobState);
  void check_bare();
  void check_record(JobState);
  void check_no_record(JobState);
  void check_record_words(JobState);

  const JobInspection& inspection_;
  const JobStoreState& job_;
  const ClaimView& claim_;
  const bool trusted_;     // true: the facts are authoritative
  const ClaimView truth_;  // the state by the facts if they are trusted, otherwise the claim
  JobVerdict out_;
};

// Facts can be complete and still be outdated: if a revision was assigned twice, its fact belongs to an older claim. A
// claim that lists facts of other jobs was either damaged by a client, or belongs to a step whose fact was lost.
bool JobChecker::may_trust(const JobInspection& inspection) {
  const FoldedJob& folded = inspection.history.folded;
  const ClaimView& claim = inspection.places.claim;
  if (!inspection.history.has_facts()) return false;
  if (claim.state.empty()) return true;
  if (inspection.history.problem || !inspection.listing.missing.empty()) return false;
  if (!parse_job_state(claim.state)) return true;
  const bool is_newer =
      claim.epoch > folded.epoch && field_of(inspection.places.record, "epoch") == std::to_string(claim.epoch);
  const bool differs = claim.state != to_string(folded.state) || claim.claim_id != folded.claim_id;
  return !is_newer && (inspection.listing.foreign.empty() || !differs);
}

JobVerdict JobChecker::run() {
  if (!check_claim()) return std::move(out_);
  check_journal();
  const auto state = parse_job_state(truth_.state);
  if (!state) {
    add("claim-facts", "has a claim in state " + shown(claim_.state) + ", which is not a known kind");
    return std::move(out_);
  }
  if (*state != JobState::none && claimed("priority").empty()) {
    besides(with_words(JobFixKind::set_claim, {{"priority", valid_priority(written("priority"))}}));
  }
  check_states(*state);
  check_dependencies();
  check_lease(*state);
  check_slot(*state);
  check_wait(*state);
  if (has_record() && !job_.in_jobs) {
    // A job that another client pushed and that was not read yet need not be in the index.
    const JobFix fix = enter(JobIndexEntry::jobs, moment_us());
    if (*state == JobState::none) {
      besides(fix);
    } else {
      add("not-listed", "is missing in the index of changes", {fix});
    }
  }
  check_entries(*state);
  if (*state == JobState::none) {
    check_bare();
  } else {
    check_record(*state);
  }
  return std::move(out_);
}

// Returns the time of the latest change in microseconds, according to the record.
std::uint64_t JobChecker::moment_us() const {
  return 1000 * std::max({written_number("ended_ms"), written_number("started_ms"), written_number("queued_ms"),
                          1000 * job_.updated_s, 1000 * written_number("created_at"), std::uint64_t{1}});
}

bool JobChecker::check_claim() {
  if (job_.claim_type != "hash" && job_.claim_type != "none") {
    std::vector<JobFix> fixes{{JobFixKind::delete_claim}};
    if (trusted_) {
      const auto more = claim_from_facts();
      fixes.insert(fixes.end(), more.begin(), more.end());
    }
    add("claim-type", "has a claim that is a " + shown(job_.claim_type) + ": another client wrote it",
        std::move(fixes));
    return false;
  }
  if (claim_.state.empty() && inspection_.history.has_facts()) {
    add("claim-missing",
        "has no claim, and " +
            count_with_noun(inspection_.history.folded.revisions.size(), "fact tells", "facts tell") + " of it",
        claim_from_facts());
    return false;
  }
  return true;
}

// Returns the fields that the claim should have according to the facts. All fields of a job without a claim are empty.
// An empty value: the facts do not determine the field.
Fields JobChecker::wanted() const {
  const ClaimView& expected = truth_;
  std::string revisions;
  for (const std::uint64_t revision : expected.revisions)
    revisions += (revisions.empty() ? "" : " ") + number(revision);
  const auto text = [](std::uint64_t value) { return value > 0 ? number(value) : std::string(); };
  const bool live = expected.state == to_string(JobState::live);
  const bool ended = expected.state == to_string(JobState::ended);
  return {{"state", expected.state},
          {"queue", expected.queue},
          {"claim_id", expected.claim_id},
          {"token", expected.token_hash},
          {"epoch", text(expected.epoch)},
          {"attempt", text(expected.attempt)},
          {"deliveries", expected.attempt > 0 ? number(expected.deliveries) : ""},
          {"runner", text(expected.runner)},
          // The claim may have lost the instance that ended the job.
          {"instance", live ? expected.instance : ""},
          {"status", expected.status},
          {"detail", expected.detail},
          {"end", expected.end_digest},
          {"ended_ms", text(expected.ended_ms)},
          {"message", ended ? "" : expected.message},  // the message has counted this end
          {"flow", expected.flow},
          {"reason", expected.reason},
          {"lease_ms", live && claim_.lease_ms == 0 ? text(expected.lease_ms) : ""},  // the owner may have changed it
          {"revs", revisions}};
}

// Returns whether a field of the claim may be dropped although the facts do not determine it.
bool JobChecker::may_drop(std::string_view name) const {
  static constexpr std::array<std::string_view, 5> kOfRuns{"epoch", "attempt", "deliveries", "runner", "instance"};
  if (name == "claim_id" || name == "token") return true;
  if (name == "detail") return truth_.state == to_string(JobState::ended);
  const bool never_claimed = !trusted_ || truth_.epoch == 0;
  return never_claimed && std::find(kOfRuns.begin(), kOfRuns.end(), name) != kOfRuns.end();
}

// Returns the fixes that restore a missing claim.
std::vector<JobFix> JobChecker::claim_from_facts() const {
  Fields set;
  Fields drop;
  for (auto& [name, value] : wanted()) {
    if (!value.empty()) {
      set.emplace_back(name, std::move(value));
    } else if (may_drop(name) && !claimed(name).empty()) {
      drop.emplace_back(name, "");
    }
  }
  if (claimed("priority").empty()) set.emplace_back("priority", valid_priority(written("priority")));
  std::vector<JobFix> fixes;
  if (!drop.empty()) fixes.push_back(with_words(JobFixKind::drop_claim, std::move(drop)));
  fixes.push_back(with_words(JobFixKind::set_claim, std::move(set)));
  if (truth_.state == to_string(JobState::live)) fixes.push_back({JobFixKind::lease});
  return fixes;
}

// The facts have gaps or are out of order: a new fact takes the state from the claim.
std::vector<JobFix> JobChecker::restored() const {
  if (claim_.state.empty() || !parse_job_state(claim_.state)) return {};
  JobFix fix{JobFixKind::restore};
  for (const std::uint64_t revision : inspection_.history.folded.revisions) {
    fix.of += (fix.of.empty() ? "" : " ") + number(revision);
  }
  return {std::move(fix)};
}

void JobChecker::check_journal() {
  const JobHistory& history = inspection_.history;
  const std::vector<JobFix> kept = restored();
  if (!inspection_.listing.missing.empty()) {
    add("fact-missing",
        "has a claim that lists " + first_of(inspection_.listing.missing) + ", which the journal of " +
            shown(inspection_.queue) + " does not hold" + std::string(kClaimUnchanged),
        kept);
  } else if (history.problem) {
    const std::string more = history.problems > 1 ? "; " + number(history.problems - 1) + " more do not fit" : "";
    add(history.problem->rule,
        "in the journal of " + shown(inspection_.queue) + ", " + history.problem->text + more +
            std::string(kClaimUnchanged),
        kept);
  } else {
    check_claim_facts();
  }
  check_listing();
  if (history.elsewhere != JobHistory::kNoQueue) {
    add("fact-elsewhere", "has facts in the journal of another queue than " + shown(inspection_.queue));
  }
}

// A finding never contains the token, only that it differs.
void JobChecker::check_claim_facts() {
  const bool bare = truth_.state.empty();
  if (!trusted_ && !bare) {
    if (!parse_job_state(claim_.state)) return;  // has a finding of its own
    const std::string why =
        inspection_.history.has_facts() ? ", and its facts say less than it" : ", and the journal has no fact of it";
    return add("claim-facts", "has a claim in state " + shown(claim_.state) + why + std::string(kClaimUnchanged),
               restored());
  }
  std::string differences;
  Fields set;
  Fields drop;
  for (const auto& [name, expected] : wanted()) {
    const std::string should = bare ? "" : expected;
    const std::string_view is = claimed(name);
    std::uint64_t value = 0;
    const bool has_content = !is.empty() && !(parse_u64(is, value) && value == 0);
    if (name == "revs" || is == should || (should.empty() && (!may_drop(name) || !has_content))) continue;
    const bool hidden = name == "token";
    differences += (differences.empty() ? "" : "; ") + name + ' ' + (hidden ? "another" : shown(is)) +
                   ", its facts say " + (hidden ? "one" : shown(should));
    (should.empty() ? drop : set).emplace_back(name, should);
  }
  if (differences.empty()) return;
  std::vector<JobFix> fixes;
  if (!drop.empty()) fixes.push_back(with_words(JobFixKind::drop_claim, std::move(drop)));
  if (!set.empty()) fixes.push_back(with_words(JobFixKind::set_claim, std::move(set)));
  if (truth_.state == to_string(JobState::live)) fixes.push_back({JobFixKind::lease});
  add("claim-facts", "has a claim with " + differences, std::move(fixes));
}

// Checks the list of facts in the claim. If the facts are not trusted, the fact that restores the claim gives it a new
// list.
void JobChecker::check_listing() {
  std::vector<JobFix> fixes;
  const Fields should = trusted_ ? wanted() : Fields{};
  const std::string_view revisions = field_of(should, "revs");
  if (trusted_ && claimed("revs") != revisions) {
    fixes.push_back(with_words(JobFixKind::set_claim, {{"revs", std::string(revisions)}}));
  } else if (claim_.state.empty() && !inspection_.listing.foreign.empty()) {
    fixes.push_back(with_words(JobFixKind::drop_claim, {{"revs", ""}}));
  }
  if (!inspection_.listing.foreign.empty()) {
    add("claim-facts", "has a claim that lists " + first_of(inspection_.listing.foreign) + ", no fact of it", fixes);
  }
  if (!inspection_.listing.unlisted.empty()) {
    add("fact-unlisted",
        "has a claim that does not list " + first_of(inspection_.listing.unlisted) + " of the journal of " +
            shown(inspection_.queue),
        fixes);
  }
  if (!fixes.empty() && inspection_.listing.foreign.empty() && inspection_.listing.unlisted.empty()) {
    add("claim-facts", "has a claim that lists its facts as " + shown(claimed("revs")), fixes);
  }
}

// Checks that the job is in the index of its state and in no other. check_entries() checks the lists of queues.
void JobChecker::check_states(JobState state) {
  struct StateIndex {
    JobState state;
    bool there;
    std::string_view name;
  };
  const auto places = std::to_array<StateIndex>({
      {JobState::delayed, job_.due_ms.has_value(), "the index of delayed jobs"},
      {JobState::waiting, !job_.waits_for.empty(), "the jobs that wait for others"},
      {JobState::prerequisites, job_.check_ms.has_value(), "the index of prerequisites"},
      {JobState::held, state == JobState::held ? job_.held : !job_.held_by.empty(),
       "those held by its concurrency key"},
      {JobState::ended, job_.in_ended, "the index of ended jobs"},
  });
  for (const StateIndex& place : places) {
    const bool should = place.state == state;
    if (should && !place.there) {
      add("no-place", "is " + std::string(to_string(state)) + " and not in " + std::string(place.name),
          place_fixes(state));
    }
    if (!should && place.there) {
      add("two-places", "is " + shown(to_string(state)) + " and also in " + std::string(place.name),
          displace_fixes(place.state));
    }
  }
  if (job_.in_priority && state != JobState::queued) {
    add("two-places", "is " + shown(to_string(state)) + " and also prioritised in " + shown(inspection_.queue),
        {leave(JobIndexEntry::priority, inspection_.queue)});
  }
  if (state == JobState::queued) check_queued();
  if (state == JobState::held && job_.slot_free && has_record()) {
    add("held-free", "is held, but its concurrency key has a free slot", {to_queue("held")});
  }
}

// Returns the fixes that add the job to the index of its state.
std::vector<JobFix> JobChecker::place_fixes(JobState state) const {
  switch (state) {
    case JobState::delayed:
      return {enter(JobIndexEntry::delayed, std::max<std::uint64_t>(inspection_.history.folded.due_ms, 1))};
    case JobState::prerequisites:
      return {enter(JobIndexEntry::prerequisites, job_.now_ms)};
    case JobState::ended:
      return {enter(JobIndexEntry::ended, std::max<std::uint64_t>(truth_.ended_ms, 1))};
    case JobState::held: {
      const std::string key(written("concurrency_key"));
      if (!job_.limited) return {};  // no key holds it: its slot is free
      return {with_words(JobFixKind::set_claim, {{"held", key}}), enter(JobIndexEntry::held, key)};
    }
    default:
      return {};  // for waiting: see check_dependencies()
  }
}

// Returns the fixes that remove the job from the index of a state.
std::vector<JobFix> JobChecker::displace_fixes(JobState state) const {
  std::vector<JobFix> fixes;
  if (state == JobState::delayed) fixes.push_back(leave(JobIndexEntry::delayed));
  if (state == JobState::prerequisites) fixes.push_back(leave(JobIndexEntry::prerequisites));
  if (state == JobState::ended) fixes.push_back(leave(JobIndexEntry::ended));
  if (state == JobState::waiting) {
    for (const std::string& dep : job_.waits_for) fixes.push_back(leave(JobIndexEntry::waits, dep));
  }
  if (state == JobState::held) {
    for (const std::string& key : job_.held_by) fixes.push_back(leave(JobIndexEntry::held, key));
  }
  return fixes;
}

void JobChecker::check_queued() {
  const std::uint32_t entries = inspection_.in_queue.value_or(1);
  const bool prioritised = has_priority();
  if (!job_.in_priority && !job_.missing && entries == 0) {
    add("no-place", "is queued and not in " + shown(inspection_.queue),
        {enter(prioritised ? JobIndexEntry::priority : JobIndexEntry::queue, inspection_.queue)});
  }
  if (job_.in_priority && !prioritised) {
    std::vector<JobFix> fixes{leave(JobIndexEntry::priority, inspection_.queue)};
    if (entries == 0) fixes.insert(fixes.begin(), enter(JobIndexEntry::queue, inspection_.queue));
    add("entry-second", "has no priority and is prioritised in " + shown(inspection_.queue), std::move(fixes));
  }
  if (prioritised && !job_.in_priority &&
      inspection_.in_queue.value_or(0) > 0) {  // the job runs, but not by its priority
    besides(enter(JobIndexEntry::priority, inspection_.queue));
    besides(leave(JobIndexEntry::queue, inspection_.queue));
  }
}

// Checks dependencies. Needs a complete inspection of the job (JobStoreState::seen).
void JobChecker::check_dependencies() {
  const bool waits = claim_.state == to_string(JobState::waiting) && truth_.state == claim_.state && !job_.seen.empty();
  if (!waits || !has_record()) return;
  const JobStoreState::Dependency* over = nullptr;
  std::vector<JobFix> fixes;
  bool open = false;
  for (const JobStoreState::Dependency& dep : job_.dependencies) {
    if (dep.ended && dep.waited) {
      if (over == nullptr) over = &dep;
      fixes.push_back(leave(JobIndexEntry::waits, dep.job));
    }
    open = open || (dep.asked && !dep.ended);
  }
  if (!open) fixes = {to_queue("dependencies")};
  if (over != nullptr) {
    add("waiting-ended", "waits for " + over->job + ", which has ended, so it is never released", fixes);
  } else if (!open) {
    add("waiting-ended", "waits, but all its dependencies have ended, so it is never released", fixes);
  }
  for (const JobStoreState::Dependency& dep : job_.dependencies) {
    if (!dep.asked || dep.ended || (dep.waited && dep.wakes)) continue;
    add("no-place", "is waiting, but no index entry says that it waits for " + dep.job,
        {enter(JobIndexEntry::waits, dep.job)});
  }
}

void JobChecker::check_lease(JobState state) {
  if (state != JobState::live) {
    if (job_.lease_until_ms) {
      add("lease-index", "is " + shown(to_string(state)) + " and is in the index of leases",
          {leave(JobIndexEntry::leases)});
    }
    return;
  }
  const std::vector<JobFix> whole{{JobFixKind::lease}};
  if (!job_.lease_until_ms) return add("lease-index", "is live and its lease is not among the leases", whole);
  if (*job_.lease_until_ms != claim_.until_ms) {  // either value may be the right one
    return add("lease-index",
               "has a lease until " + number(claim_.until_ms) + " that is indexed as " + number(*job_.lease_until_ms),
               whole);
  }
  if (job_.now_ms > claim_.until_ms + claim_.lease_ms + kRecoveryMs) {
    add("lease-overdue", "has a lease that ran out " + number(job_.now_ms - claim_.until_ms) +
                             " ms ago: no agent of this context recovers it");
  }
}

void JobChecker::check_slot(JobState state) {
  if (state == JobState::live) return check_own_slot();
  const JobFix forget = with_words(JobFixKind::drop_claim, {{"ckey", ""}});
  std::vector<JobFix> fixes;
  for (const std::string& key : job_.slots) fixes.push_back(leave(JobIndexEntry::slots, key));
  const bool noted = has_record() && !claimed("ckey").empty();
  if (noted) fixes.push_back(forget);
  if (fixes.empty()) return;
  add("slot-stray",
      "is " + shown(to_string(state)) + " and occupies a slot of " +
          (job_.slots.empty() ? shown(claimed("ckey")) + " by its claim" : "its concurrency key"),
      std::move(fixes));
}

// A live job must have the slot of the key that its record names, and no other slot.
void JobChecker::check_own_slot() {
  const std::string noted(claimed("ckey"));
  const std::string key = !has_record() ? noted : job_.limited ? std::string(written("concurrency_key")) : "";
  const auto takes = [&](const std::string& each) {
    return !each.empty() && std::find(job_.slots.begin(), job_.slots.end(), each) != job_.slots.end();
  };
  const JobFix note = key.empty() ? with_words(JobFixKind::drop_claim, {{"ckey", ""}})
                                  : with_words(JobFixKind::set_claim, {{"ckey", key}});
  if (!noted.empty() && noted != key) {
    std::vector<JobFix> fixes{note};
    if (takes(noted)) fixes.push_back(leave(JobIndexEntry::slots, noted));
    add("slot-stray", "runs, and its claim occupies a slot of " + shown(noted), std::move(fixes));
  }
  if (key.empty()) return;
  if (!takes(key)) {
    return add("slot-missing", "runs without a slot of its concurrency key " + shown(key),
               {enter(JobIndexEntry::slots, key), note});
  }
  if (noted.empty()) besides(note);
}

// Checks the index of jobs whose first run must start within queue_timeout_ms.
void JobChecker::check_wait(JobState state) {
  const std::uint64_t wait = written_number("queue_timeout_ms");
  const bool never_ran = truth_.attempt <= 1 && truth_.deliveries == 0;
  const bool runs_later =
      state != JobState::none && state != JobState::planned && state != JobState::live && state != JobState::ended;
  const bool limited = wait > 0 && never_ran && runs_later;
  const JobFix note = with_words(JobFixKind::set_claim, {{"overdue", "1"}});
  if (limited && !job_.wait_until_ms) {
    const std::uint64_t from = std::max(written_number("queued_ms"), written_number("run_at_ms"));
    add("wait-unwatched", "is " + shown(to_string(state)) + " and its time limit of waiting is not enforced",
        {enter(JobIndexEntry::overdue, from + wait), note});
  } else if (limited && claimed("overdue").empty()) {
    besides(note);
  } else if (!limited && job_.wait_until_ms && (state != JobState::none || wait == 0)) {
    add("wait-unwatched", "is " + shown(to_string(state)) + " and is in the index of limited waits",
        {leave(JobIndexEntry::overdue)});
  }
}

void JobChecker::check_entries(JobState state) {
  const std::uint32_t entries = inspection_.in_queue.value_or(0);
  const bool bare_end = state == JobState::none && has_ended(job_);
  const bool dropped = (state != JobState::queued && state != JobState::none) || bare_end;
  if (dropped && entries > 0 && !claim_.leftover) {
    std::vector<JobFix> fixes;
    if (!bare_end) fixes.push_back(leave(JobIndexEntry::queue, inspection_.queue));
    add("entry-second",
        "is " + (bare_end ? std::string("over") : shown(to_string(state))) + " and is in " + shown(inspection_.queue) +
            ": a client pushed it once more; the entry will be dropped",
        std::move(fixes));
  }
  if (!dropped && (entries > 1 || (entries == 1 && job_.in_priority))) {
    add("entry-second", "is in " + shown(inspection_.queue) + " more than once: it runs once");
  }
  if (state != JobState::none && inspection_.other_entries) {
    add("entry-second",
        "belongs to " + shown(inspection_.queue) + " and is in another queue too: that entry will be dropped");
  }
}

// Checks a job that another client pushed and that was not claimed yet. It has only a record.
void JobChecker::check_bare() {
  const std::string_view status = written("status");
  const bool queued =
      inspection_.in_queue.value_or(1) > 0 || inspection_.other_entries || job_.missing || job_.in_priority;
  if (job_.record_type == "none") {
    if (inspection_.in_queue.value_or(0) > 0 || inspection_.other_entries) {
      add("entry-stray", "is queued and has no record: a dead letter, unless it is written before it is taken");
    }
    return;
  }
  if (!has_record() || has_ended(job_) || written("detail") == "created") {
    if (status == "started") add("started-unclaimed", "has a record with the status started and no claim");
    return;
  }
  // The job may be in another queue than that of its script type: an agent that serves that queue will claim it.
  std::vector<JobFix> fixes;
  if (status != to_string(JobStatus::dispatched) && !inspection_.other_entries) {
    fixes.push_back(with_words(JobFixKind::set_record, {{"status", std::string(to_string(JobStatus::dispatched))}}));
  }
  if (!queued) fixes.push_back(enter(JobIndexEntry::queue, inspection_.queue));
  if (status == "started") {
    add("started-unclaimed", "has a record with the status started and no claim", std::move(fixes));
  } else if (!queued) {
    add("bare-unqueued",
        "has a record with the status " + shown(status) +
            " and is in no queue, so it never runs; push it, or run doctor --rebuild",
        std::move(fixes));
  } else if (!fixes.empty()) {
    add("record-words", "has a record with the status " + shown(status) + ", and no runner has claimed it",
        std::move(fixes));
  }
}

void JobChecker::check_record(JobState state) {
  if (job_.record_type == "none") return check_no_record(state);
  if (job_.record_type != "hash") {
    return add("record-type", "is a " + shown(job_.record_type) + ": another client wrote it",
               job_.in_jobs ? std::vector<JobFix>{leave(JobIndexEntry::jobs)} : std::vector<JobFix>{});
  }
  std::uint64_t epoch = 0;
  if (parse_u64(written("epoch"), epoch) && epoch > truth_.epoch) {
    add("record-epoch", "was run with epoch " + number(epoch) + ", and its claim has " + number(truth_.epoch) +
                            ": the epoch has decreased");
  } else if (epoch != truth_.epoch) {
    add("record-words", "has a record with epoch " + number(epoch) + "; its claim decides: " + number(truth_.epoch));
  }
  check_record_words(state);
  if (state == JobState::ended && !job_.log_ended) {
    add("log-open", "has ended and its log has no last line: another client wrote or deleted it");
  }
}

// Checks a job whose record was deleted. The owner of a live job writes the record again.
void JobChecker::check_no_record(JobState state) {
  std::vector<JobFix> fixes;
  if (job_.in_jobs) fixes.push_back(leave(JobIndexEntry::jobs));
  if (state == JobState::ended && fixes.empty()) return;
  if (state != JobState::ended && state != JobState::live) {
    fixes = {{JobFixKind::finish, JobIndexEntry::none, "its record was deleted", 0, {}}};
  }
  add("record-gone", "is " + std::string(to_string(state)) + " and its record was deleted", std::move(fixes));
}

// Checks status and detail, which other clients read.
void JobChecker::check_record_words(JobState state) {
  const std::string_view status = written("status");
  const std::string_view detail = written("detail");
  const bool ended = state == JobState::ended;
  const std::string should(to_string(status_of(state, parse<JobStatus>(truth_.status).value_or(JobStatus::error))));
  if (status == should && (!ended || detail == truth_.detail)) return;
  Fields words{{"status", should}};
  if (ended) words.emplace_back("detail", truth_.detail);
  const std::vector<JobFix> fixes{with_words(JobFixKind::set_record, std::move(words))};
  if (status == "started" && state != JobState::live) {
    return add("started-unclaimed", "has a record with the status started, but is " + std::string(to_string(state)),
               fixes);
  }
  add("record-words",
      "has a record with the status " + shown(status) + ' ' + shown(detail) + "; its claim decides: " + should + ' ' +
          shown(ended ? truth_.detail : truth_.state),
      fixes);
}

bool sends_on(const JobFix& fix) { return fix.kind == JobFixKind::enqueue || fix.kind == JobFixKind::finish; }
// Order of the fixes: the claim first, because other fixes depend on it; last the fact that records the claim's state.
int rank_of(const JobFix& fix) {
  if (fix.kind == JobFixKind::delete_claim) return 0;
  if (fix.kind == JobFixKind::set_claim || fix.kind == JobFixKind::drop_claim) return 1;
  return fix.kind == JobFixKind::restore ? 4 : sends_on(fix) ? 3 : 2;
}
bool is_of_claim(const JobFix& fix) { return rank_of(fix) <= 1 || fix.kind == JobFixKind::lease; }

}  // namespace

JobVerdict check_invariants(const JobInspection& inspection) { return JobChecker(inspection).run(); }

JobRepairPlan repair_plan(const JobVerdict& verdict) {
  const auto any = [](const JobFinding& each, auto is) {
    return std::any_of(each.fixes.begin(), each.fixes.end(), is);
  };
  const auto on = std::find_if(verdict.findings.begin(), verdict.findings.end(),
                               [&](const JobFinding& each) { return any(each, sends_on); });
  JobRepairPlan out;
  const auto take = [&](const std::vector<JobFix>& fixes) {
    for (const JobFix& fix : fixes) {
      if (std::find(out.fixes.begin(), out.fixes.end(), fix) == out.fixes.end()) out.fixes.push_back(fix);
    }
  };
  for (const JobFinding& each : verdict.findings) {
    if (each.fixes.empty()) continue;
    const bool with =
        on == verdict.findings.end() || &each == &*on || std::all_of(each.fixes.begin(), each.fixes.end(), is_of_claim);
    if (!with) continue;
    out.of.push_back(&each);
    take(each.fixes);
  }
  for (const JobFix& fix : verdict.besides) {
    if (on == verdict.findings.end() || is_of_claim(fix)) take({fix});
  }
  std::stable_sort(out.fixes.begin(), out.fixes.end(),
                   [](const JobFix& a, const JobFix& b) { return rank_of(a) < rank_of(b); });
  return out;
}

std::vector<MessageFinding> check_invariants(const MessageStoreState& message) {
  std::vector<MessageFinding> findings;
  const auto is = [&](std::string_view name, std::string_view value) { return field_of(message.mark, name) == value; };
  const auto has = [&](std::string_view name) { return !field_of(message.mark, name).empty(); };
  const auto lacks = [&](std::string_view kind, const char* text) {
    if (std::find(message.outbox.begin(), message.outbox.end(), kind) != message.outbox.end()) return;
    findings.push_back(
        {finding("message-outbox", message.message_key, message.message_key + ' ' + text), std::string(kind)});
  };
  if (is("state", "away") && !has("delivered_ms")) lacks("send", "must be sent, but is missing in the outbox");
  if (is("state", "away") && has("delivered_ms") && has("result_ms"))
    lacks("expire", "has a time limit for its answer that is not enforced");
  if (is("answer", "due")) lacks("answer", "has ended, but its answer is missing in the outbox");
  if (is("answer", "wanted") && is("state", "taken") && has("stream"))
    lacks("logs", "has jobs with requested log lines, but is missing in the outbox");
  if (is("state", "arrived") && !message.in_inbox)
    findings.push_back({finding("message-inbox", message.message_key,
                                message.message_key + " was received, but is missing in the inbox"),
                        "inbox"});
  const auto is_in = [&](std::string_view place) {
    return std::find(message.outbox.begin(), message.outbox.end(), place) != message.outbox.end();
  };
  const auto add = [&](const char* kind, const char* text) {
    findings.push_back({finding("message-index", message.message_key, message.message_key + ' ' + text), kind});
  };
  const bool flow_runs = has("flow") && !has("flow_ended");
  const bool has_ended =
      is("state", "refused") || is("state", "over") || (is("state", "taken") && is("left", "0") && !flow_runs);
  if (has_ended && !is_in("messages")) add("messages", "has ended, and is not in mj:messages: retention forgets it");
  if (has("origin") && has("content") && !is_in("came"))
    add("came", "was received from another context, but its content is missing in mj:came: it would be accepted twice");
  return findings;
}

std::string slot_key(const JobStoreState& job) {
  const auto state = parse_job_state(job.claim.state);
  if (state == JobState::live && !job.claim.concurrency_key.empty()) return job.claim.concurrency_key;
  if (state == JobState::held && job.held && !job.held_by.empty()) return job.held_by.front();
  return std::string(field_of(job.record, "concurrency_key"));
}

bool has_ended(const JobStoreState& job) {
  if (!job.claim.state.empty()) return job.claim.state == to_string(JobState::ended);
  const auto status = parse<JobStatus>(field_of(job.record, "status"));
  return status && is_terminal(*status);
}

namespace {

bool was_ended(const FlowInspection& inspection) { return flow_state_before(inspection) == "ended"; }

// Returns whether all revisions in the range are present.
bool has_all(const std::vector<RunFact>& facts, std::uint64_t from, std::uint64_t to) {
  std::uint64_t next = from;
  for (const RunFact& fact : facts) {
    if (fact.revision < from || fact.revision > to) continue;
    if (fact.revision != next++) return false;
  }
  return next == to + 1;
}

}  // namespace

std::string flow_state_before(const FlowInspection& inspection) {
  if (!inspection.places.state.empty()) return inspection.places.state;
  if (inspection.record && field_of(*inspection.record, "detail") == "creating") return "creating";
  const auto status = parse<FlowStatus>(inspection.record ? field_of(*inspection.record, "status") : "");
  if (status == FlowStatus::started) return "active";
  return status && is_terminal(*status) ? "ended" : "new";
}

FoldedFlow fold_run(const FlowInspection& inspection) {
  const FlowPlan& plan = *inspection.plan;
  FoldedFlow out;
  const std::uint64_t at = inspection.checkpoint.empty() ? 0 : inspection.checkpoint_at;
  auto restored = at == 0 ? std::nullopt : restore(plan, inspection.checkpoint);
  const bool stands = restored && restored->revision == at && at <= inspection.revision;
  out.lacks_history =
      stands && !has_all(inspection.facts, 1, at) && has_all(inspection.facts, at + 1, inspection.revision);
  out.state = out.lacks_history ? std::move(*restored) : initial_state(plan);
  for (const RunFact& fact : inspection.facts) {
    if (!out.lacks_history || fact.revision > at) fold(plan, out.state, fact);
  }
  out.is_lost =
      inspection.revision == 0 && flow_state_before(inspection) != "new" && flow_state_before(inspection) != "creating";
  return out;
}

namespace {

using FixKind = FlowFix::Kind;
using FlowWhere = FlowFix::FlowIndex;

FlowFix enter_flow(FlowWhere place) { return {FixKind::enter, place, {}, {}}; }
FlowFix leave_flow(FlowWhere place) { return {FixKind::leave, place, {}, {}}; }

class FlowChecker {
 public:
  explicit FlowChecker(const FlowInspection& inspection)
      : inspection_(inspection), creating_(flow_state_before(inspection) == "creating") {}
  FlowChecker(const FlowChecker&) = delete;
  FlowChecker& operator=(const FlowChecker&) = delete;
  std::vector<FlowFinding> run();

 private:
  void add(std::string_view rule, const std::string& text, std::vector<FlowFix> fixes = {}) {
    findings_.push_back(flow_finding(rule, inspection_.flow, text, std::move(fixes)));
  }
  void check_journal();
  void check_checkpoint();
  void check_index();
  void check_jobs();
  void check_job(std::uint32_t node);
  void check_settled(const std::string& where, const NodeState&, const FlowJobView&, bool over);
  void check_due();
  void check_record();

  void check_mark();
  void check_awaited();

  const FlowInspection& inspection_;
  const bool creating_;
  FoldedFlow run_;
  RunState& state_ = run_.state;
  std::string should_;  // the state that its mark should have
  bool again_ = false;  // a job must be dispatched again
  std::vector<FlowFinding> findings_;
};

std::vector<FlowFinding> FlowChecker::run() {
  if (!creating_) run_ = fold_run(inspection_);
  check_journal();
  if (!creating_) {
    check_checkpoint();
    if (!state_.anomalies.empty()) {
      add("flow-fact", state_.anomalies.front() + append_more_count(state_.anomalies.size()));
    }
  }
  const bool has_ended = inspection_.revision == 0 ? was_ended(inspection_) : is_terminal(state_.status);
  should_ = creating_ ? "creating" : has_ended ? "ended" : inspection_.revision == 0 ? "new" : "active";
  check_mark();
  check_index();
  if (!creating_) {
    if (!(run_.is_lost && should_ == "ended")) check_jobs();
    check_awaited();
    if (should_ == "active") check_due();
  }
  check_record();
  return std::move(findings_);
}

void FlowChecker::check_journal() {
  std::vector<FlowFix> fixes;
  if (inspection_.places.deaf) fixes.push_back(leave_flow(FlowWhere::events));
  const std::string trouble = inspection_.anomalies.empty()
                                  ? ""
                                  : inspection_.anomalies.front() + append_more_count(inspection_.anomalies.size());
  if (run_.lacks_history) {
    add("flow-history", "resumes from its checkpoint, since older facts are missing: " + trouble);
  } else if (run_.is_lost && was_ended(inspection_)) {
    add("flow-history", "has ended, and its journal is missing: only its record has its end");
  } else if (run_.is_lost && inspection_.revision == 0) {
    const std::string start = "`mycojobs flow start " + std::to_string(inspection_.flow) + "`";
    add("flow-journal", "has lost its journal and has no checkpoint: its run restarts from the beginning; " + start +
                            " starts it again with the ends of its jobs, and requests approvals and signals again");
  } else if (!trouble.empty()) {
    add("flow-journal", ": " + trouble, fixes);
    return;
  }
  if (inspection_.places.deaf)
    add("flow-journal", "cannot receive events of its jobs: another client wrote to the key of its events",
        std::move(fixes));
}

// The checkpoint and the facts after it must give the same state as all facts.
void FlowChecker::check_checkpoint() {
  if (inspection_.checkpoint.empty() || run_.lacks_history) return;
  const FlowPlan& plan = *inspection_.plan;
  auto restored = restore(plan, inspection_.checkpoint);
  const bool readable = restored.has_value();
  bool same = readable && restored->revision == inspection_.checkpoint_at;
  if (same) {
    for (const RunFact& fact : inspection_.facts) {
      if (fact.revision > restored->revision) fold(plan, *restored, fact);
    }
    same = describe(plan, *restored) == describe(plan, state_);
  }
  if (same || inspection_.checkpoint_moved) return;
  add("flow-checkpoint",
      "has a checkpoint of revision " + std::to_string(inspection_.checkpoint_at) +
          (readable ? " that differs from the facts" : " that cannot be read"),
      {leave_flow(FlowWhere::checkpoint)});
}

void FlowChecker::check_mark() {
  if (!inspection_.places.state.empty()) return;
  Fields words = inspection_.lost_mark;
  words.emplace_back("state", should_);
  add("flow-mark", "has lost its state key; it can be derived from its record and its journal",
      {{FixKind::set_mark, FlowWhere::none, {}, std::move(words)}, enter_flow(FlowWhere::users)});
}

// Checks the flow's children and the flows that its gates wait for.
void FlowChecker::check_awaited() {
  for (const FlowWait& wait : inspection_.awaited) {
    const std::string other = "flow:" + std::to_string(wait.other);
    if (!inspection_.all_events || inspection_.heard.contains(other)) continue;
    const bool over = wait.state.empty() || wait.state == "ended";
    if (!over && (wait.hears || inspection_.children.contains(wait.other))) continue;
    FlowFix fix{FixKind::await};
    fix.other = wait.other;
    add("flow-unheard",
        "waits for " + other + ", which " + (over ? "is over" : "does not list it") + ": it has no event of that end",
        {std::move(fix)});
  }
}

void FlowChecker::check_index() {
  const FlowIndexEntries& places = inspection_.places;
  if (places.revision != inspection_.revision) return;  // the flow has changed since; the next inspection checks it
  std::string wrong;
  std::vector<FlowFix> fixes;
  const auto check = [&](bool good, const std::string& text, FlowFix fix) {
    if (good) return;
    wrong += (wrong.empty() ? "" : "; ") + text;
    fixes.push_back(std::move(fix));
  };
  const auto put = [](bool in, FlowWhere place) { return in ? enter_flow(place) : leave_flow(place); };
  const bool active = should_ == "active";
  const bool ended = should_ == "ended" || creating_;
  check(places.state.empty() || places.state == should_, "its state key says " + places.state,
        {FixKind::set_mark, FlowWhere::none, {}, {{"state", should_}}});
  check(places.active == active, "its entry in the index of active flows is wrong", put(active, FlowWhere::active));
  check(places.ended == ended, "its entry in the index of ended flows is wrong", put(ended, FlowWhere::ended));
  check(!places.due_ms || active, "it is due", leave_flow(FlowWhere::due));
  check(places.listed || creating_, "the catalog lacks it", enter_flow(FlowWhere::catalog));
  check(places.indexed || creating_, "the catalog of its name lacks it", enter_flow(FlowWhere::index));
  check(places.used || creating_, "its definition does not name it as a user", enter_flow(FlowWhere::users));
  check(places.keyed, "its idempotency key leads nowhere", enter_flow(FlowWhere::keys));
  if (!wrong.empty()) add("flow-index", "is " + should_ + ", and " + wrong, std::move(fixes));
}

void FlowChecker::check_jobs() {
  for (std::uint32_t i = 0; i < inspection_.jobs.size(); ++i) check_job(i);
}

void FlowChecker::check_job(std::uint32_t i) {
  const PlanNode& planned_node = inspection_.plan->nodes[i];
  const NodeState& node = state_.nodes[i];
  const FlowJobView& job = inspection_.jobs[i];
  const std::string where = "node " + planned_node.name + " is " + std::string(to_string(node.status)) + " and " +
                            job.job_key + " is " + (job.state.empty() ? "not claimed" : job.state);
  const bool bare_end = job.state.empty() && (job.status == "finished" || job.status == "error");
  const bool over = job.state == "ended" || bare_end;
  const bool planned = job.state == "planned";
  if (job.state == "absent" && planned_node.each && node.runs == 0) return;  // written with its first dispatch
  if (is_terminal(node.status)) return check_settled(where, node, job, over);
  const bool under_way = node.status == NodeStatus::dispatched || node.status == NodeStatus::running;
  if (!under_way && !planned && (run_.lacks_history || inspection_.revision == 0)) {
    // When the run reaches the node again, a dispatch of the node finds the job in its present state.
    again_ = true;
    return;
  }
  const std::vector<FlowFix> dispatch{{FixKind::dispatch, FlowWhere::none, job.job_key, {}}};
  if (over) {
    if (!inspection_.all_events || inspection_.heard.contains(job.job_key)) return;
    again_ = true;
    return add("flow-unheard", "missed an end: " + where + ", and it has no event of it", dispatch);
  }
  const bool by_runner = planned_node.kind == NodeKind::job && planned_node.supervisor_url.empty();
  if (under_way && by_runner && planned) {
    again_ = true;
    return add("flow-job", "has a job astray: " + where, dispatch);
  }
  if (!under_way && !planned) add("flow-job", "has a job astray: " + where);
}

void FlowChecker::check_settled(const std::string& where, const NodeState& node, const FlowJobView& job, bool over) {
  const bool absent = job.state == "absent";
  const bool well = node.status == NodeStatus::completed && node.detail == "ok";
  if (job.state == "planned" || (absent && should_ != "ended")) {
    return add("flow-job", "has a job astray: " + where);
  }
  if (absent) return;
  if (!over) return add("flow-job-again", "has another state: " + where);
  if (well != (job.status == "finished")) add("flow-job-again", "has another state: " + where + " as " + job.status);
}

void FlowChecker::check_due() {
  const FlowIndexEntries& places = inspection_.places;
  const bool now =
      places.events > 0 || !inspection_.heard.empty() || has_more_work(*inspection_.plan, state_) || again_;
  const std::uint64_t latest = now ? places.now_ms : next_timer_ms(state_);
  if (latest == 0 || (places.due_ms && *places.due_ms <= latest)) return;
  add("flow-due",
      now ? "has pending work, but is missing in the index of due flows"
          : "waits for a time that is missing in the index of due flows",
      {enter_flow(FlowWhere::due)});
}

// Checks the identity of the flow against its mark, and its status against its journal.
void FlowChecker::check_record() {
  Fields should = inspection_.places.identity;
  should.emplace_back("context_id", std::to_string(inspection_.context));
  const bool is_known = !creating_ && !(run_.is_lost && should_ == "ended");
  if (is_known) {
    should.emplace_back("status", to_string(state_.status));
    should.emplace_back("detail", state_.detail);
    should.emplace_back("error", state_.error);
  }
  std::string wrong;
  FlowFix fix{FixKind::set_record, FlowWhere::none, {}, {}};
  for (auto& [name, value] : should) {
    const std::string_view is = inspection_.record ? field_of(*inspection_.record, name) : std::string_view();
    if (is == value) continue;
    wrong += (wrong.empty() ? "" : "; ") + name + ' ' + (is.empty() ? "nothing" : std::string(is.substr(0, 80))) +
             ", its journal decides: " + (value.empty() ? "nothing" : value.substr(0, 80));
    fix.words.emplace_back(name, std::move(value));
  }
  if (!inspection_.record) {
    add("flow-record", "has no record: another client deleted it", {std::move(fix)});
  } else if (!wrong.empty()) {
    add("flow-record", "has a record with other values: " + wrong, {std::move(fix)});
  }
}

}  // namespace

std::vector<FlowFinding> check_invariants(const FlowInspection& inspection) { return FlowChecker(inspection).run(); }

FlowFinding flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes) {
  const std::string name = "flow:" + std::to_string(flow);
  return {finding(rule, name, name + ' ' + text), std::move(fixes)};
}

std::string append_more_count(std::size_t count) {
  return count > 1 ? " (and " + std::to_string(count - 1) + " more)" : "";
}

}  // namespace mycojobs
