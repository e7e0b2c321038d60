// Delivers notifications about the end of jobs and flows (model/notify_targets.h): calls webhooks, submits jobs, sends
// messages. A notification is stored (mj:notices) in the same server-side step as the end. It is deleted after the
// delivery to all targets:
//
//   due --claimed--> delivered to all targets --> deleted
//               `--> some targets failed --delay, doubled each time--> due again, at most kMaxAttempts times
//
// After a crash the notification is due again. A webhook can then be called twice with the same id; a job runs once,
// and a message is written once. The notifier runs on the threads of a pool. Each notification with webhook calls in
// progress has a thread of its own.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "jobs/job_limits.h"
#include "model/notify_targets.h"
#include "net/web_address.h"
#include "store/hinted_loop.h"
#include "store/store.h"
#include "store/store_health.h"

namespace mycojobs {

struct NotifierSettings {
  Id context = 0;
  WebhookAllowList webhooks;  // webhooks that may be called
  std::string secrets;        // path of the file of secrets (net/webhook.h), read for each notification; if empty,
                              // requests are not signed
  JobLimits limits = {};      // limits of the jobs that notifications submit
  std::string https_ca = {};  // HttpPost::ca of webhooks
};

class Notifier final : public HintedLoop {
 public:
  // Starts the notifier. The clock and the pool must outlive it.
  static Result<std::unique_ptr<Notifier>> start(StoreFactory&, const Clock&, LoopPool&, NotifierSettings);
  // Waits for the end of the current iteration. Notifications that are being delivered are released and due again at
  // once.
  ~Notifier() override;

  void ended() override;

 private:
  struct TargetRequest;
  struct NoticeDelivery;

  Notifier(std::unique_ptr<Store>, const Clock&, NotifierSettings);
  std::uint64_t run_iteration() override;
  // Completes deliveries that have ended and starts those that are due. Returns the time in ms until more work is due.
  Result<std::uint64_t> run_round();
  Result<void> start_delivery(const Notice&);
  // Submits jobs and writes messages at once. Webhooks are called in a thread if the limits allow another one.
  Result<void> start_delivery(NoticeDelivery&, const Fields& record);
  // Returns the targets of the record and of the context that match this end and were not reached yet.
  Result<std::vector<TargetRequest>> find_targets(NoticeDelivery&, const Fields& record);
  // Submits the job, sends the message, or adds the webhook to NoticeDelivery::webhooks.
  void deliver(NoticeDelivery&, TargetRequest);
  // Checks the current permissions of the actor, which may have been revoked since the record was written.
  Result<void> check_create_permission(const TargetRequest&, std::string_view resource);
  Result<void> submit_job(const NoticeDelivery&, const TargetRequest&);
  // The id of the message is derived from the id of the notification, so that the message is written once.
  Result<void> send_message(const NoticeDelivery&, const TargetRequest&);
  bool read_secrets(NoticeDelivery&);  // returns false if the file cannot be read
  void call_webhooks(NoticeDelivery&);
  Result<void> retry_delivery(const NoticeDelivery&, std::uint64_t after_ms);
  Result<void> complete_delivery(const NoticeDelivery&);
  // Ends the notice, and records and logs why its targets were not reached.
  Result<void> report_failure(const Notice&, const std::string& reason);

  std::unique_ptr<Store> store_;
  const Clock& clock_;
  NotifierSettings settings_;
  std::list<NoticeDelivery> deliveries_;
  LogOnce log_once_;
};

}  // namespace mycojobs
