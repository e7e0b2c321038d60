// The secrets that warm processes hold (docs/warm.md). A warm process whose secret was changed or deleted is not used
// again; it is ended when the change is noticed, without waiting for its idle time. The current secrets come from
// security/secret_watcher.h, without access to a disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "executors/executor.h"
#include "sandbox/sandbox.h"
#include "security/secret_watcher.h"

namespace mycojobs {

// Not thread-safe.
class WarmSecrets {
 public:
  using IsCurrent = std::function<bool(Id context, const std::vector<Secret>&)>;  // SecretWatcher::are_current()

  static constexpr std::uint64_t kCheckIntervalMs = SecretWatcher::kCheckIntervalMs;
  // Maximum number of keys. The key of the process that ends first is evicted.
  static constexpr std::size_t kMaxKeys = 1000;

  // Reports that a run starts with these secrets.
  void on_run_started(const RunSpec&, const std::vector<Secret>&, std::uint64_t now_boot_ms);
  // Returns the keys with changed secrets, at most every kCheckIntervalMs. Keys that were returned before are returned
  // again, since a run that was prepared earlier may start later.
  std::vector<std::string> list_outdated_keys(const IsCurrent&, std::uint64_t now_boot_ms);
  bool empty() const { return keys_.empty(); }

 private:
  struct Key {
    Id context = 0;
    std::vector<Secret> secrets;
    std::uint64_t until_boot_ms = 0;  // time from which on no process has the key
  };
  std::map<std::string, Key> keys_;
  std::uint64_t checked_boot_ms_ = 0;
};

}  // namespace mycojobs
