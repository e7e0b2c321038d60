// The coordinator serves contexts. For each context it acquires the leadership or follows another coordinator. The
// leader recovers active flows, advances due flows and starts the flows of schedules. A crash of the coordinator loses
// nothing.
//
//   discovery thread  main thread -- stop, is_healthy
//     | registers the loops of each context that has keys
//     v
//   pools of threads:  a due loop (a hint such as mj:flows:due, its due time) --> run_once() --> wait ...
//
// The loops of a context have no threads (base/loop_pool.h). The contexts of a Redis server share three pools: flows;
// messages, remote jobs and notifications; workflows. So a server that is unreachable delays only its own contexts. The
// cleanup of files has a pool of its own, since the disk may hang. The hints of a server arrive over one connection
// (StoreFactory::subscribe()).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "artifacts/transfer/held_file_sender.h"
#include "base/clock.h"
#include "base/ed25519.h"
#include "base/live_value.h"
#include "base/loop_pool.h"
#include "base/result.h"
#include "messaging/message_artifacts.h"
#include "model/notify_targets.h"
#include "net/networks.h"
#include "net/web_address.h"
#include "security/ceilings.h"
#include "store/flow_store.h"
#include "store/store.h"
#include "telemetry/metrics.h"
#include "workflows/deployment/cell_cache.h"
#include "workflows/deployment/step_pool.h"

namespace mycojobs {

class HeldFileLinks;  // artifacts/transfer/file_link.h

struct CoordinatorSettings {
  std::vector<Id> contexts;  // if empty, every context with keys, found by a scan every discover_ms
  // Contexts with a separate Redis server. They are served in addition to discovered contexts.
  std::vector<Id> contexts_with_own_redis;
  std::uint32_t lease_ms = 10000;
  std::uint32_t discover_ms = 5000;
  Retention retention;                             // of ended flows and messages
  std::string location;                            // host and pid, shown to operators
  Networks networks;                               // networks of the supervisors that may be called
  std::string https_ca;                            // HttpPost::ca of calls to supervisors and webhooks
  WebhookAllowList webhooks;                       // webhooks that may be called
  std::string webhook_secrets;                     // file with signing secrets; if empty, requests are not signed
  std::vector<std::string> allowed_prerequisites;  // same meaning as the setting of an agent
  std::uint64_t prerequisites_timeout_ms = 0;
  std::shared_ptr<const SigningKey> key;  // identifies this coordinator to remote supervisors; may be null
  std::string mycelium_url;               // URL of the API of a Mycelium node; may be empty
  // Maximum number of hosts that receive messages at the same time, and of remote jobs.
  std::uint32_t max_concurrent_deliveries = 16;
  std::string workflow_host;                    // path of mycojobs-workflowhost; if empty, no workflows are run
  CellCacheLimits cell_cache;                   // idle instances of a workflow in memory
  MessageAttachments files;                     // artifacts of messages
  std::string state_dir;                        // folder with files that are sent to agents; if empty, none are sent
  std::shared_ptr<HeldFileLinks> file_links;    // links that the HTTPS listener serves; null: no listener
  std::uint64_t transfer_rate = 0;              // maximum number of bytes of these files in a second; 0: unlimited
  Ceilings ceilings;                            // limits of the jobs that the coordinator starts for an actor
  std::uint64_t max_script_bytes = UINT64_MAX;  // limit for the script of such a job (job.max_script_bytes)
  std::shared_ptr<Metrics> metrics = no_metrics();
};

class MyceliumListener;  // messaging/transport/mycelium_transport.h

class Coordinator {
 public:
  // Creates a coordinator without threads. An API server that is started before start_threads() gets its threads even
  // on a host that has too few threads for the pools.
  Coordinator(StoreFactory&, const Clock&, CoordinatorSettings);
  ~Coordinator();  // stop()
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  // Starts the threads. If the first thread of a pool cannot be created, this is tried again every discover_ms.
  Result<void> start_threads();
  // Applies to all jobs that are started from now on. Thread-safe.
  void replace_ceilings(const Ceilings&);
  // Stops all threads, after their current commits, and releases the leadership of all contexts.
  void stop();
  // Returns whether the loop of every context has made progress since the latest call that returned true: no iteration
  // has lasted since then, and due loops did not wait for a thread. Retries threads that could not be created before.
  // Call it periodically, always from the same thread.
  bool is_healthy();
  // Replaces threads that are stuck, for example on a disk. Call it about each second, from the same thread.
  void start_missing_threads();
  // Returns why flows of some context do not advance, or an empty text if every context has a live leader. Thread-safe.
  std::string unready_reason() const;
  // Refreshes the metrics of the coordinator itself. The leader of a context refreshes the metrics of that context.
  // Thread-safe.
  void measure() const;

 private:
  class PrerequisiteLoop;
  class FileCleanupLoop;
  class ContextService;
  struct ServerPools;

  // Serves a context. The errors `unavailable` and `denied` are recorded instead of returned, so that other contexts
  // are served; the discovery thread tries again. Other errors are returned.
  Result<void> try_to_serve(Id context);
  Result<void> serve(Id context);
  Result<void> serve_all_contexts();
  void start_listener();
  void start_discovery();  // starts the discovery thread, unless all contexts are configured and served
  void run_discovery();
  // Starts the thread that sends files of this host, if it is not running. A later call tries again after an error.
  // REQUIRES: mutex_ is locked.
  void start_file_sender();

  StoreFactory& stores_;
  const Clock& clock_;
  const CoordinatorSettings settings_;
  LiveValue<Ceilings> ceilings_{std::make_shared<const Ceilings>(settings_.ceilings)};
  const std::string instance_;
  std::unique_ptr<Store> discovery_store_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false, has_started_ = false;
  bool discovery_failed_ = false;           // the last scan for contexts failed
  bool is_discovery_error_logged_ = false;  // the error that the thread was not created was logged
  StepShares step_shares_;                  // distribution of the threads for steps of workflows
  // The pools run the loops of the services, and outlive them.
  LoopPool file_pool_{"files", {.max_threads = 2, .max_replacements = 14}};
  std::map<std::string, std::unique_ptr<ServerPools>> server_pools_;  // by StoreFactory::server_name()
  std::map<Id, std::unique_ptr<ContextService>> services_;
  std::map<Id, std::string> unserved_contexts_;  // contexts that are not served, with the reason
  // Values of PooledLoop::progress() at the latest check in which all contexts had made progress.
  std::map<Id, std::uint64_t> checked_counts_;
  std::thread discovery_thread_;
  std::unique_ptr<MyceliumListener> listener_;  // null if no Mycelium node is configured
  HeldFileSender file_sender_;
  std::optional<LoopThread<HeldFileSender>> file_sender_thread_;
};

}  // namespace mycojobs
