// From what happened in the sandbox, and what the script handed back, to the end of the job: the table "What the words
// carry" of the data model. The same for every executor whose scripts talk on a channel.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "executors/answer.h"
#include "mycojobs/job_end.h"
#include "mycojobs/outcome.h"

namespace mycojobs {

struct EndContext {
  std::string job;      // its key: job:12:2001
  std::string profile;  // the sandbox profile, for messages: python
  std::optional<std::uint32_t> timeout_s;
  std::uint64_t max_result_bytes = 0;
  std::shared_ptr<const std::string> grant = {};  // members of the receipt (JobFacts::grant); null: none
  std::string intent = {};                        // that it carries out, of a workflow; empty: none
};

// Total: every status has an end. `lost` and `unkillable` are not ends of a job: the caller deals with them first.
JobEnd outcome_to_end(const EndContext&, const Outcome&, const Answer&);

// JSON object with the fields of Usage.
std::string usage_json(const Usage&);
// denied: keyctl(0x11, …) by pid 7 (python3): job killed; profile python; to allow: syscalls.add = ["keyctl"]
std::string violation_line(const Violation&, std::string_view profile);

}  // namespace mycojobs
