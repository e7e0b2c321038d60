// Compares a manifest with its successor, and describes the effects on existing instances. Pure and thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {

enum class ManifestChange { added, removed, changed };
std::string_view to_string(ManifestChange);
struct ManifestDifference {
  ManifestChange change = ManifestChange::changed;
  std::string part;  // kind of the part: manifest, workflow, schema, effect, subscription or code
  std::string name;
  std::string text;                       // diff with lines that begin with '+', '-' or ' '; empty if added or removed
  std::vector<std::string> consequences;  // sentences for display
};
// Returns the differences in the order of the parts above. The documents are the sources of the manifests. Manifests
// with the same hash have no differences.
std::vector<ManifestDifference> compare_manifests(const nlohmann::json& before_document, const WorkflowManifest& before,
                                                  const nlohmann::json& after_document, const WorkflowManifest& after);

// The effects of applying a manifest to a deployment.
struct UpgradeImpact {
  std::vector<ApplyObstacle> obstacles;  // the apply is rejected while there is an obstacle
  std::vector<std::string> instances_with_old_code;
  // Events that instances would not receive any more: "order 7 does not accept order/Refund@1".
  std::vector<std::string> lost_events;
};
// Returns the effects of applying the manifest `after` to the deployment.
UpgradeImpact assess_upgrade(const DeploymentState&, const ManifestCatalog&, const WorkflowManifest& after);

nlohmann::json to_json(const std::vector<ManifestDifference>&);
nlohmann::json to_json(const UpgradeImpact&);
nlohmann::json to_json(const std::vector<ApplyObstacle>&);

}  // namespace mycojobs
