// Port: where flows live (agent/store/redis_flows.h, on Redis or on the imitation of it in this process; one contract
// suite). A flow is one run of a definition: its record `flow:<id>`, its jobs, and its journal, which is the authority.
// What the facts of a journal mean, and what follows from them, is decided elsewhere (domain/flow_decide.h): a store
// keeps them, and changes a flow only in commits that expect the revision which the caller has read.
//
// Where a flow's jobs are: create() and put_jobs() write records with a claim in the state `planned`: in no queue, and
// nobody may take them. A commit queues them. The end of such a job stands in the flow's events in the same atomic step
// as the end, and its flow is due then.
//
// Threads: a FlowStore belongs to one thread. Errors: as in mycojobs/store.h; every call may be repeated.
// Time: the store's own clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// One fact of a run's journal. kind: domain/flow_state.h, run_fact_shapes(). node: its index in the definition;
// nothing: of the flow. more: what the kind carries, a JSON object; empty: nothing.
struct RunFact {
  std::uint64_t revision = 0;  // from 1, without gaps
  std::uint64_t at_ms = 0;
  std::string kind;
  std::optional<std::uint32_t> node;
  std::string more;
};

// What has happened and was not applied yet, in the order in which it came.
struct FlowEventText {
  std::string kind;  // job: a job of this flow has ended; flow: a child flow, or one that a node waits for, has
  std::string key;   // job:<caller>:<id>, flow:<id>
};

struct FlowDraft {
  Id context = 0, caller = 0;
  std::uint32_t jobs = 0;       // how many ids to allocate; 0: the jobs exist
  std::string idempotency_key;  // of its caller; empty: none
  std::string fingerprint;      // of what is asked for: the same key with another one is `conflict`
};
struct FlowPlace {
  Id flow = 0;
  Id first_job = 0;      // ids first_job .. first_job + jobs - 1 of the caller are this flow's
  bool existed = false;  // the idempotency key named it: go on with whatever is still missing
};

// How a node's job stands. Order and number as asked for.
struct FlowJobView {
  std::string job_key, state;  // ClaimView::state; "absent": no record
  std::uint32_t attempt = 0;
  std::string status, detail, error;
  std::string result;  // JSON object as it stands on the record; only of ended jobs
  std::uint64_t started_ms = 0, ended_ms = 0;
  Id runner = 0;
  std::string result_json = {};  // likewise, a list
};

struct RunRead {
  Fields record;                       // flow:<id>; empty: there is none. Id, caller, jobs, definition_hash, name and
                                       // parent are those of its creation, whatever another client has made of them
  std::uint64_t revision = 0;          // of the latest fact
  std::string checkpoint;              // the latest, or empty; may be of an old format, or nonsense: then read from 0
  std::uint64_t checkpoint_at = 0;     // the revision that it was made at
  std::vector<RunFact> facts;          // after `after` (or after the checkpoint's revision), rising, at most 1000
  bool more = false;                   // there are more facts: read again after the last of them
  std::vector<FlowEventText> events;   // the first 1000
  std::vector<FlowJobView> jobs;       // of the first of them: some
  std::vector<std::string> anomalies;  // entries that are no facts: one line each
  std::uint64_t now_ms = 0;
};

struct FlowDispatch {
  std::string job_key;
  Fields set;                     // of its record, besides what queueing sets
  std::optional<Job> plant = {};  // its record, of a node that the run has got only now; there already: it stays
};
struct FlowEnd {  // of a job that no runner ran: a node that the flow runs itself, or that will never run
  std::string job_key;
  Fields fields;  // status (finished, error) first, then detail, error, result ...
};

// One atomic step. Everything in it happens, or nothing (Code::conflict: another revision, whose text has the present
// one).
struct FlowCommit {
  Id context = 0, flow = 0;
  std::uint64_t expected_revision = 0;
  std::uint32_t events_taken = 0;       // so many from the front are applied
  std::vector<RunFact> facts;           // appended; revision and at_ms are filled in by the store
  Fields record;                        // fields of flow:<id>
  std::vector<FlowDispatch> dispatch;   // planned -> queued. Already queued, live or ended: left, and if it has ended
                                        // its event is raised again
  std::vector<FlowEnd> ends;            // -> ended, without an event; left if it has ended
  std::vector<std::string> cancel;      // a request, as Store::cancel: what has not been claimed ends, with an event
  std::vector<std::string> requeue;     // ended as error -> queued, as the next attempt
  std::vector<std::string> replan;      // ended as error by a FlowEnd -> planned
  std::optional<std::uint64_t> due_ms;  // look at it again then; 0: at once; nothing: when something happens
  std::string checkpoint;               // of the state after these facts; empty: keep the old one
  bool ended = false;                   // nothing follows: no longer active; who waits for it gets an event
  Id parent = 0;                        // with `ended`: gets an event {flow, flow:<this>}
  std::string traceparent = {};         // of the flow: jobs that are queued stand in its trace
};

struct FlowSummary {  // a row of the catalog
  Id flow = 0;
  std::uint64_t at_ms = 0;  // of its creation
  std::string name;         // of its definition
  Fields record;            // without definition, nodes, result; empty: retired, or never finished
};

// Where a flow is, for those who verify: read in one step.
struct FlowPlaces {
  std::string state;                     // of its mark: creating, new, active, ended; empty: there is no mark
  bool active = false;                   // in the index of active flows
  bool ended = false;                    // in that of ended ones
  bool listed = false;                   // in the catalog
  bool checkpoint = false;               // it has one
  bool deaf = false;                     // where its events belong stands something else, another client's
  bool indexed = true;                   // in the catalog of its name
  bool used = true;                      // its definition names it as a user
  bool keyed = true;                     // its idempotency key leads to a flow
  std::uint64_t row = 0, index_row = 0;  // of both catalogs, as its mark has them
  std::optional<std::uint64_t> due_ms;
  std::uint64_t revision = 0, events = 0, now_ms = 0;
  Fields identity;  // what its record should say of what it is, as its mark knows it
};
// One thing that mends a flow. Which one it takes says domain/invariants.h; the store only knows how it is done.
struct FlowFix {
  enum class Kind {
    set_mark,    // words: fields of it
    set_record,  // words: fields of it
    enter,       // place; due: now
    leave,       // place; events, checkpoint: they are deleted
    dispatch,    // job: once more, by a commit: it is queued, or its flow hears of its end
    await,       // other: the flow hears of its end, by FlowStore::await_flow()
  };
  enum class Place { none, active, ended, due, catalog, events, checkpoint, index, users, keys };
  Kind kind = Kind::enter;
  Place place = Place::none;
  std::string job = {};
  Fields words = {};
  Id other = 0;
  bool operator==(const FlowFix&) const = default;
};
struct FlowRepair {
  std::uint64_t revision = 0;  // of the look that asks for the fixes
  std::string state;           // of the mark then; empty: there was none, and the first fix writes it
  std::vector<FlowFix> fixes;  // in this order; none that a commit is for
};
// How another flow stands to one that waits for its end.
struct FlowWait {
  Id other = 0;
  std::string state;   // of its mark; empty: there is none
  bool hears = false;  // the flow is among those that hear of its end
};
// An entry of a catalog. flow: 0 if the entry is malformed.
struct CatalogEntry {
  std::string id;  // of the stream: "<row>-0"
  Id flow = 0;
  std::string flow_text;  // its field `flow` as it is
};
struct SchedulePlaces {
  std::string name;
  bool exists = false, listed = false, used = false;  // used: its definition names it as a user
  std::string definition_hash;
};

struct Schedule {
  std::string name;  // [a-z0-9][a-z0-9._-]{0,63}
  Id caller = 0;
  std::string cron, zone;  // domain/cron.h; IANA name
  std::string overlap;     // allow, skip, queue
  std::string missed;      // skip, once, all: what becomes of moments at which no coordinator was there
  std::string definition_hash;
  std::uint64_t next_ms = 0;  // intended; 0: never again
  std::uint64_t last_ms = 0;  // the latest that was started
  Id last_flow = 0;
  std::uint64_t revision = 0;  // fences changes
  bool paused = false;
  std::string note;  // why the last moment was passed over; empty: it was not
};

class FlowStore {
 public:
  virtual ~FlowStore() = default;

  // Allocates a flow's id and its jobs' ids, and writes the flow's record (status dispatched, detail `creating`). By
  // the idempotency key: the same place again. Error conflict: the key has another fingerprint.
  virtual Result<FlowPlace> create(const FlowDraft&) = 0;
  // Jobs of nodes that a run may get later have ids and no record: a commit that dispatches one writes it.
  // Writes (or adopts: records that job.create or another client wrote, in no queue) these jobs as planned for the
  // flow. Again: nothing changes. Error conflict, naming the job: it is in a queue, has run, belongs to another flow,
  // or has other content.
  virtual Result<void> put_jobs(Id context, Id flow, std::span<const Job>) = 0;
  // Writes the definition (content-addressed by Flow::definition_hash) and the record, detail `new`; enters it in the
  // catalog and its definition's index. Again: nothing changes.
  virtual Result<void> put_flow(const Flow&, const std::string& definition) = 0;
  virtual Result<std::string> definition(Id context, const std::string& hash) = 0;  // not_found

  // after: facts after it; no checkpoint, and no `nodes` if the record has many; nothing: checkpoint and what follows.
  virtual Result<RunRead> read(Id context, Id flow, std::optional<std::uint64_t> after) = 0;
  // The revision after it. expected_revision: RunRead::revision, also where the journal's last entries are no facts.
  // events_taken: counted from the events that this FlowStore has read last of the flow.
  virtual Result<std::uint64_t> commit(const FlowCommit&) = 0;
  virtual Result<std::vector<FlowJobView>> jobs(Id context, std::span<const std::string> job_keys) = 0;
  // The flow gets an event {flow, flow:<other>} when the other one ends; at once if it has (or does not exist).
  virtual Result<void> await_flow(Id context, Id flow, Id other) = 0;

  // Flows that are due now, the longest waiting first, at most max; and how long until the next, ms (0: none waits).
  virtual Result<std::pair<std::vector<Id>, std::uint64_t>> due(Id context, std::uint32_t max) = 0;
  virtual Result<std::vector<Id>> active(Id context, Id after, std::uint32_t max) = 0;  // started, not ended; by id
  virtual Result<void> raise(Id context, Id flow) = 0;                                  // due now
  // One coordinator of a context leads; the others wait for its time to run out. True: it is this instance now.
  // released: gives it back.
  virtual Result<bool> lead(Id context, const std::string& instance, const std::string& where,
                            std::uint32_t ttl_ms) = 0;
  virtual Result<void> stop_leading(Id context, const std::string& instance) = 0;
  virtual Result<std::pair<std::string, std::string>> leader(Id context) = 0;  // instance, where; empty: none

  // The newest first, before this flow (0: from the newest), of this definition's name (empty: all), at most max.
  // malformed: receives the id of each catalog entry on the way that names no flow.
  virtual Result<std::vector<FlowSummary>> list(Id context, const std::string& name, Id before, std::uint32_t max,
                                                std::vector<std::string>* malformed = nullptr) = 0;
  // Ended flows past retention leave: record, journal, checkpoint, rows. How many did.
  virtual Result<std::uint32_t> retire(Id context, std::uint64_t retention_ms, std::uint32_t max) = 0;
  virtual Result<void> remove(Id context, Id flow) = 0;  // conflict: it has not ended

  virtual Result<FlowPlaces> places(Id context, Id flow) = 0;
  // All of it in one step. Error conflict: it has moved, and nothing was changed.
  virtual Result<void> repair(Id context, Id flow, const FlowRepair&) = 0;
  virtual Result<std::vector<FlowWait>> waits(Id context, Id flow, std::span<const Id> others) = 0;
  // Entries of the catalog (name empty) or of the catalog of a definition's name, after this id (empty: from the
  // first).
  virtual Result<std::vector<CatalogEntry>> catalog(Id context, const std::string& name, const std::string& after,
                                                    std::uint32_t max) = 0;
  // Left if the mark of its flow names it by now.
  virtual Result<void> drop_entry(Id context, const std::string& name, const CatalogEntry&) = 0;

  virtual Result<void> put_schedule(Id context, const Schedule&, const std::string& definition,
                                    std::uint64_t expected_revision) = 0;  // 0: a new one
  virtual Result<std::vector<Schedule>> schedules(Id context) = 0;
  virtual Result<void> remove_schedule(Id context, const std::string& name) = 0;
  // Of these schedules and of those that are listed.
  virtual Result<std::vector<SchedulePlaces>> schedule_places(Id context, std::span<const std::string> names) = 0;
  // Lists it and enters it among the users of its definition; the name of one that is gone leaves the list.
  virtual Result<void> repair_schedule(Id context, const std::string& name) = 0;

  virtual Result<std::uint64_t> now_ms(Id context) = 0;
};

}  // namespace mycojobs
