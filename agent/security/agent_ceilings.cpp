#include "security/agent_ceilings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "security/profiles.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Fields with names of folders or secrets of the agent's host.
constexpr PolicyField kWithheld[] = {PolicyField::fs_read, PolicyField::fs_write, PolicyField::secrets};

bool is_withheld(PolicyField field) {
  return std::find(std::begin(kWithheld), std::end(kWithheld), field) != std::end(kWithheld);
}

Result<void> check_request(const Job& job, PolicyRequest asked, const PublishedCeiling& published) {
  for (const PolicyField field : kWithheld) {
    if (published.withheld[policies::index(field)]) asked.named.reset(policies::index(field));
  }
  return apply_ceiling_or_fail(profile(profile_of(job.script_type)), asked, published.ceiling).map([](const Policy&) {
  });
}

}  // namespace

std::string publish_ceiling(const Ceiling& ceiling) {
  json out = json::object();
  const json lists = to_json(ceiling.max);
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    const std::string name(to_string(field));
    if (!has_ceiling(field)) continue;
    out[name] = is_withheld(field) ? json(!lists.at(name).empty()) : json::parse(value_text(field, ceiling.max));
  }
  return dump_json(out);
}

std::optional<PublishedCeiling> read_published_ceiling(std::string_view text, Id context) {
  auto object = parse_json(text, kMaxPolicyBytes);
  if (text.empty() || !object || !object->is_object()) return std::nullopt;
  PublishedCeiling out;
  for (const PolicyField field : kWithheld) {
    const auto found = object->find(std::string(to_string(field)));
    if (found == object->end()) continue;
    out.withheld[policies::index(field)] = *found == true;
    object->erase(found);
  }
  const ParsedPolicy read = read_policy(dump_json(*object), "", PolicyKind::ceiling);
  if (!read.ok()) return std::nullopt;
  out.ceiling.max = apply_request(default_ceiling(), read.request);
  out.ceiling.context = context;
  return out;
}

Result<void> check_policy(const Job& job, const std::vector<AgentCeiling>& agents) {
  if (job.policy.empty()) return {};  // the job requests nothing
  const ParsedPolicy asked = read_policy(job.policy, "policy");
  if (!asked.ok()) return fail(Code::invalid, join(asked.problems));
  const std::string_view name = profile_of(job.script_type);
  MJ_CHECK(check_warm(name, apply_request(profile(name), asked.request)));
  std::optional<Error> refusal;
  std::size_t refused = 0;
  for (const AgentCeiling& agent : agents) {
    const auto& types = agent.script_types;
    if (std::find(types.begin(), types.end(), job.script_type) == types.end()) continue;
    if (!agent.published) return {};
    auto checked = check_request(job, asked.request, *agent.published);
    if (checked) return {};
    ++refused;
    if (!refusal) refusal = std::move(checked).error();
  }
  if (!refusal) return {};
  refusal->message +=
      "; so says the configuration of " + count_with_noun(refused, "live agent") + " for " + job.script_type;
  return tl::unexpected<Error>(std::move(*refusal));
}

}  // namespace mycojobs
