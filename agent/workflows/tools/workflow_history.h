// The journal of a deployment as a file, together with the code of its instances. The file is sufficient to fold the
// deployment, to replay it, and to try a new manifest on it, without access to Redis. Pure and thread-safe.
//
// The lines are JSON:
//   first           {"workflow_history": 1, "world": id, "manifests": [{manifest, code: {module: text}}]}
//   one per fact    {"height", "at_ms", "kind", "cells": [names], "fact": base64 of its CBOR}, in the order of heights
//   anywhere        {"blob": base64}, a state that was spilled
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

struct HistoryManifest {
  std::string json;  // the document
  CodeFiles code;
};
struct WorkflowHistory {
  std::string deployment;
  std::vector<HistoryManifest> manifests;
  std::vector<WorkflowFact> facts;
  std::set<std::string> blobs;
};
// Error invalid: a text is not UTF-8.
Result<std::string> write_history(const WorkflowHistory&);
// Spilled states whose blob is in the file are inlined. Error invalid: the message names the line.
Result<WorkflowHistory> read_history(std::string_view text);

// Returns a catalog of all manifests. Error invalid: a manifest has a problem, which the message names.
Result<ManifestCatalog> build_catalog(const WorkflowHistory&);
// Folds all facts. Error invalid: a fact does not fit; the message names the first one.
Result<DeploymentState> fold_history(const WorkflowHistory&);

}  // namespace mycojobs
