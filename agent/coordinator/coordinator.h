// The coordinator: for each context that it serves, leads or follows; while it leads, recovers what was under way,
// moves due flows on, starts what schedules say. Killing it loses nothing.
//
//   finder            main -- stop, is_healthy
//     | starts one for each context that has keys
//     v
//   context thread:   wait (mj:flows:due, the next due moment, a second) --> ContextRounds::round() --> wait ...
//
// A context has a thread, because its Redis may be its own and away: each with a connection for flows, one for jobs and
// one to be woken by. Beside it one for its workflows (world_thread.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ed25519.h"
#include "coordinator/message_files.h"
#include "domain/networks.h"
#include "domain/notify.h"
#include "domain/profiles.h"
#include "metrics/metrics.h"
#include "mycojobs/clock.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct CoordinatorSettings {
  std::vector<Id> contexts;     // empty: those that are found, again every discover_ms
  std::vector<Id> own_servers;  // contexts with a Redis of their own: served beside those that are found
  std::uint32_t lease_ms = 10000;
  std::uint32_t discover_ms = 5000;
  std::uint64_t retention_ms = 24ULL * 3600 * 1000;  // of ended flows; 0: for ever
  std::string where;                                 // shown to people: host and pid
  Networks networks;                                 // in which supervisors may be called
  Webhooks webhooks;                                 // that may be called
  std::string webhook_secrets;                       // file; empty: what they get is not signed
  std::vector<std::string> allowed_prerequisites;    // as an agent's
  std::uint64_t prerequisites_timeout_ms = 0;
  std::shared_ptr<const SigningKey> key;        // by which supervisors elsewhere know this one; null: they do not
  std::string mycelium_url;                     // of a node's API; empty: none
  std::uint32_t deliveries = 16;                // at one time: hosts of messages; jobs at supervisors elsewhere
  std::string workflow_host;                    // path of mycojobs-workflowhost; empty: workflows are left to others
  CarriedFiles files;                           // of messages
  Ceilings ceilings;                            // of the jobs that it starts in somebody's name
  std::uint64_t max_script_bytes = UINT64_MAX;  // of one of them: the setting job.max_script_bytes
  std::shared_ptr<Metrics> metrics = no_metrics();
};

class Coordinator {
 public:
  // Without threads until begin(), which the caller may put off: an API that is started in between has its threads even
  // where the host has too few for all contexts.
  static std::unique_ptr<Coordinator> make(StoreFactory&, const Clock&, CoordinatorSettings);
  static Result<std::unique_ptr<Coordinator>> start(StoreFactory&, const Clock&, CoordinatorSettings);  // both
  virtual ~Coordinator() = default;  // stops, gives leadership back
  // A context that cannot be served for want of threads is tried again every discover_ms.
  virtual Result<void> begin() = 0;
  virtual void replace_ceilings(const Ceilings&) = 0;  // any thread: from now on
  virtual void stop() = 0;                             // finishes the commit that is under way
  // All its threads, lately. Call it from one thread, now and then: it also starts what could not be started before.
  virtual bool is_healthy() = 0;
  // Empty: flows of every context that it serves move on, by it or by who leads. Any thread.
  virtual std::string why_not_ready() const = 0;
  // Says in the metrics how it stands now; what a context holds its leader says every few seconds. Any thread.
  virtual void measure() const = 0;
};

}  // namespace mycojobs
