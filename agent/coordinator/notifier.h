// Delivers notifications about the end of jobs and flows (model/notify_targets.h): calls webhooks, submits jobs, sends
// messages. The notification is stored (mj:notices) in the same server-side step as the end, until it was delivered to
// all targets:
//
//   due --claimed for kHoldMs--> delivered to all --> deleted
//                            `-> some targets failed --kFirstPauseMs, doubling--> due again, at most kMaxTries times
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
  Webhooks webhooks;      // webhooks that may be called
  std::string secrets;    // file (net/webhook.h), read for each notification; empty: requests are not signed
  JobLimits limits = {};  // limits of the jobs that notifications submit
};

class Notifier {
 public:
  static Result<std::unique_ptr<Notifier>> start(StoreFactory&, const Clock&, NotifierSettings);
  virtual void ask_to_stop() = 0;
  virtual ~Notifier() = default;  // Releases the current notification, which is due again at once.
};

}  // namespace mycojobs
