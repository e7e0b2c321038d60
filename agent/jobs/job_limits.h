// The operator's limits for the jobs of a context. Every creator of jobs checks them (commands, JSON-RPC, and
// coordinators that start flows and effects on behalf of an actor), so that a job that could never run is rejected
// before anything is stored. An agent checks its own configuration again when it claims a job, because a client can
// write a record itself and limits can change.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "security/agent_ceilings.h"
#include "security/ceilings.h"

namespace mycojobs {

struct JobLimits {
  Ceiling ceiling = Ceilings().get(0);          // the built-in ceiling by default
  std::uint64_t max_script_bytes = UINT64_MAX;  // the setting job.max_script_bytes
  // If set, the ceilings of these live agents of the context replace both `ceiling` and `read_ceiling`
  // (security/agent_ceilings.h).
  std::optional<std::vector<AgentCeiling>> agents = {};
  // If set, returns the current ceiling, which the operator can change at run time, instead of `ceiling`. Thread-safe.
  std::function<Ceiling()> read_ceiling = {};

  Ceiling current_ceiling() const { return read_ceiling ? read_ceiling() : ceiling; }
};

// Error too_large: names the field, the setting and the limit.
Result<void> check_script(const std::string& script, std::uint64_t max_bytes);
// Checks the job's policy against the ceiling, based on the profile of its script type. Error invalid: names the field,
// the ceiling and the remedy.
Result<void> check_policy(const Job&, const Ceiling&);
Result<void> check_policy(const Job&, const JobLimits&);

}  // namespace mycojobs
