// Reader of the dispatch journal. Each queue has a journal: a stream of facts (Fact in store/store.h). A fact is
// written in the same atomic step as the change that it describes. fold() combines the facts of one job into a
// FoldedJob. inspect/verify/job_verify.h compares claims, records and indexes with it, and inspect/verify/rebuild.h
// restores them from it.
//
// Pure. Any content of a journal can be read: an invalid fact is reported as a problem, and does not change the state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/state_machines.h"
#include "model/records.h"
#include "store/journal_store.h"

namespace mycojobs {

// The states of a job and the facts that change them. The states are those of ClaimView::state.
//
//   (none) --scheduled--> queued, or delayed until its run_at_ms
//   (none)                         pushed by another client: its first fact is the first change that this system makes
//   (none), queued --claimed--> live --completed, failed, cancelled, dead_lettered--> ended
//                               live --heartbeat--> live
//                               live --released, expired--> queued    same attempt
//                               live --retry--> delayed               the next attempt
//   (none), queued --parked--> waiting | prerequisites | held | delayed --queued--> queued
//   (none) --planned--> planned --queued--> queued                a job of a flow, when the flow dispatches it
//                       planned --completed--> ended              a node that its flow runs itself, or the answer to
//                                                                 the message that sent the job to another supervisor
//   any but ended  --failed (by the system; not while live), cancelled, dead_lettered--> ended
//   ended --requeued--> queued     a new life, as the next attempt; never after completed or cancelled
//   ended --replanned--> planned   the same for a job of a flow; also after cancelled
//   any --restored--> any          a rebuild: facts were lost, and the state is taken from the claim
//
// The enums and all of these changes are in agent/model/states.toml. check_scripts.py compares the scripts with them.
std::string_view to_string(FactKind);
std::string_view to_string(JobState);  // empty for JobState::none
std::optional<FactKind> parse_fact_kind(std::string_view);
std::optional<JobState> parse_job_state(std::string_view);
bool is_terminal(FactKind);

struct FactField {
  enum Shape { text, number, optional_text, optional_number };
  std::string_view name;  // empty if the entry of FactShape::fields is unused
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
  JobStatus status = JobStatus::dispatched;  // status of the record in this state; `detail` is its detail
  std::string detail;
  std::string claim_id, token_hash, instance;  // values of the latest claim; empty if the system ended the job
  std::string reason;                          // why it was put back into its queue: released, expired, retry, requeued
  std::string digest;                          // digest of the end that its owner reported
  std::string message;                         // the message that submitted it
  std::string flow;                            // the flow that it belongs to: "<context> <id>"
  std::uint64_t epoch = 0, lease_ms = 0;       // values of the latest claim
  std::uint64_t due_ms = 0;                    // end of the delay, or 0 if the job is not delayed
  std::uint64_t since_ms = 0;                  // time at which the job entered its state
  std::uint32_t attempt = 0;                   // the current attempt; after a retry, the next attempt
  std::uint32_t deliveries = 0;
  Id runner = 0;
  bool is_final = false;                  // completed or cancelled, so that the job cannot be reopened in its queue
  std::uint32_t terminal_fact_count = 0;  // number of terminal facts, including invalid ones
  std::uint32_t life_count = 1;           // 1, plus 1 for each fact requeued, replanned or restored
  std::vector<std::uint64_t> revisions;   // revisions of all facts that were read, ascending
};

// An invalid fact. `rule` is one of the names below.
struct FactProblem {
  std::string_view rule;
  std::string text;  // names the revision
};
inline constexpr std::string_view kFactKind = "fact-kind";          // unknown kind
inline constexpr std::string_view kFactField = "fact-field";        // a field is missing or malformed
inline constexpr std::string_view kFactRevision = "fact-revision";  // revisions do not increase
inline constexpr std::string_view kFactOrder = "fact-order";        // not possible in the current state of the job
inline constexpr std::string_view kFactClaim = "fact-claim";        // not by the latest claim, or by no claim
inline constexpr std::string_view kFactEpoch = "fact-epoch";        // epochs of claims do not increase
inline constexpr std::string_view kFactCount = "fact-count";  // attempt or deliveries do not follow the previous values
inline constexpr std::string_view kAfterEnd = "fact-after-end";  // not a terminal fact, after the end of the job
inline constexpr std::string_view kSecondEnd = "second-end";     // a second end in one life

// Applies the next fact of a job to its state. The facts of a job must be from one journal, in the order of their
// revisions. Returns the problem of an invalid fact, which does not change the state.
std::optional<FactProblem> fold(FoldedJob&, const Fact&);

// Returns the event of the job state machine (state_machines.h) that a fact represents, given the states before and
// after. Returns no value if the status does not change. For each valid fact, advance() allows the event.
std::optional<JobEvent> to_job_event(FactKind, JobState old_state, JobState new_state);
// Returns the status of a job in this state. `ended` is returned for JobState::ended.
JobStatus to_job_status(JobState, JobStatus ended);

// Returns the claim that these facts imply, for a comparison or a Repair.
ClaimView to_claim_view(const FoldedJob&, const std::string& queue);

}  // namespace mycojobs
