// A clock that blocks the thread that reads the secrets of one context (security/secret_watcher.h) while a gate is
// closed. Simulates secrets on a disk that hangs.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "support/gate.h"

namespace mycojobs::test {

class BlockingSecretsClock final : public Clock {
 public:
  explicit BlockingSecretsClock(BlockingGate& gate) : gate_(gate) {}
  // Blocks the thread of this context from now on.
  void block_context(std::uint64_t context) { context_ = context; }
  void advance(std::uint64_t ms) { ahead_ms_ += ms; }
  std::uint64_t unix_ms() const override { return clock_.unix_ms(); }
  std::uint64_t boot_ms() const override {
    std::array<char, 16> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    if (context_ != 0 && name.data() == "secrets " + std::to_string(context_)) gate_.pass();
    return clock_.boot_ms() + ahead_ms_;
  }

 private:
  BlockingGate& gate_;
  std::atomic<std::uint64_t> context_{0}, ahead_ms_{0};
  SystemClock clock_;
};

}  // namespace mycojobs::test
