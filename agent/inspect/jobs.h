// Jobs as people read them. Reads records, changes nothing, survives whatever stands in them.
#pragma once

#include <cstddef>
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
struct JobList {
  std::vector<JobView> jobs;  // newest first
  bool truncated = false;     // there are more than max_keys records
};
Result<JobList> list_jobs(Store&, Id context, std::optional<JobStatus>, std::size_t max_keys);

nlohmann::json to_json(const JobView&);
// "finished ok · wall 34 ms · cpu 20 ms · memory 9.8 MiB · stragglers 0 · layers userns pidns ..."
std::string receipt_line(const Job&);

}  // namespace mycojobs
