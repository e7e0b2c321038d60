// Computes the stored end of a job from the sandbox's outcome and the script's answer (docs/protocol.md lists the
// fields). Used by all executors with a script channel.
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
  std::shared_ptr<const std::string> grant_json = {};  // JobFacts::grant_json
  std::string intent = {};  // intent of the workflow that the job performs; empty if there is none
};

// Accepts every status. The caller handles `lost` and `unkillable` before, since they are not ends of a job.
JobEnd build_job_end(const EndContext&, const Outcome&, const ScriptAnswer&);

// Returns a JSON object with the fields of Usage.
std::string usage_json(const Usage&);
// Example: denied: keyctl(0x11, …) by pid 7 (python3): job killed; profile python; to allow: syscalls.add = ["keyctl"]
std::string format_violation(const Violation&, std::string_view profile);

}  // namespace mycojobs
