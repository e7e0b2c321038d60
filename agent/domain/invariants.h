// What a store must be like: the rules by name, a finding, which is one of them broken, and the rules of one job and of
// one flow. Those between jobs are in inspect/verify.h.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "domain/codec.h"
#include "domain/dispatch_journal.h"
#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct Finding {
  bool violation = true;  // false: a note: clients may do so, and nothing is lost by it
  std::string rule;       // a row of verify_rules()
  std::string subject;    // a job's key, a queue's, ...
  std::string text;       // one line
};
nlohmann::json to_json(const Finding&);

struct VerifyRule {
  std::string_view name;
  bool violation;
  std::string_view meaning;
};
std::span<const VerifyRule> verify_rules();

Finding finding(std::string_view rule, std::string subject, const std::string& text);

// What must be true of one job: its facts, its claim, its places and its record, compared with one another. Each rule
// that is broken is a finding, with what would mend it: `verify` shows the findings, a rebuild has the fixes done.
//
// Pure. The journal decides. Where it is not whole (a fact that the job's claim lists is gone, one does not fit) the
// claim is kept, since a fact that cannot be read may have been the job's end, and the job's places are judged by it. A
// job without facts is another client's: its record alone says where it belongs.

// What the journals and the lists of queues say of one job, of which there may be a hundred thousand.
struct JobHistory {
  static constexpr std::uint32_t kNoQueue = UINT32_MAX;
  FoldedJob folded;
  std::optional<FactProblem> problem;  // the first fact that does not fit
  std::uint32_t problems = 0;
  std::uint32_t queue = kNoQueue;        // whose journal tells of it
  std::uint32_t elsewhere = kNoQueue;    // another one that does too
  std::uint32_t entries = 0;             // how often its key stands in the list of entry_queue
  std::uint32_t entry_queue = kNoQueue;  // the first list in which it was met
  bool other_entries = false;            // it stands in a further list too
  bool ended = false;                    // when it was last looked at
  bool has_facts() const { return !folded.revisions.empty(); }
};

// How a job's facts and the list of them in its claim differ.
struct Listing {
  std::vector<std::uint64_t> missing;   // listed, and gone from the journal
  std::vector<std::uint64_t> foreign;   // listed, and a fact of another job: the list is wrong, not the journal
  std::vector<std::uint64_t> unlisted;  // in the journal, and not listed
};

struct JobSight {
  const JobPlaces& places;
  const JobHistory& history;  // of the same moment
  const Listing& listing;
  std::string queue;                      // whose journal tells of it
  std::optional<std::uint32_t> in_queue;  // entries of it in its queue's list; nothing: not looked at
  bool other_entries = false;             // it stands in the list of another queue
};

struct JobFinding : Finding {
  std::vector<JobFix> fixes;  // none: nothing that we may do mends it
};
struct JobVerdict {
  std::vector<JobFinding> findings;  // the cause first
  std::vector<JobFix> besides;       // what is made good in passing: nobody is the worse for it as it is
};
// By the job's facts if they can be trusted, else by its claim. Of held jobs it says `held-free` whenever their key has
// a free slot: while another job is on its way to that slot, nothing is wrong (JobGroups in inspect/verify.h).
JobVerdict judge(const JobSight&);

// What one step can do of a verdict. What sends a job on (to its queue, to its end) makes its places anew: that goes
// alone with what makes its claim right. Whoever has done it looks again.
struct JobMending {
  std::vector<const JobFinding*> of;
  std::vector<JobFix> fixes;
};
JobMending mending_of(const JobVerdict&);

// The concurrency key of which it has a slot, or waits for one: of a live job the one that its claim names; of a held
// one that which holds it, whatever its record says by now; of any other its record's. Empty: of none.
std::string slot_key(const JobPlaces&);
bool has_ended(const JobPlaces&);  // a bare job as its record says

// What must be true of one message: what its mark says is to be done of it stands where somebody will see it. Pure.
struct MessageFinding : Finding {
  std::string kind;  // what is to be put into mj:outbox ("inbox": into mj:inbox), and mends it
};
std::vector<MessageFinding> judge(const MessagePlaces&);

// What must be true of one flow: its journal, its mark, its indexes, its checkpoint, its record and the jobs of its
// nodes, compared with one another. Each rule that is broken is a finding, with what would mend it: `verify` shows the
// findings, a rebuild has the fixes done.
//
// Pure. The journal decides; what it holds is folded here.

struct FlowSight {
  Id context = 0, flow = 0;
  FlowPlaces places;
  std::optional<Fields> record;  // as it stands; nothing: there is none
  std::vector<RunFact> facts;
  std::vector<std::string> anomalies;  // of reading them
  std::uint64_t revision = 0;          // up to which they were read
  // Of one that is whole; none of this while it is being created.
  std::optional<FlowPlan> plan;
  std::string checkpoint;  // empty: there is none
  std::uint64_t checkpoint_at = 0;
  bool checkpoint_moved = false;  // while it was read: it has no finding
  std::vector<FlowJobView> jobs;  // in the order of the nodes
  std::vector<FlowWait> awaited;  // flows that its run waits for
  std::set<Id> children;          // of these, those that its own nodes started
  std::set<std::string> heard;    // jobs and flows whose ends wait in its events, read after both
  bool all_events = true;         // there are no more
  // Of a flow without a mark: the mark that its record, its journal and the other keys that name it give; else empty.
  Fields lost_mark;
};

// The state of a run. Facts that are gone up to the revision of the checkpoint count as the checkpoint has them.
struct FoldedRun {
  RunState state;
  bool lacks_history = false;  // facts are gone, and the checkpoint stands for them
  bool is_lost = false;        // facts are gone, and nothing stands for them
};
FoldedRun fold_run(const FlowSight&);
// The state of its mark; without one, what the record says, which clients may write.
std::string flow_state_before(const FlowSight&);

struct FlowFinding : Finding {
  std::vector<FlowFix> fixes;  // none: nothing that we may do mends it
};
// A mark there is; see inspect/flow_verify.cpp for flows that cannot be judged.
std::vector<FlowFinding> judge(const FlowSight&);

// "flow-job: flow:7 has ...": of what cannot be judged, too.
FlowFinding flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes = {});
// "" or " (and 3 more)".
std::string and_more(std::size_t count);

}  // namespace mycojobs
