#include "domain/dispatch_journal.h"

#include <algorithm>
#include <cstddef>

namespace mycojobs {
namespace {

using Shape = FactField::Shape;

constexpr auto kFactWords = std::to_array<std::string_view>(
    {"scheduled", "parked", "queued", "claimed", "heartbeat", "released", "expired", "retry", "completed", "failed",
     "cancelled", "dead_lettered", "requeued", "planned", "replanned", "restored"});
constexpr auto kStateWords = std::to_array<std::string_view>(
    {"", "queued", "live", "delayed", "waiting", "prerequisites", "held", "ended", "planned"});

constexpr FactField kClaim{"c", Shape::text};
constexpr FactField kEpoch{"e", Shape::number};
constexpr FactField kWhy{"why", Shape::text};
constexpr FactField kDetail{"detail", Shape::optional_text};

constexpr auto kShapes = std::to_array<FactShape>({
    {FactKind::scheduled,
     "submitted through us; with due it is delayed until then; m: the message that brought it",
     {{{"due", Shape::optional_number}, {"m", Shape::optional_text}}}},
    {FactKind::parked,
     "cannot run yet: dependencies, prerequisite, held (by its concurrency key) or delayed (until due)",
     {{kWhy, {"due", Shape::optional_number}}}},
    {FactKind::queued,
     "back on its queue: the why of its parking is over (due: of a delay or a retry; flow: of a planned job)",
     {{kWhy}}},
    {FactKind::claimed,
     "a runner took it: claim id, hash of its token, epoch, attempt, deliveries, runner, its instance, lease in ms",
     {{kClaim,
       {"t", Shape::text},
       kEpoch,
       {"a", Shape::number},
       {"d", Shape::number},
       {"r", Shape::number},
       {"i", Shape::optional_text},
       {"l", Shape::number}}}},
    {FactKind::heartbeat, "its lease was renewed; of the many renewals only some are told", {{kClaim}}},
    {FactKind::released,
     "its owner gave it back unreported; d: how often it counts as delivered",
     {{kClaim, {"why", Shape::optional_text}, {"d", Shape::number}}}},
    {FactKind::expired, "its lease ran out or its owner was found dead", {{kClaim, kEpoch}}},
    {FactKind::retry,
     "the attempt failed in this way; the next one is due then",
     {{kClaim, kEpoch, kDetail, {"due", Shape::number}}}},
    {FactKind::completed,
     "it finished: by its owner with c, e and g (digest of the end); else by its flow",
     {{{"c", Shape::optional_text}, {"e", Shape::optional_number}, kDetail, {"g", Shape::optional_text}}}},
    {FactKind::failed,
     "it failed for good: by its owner with c, e and g; else by the system",
     {{{"c", Shape::optional_text}, {"e", Shape::optional_number}, kDetail, {"g", Shape::optional_text}}}},
    {FactKind::cancelled,
     "somebody wanted it so: by its owner with c and e; else by the system",
     {{{"c", Shape::optional_text}, {"e", Shape::optional_number}, {"g", Shape::optional_text}}}},
    {FactKind::dead_lettered,
     "it can never run, or not once more",
     {{{"why", Shape::optional_text},
       {"c", Shape::optional_text},
       {"e", Shape::optional_number},
       {"g", Shape::optional_text}}}},
    {FactKind::requeued, "an operator reopened it: its next attempt", {{{"a", Shape::number}}}},
    {FactKind::planned,
     "a job of a flow (its context and id), in no queue until the flow says so",
     {{{"fl", Shape::text}}}},
    {FactKind::replanned, "its flow reopened it, in no queue: its next attempt", {{{"a", Shape::number}}}},
    {FactKind::restored,
     "a rebuild found facts lost or in disorder: what its claim said then is so (s: state, st: status once it has "
     "ended)",
     {{{"s", Shape::text},
       {"st", Shape::optional_text},
       kDetail,
       {"c", Shape::optional_text},
       {"t", Shape::optional_text},
       {"e", Shape::number},
       {"a", Shape::number},
       {"d", Shape::number},
       {"r", Shape::optional_number},
       {"i", Shape::optional_text},
       {"l", Shape::optional_number},
       {"g", Shape::optional_text},
       {"due", Shape::optional_number},
       {"m", Shape::optional_text},
       {"fl", Shape::optional_text},
       {"en", Shape::optional_number}}}},
});

template <class Enum, std::size_t N>
std::string_view word_at(const std::array<std::string_view, N>& words, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? words[index] : std::string_view("?");
}
template <class Enum, std::size_t N>
std::optional<Enum> find_word(const std::array<std::string_view, N>& words, std::string_view word) {
  const auto* found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) return std::nullopt;
  return static_cast<Enum>(found - words.begin());
}

}  // namespace

std::string_view word(FactKind kind) { return word_at(kFactWords, kind); }
std::string_view word(JobState state) { return word_at(kStateWords, state); }
std::optional<FactKind> parse_fact_kind(std::string_view word) { return find_word<FactKind>(kFactWords, word); }
std::optional<JobState> parse_job_state(std::string_view word) { return find_word<JobState>(kStateWords, word); }

bool is_terminal(FactKind kind) {
  return kind == FactKind::completed || kind == FactKind::failed || kind == FactKind::cancelled ||
         kind == FactKind::dead_lettered;
}

std::span<const FactShape> fact_shapes() { return kShapes; }

std::optional<JobEvent> event_of(FactKind kind, JobState from, JobState to) {
  const auto waits = [](JobState state) {
    return state == JobState::waiting || state == JobState::prerequisites || state == JobState::planned;
  };
  switch (kind) {
    case FactKind::parked:
      return waits(to) ? std::optional(JobEvent::park) : std::nullopt;
    case FactKind::queued:
      return waits(from) ? std::optional(JobEvent::unpark) : std::nullopt;
    case FactKind::claimed:
      return JobEvent::claim;
    case FactKind::released:
    case FactKind::expired:
    case FactKind::retry:
      return JobEvent::release;
    case FactKind::completed:  // what its flow ran was never started
      return from == JobState::live ? std::optional(JobEvent::succeed) : std::nullopt;
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

JobStatus status_of(JobState state, JobStatus ended) {
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

ClaimView claim_of(const FoldedJob& job, const std::string& queue) {
  ClaimView claim;
  claim.present = job.state != JobState::none;
  claim.state = word(job.state);
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
    claim.status = word(job.status);
    claim.detail = job.detail;
    claim.end_digest = job.digest;
    claim.ended_ms = job.since_ms;
  }
  return claim;
}

}  // namespace mycojobs
