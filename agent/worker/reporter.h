// Stores ends and logs, in order, many in one trip. Keeps what it could not store and tries again until it is stored or
// the claim turns out to be stale. Takes turns (base/turns.h).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/mailbox.h"
#include "mycojobs/clock.h"
#include "worker/receipts.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

class Reporter {
 public:
  struct Callbacks {
    // In a turn, once runs' last reports have been answered, whatever the answer.
    std::function<void(std::span<const RunNumber>)> settled;
    // How long, in us, it is worth to wait for more before a trip.
    std::function<std::uint32_t()> gather_us = [] { return 0U; };
    std::function<void(RunNumber)> stale = [](RunNumber) {};  // in a turn: the run's claim is gone, it must die
  };
  Reporter(ClaimStore&, const Clock&, StoreHealth&, StoreServers&, Receipts, Callbacks);
  void post(Outgoing outgoing) { mailbox_.post(std::move(outgoing)); }  // any thread

  std::optional<std::uint64_t> turn();  // until it has something to do without a new report, ms; nothing: never
  void rest(std::optional<std::uint64_t> ms);
  void stop();  // what is unsent is left to the leases
  bool stopped() const { return stop_; }

 private:
  using Line = std::deque<Outgoing>;  // of one context: in order, and none waits for another context's store
  void send_some(Id context, Line&);
  std::optional<std::uint64_t> pause_ms() const;

  ClaimStore& store_;
  StoreHealth& health_;
  Callbacks callbacks_;
  Receipts receipts_;
  Mailbox<Outgoing> mailbox_;
  const Clock& clock_;
  ContextPauses pauses_;
  std::map<Id, Line> lines_;
  std::atomic<bool> stop_{false};
};

}  // namespace mycojobs
