// Connections that are refused before they have a thread. Each is answered and then stays open for one second: closing
// it with unread input would reset the connection, and the client could lose the answer. Not thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <utility>

#include "api/http/socket.h"

namespace mycojobs::api {

class RejectedConnections {
 public:
  // Sends the answer without blocking. If too many refused connections are open, the oldest is closed.
  void reject(ClientSocket socket, const std::string& answer) {
    (void)socket.send_all(answer, Deadline());
    socket.end_output();
    if (connections_.size() >= kMaxConnections) connections_.pop_front();
    connections_.emplace_back(std::move(socket), std::chrono::steady_clock::now() + std::chrono::seconds(1));
  }
  // Closes connections that were refused more than one second ago.
  void close_expired() {
    while (!connections_.empty() && std::chrono::steady_clock::now() >= connections_.front().second)
      connections_.pop_front();
  }
  void close_all() { connections_.clear(); }
  bool empty() const { return connections_.empty(); }

 private:
  static constexpr std::size_t kMaxConnections = 256;
  std::deque<std::pair<ClientSocket, Deadline>> connections_;
};

}  // namespace mycojobs::api
