// Reader of workflow manifests and their module files, for `workflow check`, `test`, `apply` and other commands.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/invocation.h"
#include "text/document_reader.h"
#include "text/yaml.h"
#include "workflows/engine/engine.h"
#include "workflows/manifest/workflow_manifest.h"

namespace mycojobs {

inline constexpr std::size_t kMaxHistoryBytes = 1U << 30;

// A problem with the name of its file.
struct FileProblem {
  std::string file;
  DocumentProblem problem;
};
// Returns one line for each problem: "order.json:3:5: effects[0].name: ...".
std::string join(const std::vector<FileProblem>&);
nlohmann::json to_json(const std::vector<FileProblem>&);

// A JSON document with the positions of its values.
struct JsonFile {
  std::shared_ptr<const nlohmann::json> document;  // null: invalid JSON, see problems
  YamlText positions;
  std::vector<FileProblem> problems;
};
// Errors of the file itself: not_found, io, too_large, invalid (a folder).
Result<JsonFile> read_json_file(const std::string& file);
// Adds the name of the file, and the line and column of each problem's path.
std::vector<FileProblem> locate_problems(const std::string& file, const YamlText&, std::vector<DocumentProblem>);

// A manifest with its code.
struct ManifestFile {
  std::shared_ptr<const nlohmann::json> document;
  CodeFiles code;
  ManifestRef manifest;  // null: see problems
  std::vector<FileProblem> problems;
};
// Reads a manifest and the modules that it names, in the same folder or below. The engine loads the code, which checks
// its syntax, its top level and its entrypoints. Errors: those of read_json_file() and of the engine.
Result<ManifestFile> read_manifest_file(workflow::EngineOptions, const std::string& file);

// Returns the options for the workflow engine of this installation.
workflow::EngineOptions make_engine_options(const Settings&);

}  // namespace mycojobs
