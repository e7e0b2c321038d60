// What a coordinator does for the workflows of a context that it leads, one round after the other:
//
//   inbox --> events and receipts are decided --> steps are taken by the engine --> committed --> effects are published
//
// Effects are published only once the step that asked for them is durable (10); who dies in between finds them again in
// the world (WorldIndex::queued()), and publishing twice is publishing once: the intent is the idempotency key. A
// commit that somebody else was faster than is thrown away, with its world. An effect begins in the name of its owner
// (AppliedManifest), while that actor may do the same by itself, and within the limits that hold for its jobs. A world,
// or an instance, that cannot be moved on is put off and holds no other up. One thread; steps run on a pool of threads
// (step_pool.h), and the engine has processes of its own. A commit waits a moment for the steps that it has begun; a
// step that takes longer is of a later commit, and delays no other world.
//
// A round serves the owners in turn, one world of each (owner_turns.h). It spends at most WorldLimits::owner_ms, and
// the commit that is under way then, on the worlds of an owner; the rest of them wait for the next round.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/flow_run.h"
#include "coordinator/owner_turns.h"
#include "coordinator/step_pool.h"
#include "coordinator/world.h"
#include "coordinator/world_inbox.h"
#include "coordinator/world_traces.h"
#include "domain/job_limits.h"
#include "domain/rights.h"
#include "metrics/metrics.h"
#include "mycojobs/clock.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"
#include "mycojobs/workflows.h"

namespace mycojobs {

struct WorldLimits {
  std::uint64_t snapshot_every = 5000;  // facts; and at least as many as there are instances
  std::size_t mail = 200, steps = 128;  // of a commit
  StepShares shares = {};               // of the threads for steps
  std::uint64_t step_wait_ms = 8;       // of a commit, for the steps that run; a round waits twice as long for an owner
  std::uint64_t owner_ms = 50;          // time of a round for the worlds of an owner
  std::size_t cell_mail = kMaxCellMail;
  // Of a commit, of what came in, and once more of what steps gave. The store takes 256 MiB at once.
  std::size_t bytes = 48U << 20;
  std::uint64_t collected = 64U << 20;             // bytes of long states that are written before a collection
  std::size_t snapshot_bytes = kMaxSnapshotBytes;  // a world that is larger has none: its journal has it all
};

class WorldRounds {
 public:
  struct Parts {
    Store& store;
    FlowStore& flows;
    WorkflowStore& worlds;
    StepTaker take_step;
    const Clock& clock;
    JobLimits limits = {};  // of the jobs and flows that effects start
    std::shared_ptr<Metrics> metrics = no_metrics();
    std::function<void()> wake = [] {};  // any thread: a step has ended between two rounds
  };
  WorldRounds(Parts parts, Id context, WorldLimits limits = {})
      : parts_(std::move(parts)), context_(context), limits_(limits), pool_(limits.shares, parts_.wake) {}

  // How long until the next one, ms, if nothing happens meanwhile; 0: there is more. Error unavailable: the store's.
  Result<std::uint64_t> round();
  // We lead since now, or the connection was lost: what was under way is looked for.
  Result<void> recover();
  // Returns how often the rounds have waited for steps.
  std::uint64_t step_waits() const { return step_waits_; }

 private:
  struct StepExecution;
  struct World {
    LoadedWorld loaded;
    WorldInbox inbox = WorldInbox();
    std::map<CellId, std::uint64_t> put_off = {};              // instances without a step for now, until: our clock
    std::map<CellId, std::uint64_t> pauses = {};               // how long they were put off last, ms
    std::vector<std::shared_ptr<StepExecution>> running = {};  // steps that the pool has, in the order of their begin
    bool is_slow = false;                                      // its steps take longer than a commit waits for them
    std::string looked = {};                                   // up to this carrier
    std::uint64_t next_look_ms = 0;                            // our clock
    std::set<std::string> unheard = {};                        // carriers that have ended, as a look has found
    std::map<std::string, std::string> refused = {};  // carrier to the reason for which its receipt was refused
    int drained = 0;                                  // passes to come to rest for a snapshot
  };
  struct PutOff {
    std::uint64_t until_ms = 0;  // our clock
    std::string why;
  };
  void add_turn(const std::string& name);
  bool is_put_off(const std::string& name) const;
  Id owner_of_world(const std::string& name) const;  // 0: unknown until the world is loaded
  // Returns whether any world was worked on.
  Result<bool> take_turns();
  // Returns whether the world has more to do.
  Result<bool> work(Id owner, const std::string& name, std::uint64_t until_ms);
  void put_off(const std::string& name, const Error&);
  Result<World*> world_of(const std::string& name);
  Result<bool> work_once(World&);
  bool drains(World&);
  Result<bool> take_snapshot(LoadedWorld&);
  std::uint64_t due_of(const World&);
  // What comes in.
  Result<std::size_t> take_mail(World&);
  Result<void> take_one(LoadedWorld&, const WorldMail&);
  Result<void> receive(LoadedWorld&, ReceiptArrived);
  // What it decides stands in that trace; empty: in none.
  Result<void> decide_traced(LoadedWorld&, const std::string& traceparent, const WorkflowInput&);
  std::string trace_of(const LoadedWorld&, const PendingIntent&) const;
  std::string trace_of(const LoadedWorld&, std::uint64_t height) const;
  // As the record of who carries it says.
  void recall_trace(const LoadedWorld&, const std::string& intent, const std::string& traceparent);
  Result<std::optional<ReceiptArrived>> receipt_of_job(LoadedWorld&, const std::string& job_key);
  Result<std::optional<ReceiptArrived>> receipt_of_flow(LoadedWorld&, const std::string& flow_key);
  Result<std::optional<ReceiptArrived>> receipt_of_carrier(LoadedWorld&, const std::string& carrier);
  Result<std::string> pubkey_of(Id runner);
  Result<std::string> why_receipt_fails(const EndedJob&, const Job&, const std::string& intent);
  Result<void> hear_of_ends(World&);
  // For what no notice came of.
  Result<void> look_around();
  Result<std::vector<std::string>> look_at(const std::vector<std::string>& names);
  bool has_waited(const World&, const WorldGlance&);
  Result<std::size_t> settle_by_time(LoadedWorld&);
  // Steps.
  Result<std::size_t> take_steps(World&);
  Result<void> begin_steps(World&, std::size_t most, std::size_t most_bytes);
  void submit(const std::string& world, Id owner, std::shared_ptr<StepExecution>);
  static Result<StepAnswer> answer_of(const StepTaker&, const StepExecution&);
  void wait_for_steps(World&);
  Result<std::size_t> end_steps(World&, std::size_t most_bytes);
  void put_step_off(World&, const CellId&, const MailId&, const std::string& why);
  void forget(const std::string& name);  // Drops the decisions that were not committed.
  // Effects.
  Result<std::size_t> publish(LoadedWorld&);
  Result<void> publish_one(LoadedWorld&, const std::string& intent);
  struct Carried;
  Result<std::string> carry_out(LoadedWorld&, const PendingIntent&, const CellState&, Carried&);
  // As the context's record is in this round. Error denied: that actor may not.
  Result<const Place*> place();
  Result<void> may_act(Id owner, Action, const Thing&);
  Result<Job> submit_job(LoadedWorld&, const PendingIntent&, const CellState&, const EffectSpec&, Id owner, Carried&);
  Result<std::string> start_flow(LoadedWorld&, const PendingIntent&, Id owner, const nlohmann::json& params, Carried&);
  // Hash of the definition of the newest flow of that name that may be begun in the owner's name.
  Result<std::string> definition_for(Id owner, const std::string& name);
  Result<std::string> send_signal(const PendingIntent&, Id owner, const nlohmann::json& params);
  Result<void> cancel_effects(LoadedWorld&, const std::string& intent);
  Result<void> cancel_instance(LoadedWorld&, const WorldMail&);
  // key: of whoever asks, so that a flow is cancelled once. What has ended stays as it is.
  Result<void> cancel_carrier(const std::string& key, const std::string& carrier, Id owner);
  Sample sample() const;

  Parts parts_;
  Id context_;
  WorldLimits limits_;
  RunCache runs_{1000};
  std::map<std::string, World> worlds_;
  std::map<std::string, PutOff> put_off_;  // worlds
  std::map<std::string, Id> owners_;       // of worlds, as of their last load
  OwnerTurns turns_;
  std::map<Id, std::uint64_t> waited_ms_;  // of this round, for steps, by owner
  std::uint64_t step_waits_ = 0;
  std::map<std::string, WorldTraces> traces_;
  std::map<Id, std::string> pubkeys_;                    // of runners, as of this round
  std::optional<Place> place_;                           // the same
  std::uint64_t next_list_ms_ = 0, next_glance_ms_ = 0;  // our clock
  std::uint64_t now_ms_ = 0;                             // the store's clock, as of this pass
  StepPool pool_;                                        // last: its threads end before the rest
};

}  // namespace mycojobs
