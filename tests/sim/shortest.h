// Shrinks a failing life: leaves out events, first by halves and then one at a time, until no further event can be left
// out without changing the failure (the first line of the violation, ignoring numbers).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "life.h"

namespace mycojobs::sim {

struct MinimalFailure {
  std::set<std::string> suppressed_events;
  std::vector<std::string> event_names;
  std::string violation;
};
// Shrinks the failing life of this seed.
MinimalFailure shorten(std::uint64_t seed, LifeSettings);
// Returns the first line of the violation without its numbers.
std::string get_violation_kind(const std::string& violation);
std::string to_text(const MinimalFailure&);

}  // namespace mycojobs::sim
