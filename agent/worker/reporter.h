// The thread that stores ends and logs, in order, many in one trip. Keeps what it could not store and tries again until
// it is stored or the claim turns out to be stale.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "base/mailbox.h"
#include "mycojobs/clock.h"
#include "worker/receipts.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Reporter {
 public:
  struct Callbacks {
    // By this thread once runs' last reports have been answered, whatever the answer.
    std::function<void(std::span<const RunNumber>)> settled;
    // How long, in us, it is worth to wait for more before a trip.
    std::function<std::uint32_t()> gather_us = [] { return 0U; };
    std::function<void(RunNumber)> stale = [](RunNumber) {};  // by this thread: the run's claim is gone, it must die
  };
  Reporter(ClaimStore&, const Clock&, StoreHealth&, StoreServers&, Receipts, Callbacks);
  ~Reporter() { stop(); }
  void stop();  // leaves at once; what is unsent is left to the leases

  void post(Outgoing outgoing) { mailbox_.post(std::move(outgoing)); }  // any thread

 private:
  void loop();
  using Line = std::deque<Outgoing>;  // of one context: in order, and none waits for another context's store
  void send_some(Id context, Line&);
  int pause_ms() const;  // until there is something to do without a new report; -1: never

  ClaimStore& store_;
  StoreHealth& health_;
  Callbacks callbacks_;
  Receipts receipts_;
  Mailbox<Outgoing> mailbox_;
  const Clock& clock_;
  ContextPauses pauses_;
  std::map<Id, Line> lines_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mycojobs
