// The end of a job, as stored in its record. An executor creates it from a sandbox outcome; a store writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/records.h"

namespace mycojobs {

struct JobEnd {
  JobStatus status = JobStatus::error;  // finished or error
  // ok, exit, signal, exception, timeout, oom, violation, result_too_large, cancelled, dead_letter, ...
  std::string detail;
  std::string error;       // one line that a user can act on; empty if finished
  std::string error_info;  // JSON object: type, message, traceback, exit, signal, violation
  TextMap result;
  std::string usage;                          // JSON object, see Usage
  std::string layers;                         // separated by spaces
  std::string receipt;                        // JSON object
  std::string artifacts = {};                 // JSON object, as in Job
  std::string artifacts_dropped = {};         // JSON list, as in Job
  std::vector<std::string> result_json = {};  // as in Job
  std::string ran_as = {};                    // context and key of the job in another context, if it ran there
  // Whether and when the failure permits another attempt. Not stored.
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms = std::nullopt;
  bool operator==(const JobEnd&) const = default;
};

}  // namespace mycojobs
