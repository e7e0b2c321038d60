#include "jobs/job_limits.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "model/codec.h"

namespace mycojobs {

Result<void> check_script(const std::string& script, std::uint64_t max_bytes) {
  if (script.size() <= max_bytes) return {};
  return fail(Code::too_large, "script: is " + std::to_string(script.size()) +
                                   " bytes, and job.max_script_bytes allows " + std::to_string(max_bytes));
}

Result<void> check_policy(const Job& job, const Ceiling& ceiling) {
  if (job.policy.empty()) return {};  // the job requests nothing
  const ParsedPolicy asked = read_policy(job.policy, "policy");
  if (!asked.ok()) return fail(Code::invalid, join(asked.problems));
  const std::string_view name = profile_of(job.script_type);
  MJ_TRY(policy, apply_ceiling_or_fail(profile(name), asked.request, ceiling));
  return check_warm(name, policy);
}

Result<void> check_policy(const Job& job, const JobLimits& limits) {
  return limits.agents ? check_policy(job, *limits.agents) : check_policy(job, limits.current_ceiling());
}

Result<void> check_policy(const PlanNode& node, const JobLimits& limits) {
  return node.supervisor_url.empty() ? check_policy(node.job, limits) : Result<void>();
}

Result<void> check_jobs(const FlowPlan& plan, const JobLimits& limits) {
  for (const PlanNode& node : plan.nodes) {
    auto own = check_script(node.job.script, limits.max_script_bytes);
    if (own) own = check_policy(node, limits);
    if (!own) return fail(own.error(), "jobs." + node.name);
    // No text in the child can exceed the limit, and no job in it has a policy.
    if (node.child.size() <= limits.max_script_bytes && node.child.find("\"policy\"") == std::string::npos) continue;
    MJ_TRY(child, parse_json(node.child));
    const ParsedPlan read = read_plan(child);
    if (!read.plan) continue;  // the code that starts the child reports the problem
    if (auto fits = check_jobs(*read.plan, limits); !fits) return fail(fits.error(), "jobs." + node.name + ".flow");
  }
  return {};
}

}  // namespace mycojobs
