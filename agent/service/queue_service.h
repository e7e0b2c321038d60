// Operations on queues: list, pause, and handle dead letters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "service/service_caller.h"

namespace mycojobs::service {

// Returns the key of the queue that a text identifies. "python" and "queue:python" both name queue:python; a full key
// of another kind (the queue of a runner) is accepted if `queues` contains it. Error `invalid`: the text does not
// identify a queue.
Result<std::string> resolve_queue_key(std::string_view text, const std::vector<QueueInfo>& queues);

// Returns the queues that have entries, facts or a pause.
Result<std::vector<QueueInfo>> list_queues(const RequestContext&, Store&);

struct PausedQueue {
  std::string queue;  // key of the queue
  bool changed = true;
};
Result<PausedQueue> pause_queue(const RequestContext&, Store&, std::string_view queue, bool paused);

// Returns the latest `max` dead letters, oldest first.
Result<std::vector<DeadLetter>> dead_letters(const RequestContext&, Store&, std::size_t max);
// Removes a dead letter from the list. With `requeue`, its job or entry runs again. Errors: those of
// Store::resolve_dead_letter().
Result<void> settle_dead_letter(const RequestContext&, Store&, const std::string& letter, bool requeue);

}  // namespace mycojobs::service
