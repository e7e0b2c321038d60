// What all connections together may hold of large bodies. Safe from any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace mycojobs::api {

// Is always taken: all connections together hold a few MiB of them.
inline constexpr std::size_t kSmallBody = 64U << 10;

// Bytes of large bodies that are held at one time: a parsed body takes many times its length.
class BodyShare {
 public:
  BodyShare(std::atomic<std::size_t>& held, std::size_t most) : held_(held), most_(most) {}
  ~BodyShare() { held_ -= mine_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // False: others hold too much.
  bool grow(std::size_t length) {
    const std::size_t wanted = length > kSmallBody ? length : 0;
    if (wanted <= mine_) return true;
    const std::size_t more = wanted - mine_;
    mine_ = wanted;
    return (held_ += more) <= most_;
  }

 private:
  std::atomic<std::size_t>& held_;
  std::size_t most_, mine_ = 0;
};

}  // namespace mycojobs::api
