// The dispatch journal, read. Each queue has one: a stream of facts (mycojobs/store.h: Fact), every fact written in the
// same atomic step as the change that it tells of. What the facts of one job say together is a FoldedJob: claims,
// records and indexes are compared with it (inspect/verify.h) and made again from it (inspect/rebuild.h).
//
// Pure. Whatever stands in a journal can be read: a fact that does not fit is a problem, which has a name, and changes
// nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "domain/transitions.h"
#include "mycojobs/records.h"
#include "mycojobs/store.h"

namespace mycojobs {

// The life of a job, as its facts tell it. The states are those of ClaimView::state.
//
//   (none) --scheduled--> queued, or delayed until its run_at_ms
//   (none)                         another client pushed it: what happens to it first is its first fact
//   (none), queued --claimed--> live --completed, failed, cancelled, dead_lettered--> ended
//                               live --heartbeat--> live
//                               live --released, expired--> queued    same attempt
//                               live --retry--> delayed               the next attempt
//   (none), queued --parked--> waiting | prerequisites | held | delayed --queued--> queued
//   (none) --planned--> planned --queued--> queued                a flow's: the flow says when
//                       planned --completed--> ended              a node that its flow runs itself, or the answer to
//                                                                 the message that took it elsewhere
//   any but ended  --failed (by the system; not while live), cancelled, dead_lettered--> ended
//   ended --requeued--> queued     another life, as the next attempt; never after completed or cancelled
//   ended --replanned--> planned   the same for its flow, after cancelled too
//   any --restored--> any          a rebuild: facts were lost, and the claim says from here on what is so
enum class FactKind {
  scheduled,
  parked,
  queued,
  claimed,
  heartbeat,
  released,
  expired,
  retry,
  completed,
  failed,
  cancelled,
  dead_lettered,
  requeued,
  planned,
  replanned,
  restored,
};
enum class JobState { none, queued, live, delayed, waiting, prerequisites, held, ended, planned };

std::string_view word(FactKind);
std::string_view word(JobState);  // none: ""
std::optional<FactKind> parse_fact_kind(std::string_view);
std::optional<JobState> parse_job_state(std::string_view);
bool is_terminal(FactKind);

struct FactField {
  enum Shape { text, number, optional_text, optional_number };
  std::string_view name;  // empty: none
  Shape shape = text;
};
struct FactShape {
  FactKind kind;
  std::string_view meaning;
  std::array<FactField, 16> fields;
};
std::span<const FactShape> fact_shapes();  // in the order of FactKind

struct FoldedJob {
  JobState state = JobState::none;
  JobStatus status = JobStatus::dispatched;  // what the record says then, and the word beside it
  std::string detail;
  std::string claim_id, token_hash, instance;  // of the latest claim; empty if the system ended the job
  std::string reason;                          // how it got back to its queue: released, expired, retry, requeued
  std::string digest;                          // of the end that its owner reported
  std::string message;                         // that brought it
  std::string flow;                            // that it is of: "<context> <id>"
  std::uint64_t epoch = 0, lease_ms = 0;       // of the latest claim
  std::uint64_t due_ms = 0;                    // while delayed
  std::uint64_t since_ms = 0;                  // when it came into its state
  std::uint32_t attempt = 0, deliveries = 0;   // attempt: the one under way, or the next one after a retry
  Id runner = 0;
  bool for_good = false;                 // completed or cancelled: nothing reopens it
  std::uint32_t terminals = 0;           // terminal facts, those that do not fit included
  std::uint32_t lives = 1;               // 1, and one more for each requeued and replanned
  std::vector<std::uint64_t> revisions;  // of all facts that were read, rising
};

// A fact that does not fit. rule: one of the names below.
struct FactProblem {
  std::string_view rule;
  std::string text;  // names the revision
};
inline constexpr std::string_view kFactKind = "fact-kind";          // a kind that nobody knows
inline constexpr std::string_view kFactField = "fact-field";        // a field is missing or malformed
inline constexpr std::string_view kFactRevision = "fact-revision";  // revisions do not rise
inline constexpr std::string_view kFactOrder = "fact-order";        // not possible in the state that the job was in
inline constexpr std::string_view kFactClaim = "fact-claim";        // by a claim that is not the latest, or is none
inline constexpr std::string_view kFactEpoch = "fact-epoch";        // epochs of claims do not grow
inline constexpr std::string_view kFactCount = "fact-count";        // attempt or deliveries do not follow
inline constexpr std::string_view kAfterEnd = "fact-after-end";     // no end itself, and the job had ended
inline constexpr std::string_view kSecondEnd = "second-end";        // a second end in one life

// Takes the next fact of a job in. Facts of one job of one journal, by their revisions.
std::optional<FactProblem> fold(FoldedJob&, const Fact&);

// Which event of the drawn state machine of a job (transitions.h) a fact is, given where the job was; nothing: none,
// the status stays as it is. Every fact that fits is an event that advance() allows.
std::optional<JobEvent> event_of(FactKind, JobState from, JobState to);
JobStatus status_of(JobState, JobStatus ended);  // ended: what it is once ended

// The claim that these facts imply, for a comparison or a Repair.
ClaimView claim_of(const FoldedJob&, const std::string& queue);

}  // namespace mycojobs
