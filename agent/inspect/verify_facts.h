// What a context's journals say of its jobs, and which jobs there are: the reading that verify and rebuild share.
// Reads a store while it is at work: what was read may have changed since, which catch_up() looks at again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "domain/job_invariants.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

using Progress = std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

struct Census {
  std::vector<QueueInfo> queues;
  std::unordered_map<std::string, JobHistory> jobs;
  std::vector<std::pair<std::string, std::string>> stray_entries;  // queue, entry: names of no job
  std::vector<std::pair<std::string, std::uint64_t>> stray_facts;  // queue, revision: name no job
  std::vector<std::uint64_t> read_to;  // of each queue: up to which revision its journal was read
  std::uint64_t facts = 0;
  std::uint64_t began_ms = 0;  // by the store's clock

  std::string queue_name(std::uint32_t queue) const;                // "" for none
  std::uint32_t queue_index(const std::string& name) const;         // kNoQueue if it was not there then
  std::string queue_of(const JobHistory&, const JobPlaces&) const;  // whose journal tells of the job
  // whole: the places come of a whole look; else its entries are those that were read with the lists.
  JobSight sight(const JobPlaces&, const JobHistory&, const Listing&, bool whole) const;
};
Result<Census> take_census(Store&, Id context, const Progress&);
// Reads what the journal of a queue has got since.
Result<void> read_on(Store&, Id context, std::uint32_t queue, Census&, const Progress&);
// Reads anew what the lists of the queues hold.
Result<void> read_entries(Store&, Id context, Census&, const Progress&);

// Takes the facts that its claim lists and that were written since into the history, which is then that of `places`
// exactly. again: also looks whether facts that are not listed are still there; retired ones are forgotten.
Result<Listing> catch_up(Store&, Id context, const Census&, const JobPlaces& places, bool again, JobHistory&);

// The beginning of the keys that hold something about a job or a message: "<job key>" (its claim), "<message key>".
std::string own_prefix(std::string_view of);

}  // namespace mycojobs
