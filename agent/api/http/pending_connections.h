// Connections with an incomplete TLS handshake or first request head. Such clients are not authenticated yet, so the
// connections have a separate limit and a short deadline, and the accepting thread serves all of them. If the limit is
// reached, a new connection replaces the oldest connection, so silent connections cannot block a client that sends its
// request promptly. A network has at most a quarter of the connections, beyond which its new connection replaces its
// own oldest one, so a flood from one host does not end the handshakes of others. Not thread-safe.
#pragma once

#include <poll.h>

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/http/request_reader.h"
#include "api/http/socket.h"
#include "base/fd.h"
#include "net/tls.h"

namespace mycojobs::api {

class PendingConnections {
 public:
  struct Connection {
    ClientSocket socket;
    std::string bytes;    // received bytes that the reader has not consumed; after the head, the start of the body
    Deadline deadline{};  // time limit for the handshake and the head
    RequestReader reader;
    std::optional<Error> error;   // set if the head is invalid or too large
    bool lacks_tls = false;       // the client sends plain text although the server requires TLS
    bool is_established = false;  // the handshake is complete, or the server has no TLS
    std::string network = {};     // HttpRequest::network; empty if it is not counted
  };
  // tls: null if the server has no TLS.
  PendingConnections(std::uint32_t max_connections, std::uint32_t head_timeout_ms, const RequestLimits& limits,
                     std::shared_ptr<TlsContext> tls = nullptr)
      : max_connections_(max_connections), head_timeout_ms_(head_timeout_ms), limits_(limits), tls_(std::move(tls)) {}

  // network: becomes Connection::network.
  void add(Fd socket, std::string network);
  void append_pollfds(std::vector<pollfd>&) const;  // appends one entry for each connection
  // Receives bytes from the connections that poll() reported. Removes and returns the connections with a complete or
  // invalid head and those that lack TLS, and closes the connections that have passed their deadline. `entries` points
  // to the first entry that append_pollfds() has appended. REQUIRES: no connection was added since append_pollfds().
  std::vector<Connection> receive_heads(const pollfd* entries);
  // Returns the time until the next deadline as a time-out for poll(), or -1 without connections.
  int get_poll_timeout_ms() const;
  std::size_t size() const { return connections_.size(); }
  void clear() { connections_.clear(); }

 private:
  enum class Progress { incomplete, complete, failed };  // failed: the connection must be closed
  // Continues with the bytes that are available. The first byte shows whether the client uses TLS.
  Progress advance(Connection&);
  Progress advance_handshake(Connection&);
  static Progress receive_head(Connection&);

  std::uint32_t max_connections_, head_timeout_ms_;
  RequestLimits limits_;
  std::shared_ptr<TlsContext> tls_;
  std::list<Connection> connections_;  // oldest first
};

}  // namespace mycojobs::api
