// Connections without a complete first request head. These clients are unauthenticated, so they share one thread, have
// a short deadline and a limit of their own. If the limit is reached, a new connection replaces the oldest one: silent
// connections cannot keep out a client that sends its request promptly. Not thread-safe.
#pragma once

#include <poll.h>

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "api/http/request_reader.h"
#include "api/http/socket.h"
#include "base/fd.h"

namespace mycojobs::api {

class PendingConnections {
 public:
  struct Connection {
    Fd socket;
    std::string bytes;  // received bytes after the head
    Deadline until{};
    RequestReader reader;
    std::optional<Error> wrong;  // the head is invalid or too large
  };
  PendingConnections(std::uint32_t places, std::uint32_t ms, const RequestLimits& limits)
      : job_states_(places), ms_(ms), limits_(limits) {}

  void add(Fd socket);
  void append_pollfds(std::vector<pollfd>&) const;  // appends one entry for each connection
  // Processes the results of poll(). entries: the first entry that append_pollfds() has appended. Removes and returns
  // the connections whose head is complete or invalid. Closes connections after their deadline.
  std::vector<Connection> receive_heads(const pollfd* entries);
  int timeout_ms() const;  // until the next deadline; -1: there are no connections
  std::size_t size() const { return guests_.size(); }
  void clear() { guests_.clear(); }

 private:
  static bool receive(Connection&);  // false: the client has closed the connection

  std::uint32_t job_states_, ms_;
  RequestLimits limits_;
  std::list<Connection> guests_;  // oldest first
};

}  // namespace mycojobs::api
