#include "executors/run_specs.h"

#include "model/policy_json.h"
#include "security/profiles.h"

namespace mycojobs {
namespace {

// Returns the request without fields that would let jobs with the same script compile differently.
PolicyRequest limits_of(const PolicyRequest& asked) {
  PolicyRequest out = asked;
  for (const auto field :
       {PolicyField::fs_read, PolicyField::fs_write, PolicyField::net, PolicyField::exec, PolicyField::syscalls,
        PolicyField::secrets, PolicyField::warm_runs, PolicyField::warm_idle}) {
    out.named.reset(static_cast<std::size_t>(field));
    out.replace.reset(static_cast<std::size_t>(field));
  }
  return out;
}

Result<void> add_tools(const Stage& stage, const Ceiling* ceiling, RunSpec& spec) {
  for (const std::string& folder : stage.tools) {
    for (const std::string& own : ceiling == nullptr ? std::vector<std::string>{} : ceiling->own_folders) {
      if (policies::is_within(own, folder) || policies::is_within(folder, own)) {
        return fail(Code::denied, stage.profile + " needs " + folder + ", which leads to the agent's own folder " +
                                      own + ": the operator must move one of them");
      }
    }
    policies::add_missing(spec.grants.fs_read, {folder});
  }
  return {};
}

Result<Policy> policy_of(const Stage& stage, const PolicyRequest& defaults, const PolicyRequest& asked,
                         const Ceiling* given, std::vector<std::string>& lowered) {
  const Policy profile = apply_request(stage.policy, defaults);
  lowered.clear();
  if (given == nullptr) return apply_request(profile, asked);
  auto policy = apply_ceiling_or_fail(profile, asked, ceiling_of(stage, *given));
  if (!policy) return fail(Code::denied, policy.error().message);
  const Policy wanted = apply_request(profile, asked);
  if (*policy == wanted) return policy;
  for (const PolicyDifference& each : diff(wanted, *policy)) lowered.emplace_back(to_string(each.field));
  return policy;
}

}  // namespace

Ceiling ceiling_of(const Stage& stage, Ceiling ceiling) {
  constexpr auto kExec = static_cast<std::size_t>(PolicyField::exec);
  const bool exec_written = ceiling.written[kExec];
  if (!stage.trusted) ceiling.written.set();
  if (stage.programs) ceiling.written[kExec] = exec_written;
  return ceiling;
}

Result<StagedRuns> stage_runs(const Executor& executor, const PolicyRequest& defaults, const PolicyRequest& asked,
                              const Ceiling* ceiling, std::uint64_t timeout_ms) {
  StagedRuns out;
  for (const Stage& stage : executor.stages()) {
    MJ_TRY(policy, policy_of(stage, defaults, stage.kept ? limits_of(asked) : asked, ceiling, out.lowered));
    if (stage.programs && !policy.exec) {
      const std::string context = std::to_string(ceiling == nullptr ? 0 : ceiling->context);
      return fail(Code::denied, "policy.exec: " + stage.profile + " runs programs, and context " + context +
                                    " may have none: the operator must set [contexts." + context +
                                    ".ceiling] exec = true");
    }
    if (const auto warm = check_warm(stage.profile, policy); !warm) return fail(Code::denied, warm.error().message);
    RunSpec spec;
    spec.host = stage.host;
    apply_policy(spec, policy, timeout_ms);
    MJ_CHECK(add_tools(stage, ceiling, spec));
    out.specs.push_back(std::move(spec));
    out.policy = std::move(policy);
  }
  return out;
}

}  // namespace mycojobs
