// What a new manifest changes, and what that means for instances that are there. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "domain/workflow_decide.h"
#include "domain/workflow_manifest.h"

namespace mycojobs {

enum class ManifestChange { added, removed, changed };
std::string_view word(ManifestChange);
struct ManifestDifference {
  ManifestChange change = ManifestChange::changed;
  std::string part;  // manifest, workflow, schema, effect, subscription, code
  std::string name;
  std::string text;                  // lines, each behind '+', '-' or ' '; empty: it came or went whole
  std::vector<std::string> effects;  // what follows from it, for people
};
// In the order of the parts above. Documents: those that the manifests were read from. The same hash: nothing.
std::vector<ManifestDifference> differences(const nlohmann::json& before_document, const WorkflowManifest& before,
                                            const nlohmann::json& after_document, const WorkflowManifest& after);

// What an apply would do to the world now.
struct UpgradeOutlook {
  std::vector<ApplyObstacle> obstacles;  // it is refused as long as there is one
  std::vector<std::string> keeps;        // instances that keep the code that they have
  std::vector<std::string> misses;       // "order 7 takes no order/Refund@1": events that they would not get any more
};
UpgradeOutlook outlook(const WorldState&, const ManifestCatalog&, const WorkflowManifest& after);

nlohmann::json to_json(const std::vector<ManifestDifference>&);
nlohmann::json to_json(const UpgradeOutlook&);

}  // namespace mycojobs
