// The operator's limits for the jobs of a context. Whoever makes jobs asks for them, so that what never could run is
// refused before anything is stored: commands, JSON-RPC, and a coordinator that starts flows and effects in somebody's
// name. An agent asks again when it claims a job, by its own configuration: a client can write a record itself, and
// limits can change in between.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "domain/agent_ceilings.h"
#include "domain/flow_plan.h"
#include "domain/policy.h"
#include "domain/profiles.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct JobLimits {
  Ceiling ceiling = Ceilings().of(0);           // where no operator has one: the built-in one
  std::uint64_t max_script_bytes = UINT64_MAX;  // the setting job.max_script_bytes
  // If set, these live agents of the context stand instead of `ceiling` (domain/agent_ceilings.h).
  std::optional<std::vector<AgentCeiling>> agents = {};
  std::function<Ceiling()> read_ceiling = {};  // where the operator can change it: the one in force, thread-safe

  Ceiling current_ceiling() const { return read_ceiling ? read_ceiling() : ceiling; }
};

// Error too_large: names field, setting and limit.
Result<void> check_script(const std::string& script, std::uint64_t max_bytes);
// What a job asks for against the ceiling, whichever profile stands below: no executor is asked. Error invalid: names
// field, ceiling and remedy.
Result<void> check_policy(const Job&, const Ceiling&);
Result<void> check_policy(const Job&, const JobLimits&);
// All nodes of a plan, and of the flows that it starts. One that runs elsewhere is held to the ceiling there. Errors as
// above, with the place in front: "jobs.a: ...", "jobs.c.flow: jobs.a: ...".
Result<void> check_jobs(const FlowPlan&, const JobLimits&);
Result<void> check_policy(const PlanNode&, const JobLimits&);  // of one node

}  // namespace mycojobs
