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

std::string_view remove_version(std::string_view name) { return name.substr(0, name.rfind('@')); }
// Returns "order" for "shop/order@1".
std::string_view base_name(std::string_view name) {
  const auto versionless = remove_version(name);
  return versionless.substr(versionless.rfind('/') + 1);
}

template <class NamedItems>
std::vector<std::string> list_names(const NamedItems& items) {
  std::vector<std::string> names;
  for (const auto& item : items) names.push_back(item.name);
  return names;
}

}  // namespace

Result<std::string> find_name(std::string_view query, const std::vector<std::string>& full_names,
                              std::string_view kind) {
  if (std::find(full_names.begin(), full_names.end(), query) != full_names.end()) return std::string(query);
  std::string match;
  for (const auto shorten : {remove_version, base_name}) {
    for (const auto& name : full_names) {
      if (shorten(name) != query || name == match) continue;
      if (!match.empty())
        return fail(Code::invalid, std::string(kind) + ' ' + excerpt(query, 200) + ": " + match + " and " + name +
                                       " have this name; use the full name");
      match = name;
    }
    if (!match.empty()) return match;
  }
  std::vector<std::string_view> candidates;
  for (const auto& name : full_names) {
    for (const std::string_view candidate : {std::string_view(name), remove_version(name), base_name(name)})
      candidates.push_back(candidate);
  }
  return fail(Code::not_found,
              "there is no " + std::string(kind) + ' ' + excerpt(query, 200) + did_you_mean(query, candidates));
}

Result<const WorkflowSpec*> find_workflow(const WorkflowManifest& manifest, std::string_view query) {
  MJ_TRY(name, find_name(query, list_names(manifest.workflows), "workflow"));
  return manifest.workflow(name);
}
Result<const EffectSpec*> find_effect(const WorkflowManifest& manifest, std::string_view query) {
  MJ_TRY(name, find_name(query, list_names(manifest.effects), "effect"));
  return manifest.effect(name);
}
Result<std::string> find_event(const WorkflowManifest& manifest, std::string_view query) {
  std::vector<std::string> names;
  for (const auto& subscription : manifest.subscriptions)
    if (std::find(names.begin(), names.end(), subscription.event) == names.end()) names.push_back(subscription.event);
  return find_name(query, names, "event");
}

// `text` is JSON if it parses as JSON that fits the key schema; otherwise it is a plain string.
// SchemaSet::check() returns the value in CBOR.
Result<std::string> encode_key(const WorkflowManifest& manifest, const WorkflowSpec& workflow, std::string_view text) {
  if (const auto parsed = parse_json(text, 1024); parsed) {
    const auto encoded = manifest.schemas.check(workflow.key_schema, *parsed, ValueForm::from_json);
    if (encoded) return encoded->bytes;
  }
  auto encoded = manifest.schemas.check(workflow.key_schema, json(to_utf8(text)), ValueForm::from_json);
  if (!encoded) return fail(std::move(encoded).error(), "the key " + excerpt(text, 80) + " of " + workflow.name);
  return encoded->bytes;
}

Result<InstanceId> parse_instance_id(const WorkflowManifest& manifest, std::string_view query) {
  const auto separator = query.find(' ');
  MJ_TRY(workflow, find_workflow(manifest, query.substr(0, separator)));
  const bool has_key = separator != query.npos;
  if (workflow->is_keyed() != has_key)
    return fail(Code::invalid, workflow->is_keyed()
                                   ? workflow->name + " is keyed: " + excerpt(query, 200) + " has no key"
                                   : workflow->name + " has no keys: " + excerpt(query, 200));
  if (!workflow->is_keyed()) return InstanceId{workflow->name, ""};
  MJ_TRY(key, encode_key(manifest, *workflow, query.substr(separator + 1)));
  return InstanceId{workflow->name, std::move(key)};
}

std::string short_name(const InstanceId& instance) {
  const std::string name(base_name(instance.workflow));
  if (instance.key.empty()) return name;
  const auto key = decode_cbor(instance.key);
  if (!key) return name + " ?";  // a key that is not valid CBOR
  return name + ' ' + (key->is_string() ? key->get<std::string>() : dump_json(*key));
}

}  // namespace mycojobs
