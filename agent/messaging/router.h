// Sends jobs of flows to remote supervisors: nodes with a supervisor_url. The record of the runner with that address
// selects the protocol. A runner with a secret is called over JSON-RPC (job.start, job.status; remote_job.h). A
// runner with a public key receives a signed message (docs/tenants.md), over any transport that reaches it. The jobs
// are queued for each host (router_queue(), store/job_fields.h). A router claims them as a runner does, with a lease,
// fences and cancellation, and polls the supervisor. After a crash of the router the lease expires, and the next router
// continues with the same remote job.
//
// At most `concurrency` jobs are remote at a time, and router_scheduler.h shares them between the supervisors. A router
// runs on the threads of a pool. Each remote job at a supervisor with a secret has a thread of its own.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ed25519.h"
#include "base/result.h"
#include "jobs/lease_observer.h"
#include "messaging/message_artifacts.h"
#include "messaging/router_scheduler.h"
#include "net/networks.h"
#include "store/hinted_loop.h"
#include "store/store.h"
#include "store/store_health.h"

namespace mycojobs {

struct RemoteRequest;  // messaging/remote_job.h

struct RouterSettings {
  Id context = 0;
  std::uint32_t concurrency = 16;  // maximum number of remote jobs
  std::uint32_t lease_ms = 15000;
  std::uint64_t default_timeout_ms = 600'000;
  Networks networks;                      // networks that may be called
  std::shared_ptr<const SigningKey> key;  // key of this coordinator for signed messages; if null, no messages are sent
  MessageAttachments files = {};
  std::string https_ca = {};  // HttpPost::ca of calls to supervisors
};

class Router final : public HintedLoop {
 public:
  // Starts the router. The clock and the pool must outlive it.
  static Result<std::unique_ptr<Router>> start(StoreFactory&, const Clock&, LoopPool&, RouterSettings);
  // Stops the threads and releases the jobs, so that another router continues with them.
  ~Router() override;

  void ended() override;

 private:
  struct RoutedJob;

  Router(std::unique_ptr<Store>, const Clock&, RouterSettings);
  std::uint64_t run_iteration() override;
  // The hint is the name of a queue. An unknown queue causes an early scan for queues.
  void on_hint(std::string_view queue) override;
  void reconnected() override { next_queue_scan_ms_ = next_claim_ms_ = 0; }

  Result<void> run_round();
  Result<void> report(Report);
  Result<void> store_ends();  // stores the ends of completed jobs, after their log lines
  Result<void> renew_leases();
  // Expires the leases of dead routers, which were not renewed for their whole duration.
  Result<void> expire_leases();
  bool has_scan_hint() const;  // returns whether a scan for queues is due earlier than usual
  // Returns whether more jobs can be claimed at once.
  Result<bool> claim_jobs();
  // Releases jobs in reverse order, which restores the previous order of the queue.
  Result<void> requeue_unrouted(std::vector<Report> jobs);
  // Finds the queues of remote supervisors. No agent claims from them.
  Result<void> find_queues();
  // A flow cannot make the coordinator call an arbitrary address: only addresses of registered runners are called.
  Result<std::optional<Runner>> find_supervisor(const std::string& url);
  RemoteRequest make_remote_request(const ClaimedJob&) const;
  // Sends a claimed job to its supervisor, or ends the job if this is not possible. releases: receives the release of
  // the job if its supervisor has no free slot; the queue was then polled for another host.
  Result<void> route_job(ClaimedJob, std::vector<Report>& releases);
  Result<void> end_as_refused(const ClaimedJob&, const std::string& reason);
  RoutedJob& add_routed_job(ClaimedJob, std::string host);
  // Sends a copy of the job in a message, once for each attempt. The job stays claimed.
  Result<void> send_by_message(ClaimedJob, std::string host, const Runner& supervisor, RemoteRequest);
  // Stores the message under the first id that no other client uses. The candidates are derived from the attempt of the
  // job.
  Result<Message> store_message(const Runner& supervisor, const RemoteRequest&);
  // Signs and stores the message, or returns the message that a previous router signed. Returns no value if the id
  // belongs to a record of another client.
  Result<std::optional<Message>> write_message(const Message& unsigned_message);
  // Returns the message without its id and signature.
  Result<Message> make_message(const Runner& supervisor, const RemoteRequest&);
  // Returns the results of all dependencies and the artifacts that the job lists in `inputs`, as JSON.
  Result<std::string> collect_inputs(const Job&);
  // Enqueues the message. Returns false if another message with the same key was sent before.
  Result<bool> route_message(const Message&);
  Result<void> cancel(RoutedJob&);
  // Ends a job that was sent by message, if its answer was received or its time is over. The answer is read from the
  // state of the message in mj:*. The record of the message is not trusted, since every actor with permission to send
  // messages can write it.
  Result<void> poll_message(RoutedJob&);

  std::unique_ptr<Store> store_;
  const Clock& clock_;
  RouterSettings settings_;
  RouterSlots slots_;
  RouterQueues queues_;
  std::string instance_;
  std::list<RoutedJob> routed_jobs_;
  LeaseObserver leases_;
  std::uint64_t next_claim_ms_ = 0, next_renewal_ms_ = 0, next_expiry_ms_ = 0, next_queue_scan_ms_ = 0,
                last_queue_scan_ms_ = 0;
  bool has_more_claims_ = false;  // the latest claims reached their limit
  std::mt19937_64 random_{std::random_device{}()};
  LogOnce log_once_, log_threads_;
};

}  // namespace mycojobs
