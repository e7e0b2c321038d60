// Metrics about the contents of a context: queues, jobs and flow gates. The leader of the context refreshes them every
// few seconds, so a scrape reads memory and sends no command to Redis. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/store.h"
#include "store/store_health.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class ContextGauges {
 public:
  ContextGauges(std::shared_ptr<Metrics> metrics, Id context);

  // Sets whether this coordinator leads the context. A coordinator that does not lead withdraws the metrics of the
  // context.
  void set_leader(bool);
  // Surveys the next page of queues if its time has come. A scan of all queues takes one call for each page, and the
  // queue metrics are published after the last page. Returns the error `unavailable` if the store did not answer.
  Result<void> refresh_gauges(Store&, std::uint64_t now_boot_ms);

  // Reports that a flow was advanced and that `gates` of its gates are waiting.
  void update_flow(Id flow, std::size_t gates);
  // Every active flow is reported by update_flow() between on_recovery_begin() and on_recovery_end(). Flows without a
  // report are removed.
  void on_recovery_begin();
  void on_recovery_end();

 private:
  struct Gates {
    std::size_t waiting = 0;
    std::uint64_t recovery_number = 0;
  };
  // Sum over all queues that share a metric label.
  struct Queue {
    std::uint64_t jobs = 0;
    std::optional<std::uint64_t> oldest_ms = 0;  // no value if there are jobs, but their records have no start time
    bool paused = false;
    void add(const Survey::Queue&);
  };
  void start_queue_scan(const KnownQueues&);
  void publish_survey(const Survey&);
  void publish_queues();
  bool is_idle(const Survey&) const;  // returns whether a complete scan found neither jobs, flows nor messages
  Result<void> publish_storage_usage(RecordStore&);
  void remove_metrics();

  std::shared_ptr<Metrics> metrics_;
  Id context_;
  bool is_leader_ = false;
  std::uint64_t next_page_boot_ms_ = 0;  // earliest read of the next page
  std::uint64_t next_scan_boot_ms_ = 0;  // earliest start of the next scan
  std::map<Id, Gates> gates_by_flow_;    // only flows with waiting gates
  std::uint64_t current_recovery_number_ = 0;
  // The queues of the current scan. Each call of refresh_gauges() reads one page.
  std::vector<std::string> scanned_queues_;
  std::size_t next_queue_ = 0;                       // index in scanned_queues_
  std::set<std::string, std::less<>> runner_types_;  // script types that runners serve
  std::map<std::string, Queue, std::less<>> queues_by_label_;
  LogOnce log_once_;
};

}  // namespace mycojobs
