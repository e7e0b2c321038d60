// A world's journal as a file, with the code that its instances run: whoever has it can fold the world, replay it and
// try a new manifest on it, far from any Redis. Pure; any thread.
//
// Lines of JSON. The first one:  {"workflow_history": 1, "world": id, "manifests": [{manifest, code: {module: text}}]}
// then, in the order of heights: {"height", "at_ms", "kind", "cells": [names], "fact": base64 of its CBOR}
// and, anywhere:                 {"blob": base64}, a state that was spilled
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "domain/workflow_manifest.h"
#include "domain/workflow_state.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct HistoryManifest {
  std::string json;  // the document
  CodeFiles code;
};
struct WorkflowHistory {
  std::string world;
  std::vector<HistoryManifest> manifests;
  std::vector<WorkflowFact> facts;
  std::set<std::string> blobs;
};
// Error invalid: a text that is not UTF-8.
Result<std::string> write_history(const WorkflowHistory&);
// Error invalid: names the line. States that were spilled and whose blob is there are not spilled any more.
Result<WorkflowHistory> read_history(std::string_view text);

// All its manifests. Error invalid: what is wrong with one.
Result<ManifestCatalog> catalog_of(const WorkflowHistory&);
// Folded from the first fact on. Error invalid: the first one that does not fit.
Result<WorldState> world_of(const WorkflowHistory&);

}  // namespace mycojobs
