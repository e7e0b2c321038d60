#include "security/agent_ceilings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "security/profiles.h"
#include "text/json.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Fields with values that would reveal folders and secrets of the agent's host. The published ceiling has only whether
// the agent allows any value.
constexpr PolicyField kWithheldFields[] = {PolicyField::fs_read, PolicyField::fs_write, PolicyField::secrets};

bool is_withheld(PolicyField field) {
  return std::find(std::begin(kWithheldFields), std::end(kWithheldFields), field) != std::end(kWithheldFields);
}

Result<void> check_request(const Job& job, PolicyRequest request, const PublishedCeiling& published) {
  for (const PolicyField field : kWithheldFields) {
    if (published.withheld[policies::index(field)]) request.named_fields.reset(policies::index(field));
  }
  return apply_ceiling_or_fail(profile(get_profile_name(job.script_type)), request, published.ceiling)
      .map([](const Policy&) {});
}

}  // namespace

std::string format_published_ceiling(const Ceiling& ceiling) {
  json out = json::object();
  const json max = to_json(ceiling.max);
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    const std::string name(to_string(field));
    if (!has_ceiling(field)) continue;
    out[name] = is_withheld(field) ? json(!max.at(name).empty()) : json::parse(format_policy_value(field, ceiling.max));
  }
  return dump_json(out);
}

std::optional<PublishedCeiling> read_published_ceiling(std::string_view text, Id context) {
  auto object = parse_json(text, kMaxPolicyBytes);
  if (text.empty() || !object || !object->is_object()) return std::nullopt;
  PublishedCeiling out;
  for (const PolicyField field : kWithheldFields) {
    const auto field_value = object->find(std::string(to_string(field)));
    if (field_value == object->end()) continue;
    out.withheld[policies::index(field)] = *field_value == true;
    object->erase(field_value);
  }
  const ParsedPolicy parsed = read_policy(dump_json(*object), "", PolicyKind::ceiling);
  if (!parsed.ok()) return std::nullopt;
  out.ceiling.max = apply_request(default_ceiling(), parsed.request);
  out.ceiling.context = context;
  return out;
}

Result<void> check_policy_against_agents(const Job& job, const std::vector<AgentCeiling>& agents) {
  if (job.policy.empty()) return {};  // the job requests nothing
  const ParsedPolicy parsed = read_policy(job.policy, "policy");
  if (!parsed.ok()) return fail(Code::invalid, join(parsed.problems));
  const std::string_view profile_name = get_profile_name(job.script_type);
  MJ_CHECK(check_warm(profile_name, apply_request(profile(profile_name), parsed.request)));
  std::optional<Error> first_refusal;
  std::size_t refusal_count = 0;
  for (const AgentCeiling& agent : agents) {
    const auto& types = agent.script_types;
    if (std::find(types.begin(), types.end(), job.script_type) == types.end()) continue;
    if (!agent.published) return {};  // its ceiling is unknown; the agent itself decides
    auto checked = check_request(job, parsed.request, *agent.published);
    if (checked) return {};
    ++refusal_count;
    if (!first_refusal) first_refusal = std::move(checked).error();
  }
  if (!first_refusal) return {};
  first_refusal->message +=
      "; so says the configuration of " + count_with_noun(refusal_count, "live agent") + " for " + job.script_type;
  return tl::unexpected<Error>(std::move(*first_refusal));
}

}  // namespace mycojobs
