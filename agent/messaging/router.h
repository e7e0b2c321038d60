// Sends jobs of flows to remote supervisors: nodes with a supervisor_url. The record of the runner with that address
// selects the protocol. A runner with a secret is called over JSON-RPC (job.start, job.status; remote_job.h). A
// runner with a public key receives a signed message (docs/tenants.md), over any transport that reaches it. The jobs
// are queued for each host (router_queue(), store/job_fields.h). A router claims them as a runner does, with a lease,
// fences and cancellation, and polls the supervisor. After a crash of the router the lease expires, and the next router
// continues with the same remote job.
//
// At most `concurrency` jobs are remote at a time, and router_scheduler.h shares them between the supervisors. Threads:
// one, and one for each remote job at a supervisor with a secret.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/ed25519.h"
#include "base/result.h"
#include "messaging/message_artifacts.h"
#include "net/networks.h"
#include "store/store.h"

namespace mycojobs {

struct RouterSettings {
  Id context = 0;
  std::uint32_t concurrency = 16;  // maximum number of remote jobs
  std::uint32_t lease_ms = 15000;
  std::uint64_t default_timeout_ms = 600'000;
  Networks networks;                      // networks that may be called
  std::shared_ptr<const SigningKey> key;  // key of this coordinator for signed messages; if null, no messages are sent
  MessageAttachments files = {};
};

class Router {
 public:
  // Starts the router. The clock must outlive it.
  static Result<std::unique_ptr<Router>> start(StoreFactory&, const Clock&, RouterSettings);
  // Stops the threads and releases the jobs, so that another router continues with them.
  virtual ~Router() = default;
};

}  // namespace mycojobs
