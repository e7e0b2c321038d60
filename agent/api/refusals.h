// Connections that are one too many: told so, and kept open for a moment, so that the refusal arrives. One thread.
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
  explicit Refusals(std::string text) : text_(std::move(text)) {}
  void refuse(Fd socket) {
    (void)!::send(socket.get(), text_.data(), text_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
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
  std::string text_;
  std::deque<std::pair<Fd, std::chrono::steady_clock::time_point>> told_;
};

}  // namespace mycojobs::api
