// The types that the threads of the agent pass to one another, and the settings of the agent.
//
//   intake --JobStart--> run loop --RunReport--> reporter --run numbers--> intake (frees the slots), lease keeper
//      '---ClaimRef--> lease keeper --fences, kills--> run loop
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/artifact_queue.h"
#include "artifacts/logs/log_spool.h"
#include "artifacts/transfer/artifact_source.h"
#include "base/ed25519.h"
#include "executors/executor.h"
#include "jobs/retry.h"
#include "model/retention.h"
#include "security/ceilings.h"
#include "security/secrets.h"
#include "store/claim_store.h"
#include "telemetry/metrics.h"
#include "telemetry/traces.h"
#include "worker/denied_write.h"
#include "worker/logs/log_export.h"

namespace mycojobs {

class ArtifactBucket;
class HeldFileLinks;
class Networks;

using RunNumber = std::uint64_t;  // number of a run, unique within this agent process

enum class JobPipe : std::uint32_t { out, err, channel, requests };  // the agent's ends of the pipes of a run

// Returns the name of the strand (base/strands/strand_pool.h) for the artifacts of a context. Each context has a folder
// of its own, which can be a mount.
inline constexpr std::string_view kDiskStrandPrefix = "disk ";
inline std::string disk_strand_name(Id context) { return std::string(kDiskStrandPrefix) + std::to_string(context); }
// Returns the name of the strand for the logs of a context, which are not delayed by large artifacts.
inline constexpr std::string_view kLogStrandPrefix = "log ";
inline std::string log_strand_name(Id context) { return std::string(kLogStrandPrefix) + std::to_string(context); }
// Strand for the folder of the host with this path.
inline constexpr std::string_view kFolderStrandPrefix = "folder ";
inline std::string folder_strand_name(const std::string& path) { return std::string(kFolderStrandPrefix) + path; }

// A file that a job needs and that is on another host.
struct MissingInput {
  RemoteArtifact artifact;
  std::string store_name;  // artifact_store_name() of the context
};
// The end of a fetch of missing inputs.
struct InputsEnd {
  FetchStatus status = FetchStatus::received;
  // If the status is not `received`: holder and reason of the first file that was not received.
  FileHolder holder;
  std::string reason;
};

// A job that was claimed and could not be started.
struct StartRejected {
  RunNumber run = 0;
  ClaimRef claim;
  std::string queue;                       // queue that the job was claimed from
  std::uint32_t attempt = 1, retries = 0;  // as in JobStart
  Error error;                    // unavailable: not a fault of the job; unsupported: another attempt may succeed
  bool is_caller_paused = false;  // other callers' jobs of the queue may start
};

// A claimed job that is ready to run.
struct JobStart {
  RunNumber run = 0;
  ClaimRef claim;
  Id context = 0, caller = 0;
  const Executor* executor = nullptr;      // executor that runs the job
  bool uses_object_store = false;          // whether its scripts may call the object store
  std::vector<RunSpec> specs;              // by stage of the executor; the run loop sets the run numbers
  std::uint64_t deadline_boot_ms = 0;      // deadline of all stages together; if 0, only their own limits apply
  std::uint32_t attempt = 1, retries = 0;  // values of the job that decide whether a failure is retried
  // Sink of the conversation. Declared before the conversation, so that the sink outlives it.
  std::shared_ptr<ArtifactQueue> artifacts;
  std::shared_ptr<Conversation> conversation;
  std::shared_ptr<LogSink> exported_log = {};  // null if the output is not exported
  std::shared_ptr<LogSpool> log_spool = {};    // null if the log is not stored on the disk
  // Name of the strand (base/strands/strand_pool.h) on which create_conversation() and Conversation::next_stage() are
  // called, since the executor or the disk with the inputs can block. Empty if nothing blocks; the conversation exists
  // already then.
  std::string strand = {};
  bool can_block_in_finish = false;  // if true, Conversation::finish() is called on the strand as well
  // Folders of the host in which the job can create files. If the job fails because of a denied access, the cause is
  // looked for on the strand of the folder, whose disk can block (denied_write.h).
  std::vector<JobFolder> folders = {};
  std::function<Result<std::unique_ptr<Conversation>>()> create_conversation = {};
  // Returns the inputs that the latest call of create_conversation has not found on this host. If there are any, that
  // call has failed, and can be repeated after they were fetched. REQUIRES: create_conversation is not running.
  std::function<std::vector<MissingInput>()> list_missing_inputs = {};
  std::string queue = {};                   // queue that the job was claimed from
  std::uint64_t output_bytes = 1ULL << 20;  // limit of the stored output, half for its beginning and half for its end
  bool output_kill = false;                 // whether a job that exceeds output_bytes is killed
  bool artifacts_optional = false;          // policy artifacts.optional
  std::shared_ptr<const Redactor> redactor = nullptr;  // redacts the secrets of the job; null if the job has no secrets
  std::vector<Secret> warm_secrets = {};               // secrets of the job if its process may be reused

  // Moves the deadline by the time that the job has waited before its first run.
  void extend_deadline(std::uint64_t ms) { deadline_boot_ms += deadline_boot_ms > 0 ? ms : 0; }
};

// A call of a job's script to its agent: JSON {id, method, params}.
struct BrokerCall {
  RunNumber run = 0;
  Id context = 0, caller = 0;
  ClaimRef claim;
  std::string json;
};

// A report of a run on its way to the store.
struct RunReport {
  RunNumber run = 0;
  Report report;
  bool is_last = false;  // slot and lease of the run are released when its last report is stored
  // An end is stored after the upload of its artifacts (worker/reports/end_uploads.h).
  bool awaits_upload = false;
  bool was_uploaded = false;  // the receipt is complete, and the end may have become a failure since then
};

struct WorkerSettings {
  Runner runner;  // id, topic, local and actor_id; the agent sets the other fields
  // Whether claims need the right of the runner's actor (ClaimRequest::actor). False for the operator's own agent
  // (`dev`).
  bool claims_as_actor = false;
  std::vector<Id> contexts;
  // Number of the server of a context. Contexts with the same number share a server; 0 is the default server, which
  // contexts without an entry use.
  std::map<Id, std::size_t> servers;
  std::set<Id> folder_contexts;  // contexts with folders of the host in their script hosts (virtual environments)
  std::vector<std::string> script_types;  // served script types; all types of the executors if empty
  std::uint32_t slots = 1;
  std::uint32_t lease_ms = 30000;
  std::uint32_t grace_ms = 10000;  // time between SIGTERM and SIGKILL
  std::uint64_t default_timeout_s = 600;
  std::uint64_t max_script_bytes = 4ULL << 20;
  std::uint64_t max_result_bytes = 1ULL << 20;
  std::uint64_t max_artifact_bytes = 64ULL << 20;  // limit of all artifacts of a job together
  std::uint64_t output_rate = 8ULL << 20;          // bytes that are read from a job in a second; 0 means unlimited
  std::uint32_t frame_rate = 10000;                // frames that are read from a job in a second; 0 means unlimited
  // Quotas of all jobs of a caller, and of a context, on this host; 0 means unlimited.
  std::uint64_t caller_artifact_bytes = 1ULL << 30, context_artifact_bytes = 4ULL << 30;
  // Transfers of artifacts between agents (artifacts/transfer/).
  std::uint64_t holder_timeout_ms = 24ULL * 3600 * 1000;  // maximum wait for a runner that has inputs of a job
  std::uint64_t transfer_rate = 64ULL << 20;              // bytes sent in a second; 0 means unlimited
  std::shared_ptr<HeldFileLinks> file_links;              // of the HTTPS listener of this process; null: it has none
  std::shared_ptr<const Networks> link_networks;          // networks for downloads over HTTPS; null permits any address
  std::shared_ptr<const ArtifactBucket> bucket;           // null: artifacts stay on the hosts of their jobs
  std::uint64_t store_timeout_ms = 24ULL * 3600 * 1000;   // maximum time for the upload of the artifacts of a job
  std::uint64_t cache_bytes = 4ULL << 30, cache_age_ms = 7ULL * 24 * 3600 * 1000;  // limits of a context on this host
  std::uint32_t max_deliveries = 3;
  PolicyRequest defaults;  // set by the operator for every job; override the profiles of the executors
  Ceilings ceilings;
  std::vector<ContextFiles> files;  // owners of files of the contexts that have one
  RetryPolicy retry;
  // If false, a run continues while the store is unavailable. It is killed, or its end is refused, only if its claim
  // was passed on to another runner.
  bool kill_on_lease_lost = true;
  Retention retention = {};
  std::uint64_t retention_count = 0;               // maximum number of ended jobs; 0 means unlimited
  std::vector<std::string> allowed_prerequisites;  // prefixes of permitted prerequisites, such as "file:/data/"
  std::uint64_t prerequisites_timeout_ms = 24ULL * 3600 * 1000;  // maximum wait for prerequisites; 0 means unlimited
  SecretSources secrets;
  std::shared_ptr<const SigningKey> key;  // key of the runner, which signs receipts; if null, receipts are not signed
  std::shared_ptr<LogExport> log_export = {};  // null if the output of jobs is not exported
  std::shared_ptr<Metrics> metrics = no_metrics();
  std::shared_ptr<Traces> traces = no_traces();
  std::string state_dir;  // folder for data that outlives the process; if empty, nothing is stored
};

// Returns the interval in ms of a check of a context that only finds work after a lost hint: 500 ms for each context
// of the agent, within these limits. So 60 contexts together cause two such checks a second.
inline std::uint64_t get_safety_interval_ms(std::size_t contexts, std::uint64_t min_ms) {
  return std::clamp<std::uint64_t>(contexts * 500, min_ms, 30000);
}

// Returns the time on CLOCK_BOOTTIME at which a run is killed unless its lease is renewed. It counts from before the
// claim or the renewal was sent, and lies before the end of the lease, so that the run is dead before the store gives
// the job to another runner.
inline std::uint64_t compute_fence_boot_ms(std::uint64_t sent_boot_ms, std::uint32_t lease_ms) {
  const std::uint32_t margin = lease_ms / 5 < 2000 ? lease_ms / 5 : 2000;
  return sent_boot_ms + lease_ms - margin;
}

}  // namespace mycojobs
