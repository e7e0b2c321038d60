#include "workflows/tools/manifest_diff.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/codec.h"
#include "text/json.h"
#include "text/line_diff.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using TextsByName = std::map<std::string, std::string>;  // values have several lines

constexpr auto kWorkflowSchemaFields = {"state", "event", "annotations", "key_schema"};
constexpr auto kEffectSchemaFields = {"params", "receipt"};

// Returns the `workflows` array. A document without that array is itself the only workflow; the fields that belong to
// the manifest are removed from it.
json get_workflows(const json& document) {
  if (document.contains("workflows")) return document.at("workflows");
  json workflow = document;
  for (const char* field : {"schemas", "effects", "routing", "limits", "description"}) workflow.erase(field);
  return json::array({std::move(workflow)});
}
json get_effects(const json& document) { return document.value("effects", json::array()); }

// Formats workflows or effects as JSON, by name. A note replaces each inline schema, because collect_schemas() reports
// changes of schemas.
TextsByName format_items(const json& items, std::initializer_list<const char*> inline_fields) {
  TextsByName texts;
  for (json item : items) {
    for (const char* field : inline_fields)
      if (item.contains(field) && !item[field].is_string()) item[field] = "(its own)";
    texts[item.at("name").get<std::string>()] = dump_json(item, 2);
  }
  return texts;
}

// Returns named and inline schemas; an inline schema has a name such as "shop/order@1#state".
TextsByName collect_schemas(const json& document) {
  TextsByName out;
  const json named_schemas = document.value("schemas", json::object());
  for (const auto& [name, schema] : named_schemas.items()) out[name] = dump_json(schema, 2);
  const auto add_inline_schemas = [&](const json& owner, std::initializer_list<const char*> field_names) {
    for (const char* field : field_names)
      if (const auto schema = owner.find(field); schema != owner.end() && !schema->is_string())
        out[owner.at("name").get<std::string>() + '#' + field] = dump_json(*schema, 2);
  };
  for (const auto& effect : get_effects(document)) add_inline_schemas(effect, kEffectSchemaFields);
  for (const auto& workflow : get_workflows(document)) add_inline_schemas(workflow, kWorkflowSchemaFields);
  return out;
}

// Formats the subscriptions in the order of the delivery of events, so that a different order counts as a change.
std::string format_subscriptions(const WorkflowManifest& manifest) {
  std::string out;
  for (const auto& subscription : manifest.subscriptions)
    out += subscription.event + " -> " + subscription.workflow +
           (subscription.key_field.empty() ? "" : " by " + subscription.key_field) + '\n';
  return out;
}

class ManifestComparison {
 public:
  void compare(const char* part, const TextsByName& before, const TextsByName& after) {
    std::set<std::string> names;
    for (const auto& [name, text] : before) names.insert(name);
    for (const auto& [name, text] : after) names.insert(name);
    for (const auto& name : names) {
      const auto old_text = before.find(name), new_text = after.find(name);
      if (old_text == before.end()) {
        add(ManifestChange::added, part, name, "");
      } else if (new_text == after.end()) {
        add(ManifestChange::removed, part, name, "");
      } else if (old_text->second != new_text->second) {
        add(ManifestChange::changed, part, name, format_diff(diff_lines(old_text->second, new_text->second)));
      }
    }
  }
  void add(ManifestChange change, const char* part, std::string name, std::string text) {
    differences_.push_back({change, part, std::move(name), std::move(text), {}});
  }
  std::vector<ManifestDifference> release_differences() { return std::move(differences_); }

 private:
  std::vector<ManifestDifference> differences_;
};

// Returns whether schema `source` is or references schema `target`, also through other schemas. `references` maps the
// name of a schema to the names of the schemas that it references.
bool is_reachable(const std::map<std::string, std::set<std::string>>& references, const std::string& source,
                  const std::string& target) {
  std::set<std::string> visited{source};
  std::vector<std::string> stack{source};
  while (!stack.empty()) {
    const std::string name = std::move(stack.back());
    stack.pop_back();
    if (name == target) return true;
    if (const auto entry = references.find(name); entry != references.end())
      for (const auto& reference : entry->second)
        if (visited.insert(reference).second) stack.push_back(reference);
  }
  return false;
}
// Adds the targets of all `$ref` fields in the schema.
void collect_references(const json& schema, std::set<std::string>& out) {
  if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) out.insert(schema["$ref"]);
  if (schema.is_structured())
    for (const auto& child : schema) collect_references(child, out);
}

// Adds sentences on the consequences of a difference for running instances. `references`: see is_reachable().
void add_consequences(ManifestDifference& difference, const WorkflowManifest& before, const WorkflowManifest& after,
                      const std::map<std::string, std::set<std::string>>& references) {
  const auto add_consequence = [&](std::string text) { difference.consequences.push_back(std::move(text)); };
  const bool is_removed = difference.change == ManifestChange::removed;
  if (difference.part == "workflow" && is_removed)
    add_consequence("its instances keep their code, and get no new events");
  if (difference.part == "effect" && is_removed) add_consequence("instances of older code can still request it");
  for (const auto& workflow : before.workflows) {
    if (after.workflow(workflow.name) == nullptr) continue;
    if (difference.part == "code" && workflow.module == difference.name)
      add_consequence(workflow.name + ": new instances take the new code, those that are there keep theirs");
    if (difference.part != "schema") continue;
    for (const auto& [role, schema] : {std::pair{"state", &workflow.state}, std::pair{"event", &workflow.event},
                                       std::pair{"key_schema", &workflow.key_schema}})
      if (!schema->empty() && is_reachable(references, *schema, difference.name))
        add_consequence(workflow.name + ": it is its " + role);
  }
}

}  // namespace

std::string_view to_string(ManifestChange change) {
  switch (change) {
    case ManifestChange::added:
      return "added";
    case ManifestChange::removed:
      return "removed";
    case ManifestChange::changed:
      break;
  }
  return "changed";
}

std::vector<ManifestDifference> compare_manifests(const json& before_document, const WorkflowManifest& before,
                                                  const json& after_document, const WorkflowManifest& after) {
  ManifestComparison comparison;
  const auto format_head = [](const json& document) {
    json out = json::object();
    for (const char* field : {"name", "description", "limits"})
      if (document.contains(field)) out[field] = document[field];
    return dump_json(out, 2);
  };
  const auto to_texts = [](const CodeFiles& code) { return TextsByName(code.begin(), code.end()); };
  comparison.compare("manifest", {{before.name, format_head(before_document)}},
                     {{before.name, format_head(after_document)}});
  comparison.compare("workflow", format_items(get_workflows(before_document), kWorkflowSchemaFields),
                     format_items(get_workflows(after_document), kWorkflowSchemaFields));
  comparison.compare("schema", collect_schemas(before_document), collect_schemas(after_document));
  comparison.compare("effect", format_items(get_effects(before_document), kEffectSchemaFields),
                     format_items(get_effects(after_document), kEffectSchemaFields));
  if (format_subscriptions(before) != format_subscriptions(after))
    comparison.add(ManifestChange::changed, "subscription", "routing",
                   format_diff(diff_lines(format_subscriptions(before), format_subscriptions(after))));
  comparison.compare("code", to_texts(before.code), to_texts(after.code));
  std::map<std::string, std::set<std::string>> references;
  for (const auto& [name, text] : collect_schemas(before_document))
    collect_references(*parse_json(text), references[name]);
  auto differences = comparison.release_differences();
  for (auto& difference : differences) add_consequences(difference, before, after, references);
  return differences;
}

UpgradeImpact assess_upgrade(const DeploymentState& deployment, const ManifestCatalog& catalog,
                             const WorkflowManifest& after) {
  UpgradeImpact out;
  out.obstacles = find_apply_obstacles(deployment);
  for (const auto& [id, instance] : deployment.instances) {
    if (instance.manifest == after.hash) continue;
    out.instances_with_old_code.push_back(display_name(id));
    const auto* manifest = catalog.find(instance.manifest);
    const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(id.workflow);
    if (workflow == nullptr) continue;
    for (const auto& subscription : after.subscriptions) {
      if (subscription.workflow != id.workflow) continue;
      if (!manifest->schemas.has(subscription.event) ||
          !manifest->schemas.find_arm(workflow->event, subscription.event))
        out.lost_events.push_back(display_name(id) + " does not accept " + subscription.event);
    }
  }
  return out;
}

json to_json(const std::vector<ManifestDifference>& differences) {
  json out = json::array();
  for (const auto& difference : differences) {
    json row{{"change", to_string(difference.change)}, {"part", difference.part}, {"name", difference.name}};
    if (!difference.text.empty()) row["text"] = difference.text;
    if (!difference.consequences.empty()) row["follows"] = difference.consequences;
    out.push_back(std::move(row));
  }
  return out;
}

json to_json(const std::vector<ApplyObstacle>& obstacles) {
  json out = json::array();
  for (const auto& obstacle : obstacles)
    out.push_back({{"instance", display_name(obstacle.instance)},
                   {"mail", obstacle.inbox_size},
                   {"in_flight", obstacle.published_intents},
                   {"queued", obstacle.unpublished_intents}});
  return out;
}

json to_json(const UpgradeImpact& impact) {
  return {{"refused", !impact.obstacles.empty()},
          {"obstacles", to_json(impact.obstacles)},
          {"keeps", impact.instances_with_old_code},
          {"misses", impact.lost_events}};
}

}  // namespace mycojobs
