// Receives the complete output of a run, before the limits of the store drop any of it.
#pragma once

#include "model/records.h"

namespace mycojobs {

class LogSink {
 public:
  virtual ~LogSink() = default;
  // Receives the next entry: redacted text of one stream, or a message of the agent (stream `system`). Entries are
  // received in the order of their numbers. Log::seq counts within the run; Log::size is 0 for the entries of the head
  // (worker/runs/job_output.h). Called on the thread of the run loop, so it must not block.
  virtual void add_entry(const Log& entry) = 0;
};

}  // namespace mycojobs
