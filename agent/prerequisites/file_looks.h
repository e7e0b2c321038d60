// Checks whether files of the host exist. Each file is checked by a thread of its own, since its disk may hang; only
// callers that need that file wait for it. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mycojobs/clock.h"
#include "prerequisites/seen_lately.h"

namespace mycojobs {

class FileChecks {
 public:
  explicit FileChecks(const Clock&);
  // Returns a result of the last few seconds. No value: the check is under way, or will start with a later call. After
  // three seconds without a result the file counts as missing.
  std::optional<bool> ask(const std::string& path);
  int event_fd() const;  // readable after a check has completed
  bool take_results();   // true: a check has completed, call ask() again

 private:
  struct Answers;  // results of the threads, which outlive this object if a disk hangs
  bool hangs(std::uint64_t since_boot_ms) const;

  const Clock& clock_;
  std::shared_ptr<Answers> answers_;
  std::map<std::string, std::uint64_t> under_way_;  // with start times
  CheckResultCache seen_;
};

}  // namespace mycojobs
