// How a job ended, as it goes into its record. Made by an executor from a sandbox outcome; written by a store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mycojobs/records.h"

namespace mycojobs {

struct JobEnd {
  JobStatus status = JobStatus::error;  // finished or error
  std::string
      detail;  // ok, exit, signal, exception, timeout, oom, violation, result_too_large, cancelled, dead_letter, ...
  std::string error;       // one line a person can act on; empty when finished
  std::string error_info;  // JSON object: type, message, traceback, exit, signal, violation
  TextMap result;
  std::string usage;                          // JSON object, see Usage
  std::string layers;                         // separated by blanks
  std::string receipt;                        // JSON object
  std::string artifacts = {};                 // JSON object, as in Job
  std::string artifacts_dropped = {};         // JSON list, as in Job
  std::vector<std::string> result_json = {};  // as in Job
  std::string ran_as = {};                    // of one that ran elsewhere: context and key that it has there
  // What the failure itself says about another attempt. Not stored.
  bool retry_forbidden = false;
  std::optional<std::uint64_t> retry_after_ms = std::nullopt;
  bool operator==(const JobEnd&) const = default;
};

}  // namespace mycojobs
