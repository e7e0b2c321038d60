// Connections that are refused before they have a thread: told so, and kept open for a moment, so that the refusal
// arrives. One thread.
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
  void refuse(Fd socket, const std::string& text) {
    (void)!::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(socket.get(), SHUT_WR);
    if (told_.size() >= kMost) told_.pop_front();
    told_.emplace_back(std::move(socket), std::chrono::steady_clock::now() + std::chrono::seconds(1));
  }
  void close_old() {
    while (!told_.empty() && std::chrono::steady_clock::now() >= told_.front().second) told_.pop_front();
  }
  void close_all() { told_.clear(); }
  bool empty() const { return told_.empty(); }

 private:
  static constexpr std::size_t kMost = 256;
  std::deque<std::pair<Fd, std::chrono::steady_clock::time_point>> told_;
};

}  // namespace mycojobs::api
