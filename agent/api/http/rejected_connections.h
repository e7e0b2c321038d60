// Connections that are refused before they have a thread. Each is answered and then stays open for one second: closing
// it with unread input would reset the connection, and the client could lose the answer. Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <deque>
#include <string>
#include <utility>

#include "base/fd.h"

namespace mycojobs::api {

class Refusals {
 public:
  // Sends the answer without blocking. If too many refused connections are open, the oldest is closed.
  void refuse(Fd socket, const std::string& text) {
    (void)!::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(socket.get(), SHUT_WR);
    if (refused_.size() >= kMaxEntries) refused_.pop_front();
    refused_.emplace_back(std::move(socket), std::chrono::steady_clock::now() + std::chrono::seconds(1));
  }
  // Closes connections that were refused more than one second ago.
  void close_old() {
    while (!refused_.empty() && std::chrono::steady_clock::now() >= refused_.front().second) refused_.pop_front();
  }
  void close_all() { refused_.clear(); }
  bool empty() const { return refused_.empty(); }

 private:
  static constexpr std::size_t kMaxEntries = 256;
  std::deque<std::pair<Fd, std::chrono::steady_clock::time_point>> refused_;
};

}  // namespace mycojobs::api
