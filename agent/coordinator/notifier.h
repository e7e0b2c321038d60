// Tells those who want to hear of an end (domain/notify.h): calls webhooks, submits jobs, sends messages. A notice
// stands in the store from the same step as the end (mj:notices), until all its targets have it:
//
//   due --taken for kHoldMs--> all have it --> gone
//                          `-> some have not --kFirstPauseMs, doubling--> due again, at most kMostTries times
//
// If we die, the notice is due again: a webhook may hear of an end twice (with the same id), a job runs once, a message
// is written once.
// Threads: one, and one for each notice whose webhooks are being called.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "domain/job_limits.h"
#include "domain/notify.h"
#include "mycojobs/clock.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct NotifierSettings {
  Id context = 0;
  Webhooks webhooks;      // that may be called
  std::string secrets;    // file (transport/webhook.h), read for each notice; empty: not signed
  JobLimits limits = {};  // of the jobs that notices are
};

class Notifier {
 public:
  static Result<std::unique_ptr<Notifier>> start(StoreFactory&, const Clock&, NotifierSettings);
  virtual void ask_to_stop() = 0;
  virtual ~Notifier() = default;  // the notice at hand is due again at once
};

}  // namespace mycojobs
