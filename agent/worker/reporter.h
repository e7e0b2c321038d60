// The thread that stores ends and logs, in order, many in one trip. Keeps what it could not store and tries again until
// it is stored or the claim turns out to be stale.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "base/mailbox.h"
#include "mycojobs/clock.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Reporter {
 public:
  // settled(run): called by this thread once a run's last report has been answered, whatever the answer.
  Reporter(std::unique_ptr<Store>, const Clock&, StoreHealth&, std::function<void(RunNumber)> settled);
  ~Reporter() { stop(); }
  void stop();  // leaves at once; what is unsent is left to the leases

  void post(Outgoing outgoing) { mailbox_.post(std::move(outgoing)); }  // any thread

 private:
  void loop();
  struct Line {  // of one context: in order, and none waits for another context's store
    std::deque<Outgoing> pending;
    unsigned failures = 0;
    std::uint64_t again_boot_ms = 0;
  };
  void send_some(Id context, Line&);
  int pause_ms() const;  // until there is something to do without a new report; -1: never

  std::unique_ptr<Store> store_;
  StoreHealth& health_;
  std::function<void(RunNumber)> settled_;
  Mailbox<Outgoing> mailbox_;
  const Clock& clock_;
  std::map<Id, Line> lines_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
