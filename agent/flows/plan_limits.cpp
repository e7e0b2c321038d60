#include "flows/plan_limits.h"

#include <nlohmann/json.hpp>

#include "text/json.h"

namespace mycojobs {

Result<void> check_policy(const PlanNode& node, const JobLimits& limits) {
  return node.supervisor_url.empty() ? check_policy(node.job, limits) : Result<void>();
}

Result<void> check_jobs(const FlowPlan& plan, const JobLimits& limits) {
  for (const PlanNode& node : plan.nodes) {
    auto checked = check_script(node.job.script, limits.max_script_bytes);
    if (checked) checked = check_policy(node, limits);
    if (!checked) return fail(checked.error(), "jobs." + node.name);
    // No text in the child can exceed the limit, and no job in it has a policy.
    if (node.child.size() <= limits.max_script_bytes && node.child.find("\"policy\"") == std::string::npos) continue;
    MJ_TRY(child, parse_json(node.child));
    const ParsedPlan read = read_plan(child);
    if (!read.plan) continue;  // the code that starts the child reports the problem
    if (auto child_checked = check_jobs(*read.plan, limits); !child_checked)
      return fail(child_checked.error(), "jobs." + node.name + ".flow");
  }
  return {};
}

}  // namespace mycojobs
