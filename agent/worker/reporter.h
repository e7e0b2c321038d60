// Stores ends and logs, in order, many in one trip. Keeps what it could not store and tries again until it is stored or
// the claim turns out to be stale. Takes turns (base/turns.h). Who brings a report while there is nothing else to do
// sends it himself, if that takes no waiting: only its answer wakes the reporter's thread.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/alarm.h"
#include "base/fd.h"
#include "base/mailbox.h"
#include "mycojobs/clock.h"
#include "worker/receipts.h"
#include "worker/store_health.h"
#include "worker/types.h"

namespace mycojobs {

const ClaimRef& claim_of(const Report&);  // whose report it is

class Reporter {
 public:
  struct Callbacks {
    // In a turn, once runs' last reports have been answered, whatever the answer.
    std::function<void(std::span<const RunNumber>)> settled;
    // How long, in us, it is worth to wait for more before a trip.
    std::function<std::uint32_t()> gather_us = [] { return 0U; };
    std::function<void(RunNumber)> stale = [](RunNumber) {};  // in a turn: the run's claim is gone, it must die
  };
  Reporter(ClaimStore&, const Clock&, StoreHealth&, Receipts, Callbacks);
  void post(Outgoing);  // any thread; reports of a run one after the other

  std::optional<std::uint64_t> turn();  // until it has something to do without a new report, ms; nothing: never
  void rest(std::optional<std::uint64_t> ms);
  void stop();  // what is unsent is left to the leases
  bool stopped() const { return stop_; }

 private:
  using Line = std::deque<Outgoing>;  // of one context: in order, and none waits for another context's store
  bool send_at_once(Outgoing&);
  void hear();  // the answer to what was sent at once
  void send_some(Id context, Line&);
  void settle(Id context, Line&, std::span<const Report>, const std::vector<Result<void>>& answers);
  void failed(Id context, const Error&);
  void watch(int fd);
  std::optional<std::uint64_t> pause_ms() const;

  Mailbox<Outgoing> mailbox_;
  Fd epoll_;  // of the mailbox, the alarm, and the connection that something was sent on at once
  Alarm alarm_;
  std::mutex turn_;  // held by whoever takes a turn; it guards what follows
  ClaimStore& store_;
  StoreHealth& health_;
  Callbacks callbacks_;
  Receipts receipts_;
  ContextPauses pauses_;
  std::map<Id, Line> lines_;
  std::optional<Id> sent_;  // at once: the first report of the line of that context
  std::atomic<bool> stop_{false};
};

}  // namespace mycojobs
