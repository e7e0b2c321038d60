// Sends jobs of flows to supervisors elsewhere: nodes with a supervisor_url. How, says the record of the runner with
// that address: one with a secret is called (job.start, job.status; RemoteJob), one with a public key is sent a signed
// message (docs/tenants.md), whichever transport reaches it. Their jobs are queued for each host (router_queue(),
// store/job_fields.h); a router claims them as a runner does, with a lease, fences and cancellation, and follows each
// at its supervisor (RemoteJob). If it dies, the lease runs out and the next one goes on with the same job there.
//
// At most `concurrency` jobs are away at one time, and no supervisor has more places than are free (router_queues.h).
// Threads: one, and one for each job that is away at a supervisor with a secret.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/ed25519.h"
#include "coordinator/message_files.h"
#include "domain/networks.h"
#include "mycojobs/clock.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct RouterSettings {
  Id context = 0;
  std::uint32_t concurrency = 16;  // jobs that are away at one time
  std::uint32_t lease_ms = 15000;
  std::uint64_t default_timeout_ms = 600'000;
  Networks networks;                      // that may be called
  std::shared_ptr<const SigningKey> key;  // of this coordinator, for supervisors that are sent messages; null: none
  CarriedFiles files = {};
};

class Router {
 public:
  static Result<std::unique_ptr<Router>> start(StoreFactory&, const Clock&, RouterSettings);
  virtual ~Router() = default;  // gives its jobs back: another router goes on with them
};

}  // namespace mycojobs
