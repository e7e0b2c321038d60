// Delivers notifications about the end of jobs and flows (model/notify_targets.h): calls webhooks, submits jobs, sends
// messages. A notification is stored (mj:notices) in the same server-side step as the end. It is deleted after the
// delivery to all targets:
//
//   due --claimed--> delivered to all targets --> deleted
//               `--> some targets failed --delay, doubled each time--> due again, at most kMaxAttempts times
//
// After a crash the notification is due again. A webhook can then be called twice with the same id; a job runs once,
// and a message is written once. Threads: one, and one for each notification with webhook calls in progress.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "jobs/job_limits.h"
#include "model/notify_targets.h"
#include "net/web_address.h"
#include "store/store.h"

namespace mycojobs {

struct NotifierSettings {
  Id context = 0;
  WebhookAllowList webhooks;  // webhooks that may be called
  std::string secrets;        // path of the file of secrets (net/webhook.h), read for each notification; if empty,
                              // requests are not signed
  JobLimits limits = {};      // limits of the jobs that notifications submit
};

class Notifier {
 public:
  // Starts the thread. The clock must outlive the notifier.
  static Result<std::unique_ptr<Notifier>> start(StoreFactory&, const Clock&, NotifierSettings);
  // Makes the thread end soon, without waiting for it. Thread-safe.
  virtual void request_stop() = 0;
  // Stops the thread. Notifications that are being delivered are released and due again at once.
  virtual ~Notifier() = default;
};

}  // namespace mycojobs
