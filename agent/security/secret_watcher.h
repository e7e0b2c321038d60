// The current secrets of each context, for callers that must not block on a disk: the intake, the run loop and the warm
// processes. Each context has a thread that reads its secrets, so that a disk that hangs does not affect other
// contexts.
//
//   thread of a context --SecretReader::rescan()--> current secrets --get(context)--> any thread
//
// A thread reads after a change of the folder and every kCheckIntervalMs. While the disk hangs or cannot be read, the
// previous secrets stay in force.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "security/secrets.h"

namespace mycojobs {

class SecretWatcher {
 public:
  // Interval of the reads if the kernel sends no change notifications for the folder.
  static constexpr std::uint64_t kCheckIntervalMs = 2000;

  SecretWatcher(const SecretSources&, const std::vector<Id>& contexts, const Clock&);
  ~SecretWatcher();                    // Waits for the current read.
  Result<void> check_started() const;  // returns an error if a thread could not be created
  SecretWatcher(const SecretWatcher&) = delete;
  SecretWatcher& operator=(const SecretWatcher&) = delete;

  // Returns the secrets of a context of the constructor, or null until the first read has completed. Thread-safe.
  std::shared_ptr<const SecretSet> get(Id context) const;
  void request_rescan();  // starts a read without waiting for the interval; thread-safe
  // Returns whether all of these secrets still have these values, or no read has completed yet. Thread-safe.
  bool are_current(Id context, const std::vector<Secret>&) const;

 private:
  class ContextWatcher;
  std::map<Id, std::unique_ptr<ContextWatcher>> watchers_;
};

}  // namespace mycojobs
