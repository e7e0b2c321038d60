// Whether files of the host are there. Each is looked for by a thread of its own, since its disk may hang: nobody waits
// for it but who asks for that file. Owned and asked by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "mycojobs/clock.h"
#include "prerequisites/seen_lately.h"

namespace mycojobs {

class FileLooks {
 public:
  explicit FileLooks(const Clock&);
  // What was seen within the last few seconds; nothing: it is being looked for, or will be when it is asked for again.
  // After three seconds without an answer it is not there.
  std::optional<bool> ask(const std::string& path);
  int event_fd() const;  // readable: something has been seen
  bool take_seen();      // true: something has, ask again

 private:
  struct Answers;  // of the threads, which outlive us if their disk hangs
  bool hangs(std::uint64_t since_boot_ms) const;

  const Clock& clock_;
  std::shared_ptr<Answers> answers_;
  std::map<std::string, std::uint64_t> under_way_;  // since when
  SeenLately seen_;
};

}  // namespace mycojobs
