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
#include "workflows/tools/workflow_names.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using Texts = std::map<std::string, std::string>;  // name -> text with lines

constexpr auto kSchemasOfWorkflow = {"state", "event", "annotations", "key_schema"};
constexpr auto kSchemasOfEffect = {"params", "receipt"};

// A manifest of one workflow may have the fields of the workflow at the top level.
json workflows_of(const json& document) {
  if (document.contains("workflows")) return document.at("workflows");
  json only = document;
  for (const char* field : {"schemas", "effects", "routing", "limits", "description"}) only.erase(field);
  return json::array({std::move(only)});
}
json effects_of(const json& document) { return document.value("effects", json::array()); }

// Returns each part as text, by name. Inline schemas are listed with the schemas.
Texts named(const json& all, std::initializer_list<const char*> schemas) {
  Texts out;
  for (json each : all) {
    for (const char* field : schemas)
      if (each.contains(field) && !each[field].is_string()) each[field] = "(its own)";
    out[each.at("name").get<std::string>()] = dump_json(each, 2);
  }
  return out;
}

// Returns named and inline schemas; an inline schema has a name such as "shop/order@1#state".
Texts schemas(const json& document) {
  Texts out;
  const json own = document.value("schemas", json::object());
  for (const auto& [name, schema] : own.items()) out[name] = dump_json(schema, 2);
  const auto in_place = [&](const json& owner, std::initializer_list<const char*> fields) {
    for (const char* field : fields)
      if (const auto found = owner.find(field); found != owner.end() && !found->is_string())
        out[owner.at("name").get<std::string>() + '#' + field] = dump_json(*found, 2);
  };
  for (const auto& effect : effects_of(document)) in_place(effect, kSchemasOfEffect);
  for (const auto& workflow : workflows_of(document)) in_place(workflow, kSchemasOfWorkflow);
  return out;
}

// Returns the subscriptions in the order in which events are delivered, so that another order counts as a change.
std::string subscriptions(const WorkflowManifest& manifest) {
  std::string out;
  for (const auto& each : manifest.subscriptions)
    out += each.event + " -> " + each.workflow + (each.key_field.empty() ? "" : " by " + each.key_field) + '\n';
  return out;
}

class ManifestComparison {
 public:
  void compare(const char* part, const Texts& before, const Texts& after) {
    std::set<std::string> names;
    for (const auto& [name, text] : before) names.insert(name);
    for (const auto& [name, text] : after) names.insert(name);
    for (const auto& name : names) {
      const auto was = before.find(name), is = after.find(name);
      if (was == before.end()) {
        add(ManifestChange::added, part, name, "");
      } else if (is == after.end()) {
        add(ManifestChange::removed, part, name, "");
      } else if (was->second != is->second) {
        add(ManifestChange::changed, part, name, show_diff(line_diff(was->second, is->second)));
      }
    }
  }
  void add(ManifestChange change, const char* part, std::string name, std::string text) {
    made_.push_back({change, part, std::move(name), std::move(text), {}});
  }
  std::vector<ManifestDifference> take() { return std::move(made_); }

 private:
  std::vector<ManifestDifference> made_;
};

// Returns whether a path of references leads from one schema to another.
bool leads_to(const std::map<std::string, std::set<std::string>>& references, const std::string& from,
              const std::string& to) {
  std::set<std::string> seen{from};
  std::vector<std::string> open{from};
  while (!open.empty()) {
    const std::string name = std::move(open.back());
    open.pop_back();
    if (name == to) return true;
    if (const auto found = references.find(name); found != references.end())
      for (const auto& next : found->second)
        if (seen.insert(next).second) open.push_back(next);
  }
  return false;
}
void references_in(const json& schema, std::set<std::string>& out) {
  if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) out.insert(schema["$ref"]);
  if (schema.is_structured())
    for (const auto& each : schema) references_in(each, out);
}

// Adds the consequences of one difference, for people.
void explain(ManifestDifference& each, const WorkflowManifest& before, const WorkflowManifest& after,
             const std::map<std::string, std::set<std::string>>& references) {
  const auto add_effect = [&](std::string text) { each.effects.push_back(std::move(text)); };
  const bool gone = each.change == ManifestChange::removed;
  if (each.part == "workflow" && gone) add_effect("its instances keep their code, and get no new events");
  if (each.part == "effect" && gone) add_effect("instances of older code can still request it");
  for (const auto& workflow : before.workflows) {
    if (after.workflow(workflow.name) == nullptr) continue;
    if (each.part == "code" && workflow.module == each.name)
      add_effect(workflow.name + ": new instances take the new code, those that are there keep theirs");
    if (each.part != "schema") continue;
    for (const auto& [role, schema] : {std::pair{"state", &workflow.state}, std::pair{"event", &workflow.event},
                                       std::pair{"key_schema", &workflow.key_schema}})
      if (!schema->empty() && leads_to(references, *schema, each.name))
        add_effect(workflow.name + ": it is its " + role);
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

std::vector<ManifestDifference> differences(const json& before_document, const WorkflowManifest& before,
                                            const json& after_document, const WorkflowManifest& after) {
  ManifestComparison differing;
  const auto head = [](const json& document) {
    json out = json::object();
    for (const char* field : {"name", "description", "limits"})
      if (document.contains(field)) out[field] = document[field];
    return dump_json(out, 2);
  };
  const auto texts = [](const CodeFiles& code) { return Texts(code.begin(), code.end()); };
  differing.compare("manifest", {{before.name, head(before_document)}}, {{before.name, head(after_document)}});
  differing.compare("workflow", named(workflows_of(before_document), kSchemasOfWorkflow),
                    named(workflows_of(after_document), kSchemasOfWorkflow));
  differing.compare("schema", schemas(before_document), schemas(after_document));
  differing.compare("effect", named(effects_of(before_document), kSchemasOfEffect),
                    named(effects_of(after_document), kSchemasOfEffect));
  if (subscriptions(before) != subscriptions(after))
    differing.add(ManifestChange::changed, "subscription", "routing",
                  show_diff(line_diff(subscriptions(before), subscriptions(after))));
  differing.compare("code", texts(before.code), texts(after.code));
  std::map<std::string, std::set<std::string>> references;
  for (const auto& [name, text] : schemas(before_document)) references_in(*parse_json(text), references[name]);
  auto all = differing.take();
  for (auto& each : all) explain(each, before, after, references);
  return all;
}

UpgradeImpact upgrade_impact(const DeploymentState& deployment, const ManifestCatalog& catalog,
                             const WorkflowManifest& after) {
  UpgradeImpact out;
  out.obstacles = obstacles(deployment);
  for (const auto& [id, cell] : deployment.cells) {
    if (cell.manifest == after.hash) continue;
    out.keeps.push_back(shown(id));
    const auto* manifest = catalog.find(cell.manifest);
    const auto* workflow = manifest == nullptr ? nullptr : manifest->workflow(id.workflow);
    if (workflow == nullptr) continue;
    for (const auto& subscription : after.subscriptions) {
      if (subscription.workflow != id.workflow) continue;
      if (!manifest->schemas.has(subscription.event) || !manifest->schemas.arm_of(workflow->event, subscription.event))
        out.misses.push_back(shown(id) + " does not accept " + subscription.event);
    }
  }
  return out;
}

json to_json(const std::vector<ManifestDifference>& all) {
  json out = json::array();
  for (const auto& each : all) {
    json row{{"change", to_string(each.change)}, {"part", each.part}, {"name", each.name}};
    if (!each.text.empty()) row["text"] = each.text;
    if (!each.effects.empty()) row["follows"] = each.effects;
    out.push_back(std::move(row));
  }
  return out;
}

json to_json(const UpgradeImpact& all) {
  json out{
      {"refused", !all.obstacles.empty()}, {"obstacles", json::array()}, {"keeps", all.keeps}, {"misses", all.misses}};
  for (const auto& each : all.obstacles)
    out["obstacles"].push_back(
        {{"instance", shown(each.cell)}, {"mail", each.mail}, {"in_flight", each.pending}, {"queued", each.queued}});
  return out;
}

}  // namespace mycojobs
