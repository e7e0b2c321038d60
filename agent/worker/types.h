// What the agent's threads hand to one another.
//
//   intake --Start--> run loop --reports--> reporter --settled--> intake (slot), lease keeper
//      '---claim----> lease keeper --fences, kills--> run loop
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ed25519.h"
#include "domain/profiles.h"
#include "domain/retry.h"
#include "metrics/metrics.h"
#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"
#include "mycojobs/store.h"
#include "traces/traces.h"
#include "worker/artifact_queue.h"
#include "worker/secrets.h"

namespace mycojobs {

using RunNumber = std::uint64_t;  // of this agent, never used twice

enum class JobPipe : std::uint32_t { out, err, channel, requests };  // our ends of a run's descriptors

// A job that was claimed and cannot begin.
struct CannotBegin {
  RunNumber run = 0;
  ClaimRef claim;
  std::string queue;                       // that it was claimed from
  std::uint32_t attempt = 1, retries = 0;  // as of Start
  Error error;                             // unavailable: it is no fault of the job; unsupported: another attempt may
  bool is_of_caller = false;               // jobs of other callers may begin meanwhile
};

struct Start {
  RunNumber run = 0;
  ClaimRef claim;
  Id context = 0, caller = 0;
  const Executor* executor = nullptr;        // that runs it
  bool calls_objects = false;                // its executor's: its scripts may call the object store
  std::vector<RunSpec> specs;                // by stage of its executor; the run loop gives them their numbers
  std::uint64_t deadline_boot_ms = 0;        // of all its runs together; 0: their limits alone
  std::uint32_t attempt = 1, retries = 0;    // of the job: whether a failure is followed by another attempt
  std::shared_ptr<ArtifactQueue> artifacts;  // before the conversation, which writes into it
  std::shared_ptr<Conversation> conversation;
  // Its executor, or the disk that its inputs lie on, may let us wait: on the lane of this name (worker/lanes.h)
  // `begin` makes the conversation, and it gets from stage to stage. Empty: nobody waits, and the conversation is
  // there.
  std::string lane = {};
  bool finish_waits = false;  // the conversation finishes on the lane, too
  std::function<Result<std::unique_ptr<Conversation>>()> begin = {};
  std::string queue = {};                              // that it was claimed from
  std::uint64_t output_bytes = 1ULL << 20;             // of its output that is kept: half head, half tail
  bool output_kill = false;                            // over it the job is killed
  bool artifacts_optional = false;                     // policy artifacts.optional
  std::shared_ptr<const Redactor> redactor = nullptr;  // of the secrets that it was granted; null: there are none
  std::vector<SecretValue> warm_secrets = {};          // that it was given, if its process may stay

  // It has waited for so long before its first run: what it may take counts from there.
  void has_waited(std::uint64_t ms) { deadline_boot_ms += deadline_boot_ms > 0 ? ms : 0; }
};

// A question of a job's script to its agent: JSON {id, method, params}.
struct BrokerCall {
  RunNumber run = 0;
  Id context = 0, caller = 0;
  ClaimRef claim;
  std::string json;
};

struct Outgoing {
  RunNumber run = 0;
  Report report;
  bool last = false;  // nothing follows for this run: its slot and lease are given back when it is stored
};

struct WorkerSettings {
  Runner runner;  // id, topic, local, actor_id; the rest is filled by the agent
  // The runner's actor is asked for its right to claim (ClaimRequest::actor); false: the operator's own agent (`dev`).
  bool claims_as_actor = false;
  std::vector<Id> contexts;
  std::vector<Id> own_servers;            // contexts whose store is a server of their own; the others share one
  std::set<Id> folder_contexts;           // contexts whose script hosts have folders of the host (virtual environments)
  std::vector<std::string> script_types;  // whose queues are served; empty: all that the executors run
  std::uint32_t slots = 1;
  std::uint32_t lease_ms = 30000;
  std::uint32_t grace_ms = 10000;  // between TERM and KILL
  std::uint64_t default_timeout_s = 600;
  std::uint64_t max_script_bytes = 4ULL << 20;
  std::uint64_t max_result_bytes = 1ULL << 20;
  std::uint64_t max_artifact_bytes = 64ULL << 20;  // of a job, all together
  std::uint64_t output_rate = 8ULL << 20;          // bytes that are read of a job in a second; 0: any number
  std::uint32_t frame_rate = 10000;                // frames, the same
  // Of all jobs of a caller, and of a context, on this host; 0: any number.
  std::uint64_t caller_artifact_bytes = 1ULL << 30, context_artifact_bytes = 4ULL << 30;
  std::uint32_t max_deliveries = 3;
  PolicyRequest defaults;  // of the operator, for every job: stands instead of what the executor's profile has
  Ceilings ceilings;
  RetryPolicy retry;
  // false: a run goes on while the store is away, and dies (or finds its end refused) only if its claim was given on.
  bool kill_on_lease_lost = true;
  std::uint64_t retention_ms = 24ULL * 3600 * 1000, retention_count = 0;  // of ended jobs; 0: no bound
  std::vector<std::string> allowed_prerequisites;  // beginnings of what an agent may look at, as "file:/data/"
  std::uint64_t prerequisites_timeout_ms = 24ULL * 3600 * 1000;  // how long a job may wait for them; 0: for ever
  SecretPlaces secrets;
  std::shared_ptr<const SigningKey> key;  // of the runner: signs receipts; null: nothing is signed
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  std::string state_dir;  // for what must outlive us; empty: nothing
};

// The moment, on CLOCK_BOOTTIME, at which a run dies unless its lease is renewed: counted from before the claim or
// renewal was SENT, and early enough to kill before the store gives the job to somebody else.
inline std::uint64_t fence_after(std::uint64_t sent_boot_ms, std::uint32_t lease_ms) {
  const std::uint32_t margin = lease_ms / 5 < 2000 ? lease_ms / 5 : 2000;
  return sent_boot_ms + lease_ms - margin;
}

}  // namespace mycojobs
