// The current secrets of each context, for callers that must not block on a disk: the intake, the run loop and the warm
// processes. The secrets are read on a strand of their context (base/strands/strand_pool.h), so that a folder that
// hangs does not affect other contexts.
//
//   thread: changes, time --> strand of a context: SecretReader::rescan() --> current secrets --get(context)--> any
//
// The secrets of a context are read after a change of the folder and every kCheckIntervalMs. While the disk hangs or
// cannot be read, the previous secrets stay in force.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "security/secrets.h"

namespace mycojobs {

class SecretWatcher {
 public:
  // Interval of the reads if the kernel sends no change notifications for the folder.
  static constexpr std::uint64_t kCheckIntervalMs = 2000;

  // Needs no thread if there are no sources of secrets.
  SecretWatcher(const SecretSources&, const std::vector<Id>& contexts, const Clock&);
  ~SecretWatcher();                    // Waits for the current reads.
  Result<void> check_started() const;  // returns an error if the thread could not be created
  SecretWatcher(const SecretWatcher&) = delete;
  SecretWatcher& operator=(const SecretWatcher&) = delete;

  // Returns the secrets of a context of the constructor, or null until the first read has completed. Thread-safe.
  std::shared_ptr<const SecretSet> get(Id context) const;
  void request_rescan();  // starts reads of all contexts without waiting for the interval; thread-safe
  // Returns whether all of these secrets still have these values, or no read has completed yet. Thread-safe.
  bool are_current(Id context, const std::vector<Secret>&) const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace mycojobs
