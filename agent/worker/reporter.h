// The thread that stores ends and logs, in order, many in one trip. Keeps what it could not store and tries again until
// it is stored or the claim turns out to be stale.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mailbox.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Reporter {
 public:
  // settled(run): called by this thread once a run's last report has been answered, whatever the answer.
  Reporter(std::unique_ptr<Store>, StoreHealth&, std::function<void(RunNumber)> settled);
  ~Reporter() { stop(); }
  void stop();  // leaves at once; what is unsent is left to the leases

  void post(Outgoing outgoing) { mailbox_.post(std::move(outgoing)); }  // any thread

 private:
  void loop();
  std::size_t send_some();  // from the front of pending_; returns how many were answered

  std::unique_ptr<Store> store_;
  StoreHealth& health_;
  std::function<void(RunNumber)> settled_;
  Mailbox<Outgoing> mailbox_;
  std::deque<Outgoing> pending_;
  unsigned failures_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
