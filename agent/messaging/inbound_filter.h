// The first checks for messages from remote hosts, before the checks of message_receiver.h. Unauthenticated peers reach
// this point, so it accepts messages only for contexts that are served (no other database is accessed), limits how many
// refusals are written to the journal, and counts all requests. One object for each entry point. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/store.h"
#include "telemetry/metrics.h"

namespace mycojobs {

class InboundMessageFilter {
 public:
  // contexts: the contexts that are served; empty: all contexts with keys, and own_servers.
  InboundMessageFilter(const Clock& clock, const std::vector<Id>& contexts, const std::vector<Id>& own_servers,
                       std::shared_ptr<Metrics> metrics = no_metrics())
      : clock_(clock),
        contexts_(contexts.begin(), contexts.end()),
        all_(contexts.empty()),
        metrics_(std::move(metrics)) {
    if (all_) contexts_.insert(own_servers.begin(), own_servers.end());
  }

  // Checks that the context accepts messages. Errors: denied (it does not); unavailable (the context is unknown, and
  // the search for new contexts is rate-limited).
  Result<void> check(Store&, Id context);
  // Reports a refused request. Returns the number of refusals that the next note covers, including earlier ones without
  // a note, or 0 if no note is due. by_known: the request has a valid signature of a known peer. Requests of unknown
  // peers get one note a minute, so that they do not push other notes out of the journal.
  std::uint64_t refused(Id context, bool by_known);
  // Counts an answered request. Context 0 stands for every context that is not served.
  void count(Id context, std::string_view kind, std::string_view result) {
    metrics_->add(Metric::deliveries, {context, kind, result});
  }

 private:
  struct Count {
    std::uint64_t since_ms = 0, unnoted = 0;
    std::uint32_t noted = 0;  // number of notes since since_ms
  };
  const Clock& clock_;
  std::mutex mutex_;
  std::set<Id> contexts_;
  const bool all_;
  const std::shared_ptr<Metrics> metrics_;
  bool has_checked_ = false;
  std::uint64_t checked_ms_ = 0;
  std::map<std::pair<Id, bool>, Count> counts_;  // only for contexts that accept messages
};

}  // namespace mycojobs
