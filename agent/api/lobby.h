// Connections whose first head has not come yet: they have shown no right, so they have no thread, a short time, and
// places of their own. Where these are taken the one that has waited longest goes: who says what it wants at once is
// let in however many others say nothing. Of one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "api/request_reader.h"
#include "api/socket.h"
#include "base/fd.h"

namespace mycojobs::api {

class Lobby {
 public:
  struct Guest {
    Fd socket;
    std::string bytes;  // behind the head, once that is there
    Deadline until{};
    RequestReader reader;
    std::optional<Error> wrong;  // it is no head, or too large
  };
  Lobby(std::uint32_t places, std::uint32_t ms, const RequestLimits& limits)
      : places_(places), ms_(ms), limits_(limits) {}

  void enter(Fd socket);
  void add_to(std::vector<pollfd>&) const;
  // What poll() has written into add_to()'s entries, which begin here. Those whose head is there, or is none.
  std::vector<Guest> look(const pollfd* entries);
  int timeout_ms() const;  // until the first one's time is over; -1: it is empty
  std::size_t size() const { return guests_.size(); }
  void clear() { guests_.clear(); }

 private:
  static bool receive(Guest&);  // false: it has gone

  std::uint32_t places_, ms_;
  RequestLimits limits_;
  std::list<Guest> guests_;  // the one that has waited longest in front
};

}  // namespace mycojobs::api
