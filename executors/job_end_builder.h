// Computes the stored end of a job from the sandbox's outcome and the script's answer: the table "What the words carry"
// of the data model. Used by all executors with a script channel.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "executors/script_answer.h"
#include "model/job_end.h"
#include "sandbox/outcome.h"

namespace mycojobs {

struct EndContext {
  std::string job;      // key of the job: job:12:2001
  std::string profile;  // the sandbox profile, for messages: python
  std::optional<std::uint32_t> timeout_s;
  std::uint64_t max_result_bytes = 0;
  std::shared_ptr<const std::string> grant = {};  // members of the receipt (JobFacts::grant); null: none
  std::string intent = {};                        // intent of a workflow that the job performs; empty: none
};

// Handles every status. The caller must handle `lost` and `unkillable` first, since they are not ends of a job.
JobEnd outcome_to_end(const EndContext&, const Outcome&, const ScriptAnswer&);

// Returns a JSON object with the fields of Usage.
std::string usage_json(const Usage&);
// Example: denied: keyctl(0x11, …) by pid 7 (python3): job killed; profile python; to allow: syscalls.add = ["keyctl"]
std::string violation_line(const Violation&, std::string_view profile);

}  // namespace mycojobs
