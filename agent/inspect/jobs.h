// Jobs as people read them. Reads records, changes nothing, survives whatever stands in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct JobView {
  std::string key;
  Job job;
  std::vector<std::string> problems;  // fields that could not be read
};

// "12:2001", "job:12:2001", or "2001" for that job of the default caller.
Result<std::string> parse_job_key(std::string_view text, Id default_caller);

Result<JobView> load_job(Store&, Id context, const std::string& key);

struct JobQuery {
  std::optional<JobStatus> status;  // only these
  std::optional<Id> caller;         // only of this actor
  std::size_t limit = 50;           // the newest of them
  std::size_t max_keys = 100000;    // records that are looked at
};
struct JobList {
  std::vector<JobView> jobs;  // newest first; of each what a list shows: no script, no result, no log
  std::size_t matching = 0;   // jobs of that status that were looked at
  bool truncated = false;     // there are more than max_keys records
};
// Takes the memory of `limit` jobs and max_keys keys, however large the records are.
Result<JobList> list_jobs(Store&, Id context, const JobQuery&,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress);

nlohmann::json to_json(const JobView&);
// "finished ok · wall 34 ms · cpu 20 ms · memory 9.8 MiB · all layers"; else those that were missing, and stragglers.
std::string receipt_line(const Job&);

}  // namespace mycojobs
