// Connections without a complete first request head. These clients are unauthenticated, so they share one thread, and
// have a short deadline and a separate limit. If the limit is reached, a new connection replaces the oldest connection,
// so silent connections cannot block a client that sends its request promptly. Not thread-safe.
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
    Deadline deadline{};
    RequestReader reader;
    std::optional<Error> error;  // the head is invalid or too large
  };
  PendingConnections(std::uint32_t max_connections, std::uint32_t head_timeout_ms, const RequestLimits& limits)
      : max_connections_(max_connections), head_timeout_ms_(head_timeout_ms), limits_(limits) {}

  void add(Fd socket);
  void append_pollfds(std::vector<pollfd>&) const;  // appends one entry for each connection
  // Processes the results of poll(). entries: the first entry that append_pollfds() has appended. Removes and returns
  // the connections whose head is complete or invalid. Closes connections after their deadline.
  std::vector<Connection> receive_heads(const pollfd* entries);
  int get_poll_timeout_ms() const;  // until the next deadline; -1: there are no connections
  std::size_t size() const { return connections_.size(); }
  void clear() { connections_.clear(); }

 private:
  static bool receive(Connection&);  // false: the client has closed the connection

  std::uint32_t max_connections_, head_timeout_ms_;
  RequestLimits limits_;
  std::list<Connection> connections_;  // oldest first
};

}  // namespace mycojobs::api
