// Pauses and resumes queues in random tests, which do not need the previous state of the queue.
#pragma once

#include <string>

#include "base/result.h"
#include "store/store.h"

namespace mycojobs::test {

inline Result<void> set_queue_paused(Store& store, Id context, const std::string& queue, bool paused) {
  MJ_CHECK(store.set_queue_paused(context, queue, paused));
  return {};
}

}  // namespace mycojobs::test
