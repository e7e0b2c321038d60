// Stores the ends and log lines of runs, in order and in batches. A report that could not be stored is retried until it
// is stored or the claim is stale. A loop of base/loop_thread.h. While the reporter is idle, post() sends the report on
// the calling thread if that does not block, and only the answer wakes the thread of the reporter.
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

#include "base/clock.h"
#include "base/fd.h"
#include "base/mailbox.h"
#include "base/timer_fd.h"
#include "store/store_health.h"
#include "worker/reports/receipt_signer.h"
#include "worker/worker_types.h"

namespace mycojobs {

const ClaimRef& get_claim(const Report&);  // Returns the claim that a report belongs to.

class Reporter {
 public:
  struct Callbacks {
    // Receives the runs after their last reports were answered, with success or an error. Called from run_once().
    std::function<void(std::span<const RunNumber>)> on_settled;
    // Returns the time in us for which the reporter waits for further reports before it sends a batch.
    std::function<std::uint32_t()> batch_delay_us = [] { return 0U; };
    // Receives an end with RunReport::awaits_upload, which is posted again after the upload. Must not block.
    std::function<void(RunReport)> upload = [](const RunReport&) {};
    // Receives a run that must be killed, since its claim is stale. Called from run_once().
    std::function<void(RunNumber)> on_stale = [](RunNumber) {};
  };
  // The store must have no other user.
  Reporter(ClaimStore&, const Clock&, StoreHealth&, ReceiptSigner, Callbacks);
  void post(RunReport);  // Thread-safe. REQUIRES: the reports of one run are posted one after the other.

  // Returns the time in ms until the next call if no report is posted before; no value means without a limit.
  std::optional<std::uint64_t> run_once();
  void wait_until_due(std::optional<std::uint64_t> ms);
  void stop();  // Reports that were not sent are lost; the leases of their jobs expire.
  bool stopped() const { return stop_; }

 private:
  // Reports of one context in order. Contexts do not wait for one another.
  using ContextReports = std::deque<RunReport>;
  bool send_at_once(RunReport&);
  void read_answers();  // Reads the answer to the report that post() sent.
  void send_batch(Id context, ContextReports&);
  void process_answers(Id context, ContextReports&, std::span<const Report>, const std::vector<Result<void>>& answers);
  void on_failed(Id context, const Error&);
  void watch_descriptor(int fd);
  std::optional<std::uint64_t> next_attempt_ms() const;

  Mailbox<RunReport> mailbox_;
  Fd epoll_;  // waits for the mailbox, the timer, and the connection that post() used
  TimerFd timer_;
  std::mutex store_mutex_;  // held during run_once() and while post() sends; guards the members below
  ClaimStore& store_;
  StoreHealth& health_;
  Callbacks callbacks_;
  ReceiptSigner receipts_;
  ContextPauses pauses_;
  std::map<Id, ContextReports> pending_reports_;
  std::optional<Id> sent_context_;  // context of the report that post() sent
  std::atomic<bool> stop_{false};
};

}  // namespace mycojobs
