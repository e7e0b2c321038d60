// Port: storage of flows, implemented by store/redis/redis_flows.h and by test doubles. A flow is one run of a
// definition. It consists of its record `flow:<id>`, its jobs and its journal, which is authoritative. A store does not
// interpret journal facts (see flows/flow_decider.h). It changes a flow only in commits that name the revision that the
// caller has read.
//
// create() and put_jobs() write job records whose claim has the state `planned`: such a job is in no queue and cannot
// be claimed. A commit moves it to its queue. The atomic step that ends such a job also adds an event to its flow and
// makes the flow due.
//
// Thread-safety: a FlowStore is used by one thread. Errors: as in store/store.h; every call may be repeated. Times
// are of the store's own clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// One fact in the journal of a run. run_fact_shapes() in flows/flow_state.h describes the kinds.
struct RunFact {
  std::uint64_t revision = 0;  // from 1, without gaps
  std::uint64_t at_ms = 0;
  std::string kind;
  std::optional<std::uint32_t> node;  // index in the definition, or nullopt if the fact concerns the whole flow
  std::string data_json;              // a JSON object with the data of the kind, or empty
};

// An event that no commit has applied yet. Events are kept in the order of their arrival.
struct FlowEventText {
  std::string kind;  // job: a job of this flow has ended; flow: a child flow or an awaited flow has ended
  std::string key;   // job:<caller>:<id>, flow:<id>
};

// Request to create a flow.
struct FlowDraft {
  Id context = 0, caller = 0;
  std::uint32_t job_count = 0;  // number of job ids to allocate; 0 if the jobs exist already
  std::string idempotency_key;  // unique per caller, or empty
  std::string fingerprint;      // digest of the request; the same key with another fingerprint is a `conflict`
};
// Ids of a new or existing flow.
struct FlowIds {
  Id flow = 0;
  Id first_job = 0;      // the flow owns the ids first_job .. first_job + jobs - 1 of the caller
  bool existed = false;  // the idempotency key was used before: the caller creates the missing parts only
};

// State of the job of a node. Results have the order and number of the requested keys.
struct FlowJobView {
  std::string job_key, state;  // ClaimView::state, or "absent" if there is no record
  std::uint32_t attempt = 0;
  std::string status, detail, error;
  std::string result;  // JSON object, unchanged from the record; only of ended jobs
  std::uint64_t started_ms = 0, ended_ms = 0;
  Id runner = 0;
  std::string result_json = {};  // JSON list, unchanged from the record; only of ended jobs
};

// State of a flow, as returned by FlowStore::read().
struct FlowReadResult {
  // flow:<id>; empty if the flow does not exist. Id, caller, jobs, definition_hash, name and parent are the values from
  // the creation, even if another client has changed the record.
  Fields record;
  std::uint64_t revision = 0;  // revision of the latest fact
  // The latest checkpoint, or empty. If its format is old or invalid, the caller reads again from revision 0.
  std::string checkpoint;
  std::uint64_t checkpoint_revision = 0;  // revision of the checkpoint
  std::vector<RunFact> facts;          // facts after the requested revision or the checkpoint, ascending, at most 1000
  bool has_more = false;               // more facts exist: read again after the last returned fact
  std::vector<FlowEventText> events;   // the first 1000
  std::vector<FlowJobView> jobs;       // states of the jobs that the first events name
  std::vector<std::string> anomalies;  // one line for each journal entry that is not a valid fact
  std::uint64_t now_ms = 0;
};

// A planned job that a commit queues.
struct FlowDispatch {
  std::string job_key;
  Fields record_fields;  // record fields to set in addition to those that queueing sets
  // Record of a node that the run has added after its start. An existing record is not changed.
  std::optional<Job> new_node_job = {};
};
struct FlowEnd {  // End of a job that no runner executed: the flow completed or skipped its node.
  std::string job_key;
  Fields fields;  // status (finished, error) first, then detail, error, result ...
};

// A commit is one atomic step. If the revision differs, nothing is changed and the error is Code::conflict, whose text
// contains the current revision.
struct FlowCommit {
  Id context = 0, flow = 0;
  std::uint64_t expected_revision = 0;
  std::uint32_t applied_events = 0;  // number of events, from the oldest, that this commit applies
  std::vector<RunFact> facts;        // facts to append; the store sets revision and at_ms
  Fields record_fields;              // fields of flow:<id>
  // Jobs to move from `planned` to `queued`. A job that is queued, live or ended is not changed; if it has ended, its
  // event is added again.
  std::vector<FlowDispatch> dispatches;
  std::vector<FlowEnd> ends;                // to ended, without an event; an ended job is not changed
  std::vector<std::string> cancelled_jobs;  // requested as by Store::cancel(): an unclaimed job ends, with an event
  std::vector<std::string> requeued_jobs;   // from ended (error) to queued, as the next attempt
  std::vector<std::string> replanned_jobs;  // from ended (error, by a FlowEnd) to planned
  std::optional<std::uint64_t> due_ms;      // time of the next evaluation; 0 means at once, nullopt at the next event
  std::string checkpoint;                   // checkpoint of the state after these facts; empty keeps the old checkpoint
  bool ended = false;                       // the flow is no longer active; flows that wait for it get an event
  Id parent = 0;                            // with `ended`: this flow gets an event {flow, flow:<this>}
  std::string traceparent = {};             // trace of the flow, which queued jobs join
};

struct FlowSummary {  // A row of the catalog.
  Id flow = 0;
  std::uint64_t at_ms = 0;  // time of creation
  std::string name;         // name of the definition
  Fields record;  // without definition, nodes and result; empty if the flow was retired or not completely created
};

// All index entries of a flow, read in one step; used to verify its consistency.
struct FlowIndexEntries {
  std::string state;             // state of the flow's mark: creating, new, active, ended; empty if there is no mark
  bool in_active_index = false;  // in the index of active flows
  bool in_ended_index = false;   // in the index of ended flows
  bool in_catalog = false;       // in the catalog
  bool has_checkpoint = false;   // a checkpoint exists
  bool has_invalid_event_key = false;  // the key of the events has another type, written by another client
  bool in_name_catalog = true;         // in the catalog of the name of its definition
  bool in_definition_users = true;     // the definition lists the flow as a user
  bool has_idempotency_entry = true;   // its idempotency key is registered
  std::uint64_t catalog_row = 0, name_catalog_row = 0;  // rows in the two catalogs, as stored in the flow's mark
  std::optional<std::uint64_t> due_ms;
  std::uint64_t revision = 0, event_count = 0, now_ms = 0;
  Fields identity;  // identifying fields that the record must have, from the flow's mark
};
// One repair step of a flow. inspect/invariants.h decides which steps are needed; the store executes them.
struct FlowFix {
  enum class Kind {
    set_mark,           // sets `fields`
    set_record,         // sets `fields`
    add_to_index,       // adds the flow to `index`; for `due`: makes the flow due now
    remove_from_index,  // removes the flow from `index`; for `events` and `checkpoint`: deletes the key
    dispatch,           // a commit dispatches job_key again, which queues the job or adds its event
    await_flow,         // calls FlowStore::await_flow() for awaited_flow
  };
  enum class FlowIndex { none, active, ended, due, catalog, events, checkpoint, index, users, keys };
  Kind kind = Kind::add_to_index;
  FlowIndex index = FlowIndex::none;
  std::string job_key = {};
  Fields fields = {};
  Id awaited_flow = 0;
  bool operator==(const FlowFix&) const = default;
};
// Repair steps of a flow, and the state that they are based on.
struct FlowRepair {
  std::uint64_t revision = 0;  // revision that the fixes are based on
  std::string state;  // state of the mark at that revision; empty if there is no mark: the first fix creates it
  std::vector<FlowFix> fixes;  // in order of execution; without the fixes that a commit makes
};
// State of a flow that another flow waits for.
struct FlowWait {
  Id awaited_flow = 0;
  std::string state;           // state of its mark, or empty if there is no mark
  bool is_registered = false;  // the waiting flow is registered for its end event
};
// An entry of a catalog. flow is 0 if the entry is malformed.
struct CatalogEntry {
  std::string id;  // entry id in the stream: "<row>-0"
  Id flow = 0;
  std::string flow_text;  // unparsed field `flow`
};
// All index entries of a schedule; used to verify its consistency.
struct ScheduleIndexEntries {
  std::string name;
  bool exists = false, is_listed = false;
  bool in_definition_users = false;  // the definition lists the schedule as a user
  std::string definition_hash;
};

// Starts flows of a definition at the times of a cron expression.
struct Schedule {
  std::string name;  // [a-z0-9][a-z0-9._-]{0,63}
  Id caller = 0;
  std::string cron, zone;  // text/cron.h; IANA name
  std::string overlap;     // allow, skip, queue
  std::string missed;      // skip, once, all: handling of times at which no coordinator was running
  std::string definition_hash;
  std::uint64_t next_start_ms = 0;  // next scheduled time, or 0 if there is none
  std::uint64_t last_start_ms = 0;  // time of the latest start
  Id last_flow = 0;
  std::uint64_t revision = 0;  // a change requires the current value
  bool paused = false;
  // Reason why the last scheduled time was skipped; empty if it was not.
  std::string skip_reason;
};

class FlowStore {
 public:
  virtual ~FlowStore() = default;

  // Allocates the ids of a flow and of its jobs, and writes the flow's record (status dispatched, detail `creating`).
  // With a used idempotency key it returns the same ids. Error conflict: the key has another fingerprint.
  virtual Result<FlowIds> create(const FlowDraft&) = 0;
  // Starts the creation of a flow from the record flow:<id>, which another client has written. The caller continues
  // with put_jobs() and put_flow(). Idempotent until put_flow(). Returns false if the flow exists already, by create()
  // or as a completed adoption. Error not_found.
  virtual Result<bool> adopt(Id context, Id flow, Id caller) = 0;
  // Writes these jobs as planned jobs of the flow. A record that exists in no queue (from job.create or another client)
  // is adopted. Nodes that a run may add later have ids and no record; the commit that dispatches such a node writes
  // the record. Idempotent. Error conflict, naming the job: it is in a queue, has run, belongs to another flow, or has
  // other content.
  virtual Result<void> put_jobs(Id context, Id flow, std::span<const Job>) = 0;
  // Writes the definition (content-addressed by Flow::definition_hash) and the record with detail `new`, and adds the
  // flow to the catalog and to the index of its definition. Idempotent.
  virtual Result<void> put_flow(const Flow&, const std::string& definition) = 0;
  virtual Result<std::string> definition(Id context, const std::string& hash) = 0;  // not_found

  // Reads a flow. If `after` is set, the result has the facts after that revision and no checkpoint, and the record has
  // no field `nodes` if that list is long. Otherwise the result has the checkpoint and the facts after it.
  virtual Result<FlowReadResult> read(Id context, Id flow, std::optional<std::uint64_t> after) = 0;
  // Returns the revision after the commit. expected_revision is FlowReadResult::revision, also if the last journal
  // entries are not valid facts. applied_events counts from the first event of the latest read() of the flow.
  virtual Result<std::uint64_t> commit(const FlowCommit&) = 0;
  virtual Result<std::vector<FlowJobView>> job_views(Id context, std::span<const std::string> job_keys) = 0;
  // Registers the flow for an event {flow, flow:<awaited_flow>} at the end of another flow. The event is added at
  // once if that flow has ended or does not exist.
  virtual Result<void> await_flow(Id context, Id flow, Id awaited_flow) = 0;

  // Returns at most max flows that are due, the longest waiting first, and the time until the next is due in ms (0 if
  // there is none).
  virtual Result<std::pair<std::vector<Id>, std::uint64_t>> due_flows(Id context, std::uint32_t max) = 0;
  // Returns at most max flows after this id that have started and not ended, sorted by id.
  virtual Result<std::vector<Id>> active_flows(Id context, Id after, std::uint32_t max) = 0;
  virtual Result<void> mark_due(Id context, Id flow) = 0;  // makes the flow due now
  // Acquires or renews the leadership of a context for ttl_ms. Returns whether this instance leads. Other coordinators
  // wait until the time expires or release_leadership() is called.
  virtual Result<bool> acquire_leadership(Id context, const std::string& instance, const std::string& location,
                                          std::uint32_t ttl_ms) = 0;
  virtual Result<void> release_leadership(Id context, const std::string& instance) = 0;
  // Returns instance and location of the leader; both are empty if there is no leader.
  virtual Result<std::pair<std::string, std::string>> leader(Id context) = 0;

  // Returns at most max flows before this flow (0 starts with the newest), newest first, with this definition name
  // (empty for all names). malformed receives the id of each visited catalog entry that names no flow.
  virtual Result<std::vector<FlowSummary>> list(Id context, const std::string& name, Id before, std::uint32_t max,
                                                std::vector<std::string>* malformed = nullptr) = 0;
  // Deletes the record, journal, checkpoint and catalog rows of ended flows past retention. Returns the number of
  // flows.
  virtual Result<std::uint32_t> retire(Id context, std::uint64_t retention_ms, std::uint32_t max) = 0;
  virtual Result<void> remove(Id context, Id flow) = 0;  // conflict: the flow has not ended

  virtual Result<FlowIndexEntries> read_index_entries(Id context, Id flow) = 0;
  // Applies all fixes in one step. Error conflict: the flow has changed, and nothing was repaired.
  virtual Result<void> repair(Id context, Id flow, const FlowRepair&) = 0;
  virtual Result<std::vector<FlowWait>> flow_waits(Id context, Id flow, std::span<const Id> awaited_flows) = 0;
  // Returns entries of the catalog (name empty) or of the catalog of a definition's name, after this id (empty: from
  // the start).
  virtual Result<std::vector<CatalogEntry>> catalog(Id context, const std::string& name, const std::string& after,
                                                    std::uint32_t max) = 0;
  // Removes the entry, unless the mark of its flow names the entry now.
  virtual Result<void> drop_entry(Id context, const std::string& name, const CatalogEntry&) = 0;

  virtual Result<void> put_schedule(Id context, const Schedule&, const std::string& definition,
                                    std::uint64_t expected_revision) = 0;  // 0 for a new schedule
  virtual Result<std::vector<Schedule>> schedules(Id context) = 0;
  virtual Result<void> remove_schedule(Id context, const std::string& name) = 0;
  // Returns the states of the named and of all listed schedules.
  virtual Result<std::vector<ScheduleIndexEntries>> schedule_states(Id context, std::span<const std::string> names) = 0;
  // Lists the schedule and adds it to the users of its definition. The name of a deleted schedule is removed from the
  // list.
  virtual Result<void> repair_schedule(Id context, const std::string& name) = 0;

  virtual Result<std::uint64_t> now_ms(Id context) = 0;
};

}  // namespace mycojobs
