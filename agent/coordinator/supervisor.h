// The supervisor daemon of one context: gives message_rounds.h a thread, and what it hands out a way to go. One lane, a
// thread, for each host and port that something goes to; a supervisor that is slow or away holds up its own lane alone.
// Those that do not answer never have all lanes. Lanes that have nothing to do end after a while.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "coordinator/message_rounds.h"
#include "transport/transports.h"

namespace mycojobs {

struct SupervisorSettings {
  MessageSettings messages;
  std::uint32_t concurrency = 16;                           // lanes at one time, one of them for this host
  std::function<std::unique_ptr<Transports>()> transports;  // of one lane, which alone uses them
};

class Supervisor {
 public:
  static Result<std::unique_ptr<Supervisor>> start(StoreFactory&, const Clock&, SupervisorSettings);
  virtual void ask_to_stop() = 0;
  virtual ~Supervisor() = default;  // what is under way is sent again by whoever comes next
};

}  // namespace mycojobs
