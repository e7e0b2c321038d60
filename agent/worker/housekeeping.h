// What any agent does for jobs that nobody owns. A lease is expired only when the store says that its time has passed
// AND this host has itself seen it unrenewed for a whole lease on its own monotonic clock: the store's clock may jump.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "mycojobs/clock.h"
#include "mycojobs/store.h"

namespace mycojobs {

class Housekeeping {
 public:
  Housekeeping(const Clock& clock, std::uint32_t lease_ms) : clock_(clock), lease_ms_(lease_ms) {}

  // Cheap to call often: does something only once in a while. Error: the store is away.
  Result<void> look_after(Store&, Id context);
  // The store was away: nothing that was seen before counts.
  void blind(Id context) {
    std::erase_if(seen_, [context](const auto& entry) { return entry.first.first == context; });
  }

 private:
  struct Seen {
    std::uint64_t until_ms = 0;  // as the store has it
    std::uint64_t since_boot_ms = 0;
  };
  const Clock& clock_;
  std::uint32_t lease_ms_;
  std::map<Id, std::uint64_t> next_boot_ms_;
  std::map<std::pair<Id, std::string>, Seen> seen_;
};

}  // namespace mycojobs
