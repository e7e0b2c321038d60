// What stands before the checks of messages from elsewhere (message_receiver.h), where anybody may knock: which
// contexts take any, so that no other's database is touched, how many refusals are worth a note, and a count of all
// that came. One for each way in; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics/metrics.h"
#include "mycojobs/clock.h"
#include "mycojobs/store.h"

namespace mycojobs {

class MessageGate {
 public:
  // contexts: that are served; empty: those whose databases hold keys, and own_servers.
  MessageGate(const Clock& clock, const std::vector<Id>& contexts, const std::vector<Id>& own_servers,
              std::shared_ptr<Metrics> metrics = no_metrics())
      : clock_(clock),
        contexts_(contexts.begin(), contexts.end()),
        all_(contexts.empty()),
        metrics_(std::move(metrics)) {
    if (all_) contexts_.insert(own_servers.begin(), own_servers.end());
  }

  // Error denied: the context takes none; unavailable: it is not known, and was not looked for just now.
  Result<void> check(Store&, Id context);
  // One was refused. How many the next note counts, with those before that had none; 0: no note now. by_known: it holds
  // a signature of somebody known here. The rest are strangers: one note a minute, so that what they send pushes no
  // other note out of the journal.
  std::uint64_t refused(Id context, bool by_known);
  // Whatever came, counted once it was answered. context 0: of none that is served.
  void count(Id context, std::string_view kind, std::string_view result) {
    metrics_->add(Metric::deliveries, {context, kind, result});
  }

 private:
  struct Count {
    std::uint64_t since_ms = 0, unnoted = 0;
    std::uint32_t noted = 0;  // since then
  };
  const Clock& clock_;
  std::mutex mutex_;
  std::set<Id> contexts_;
  const bool all_;
  const std::shared_ptr<Metrics> metrics_;
  bool has_looked_ = false;
  std::uint64_t looked_ms_ = 0;
  std::map<std::pair<Id, bool>, Count> counts_;  // of contexts that take messages
};

}  // namespace mycojobs
