#include "jobs/job_limits.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "model/codec.h"
#include "security/profiles.h"

namespace mycojobs {

Result<void> check_script(const std::string& script, std::uint64_t max_bytes) {
  if (script.size() <= max_bytes) return {};
  return fail(Code::too_large, "script: is " + std::to_string(script.size()) +
                                   " bytes, and job.max_script_bytes allows " + std::to_string(max_bytes));
}

Result<void> check_policy(const Job& job, const Ceiling& ceiling) {
  if (job.policy.empty()) return {};  // the job requests nothing
  const ParsedPolicy parsed = read_policy(job.policy, "policy");
  if (!parsed.ok()) return fail(Code::invalid, join(parsed.problems));
  const std::string_view name = get_profile_name(job.script_type);
  MJ_TRY(policy, apply_ceiling_or_fail(profile(name), parsed.request, ceiling));
  return check_warm(name, policy);
}

Result<void> check_policy(const Job& job, const JobLimits& limits) {
  return limits.agents ? check_policy_against_agents(job, *limits.agents) : check_policy(job, limits.current_ceiling());
}

}  // namespace mycojobs
