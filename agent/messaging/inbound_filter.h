// The first filter for messages from remote hosts, before message_receiver.h. It checks only whether the context of a
// message is served; the checks of the message itself are in message_checks.h. Unauthenticated peers reach this filter,
// so it prevents access to databases of other contexts, limits how many refusals are written to the journal, and counts
// all requests. One object for each entry point. Thread-safe.
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
  // `contexts` are the contexts that are served. If it is empty, all contexts with keys and contexts_with_own_redis are
  // served.
  InboundMessageFilter(const Clock& clock, const std::vector<Id>& contexts,
                       const std::vector<Id>& contexts_with_own_redis, std::shared_ptr<Metrics> metrics = no_metrics())
      : clock_(clock),
        contexts_(contexts.begin(), contexts.end()),
        serves_all_contexts_(contexts.empty()),
        metrics_(std::move(metrics)) {
    if (serves_all_contexts_) contexts_.insert(contexts_with_own_redis.begin(), contexts_with_own_redis.end());
  }

  // Checks that the context accepts messages. Errors: denied (it does not); unavailable (the context is unknown, and
  // the search for new contexts is rate-limited).
  Result<void> check(Store&, Id context);
  // Counts a refused request. Returns the number of refusals that the next note in the journal covers, including
  // earlier refusals without a note, or 0 if no note is due. is_known_peer means that the request has a valid signature
  // of a known peer. Requests of unknown peers get one note a minute, so that they do not push other notes out of the
  // journal.
  std::uint64_t record_refusal(Id context, bool is_known_peer);
  // Counts an answered request in the metrics. Context 0 represents all contexts that are not served.
  void count_request(Id context, std::string_view kind, std::string_view result) {
    metrics_->add(Metric::deliveries, {context, kind, result});
  }

 private:
  struct RefusalCount {
    std::uint64_t minute_start_ms = 0, unreported_refusals = 0;
    std::uint32_t notes = 0;  // number of notes since minute_start_ms
  };
  const Clock& clock_;
  std::mutex mutex_;
  std::set<Id> contexts_;
  const bool serves_all_contexts_;
  const std::shared_ptr<Metrics> metrics_;
  bool has_scanned_ = false;
  std::uint64_t last_scan_ms_ = 0;
  std::map<std::pair<Id, bool>, RefusalCount> refusals_;  // only for contexts that accept messages
};

}  // namespace mycojobs
