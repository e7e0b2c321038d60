// Queues: listing, pausing, and what fell out of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "service/caller.h"

namespace mycojobs::service {

// Which queue a text means: "python" and "queue:python" are queue:python; a full key of another kind (a runner's own
// queue) is taken if it is one of `known`. Error invalid.
Result<std::string> queue_named(std::string_view text, const std::vector<QueueInfo>& known);

// Those with entries, facts or a pause.
Result<std::vector<QueueInfo>> list_queues(const Caller&, Store&);

struct PausedQueue {
  std::string queue;  // its key
  bool changed = true;
};
Result<PausedQueue> pause_queue(const Caller&, Store&, std::string_view queue, bool paused);

// The latest `max`, oldest first.
Result<std::vector<DeadLetter>> dead_letters(const Caller&, Store&, std::size_t max);
// Strikes one off the list; requeue: its job or entry runs again. Errors of Store::settle_dead_letter().
Result<void> settle_dead_letter(const Caller&, Store&, const std::string& letter, bool requeue);

}  // namespace mycojobs::service
