#include "executors/run_specs.h"

#include <algorithm>

#include "model/policy_json.h"
#include "security/ceilings.h"
#include "security/profiles.h"

namespace mycojobs {
namespace {

// Returns the request without fields that would let jobs with the same script compile differently.
PolicyRequest select_limits(const PolicyRequest& requested) {
  PolicyRequest limits = requested;
  for (const auto field :
       {PolicyField::fs_read, PolicyField::fs_write, PolicyField::volumes, PolicyField::net, PolicyField::exec,
        PolicyField::syscalls, PolicyField::secrets, PolicyField::warm_runs, PolicyField::warm_idle}) {
    limits.named_fields.reset(static_cast<std::size_t>(field));
    limits.replaced_fields.reset(static_cast<std::size_t>(field));
  }
  return limits;
}

Result<void> add_tool_folders(const Stage& stage, const Ceiling* ceiling, RunSpec& spec) {
  for (const std::string& folder : stage.tool_folders) {
    for (const std::string& agent_folder : ceiling == nullptr ? std::vector<std::string>{} : ceiling->agent_folders) {
      if (policies::overlaps(agent_folder, folder)) {
        return fail(Code::denied, stage.profile + " needs " + folder + ", which leads to the agent's own folder " +
                                      agent_folder + ": the operator must move one of them");
      }
    }
    policies::add_missing(spec.grants.fs_read, {folder});
  }
  return {};
}

Result<Policy> compute_policy(const Stage& stage, const PolicyRequest& defaults, const PolicyRequest& requested,
                              const Ceiling* context_ceiling, std::vector<std::string>& lowered) {
  lowered.clear();
  if (stage.is_operator_defined) return stage.policy;
  const Policy profile = apply_request(stage.policy, defaults);
  if (context_ceiling == nullptr) return apply_request(profile, requested);
  auto policy = apply_ceiling_or_fail(profile, requested, get_stage_ceiling(stage, *context_ceiling));
  if (!policy) return fail(Code::denied, policy.error().message);
  const Policy unlimited_policy = apply_request(profile, requested);
  if (*policy == unlimited_policy) return policy;
  for (const PolicyDifference& difference : diff(unlimited_policy, *policy))
    lowered.emplace_back(to_string(difference.field));
  return policy;
}

}  // namespace

Ceiling get_stage_ceiling(const Stage& stage, Ceiling ceiling) {
  constexpr auto kExec = static_cast<std::size_t>(PolicyField::exec);
  const bool exec_written = ceiling.written_fields[kExec];
  if (!stage.is_trusted) ceiling.written_fields.set();
  if (stage.needs_exec) ceiling.written_fields[kExec] = exec_written;
  return ceiling;
}

Result<void> add_volumes(const Policy& policy, const std::vector<Volume>& of_context, RunSpec& spec) {
  for (const std::string& name : policy.volumes) {
    const auto volume = std::find_if(of_context.begin(), of_context.end(),
                                     [&name](const Volume& candidate) { return candidate.name == name; });
    if (volume == of_context.end())
      return fail(Code::denied, "policy.volumes: the context has no volume " + name + " on this host");
    spec.grants.volumes.push_back(*volume);
  }
  return {};
}

Result<StagedRuns> stage_runs(const Executor& executor, const PolicyRequest& defaults, const PolicyRequest& requested,
                              const Ceiling* ceiling, std::uint64_t timeout_ms, Id context) {
  StagedRuns runs;
  if (context == 0 && ceiling != nullptr) context = ceiling->context;
  for (const Stage& stage : executor.get_context_stages(context)) {
    MJ_TRY(policy, compute_policy(stage, defaults, stage.is_cached ? select_limits(requested) : requested, ceiling,
                                  runs.lowered));
    if (stage.needs_exec && !policy.exec) {
      const std::string id = std::to_string(context);
      return fail(Code::denied, "policy.exec: " + stage.profile + " runs programs, and context " + id +
                                    " may have none: the operator must set [contexts." + id + ".ceiling] exec = true");
    }
    if (const auto warm = check_warm(stage.profile, policy); !warm) return fail(Code::denied, warm.error().message);
    RunSpec spec;
    spec.host = stage.host;
    apply_policy(spec, policy, timeout_ms);
    MJ_CHECK(add_tool_folders(stage, ceiling, spec));
    if (ceiling != nullptr) MJ_CHECK(add_volumes(policy, ceiling->volumes, spec));
    runs.specs.push_back(std::move(spec));
    runs.policy = std::move(policy);
  }
  return runs;
}

}  // namespace mycojobs
