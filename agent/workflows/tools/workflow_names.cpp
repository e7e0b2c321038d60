#include "workflows/tools/workflow_names.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/cbor.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string_view without_version(std::string_view name) { return name.substr(0, name.rfind('@')); }
std::string_view own_name(std::string_view name) {
  const auto versionless = without_version(name);
  return versionless.substr(versionless.rfind('/') + 1);
}

template <class All>
std::vector<std::string> names_of(const All& all) {
  std::vector<std::string> names;
  for (const auto& each : all) names.push_back(each.name);
  return names;
}

}  // namespace

Result<std::string> find_name(std::string_view given, const std::vector<std::string>& names, std::string_view what) {
  if (std::find(names.begin(), names.end(), given) != names.end()) return std::string(given);
  std::string found;
  for (const auto shorten : {without_version, own_name}) {
    for (const auto& name : names) {
      if (shorten(name) != given || name == found) continue;
      if (!found.empty())
        return fail(Code::invalid, std::string(what) + ' ' + excerpt(given, 200) + ": " + found + " and " + name +
                                       " have this name; use the full name");
      found = name;
    }
    if (!found.empty()) return found;
  }
  std::vector<std::string_view> near;
  for (const auto& name : names) {
    for (const std::string_view each : {std::string_view(name), without_version(name), own_name(name)})
      near.push_back(each);
  }
  return fail(Code::not_found,
              "there is no " + std::string(what) + ' ' + excerpt(given, 200) + did_you_mean(given, near));
}

Result<const WorkflowSpec*> find_workflow(const WorkflowManifest& manifest, std::string_view given) {
  MJ_TRY(name, find_name(given, names_of(manifest.workflows), "workflow"));
  return manifest.workflow(name);
}
Result<const EffectSpec*> find_effect(const WorkflowManifest& manifest, std::string_view given) {
  MJ_TRY(name, find_name(given, names_of(manifest.effects), "effect"));
  return manifest.effect(name);
}
Result<std::string> find_event(const WorkflowManifest& manifest, std::string_view given) {
  std::vector<std::string> names;
  for (const auto& each : manifest.subscriptions)
    if (std::find(names.begin(), names.end(), each.event) == names.end()) names.push_back(each.event);
  return find_name(given, names, "event");
}

Result<std::string> key_of_text(const WorkflowManifest& manifest, const WorkflowSpec& workflow, std::string_view text) {
  if (const auto parsed = parse_json(text, 1024); parsed) {
    const auto fits = manifest.schemas.check(workflow.key_schema, *parsed, ValueForm::from_json);
    if (fits) return fits->bytes;
  }
  auto fits = manifest.schemas.check(workflow.key_schema, json(to_utf8(text)), ValueForm::from_json);
  if (!fits) return fail(std::move(fits).error(), "the key " + excerpt(text, 80) + " of " + workflow.name);
  return fits->bytes;
}

Result<InstanceId> find_instance_id(const WorkflowManifest& manifest, std::string_view given) {
  const auto blank = given.find(' ');
  MJ_TRY(workflow, find_workflow(manifest, given.substr(0, blank)));
  if (workflow->keyed() != (blank != given.npos))
    return fail(Code::invalid, workflow->keyed() ? workflow->name + " is keyed: " + excerpt(given, 200) + " has no key"
                                                 : workflow->name + " has no keys: " + excerpt(given, 200));
  if (!workflow->keyed()) return InstanceId{workflow->name, ""};
  MJ_TRY(key, key_of_text(manifest, *workflow, given.substr(blank + 1)));
  return InstanceId{workflow->name, std::move(key)};
}

std::string short_name(const InstanceId& cell) {
  const std::string name(own_name(cell.workflow));
  if (cell.key.empty()) return name;
  const auto key = decode_cbor(cell.key);
  if (!key) return name + " ?";
  return name + ' ' + (key->is_string() ? key->get<std::string>() : dump_json(*key));
}

}  // namespace mycojobs
