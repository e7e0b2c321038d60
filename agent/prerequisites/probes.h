// Looks at the network, many places at a time and none of them for long: does host:port accept a connection, does a URL
// answer below 400. Owned and called by one thread, which waits in wait(). No proxy, no redirection, no credential, and
// nothing of an answer but its number is read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "domain/prerequisites.h"
#include "mycojobs/clock.h"
#include "mycojobs/result.h"

namespace mycojobs {

class Probes {
 public:
  static Result<std::unique_ptr<Probes>> open(const Clock&);
  ~Probes();
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

  // What was seen within the last few seconds; nothing: it is being looked at, or will be when it is asked for again.
  std::optional<bool> ask(const Condition&);
  // Returns when something has been seen, wake_fd is readable, or the time is over. True: ask again.
  bool wait(int wake_fd, std::uint32_t timeout_ms);

 private:
  struct Look;
  struct Seen {
    bool yes = false;
    std::uint64_t until_boot_ms = 0;  // it counts no longer
  };
  Probes(const Clock&, void* multi);
  bool take_finished();

  const Clock& clock_;
  void* multi_;  // libcurl's
  std::map<std::string, std::unique_ptr<Look>> under_way_;
  std::map<std::string, Seen> seen_;
};

}  // namespace mycojobs
