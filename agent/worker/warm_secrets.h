// Which secrets the processes of warm scripts hold (docs/warm.md). One whose secret has another value, or is there no
// more, is asked for by nobody; it ends as soon as that is seen, not with its idle time. Their disk may stand still: so
// whoever drives jobs takes a look as a value, and has it done elsewhere, as with ArtifactQueue.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"
#include "worker/secrets.h"

namespace mycojobs {

// Of one thread, but for the look: that needs nothing of this.
class WarmSecrets {
 public:
  // Answers the keys whose secrets are not what they were.
  using Look = std::function<std::vector<std::string>(Secrets&)>;

  static constexpr std::uint64_t kLookMs = Secrets::kLookMs;
  static constexpr std::size_t kMost = 1000;  // keys; of more the one whose process ends first is not watched

  // A run of that key begins, with these.
  void given(const RunSpec&, const std::vector<SecretValue>&, std::uint64_t now_boot_ms);
  // Every kLookMs, also at keys that were outdated: a run that was prepared before may begin later. Nothing: not now,
  // or the last one is not done yet.
  std::optional<Look> next(std::uint64_t now_boot_ms);
  void done() { looking_ = false; }
  bool is_looking() const { return looking_; }
  bool empty() const { return keys_.empty(); }

 private:
  struct Key {
    Id context = 0;
    std::vector<SecretValue> secrets;
    std::uint64_t until_boot_ms = 0;  // then no process has it
  };
  std::map<std::string, Key> keys_;
  std::uint64_t looked_boot_ms_ = 0;
  bool looking_ = false;
};

}  // namespace mycojobs
