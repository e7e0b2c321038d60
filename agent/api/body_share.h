// What all connections together may hold of large bodies. Safe from any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace mycojobs::api {

// Is always taken: all connections together hold a few MiB of them.
inline constexpr std::size_t kSmallBody = 64U << 10;

// A bound of the bytes that several bodies hold together.
struct BodyBound {
  std::atomic<std::size_t>& held;
  std::size_t most = 0;
};

// Counts the bytes of large bodies in memory, for all callers and for one actor. A parsed body takes many times its
// length.
class BodyShare {
 public:
  BodyShare(BodyBound all, BodyBound actor) : all_(all), actor_(actor) {}
  ~BodyShare() {
    all_.held -= mine_;
    actor_.held -= mine_;
  }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  // Returns false if a bound is exceeded.
  bool grow(std::size_t length) {
    const std::size_t wanted = length > kSmallBody ? length : 0;
    if (wanted <= mine_) return true;
    const std::size_t more = wanted - mine_;
    mine_ = wanted;
    const bool all_hold = (all_.held += more) <= all_.most, actor_holds = (actor_.held += more) <= actor_.most;
    return all_hold && actor_holds;
  }

 private:
  BodyBound all_, actor_;
  std::size_t mine_ = 0;
};

}  // namespace mycojobs::api
