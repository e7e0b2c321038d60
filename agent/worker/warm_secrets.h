// Which secrets the processes of warm scripts hold (docs/warm.md). One whose secret has another value, or is there no
// more, is asked for by nobody; it ends as soon as that is seen, not with its idle time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"
#include "worker/secrets.h"

namespace mycojobs {

// Of one thread.
class WarmSecrets {
 public:
  static constexpr std::uint64_t kLookMs = Secrets::kLookMs;
  static constexpr std::size_t kMost = 1000;  // keys; of more the one whose process ends first is not watched

  // A run of that key begins, with these.
  void given(const RunSpec&, const std::vector<SecretValue>&, std::uint64_t now_boot_ms);
  // Keys whose secrets are not what they were, every kLookMs: a run that was prepared before may begin after the first
  // time.
  std::vector<std::string> outdated(Secrets&, std::uint64_t now_boot_ms);
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
