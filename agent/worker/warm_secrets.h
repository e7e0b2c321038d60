// Which secrets the processes of warm scripts hold (docs/warm.md). One whose secret has another value, or is there no
// more, is asked for by nobody; it ends as soon as that is seen, not with its idle time. No disk is asked: what the
// secrets of now are, worker/secrets_watch.h knows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"
#include "worker/secrets_watch.h"

namespace mycojobs {

// Of one thread.
class WarmSecrets {
 public:
  using Has = std::function<bool(Id context, const std::vector<SecretValue>&)>;  // SecretsWatch::has()

  static constexpr std::uint64_t kLookMs = SecretsWatch::kLookMs;
  static constexpr std::size_t kMost = 1000;  // keys; of more the one whose process ends first is not watched

  // A run of that key begins, with these.
  void given(const RunSpec&, const std::vector<SecretValue>&, std::uint64_t now_boot_ms);
  // The keys whose secrets are not what they were: every kLookMs, also those that were outdated before, since a run
  // that was prepared then may begin later. None: not now, or all are.
  std::vector<std::string> outdated(const Has&, std::uint64_t now_boot_ms);
  bool empty() const { return keys_.empty(); }

 private:
  struct Key {
    Id context = 0;
    std::vector<SecretValue> secrets;
    std::uint64_t until_boot_ms = 0;  // then no process has it
  };
  std::map<std::string, Key> keys_;
  std::uint64_t looked_boot_ms_ = 0;
};

}  // namespace mycojobs
