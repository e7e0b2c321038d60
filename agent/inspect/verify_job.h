// What is wrong about one job, given its facts and one atomic look at its places. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/verify.h"

namespace mycojobs {

struct JobLook {
  const JobPlaces& places;
  const JobHistory& history;  // of the same moment: see catch_up()
  const Listing& listing;
  std::string queue;                      // whose journal tells of it
  std::optional<std::uint32_t> in_queue;  // entries of it in its queue's list; nothing: not looked at
  bool other_entries = false;             // it stands in the list of another queue
};

Finding finding(std::string_view rule, std::string subject, std::string text);

// By the job's facts if they are whole, else by its claim.
std::vector<Finding> judge(const JobLook&);
// All that its claim lists are there, and all fit.
bool are_whole(const JobHistory&, const Listing&);
// It has ended; a bare job as its record says.
bool has_ended(const JobPlaces&);

std::string_view field_of(const Fields&, std::string_view name);

}  // namespace mycojobs
