// The current secrets of each context, for callers that must not block on a disk: the intake, the run loop and the warm
// processes. Each context has a thread that reads its secrets, so that a disk that hangs does not affect other
// contexts.
//
//   thread of a context --Secrets::look()--> current secrets --of(context)--> any thread
//
// A thread reads after a change of the folder and every kCheckMs. While the disk hangs or cannot be read, the previous
// secrets stay in force.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "security/secrets.h"

namespace mycojobs {

class SecretsWatch {
 public:
  static constexpr std::uint64_t kCheckMs = 2000;  // interval for folders without change notifications of the kernel

  SecretsWatch(const SecretSources&, const std::vector<Id>& contexts, const Clock&);
  ~SecretsWatch();               // Waits for the current read.
  Result<void> started() const;  // Returns an error if a thread could not be created.
  SecretsWatch(const SecretsWatch&) = delete;
  SecretsWatch& operator=(const SecretsWatch&) = delete;

  // Returns the secrets of a context of the constructor. Null until the first read has completed. Thread-safe.
  std::shared_ptr<const SecretSet> of(Id context) const;
  void rescan_now();  // Starts a read now, without waiting for the interval. Thread-safe.
  // Returns whether all secrets still have these values. Thread-safe.
  bool has(Id context, const std::vector<Secret>&) const;

 private:
  class ContextWatcher;
  std::map<Id, std::unique_ptr<ContextWatcher>> watchers_;
};

}  // namespace mycojobs
