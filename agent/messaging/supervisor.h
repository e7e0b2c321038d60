// The supervisor daemon of one context: runs message_loop.h in a thread and sends its requests. Each remote host and
// port has a sender thread of its own, so that a supervisor that is slow or unreachable delays only its own requests.
// Hosts that do not answer never occupy all sender threads. An idle sender thread ends after a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "messaging/message_loop.h"
#include "messaging/transport/transports.h"

namespace mycojobs {

struct SupervisorSettings {
  MessageSettings messages;
  std::uint32_t concurrency = 16;                           // maximum number of sender threads; one is for this host
  std::function<std::unique_ptr<Transports>()> transports;  // creates the transports of one sender thread
};

class Supervisor {
 public:
  static Result<std::unique_ptr<Supervisor>> start(StoreFactory&, const Clock&, SupervisorSettings);
  // Makes the thread end soon, without waiting for it. Thread-safe.
  virtual void request_stop() = 0;
  // Stops all threads. The next supervisor repeats unfinished requests.
  virtual ~Supervisor() = default;
};

}  // namespace mycojobs
