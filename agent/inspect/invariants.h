// The invariants of a store: the named rules, the findings (violated rules), and the checks of one job, one message and
// one flow. Rules across jobs are in inspect/verify/job_verify.h. No side effects.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flows/flow_plan.h"
#include "flows/flow_state.h"
#include "jobs/dispatch_journal.h"
#include "model/codec.h"
#include "store/flow_store.h"
#include "store/journal_store.h"

namespace mycojobs {

struct Finding {
  bool violation = true;  // false: a note; clients may cause it, and no data is lost
  std::string rule;       // name of a row of verify_rules()
  std::string subject;    // key of a job, key of a queue, ...
  std::string text;       // one line
};
nlohmann::json to_json(const Finding&);

struct VerifyRule {
  std::string_view name;
  bool violation;
  std::string_view meaning;
};
// Returns the table of all rules.
std::span<const VerifyRule> verify_rules();

// Makes a finding. `rule` is the name of a row of verify_rules().
Finding make_finding(std::string_view rule, std::string subject, const std::string& text);

// The invariants of one job: facts, claim, indexes and record are compared with one another. Each violated rule is a
// finding with the fixes that repair it: `verify` shows the findings, and a rebuild applies the fixes.
//
// The journal is authoritative. If the journal has gaps (a fact that the claim lists is missing, or a fact is invalid),
// the claim is not changed and the indexes are checked against it, because an unreadable fact may have been the end of
// the job. A job without facts was pushed by another client: only its record shows its queue.

// The entries of journals and queue lists for one job. Kept small, because there may be a hundred thousand jobs.
struct JobHistory {
  static constexpr std::uint32_t kNoQueue = UINT32_MAX;
  FoldedJob folded;
  std::optional<FactProblem> problem;     // the first invalid fact
  std::uint32_t problem_count = 0;        // number of invalid facts
  std::uint32_t queue = kNoQueue;         // queue whose journal contains the facts of the job
  std::uint32_t second_queue = kNoQueue;  // second queue whose journal contains facts of the job
  std::uint32_t entry_count = 0;          // number of entries of the job in the list of entry_queue
  std::uint32_t entry_queue = kNoQueue;   // queue of the first list that contains the job
  bool in_other_list = false;             // a further list contains the job
  bool has_ended = false;                 // according to the latest read
  bool has_facts() const { return !folded.revisions.empty(); }
};

// Differences between the facts of a job and the list of fact revisions in its claim.
struct FactListDifference {
  std::vector<std::uint64_t> missing;   // listed, but not in the journal
  std::vector<std::uint64_t> foreign;   // listed, but facts of other jobs: the list is wrong, and not the journal
  std::vector<std::uint64_t> unlisted;  // in the journal, but not listed
};

// All data about one job, as read at one time.
struct JobInspection {
  const JobStoreState& store_state;
  const JobHistory& history;  // read at the same time as `store_state`
  const FactListDifference& fact_list_difference;
  std::string queue;                         // queue whose journal contains the facts of the job
  std::optional<std::uint32_t> entry_count;  // entries of the job in the list of its queue; no value: not counted
  bool in_other_list = false;                // the list of another queue contains the job
};

struct JobFinding : Finding {
  std::vector<JobFix> fixes;  // empty: no automatic repair
};
struct JobVerdict {
  std::vector<JobFinding> findings;  // the cause first
  std::vector<JobFix> silent_fixes;  // repairs without a finding, because the present state causes no harm
};
// Checks a job against its facts if they can be trusted, otherwise against its claim. For a held job, reports
// `held-with-free-slots` whenever its concurrency key has a free slot; this is not an error while another job is about
// to use the slot (JobGroups in inspect/verify/job_verify.h).
JobVerdict check_invariants(const JobInspection&);

// The fixes of a verdict that one step can apply. A fix that moves the job to its queue or to its end rebuilds its
// index entries; such a fix is combined only with fixes of the claim. The caller reads the job again after the step.
struct JobRepairPlan {
  std::vector<const JobFinding*> findings;  // the findings that the fixes repair
  std::vector<JobFix> fixes;
};
JobRepairPlan make_repair_plan(const JobVerdict&);

// Returns the concurrency key whose slot the job uses or waits for, or an empty text. For a live job, the claim names
// the key. For a held job, the index that holds it names the key, independent of its current record. For any other job,
// the record names it.
std::string get_slot_key(const JobStoreState&);
bool has_ended(const JobStoreState&);  // a job without a claim: by the status in its record

// The invariant of a message: pending work in its mark must be in an index that a coordinator reads.
struct MessageFinding : Finding {
  // The kind of the entry whose addition to mj:outbox repairs the finding; "inbox": an entry of mj:inbox.
  std::string missing_entry;
};
std::vector<MessageFinding> check_invariants(const MessageStoreState&);

// The invariants of one flow: its journal, mark, indexes, checkpoint, record and the jobs of its nodes are compared
// with one another. Each violated rule is a finding with the fixes that repair it: `verify` shows the findings, and a
// rebuild applies the fixes. The journal is authoritative; its facts are folded by check_invariants().

struct FlowInspection {
  Id context = 0, flow = 0;
  FlowIndexEntries index_entries;
  std::optional<Fields> record;  // no value: there is no record
  std::vector<RunFact> facts;
  std::vector<std::string> anomalies;  // invalid entries found while the facts were read
  std::uint64_t revision = 0;          // the revision up to which facts were read
  // Set only for a complete flow, not while it is being created.
  std::optional<FlowPlan> plan;
  std::string checkpoint;  // empty: there is no checkpoint
  std::uint64_t checkpoint_revision = 0;
  // The checkpoint was changed during the read, so that it is not checked.
  bool checkpoint_changed = false;
  std::vector<FlowJobView> jobs;        // in the order of the nodes
  std::vector<FlowWait> awaited_flows;  // flows that the run waits for
  std::set<Id> children;                // the awaited flows that nodes of this flow have started
  // Jobs and flows whose end is in the unprocessed events, read after `jobs` and `awaited_flows`.
  std::set<std::string> ended_in_inbox;
  bool has_all_events = true;  // all unprocessed events were read
  // The mark that a flow without a mark should have, according to its record, its journal and other keys that name it.
  Fields derived_mark;
};

// The state of a run. If facts up to the revision of the checkpoint are missing, the checkpoint replaces them.
struct FoldedFlow {
  RunState state;
  bool lacks_history = false;  // facts are missing, and the checkpoint replaces them
  bool is_lost = false;        // facts are missing, and there is no replacement
};
FoldedFlow fold_run(const FlowInspection&);
// Returns the state in the flow's mark, or, without a mark, the state in its record, which any client may have written.
std::string get_flow_state(const FlowInspection&);

struct FlowFinding : Finding {
  std::vector<FlowFix> fixes;  // empty: no automatic repair
};
// REQUIRES: `plan` is set, or the flow is being created. inspect/verify/flow_verify.cpp reports flows without a usable
// plan.
std::vector<FlowFinding> check_invariants(const FlowInspection&);

// Returns a finding with the text "flow-job: flow:7 has ...". Also used for flows that cannot be checked.
FlowFinding make_flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes = {});
// Returns "" for at most one, otherwise " (and 3 more)" for 4.
std::string format_more_count(std::size_t count);

}  // namespace mycojobs
