#include "jobs/dispatch_journal.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/parse.h"
#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

using Shape = FactField::Shape;

#include "jobs/fact_table.inc"

template <class Enum>
std::string_view enum_value_name(Enum value) {
  const auto& names = StateNames<Enum>::kTable;
  const auto index = static_cast<std::size_t>(value);
  return index < std::size(names) ? names[index] : std::string_view("?");
}
template <class Enum>
std::optional<Enum> parse_enum_name(std::string_view name) {
  const auto& names = StateNames<Enum>::kTable;
  const auto* match = std::find(std::begin(names), std::end(names), name);
  if (match == std::end(names)) return std::nullopt;
  return static_cast<Enum>(match - std::begin(names));
}

}  // namespace

std::string_view to_string(FactKind kind) { return enum_value_name(kind); }
std::string_view to_string(JobState state) { return enum_value_name(state); }
std::optional<FactKind> parse_fact_kind(std::string_view name) { return parse_enum_name<FactKind>(name); }
std::optional<JobState> parse_job_state(std::string_view name) { return parse_enum_name<JobState>(name); }

bool is_terminal(FactKind kind) { return std::ranges::find(kFactKindTerminals, kind) != std::end(kFactKindTerminals); }

std::span<const FactShape> fact_shapes() { return kFactShapes; }

std::optional<JobEvent> to_job_event(FactKind kind, JobState old_state, JobState new_state) {
  const auto is_waiting = [](JobState state) {
    return state == JobState::waiting || state == JobState::prerequisites || state == JobState::planned;
  };
  switch (kind) {
    case FactKind::parked:
      return is_waiting(new_state) ? std::optional(JobEvent::park) : std::nullopt;
    case FactKind::queued:
      return is_waiting(old_state) ? std::optional(JobEvent::unpark) : std::nullopt;
    case FactKind::claimed:
      return JobEvent::claim;
    case FactKind::released:
    case FactKind::expired:
    case FactKind::retry:
      return JobEvent::release;
    case FactKind::completed:  // a node that the flow itself executes was never started
      return old_state == JobState::live ? std::optional(JobEvent::succeed) : std::nullopt;
    case FactKind::failed:
    case FactKind::dead_lettered:
      return JobEvent::fail;
    case FactKind::cancelled:
      return JobEvent::cancel;
    case FactKind::scheduled:
    case FactKind::heartbeat:
    case FactKind::requeued:
    case FactKind::replanned:
    case FactKind::restored:
      break;
    case FactKind::planned:
      return JobEvent::park;
  }
  return std::nullopt;
}

JobStatus to_job_status(JobState state, JobStatus ended) {
  switch (state) {
    case JobState::live:
      return JobStatus::started;
    case JobState::waiting:
    case JobState::prerequisites:
    case JobState::planned:
      return JobStatus::waiting_for_prerequisites;
    case JobState::ended:
      return ended;
    case JobState::none:
    case JobState::queued:
    case JobState::delayed:
    case JobState::held:
      break;
  }
  return JobStatus::dispatched;
}

ClaimView to_claim_view(const FoldedJob& job, const std::string& queue) {
  ClaimView claim;
  claim.exists = job.state != JobState::none;
  claim.state = to_string(job.state);
  claim.queue = queue;
  claim.claim_id = job.claim_id;
  claim.token_hash = job.token_hash;
  claim.instance = job.instance;
  claim.reason = job.reason;
  claim.epoch = job.epoch;
  claim.attempt = job.attempt;
  claim.deliveries = job.deliveries;
  claim.runner = job.runner;
  claim.revisions = job.revisions;
  if (job.state == JobState::live) claim.lease_ms = job.lease_ms;
  claim.message = job.message;
  claim.flow = job.flow;
  if (job.state == JobState::ended) {
    claim.status = to_string(job.status);
    claim.detail = job.detail;
    claim.end_digest = job.digest;
    claim.ended_ms = job.since_ms;
  }
  return claim;
}

namespace {

// Returns the reason with which the fact `queued` moves a job from this state to its queue. Returns an empty text for a
// state from which no job is queued.
std::string_view find_queue_reason(JobState state) {
  if (state == JobState::planned) return kQueueReasonFlow;
  if (state == JobState::delayed) return kQueueReasonDue;
  for (const ParkReason& park_reason : kParkReasons) {
    if (park_reason.state == state) return park_reason.reason;
  }
  return {};
}

std::string_view get_text(const Fact& fact, std::string_view name) { return field_of(fact.fields, name); }
std::uint64_t get_number(const Fact& fact, std::string_view name) { return number_of(fact.fields, name); }
std::uint32_t get_count(const Fact& fact, std::string_view name) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(get_number(fact, name), UINT32_MAX));
}

// Applies one fact to the state of a job: checks the fact, then changes the state.
class FactApplier {
 public:
  FactApplier(FoldedJob& job, const Fact& fact) : job_(job), fact_(fact) {}
  std::optional<FactProblem> apply();

 private:
  std::optional<FactProblem> make_problem(std::string_view rule, const std::string& description) const {
    return FactProblem{
        rule, "revision " + std::to_string(fact_.revision) + ": " + to_ascii(fact_.kind, 60) + ' ' + description};
  }
  std::optional<FactProblem> make_order_problem() const {
    const std::string prefix = job_.state == JobState::none ? "a job without a fact" : "a job that is ";
    return make_problem(kFactOrder, "of " + prefix + std::string(to_string(job_.state)));
  }
  bool is_by_owner() const { return !get_text(fact_, kFactClaimIdField).empty(); }

  std::optional<FactProblem> check_fields() const;
  std::optional<FactProblem> check_order() const;
  std::optional<FactProblem> check_claim() const;
  std::optional<FactProblem> check_counts() const;
  std::optional<JobState> next_state() const;
  bool permits_change(JobState target) const;
  void apply_transition(JobState new_state);
  void apply_claim();
  void apply_end();
  std::optional<FactProblem> restore();

  FoldedJob& job_;
  const Fact& fact_;
  FactKind kind_ = FactKind::scheduled;
};

std::optional<FactProblem> FactApplier::apply() {
  if (fact_.revision == 0 || (!job_.revisions.empty() && fact_.revision <= job_.revisions.back())) {
    return make_problem(kFactRevision,
                        "follows revision " + std::to_string(job_.revisions.empty() ? 0 : job_.revisions.back()));
  }
  job_.revisions.push_back(fact_.revision);
  const auto kind = parse_fact_kind(fact_.kind);
  if (!kind) return make_problem(kFactKind, "is not a known kind of fact");
  kind_ = *kind;
  if (kind_ == FactKind::restored) return restore();
  if (is_terminal(kind_)) ++job_.terminal_fact_count;
  for (const auto check :
       {&FactApplier::check_fields, &FactApplier::check_order, &FactApplier::check_claim, &FactApplier::check_counts}) {
    if (auto violation = (this->*check)()) return violation;
  }
  const auto target = next_state();
  if (!target) return make_order_problem();
  const auto event = to_job_event(kind_, job_.state, *target);
  if (event && !advance(job_.status, *event)) return make_order_problem();
  if (event) job_.status = *advance(job_.status, *event);
  apply_transition(*target);
  return std::nullopt;
}

std::optional<FactProblem> FactApplier::check_fields() const {
  if (fact_.at_ms == 0) return make_problem(kFactField, "has no time (at)");
  for (const FactField& field : fact_shapes()[static_cast<std::size_t>(kind_)].fields) {
    if (field.name.empty()) break;
    const std::string_view value = get_text(fact_, field.name);
    const bool is_optional = field.shape == Shape::optional_text || field.shape == Shape::optional_number;
    if (value.empty() && !is_optional) return make_problem(kFactField, "lacks " + std::string(field.name));
    const bool is_numeric = field.shape == Shape::number || field.shape == Shape::optional_number;
    std::uint64_t number = 0;
    if (is_numeric && !value.empty() && !parse_u64(value, number)) {
      return make_problem(kFactField, std::string(field.name) + "=" + to_ascii(value, 60) + " is not a whole number");
    }
  }
  if (kind_ == FactKind::planned && get_text(fact_, kFactFlowField).empty() &&
      get_text(fact_, kFactMessageField).empty())
    return make_problem(kFactField, "names neither a flow (fl) nor a message (m)");
  if (is_terminal(kind_) && is_by_owner() &&
      (get_text(fact_, kFactEpochField).empty() || get_text(fact_, kFactDigestField).empty())) {
    return make_problem(kFactField, "names a claim and lacks its epoch or the end's digest");
  }
  return std::nullopt;
}

std::optional<FactProblem> FactApplier::check_order() const {
  if (job_.state != JobState::ended || kind_ == FactKind::requeued || kind_ == FactKind::replanned) return std::nullopt;
  if (is_terminal(kind_)) return make_problem(kSecondEnd, "of a job that had ended");
  return make_problem(kAfterEnd, "of a job that had ended");
}

// A fact by an owner is valid only if it names the latest claim, and only while that claim is live.
std::optional<FactProblem> FactApplier::check_claim() const {
  if (kind_ == FactKind::claimed) {
    if (job_.state == JobState::live)
      return make_problem(kFactOrder, "while claim " + to_ascii(job_.claim_id, 60) + " is live");
    if (get_number(fact_, kFactEpochField) <= job_.epoch) {
      return make_problem(kFactEpoch, "with epoch " + std::to_string(get_number(fact_, kFactEpochField)) +
                                          " after epoch " + std::to_string(job_.epoch));
    }
    return std::nullopt;
  }
  if (!is_by_owner()) return std::nullopt;
  if (job_.state != JobState::live)
    return make_problem(kFactClaim,
                        "by claim " + to_ascii(get_text(fact_, kFactClaimIdField), 60) + ", but no claim is live");
  if (get_text(fact_, kFactClaimIdField) != job_.claim_id) {
    return make_problem(kFactClaim, "by claim " + to_ascii(get_text(fact_, kFactClaimIdField), 60) +
                                        ", the latest is " + to_ascii(job_.claim_id, 60));
  }
  if (!get_text(fact_, kFactEpochField).empty() && get_number(fact_, kFactEpochField) != job_.epoch) {
    return make_problem(kFactEpoch, "with epoch " + std::to_string(get_number(fact_, kFactEpochField)) +
                                        ", that of the claim is " + std::to_string(job_.epoch));
  }
  return std::nullopt;
}

std::optional<FactProblem> FactApplier::check_counts() const {
  const auto expect_in_range = [&](const char* label, std::string_view field_name, std::uint32_t min,
                                   std::uint32_t max) -> std::optional<FactProblem> {
    const std::uint32_t value = get_count(fact_, field_name);
    if (value >= min && value <= max) return std::nullopt;
    return make_problem(kFactCount, std::string("with ") + label + ' ' + std::to_string(value) + ", " +
                                        std::to_string(max) + " is next");
  };
  if (kind_ == FactKind::claimed) {
    const std::uint32_t attempt = std::max(1U, job_.attempt);
    if (auto violation = expect_in_range("attempt", kFactAttemptField, attempt, attempt)) return violation;
    return expect_in_range("delivery", kFactDeliveriesField, job_.deliveries + 1, job_.deliveries + 1);
  }
  if (kind_ == FactKind::released)
    return expect_in_range("deliveries", kFactDeliveriesField, job_.deliveries - 1, job_.deliveries);
  const std::uint32_t next_attempt = std::max(1U, job_.attempt) + 1;
  if (kind_ == FactKind::requeued && job_.state == JobState::ended)
    return expect_in_range("attempt", kFactAttemptField, next_attempt, next_attempt);
  if (kind_ == FactKind::replanned && job_.state == JobState::ended)
    return expect_in_range("attempt", kFactAttemptField, next_attempt - 1, next_attempt);
  return std::nullopt;
}

std::optional<JobState> FactApplier::next_state() const {
  for (const auto& change : kFactChanges) {
    if (change.event == kind_ && change.from == job_.state && permits_change(change.to)) return change.to;
  }
  return std::nullopt;
}

// Returns whether the fields of the fact and the earlier facts permit a change that kFactChanges lists.
bool FactApplier::permits_change(JobState target) const {
  switch (kind_) {
    case FactKind::scheduled:
      return (target == JobState::delayed) == !get_text(fact_, kFactDueField).empty();
    case FactKind::parked:
      return std::ranges::any_of(kParkReasons, [&](const ParkReason& park_reason) {
        return park_reason.reason == get_text(fact_, kFactReasonField) && park_reason.state == target;
      });
    case FactKind::queued:
      return get_text(fact_, kFactReasonField) == find_queue_reason(job_.state);
    case FactKind::completed:
      return is_by_owner() == (job_.state == JobState::live);
    case FactKind::failed:
      return is_by_owner() || job_.state != JobState::live;
    case FactKind::requeued:
      return !job_.is_final;
    case FactKind::replanned:
      return job_.status != JobStatus::finished;
    case FactKind::claimed:
    case FactKind::heartbeat:
    case FactKind::released:
    case FactKind::expired:
    case FactKind::retry:
    case FactKind::cancelled:
    case FactKind::dead_lettered:
    case FactKind::planned:
    case FactKind::restored:
      break;
  }
  return true;
}

void FactApplier::apply_transition(JobState new_state) {
  const JobState old_state = job_.state;
  job_.state = new_state;
  if (kind_ == FactKind::heartbeat) return;
  job_.since_ms = fact_.at_ms;
  job_.due_ms = new_state == JobState::delayed ? get_number(fact_, kFactDueField) : 0;
  if (kind_ == FactKind::claimed) return apply_claim();
  if (new_state == JobState::ended) return apply_end();
  if (kind_ == FactKind::scheduled) job_.message = get_text(fact_, kFactMessageField);
  if (kind_ == FactKind::planned) {
    job_.flow = get_text(fact_, kFactFlowField);
    job_.message = get_text(fact_, kFactMessageField);
  }
  job_.detail = new_state == JobState::queued ? "queued" : "delayed";
  if (new_state == JobState::planned) job_.detail = job_.message.empty() ? "planned" : "away";
  if (kind_ == FactKind::parked) job_.detail = get_text(fact_, kFactReasonField);
  if (old_state == JobState::live || kind_ == FactKind::requeued) job_.reason = fact_.kind;
  if (kind_ == FactKind::released) job_.deliveries = get_count(fact_, kFactDeliveriesField);
  if (kind_ == FactKind::retry) {
    ++job_.attempt;
    job_.deliveries = 0;
    job_.detail = "retry_wait";
  }
  if (kind_ == FactKind::requeued || kind_ == FactKind::replanned) {
    ++job_.life_count;
    // An operator or a flow reopened the job. These transitions are not part of the state machine in state_machines.h.
    job_.status = to_job_status(new_state, job_.status);
    job_.attempt = get_count(fact_, kFactAttemptField);
    job_.deliveries = 0;
    job_.claim_id.clear();
    job_.token_hash.clear();
    job_.digest.clear();
  }
}

void FactApplier::apply_claim() {
  job_.claim_id = get_text(fact_, kFactClaimIdField);
  job_.token_hash = get_text(fact_, kFactTokenHashField);
  job_.instance = get_text(fact_, kFactInstanceField);
  job_.epoch = get_number(fact_, kFactEpochField);
  job_.attempt = get_count(fact_, kFactAttemptField);
  job_.deliveries = get_count(fact_, kFactDeliveriesField);
  job_.runner = get_count(fact_, kFactRunnerField);
  job_.lease_ms = get_number(fact_, kFactLeaseField);
  job_.detail = "claimed";
  job_.reason.clear();
}

// A restored fact replaces the state from the earlier facts, because these facts have gaps. Only the revisions and the
// number of lives are retained.
std::optional<FactProblem> FactApplier::restore() {
  if (auto violation = check_fields()) return violation;
  const auto state = parse_job_state(get_text(fact_, kFactStateField));
  const auto ended = parse<JobStatus>(get_text(fact_, kFactStatusField));
  if (!state || *state == JobState::none)
    return make_problem(kFactField, "s=" + to_ascii(get_text(fact_, kFactStateField), 60) + " is not a known state");
  if (*state == JobState::ended && (!ended || !is_terminal(*ended)))
    return make_problem(kFactField, "st=" + to_ascii(get_text(fact_, kFactStatusField), 60) + " is not a known end");
  FoldedJob job;
  job.revisions = std::move(job_.revisions);
  job.life_count = job_.life_count + 1;
  job.terminal_fact_count = *state == JobState::ended ? 1 : 0;
  job_ = std::move(job);
  apply_claim();
  job_.state = *state;
  job_.status = to_job_status(*state, ended.value_or(JobStatus::error));
  job_.since_ms = *state == JobState::ended && get_number(fact_, kFactEndTimeField) > 0
                      ? get_number(fact_, kFactEndTimeField)
                      : fact_.at_ms;
  job_.due_ms = *state == JobState::delayed ? get_number(fact_, kFactDueField) : 0;
  job_.digest = get_text(fact_, kFactDigestField);
  job_.message = get_text(fact_, kFactMessageField);
  job_.flow = get_text(fact_, kFactFlowField);
  job_.detail = get_text(fact_, kFactDetailField);
  job_.is_final = *state == JobState::ended && (job_.status == JobStatus::finished || job_.detail == "cancelled");
  return std::nullopt;
}

void FactApplier::apply_end() {
  job_.reason.clear();
  job_.message.clear();  // a later life of the job does not belong to the message
  job_.is_final = kind_ == FactKind::completed || kind_ == FactKind::cancelled;
  job_.digest = get_text(fact_, kFactDigestField);
  if (kind_ == FactKind::completed) job_.status = JobStatus::finished;
  if (!is_by_owner()) {
    job_.claim_id.clear();
    job_.token_hash.clear();
  }
  job_.detail = get_text(fact_, kFactDetailField);
  if (kind_ == FactKind::cancelled) job_.detail = "cancelled";
  if (kind_ == FactKind::dead_lettered) job_.detail = "dead_letter";
}

}  // namespace

std::optional<FactProblem> fold(FoldedJob& job, const Fact& fact) { return FactApplier(job, fact).apply(); }

}  // namespace mycojobs
