// The coordinator serves contexts. For each context it acquires the leadership or follows another coordinator. The
// leader recovers active flows, advances due flows and starts the flows of schedules. A crash of the coordinator loses
// nothing.
//
//   discovery thread  main thread -- stop, is_healthy
//     | starts one for each context that has keys
//     v
//   context thread:   wait (mj:flows:due, the next due time, one second) --> ContextLoop::run_round() --> wait ...
//
// Each context has a thread of its own, since a context can have its own Redis server and that server can be
// unreachable. The thread has connections for flows, for jobs and for wake-ups. A second thread runs the
// workflows of the context (workflows/deployment/deployment_thread.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ed25519.h"
#include "base/result.h"
#include "messaging/message_artifacts.h"
#include "model/notify_targets.h"
#include "net/networks.h"
#include "net/web_address.h"
#include "security/ceilings.h"
#include "store/flow_store.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

struct CoordinatorSettings {
  std::vector<Id> contexts;  // if empty, every context with keys, found by a scan every discover_ms
  // Contexts with a separate Redis server. They are served in addition to discovered contexts.
  std::vector<Id> contexts_with_own_redis;
  std::uint32_t lease_ms = 10000;
  std::uint32_t discover_ms = 5000;
  std::uint64_t retention_ms = 24ULL * 3600 * 1000;  // retention of completed flows; 0 means unlimited
  std::string location;                              // host and pid, shown to operators
  Networks networks;                                 // networks of the supervisors that may be called
  WebhookAllowList webhooks;                         // webhooks that may be called
  std::string webhook_secrets;                       // file with signing secrets; if empty, requests are not signed
  std::vector<std::string> allowed_prerequisites;    // same meaning as the setting of an agent
  std::uint64_t prerequisites_timeout_ms = 0;
  std::shared_ptr<const SigningKey> key;  // identifies this coordinator to remote supervisors; may be null
  std::string mycelium_url;               // URL of the API of a Mycelium node; may be empty
  // Maximum number of hosts that receive messages at the same time, and of remote jobs.
  std::uint32_t max_concurrent_deliveries = 16;
  std::string workflow_host;                    // path of mycojobs-workflowhost; if empty, no workflows are run
  MessageAttachments files;                     // artifacts of messages
  Ceilings ceilings;                            // limits of the jobs that the coordinator starts for an actor
  std::uint64_t max_script_bytes = UINT64_MAX;  // limit for the script of such a job (job.max_script_bytes)
  std::shared_ptr<Metrics> metrics = no_metrics();
};

class Coordinator {
 public:
  // Creates a coordinator without threads. An API server that is started before start_threads() gets its threads even
  // on a host that has too few threads for all contexts.
  static std::unique_ptr<Coordinator> make(StoreFactory&, const Clock&, CoordinatorSettings);
  // Calls make() and start_threads().
  static Result<std::unique_ptr<Coordinator>> start(StoreFactory&, const Clock&, CoordinatorSettings);
  // Stops the threads and releases the leadership of all contexts.
  virtual ~Coordinator() = default;
  // Starts the threads. If the thread of a context cannot be created, this is tried again every discover_ms.
  virtual Result<void> start_threads() = 0;
  // Applies to all jobs that are started from now on. Thread-safe.
  virtual void replace_ceilings(const Ceilings&) = 0;
  // Stops all threads, after their current commits.
  virtual void stop() = 0;
  // Returns whether all threads made progress recently, and retries threads that could not be created before. Call it
  // periodically, always from the same thread.
  virtual bool is_healthy() = 0;
  // Returns why flows of some context do not advance, or an empty text if every context has a live leader. Thread-safe.
  virtual std::string unready_reason() const = 0;
  // Refreshes the metrics of the coordinator itself. The leader of a context refreshes the metrics of that context.
  // Thread-safe.
  virtual void measure() const = 0;
};

}  // namespace mycojobs
