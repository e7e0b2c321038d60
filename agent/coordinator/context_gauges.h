// What a context holds, as the metrics of who leads it: looked at every few seconds, so that a scrape asks Redis
// nothing. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/log_once.h"
#include "metrics/metrics.h"
#include "mycojobs/store.h"

namespace mycojobs {

class ContextGauges {
 public:
  ContextGauges(std::shared_ptr<Metrics> metrics, Id context);

  // Who does not lead knows nothing of the context: its metrics are withdrawn.
  void leads(bool);
  // Asks for the numbers when it is time to. Error unavailable: the store's.
  Result<void> look(QueueStore&, std::uint64_t now_boot_ms);

  // A flow was moved on, and so many of its gates wait.
  void moved(Id flow, std::size_t gates);
  // Every active flow is reported by moved() between these two: one that was not is gone.
  void sweep_begins();
  void sweep_ends();

 private:
  struct Gates {
    std::size_t waiting = 0;
    std::uint64_t sweep = 0;
  };
  // Queues that a label counts together.
  struct Queue {
    std::uint64_t jobs = 0;
    std::optional<std::uint64_t> oldest_ms = 0;  // nothing: there are some, and none says since when
    bool paused = false;
    void add(const Survey::Queue&);
  };
  void begin_sweep(const KnownQueues&);
  void show(const Survey&);
  void show_queues();
  void forget();

  std::shared_ptr<Metrics> metrics_;
  Id context_;
  bool leads_ = false;
  std::uint64_t next_boot_ms_ = 0, swept_boot_ms_ = 0;  // the next look; the next that begins with the first queue
  std::map<Id, Gates> gates_;                           // by flow; those that have some
  std::uint64_t sweep_ = 0;
  // A look takes one page of the queues; once it has had all, they are shown.
  std::vector<std::string> to_look_at_;
  std::size_t looked_at_ = 0;
  std::set<std::string, std::less<>> types_;  // that runners serve
  std::map<std::string, Queue, std::less<>> found_;
  LogOnce log_once_;
};

}  // namespace mycojobs
