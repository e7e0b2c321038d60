// A manifest of workflows and the files beside it: what `workflow check`, `test`, `apply` and others read.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "domain/flow_plan.h"
#include "domain/flow_yaml.h"
#include "domain/workflow_manifest.h"
#include "mycojobs/result.h"
#include "workflow/engine.h"

namespace mycojobs {

inline constexpr std::size_t kMaxHistoryBytes = 1U << 30;

struct FileProblem {
  std::string file;
  PlanProblem problem;
};
// Lines: "order.json:3:5: effects[0].name: ...".
std::string join(const std::vector<FileProblem>&);
nlohmann::json to_json(const std::vector<FileProblem>&);

// A document of JSON and where its values stand in it.
struct JsonFile {
  std::shared_ptr<const nlohmann::json> document;  // nullptr: it could not be read as JSON; problems say why
  YamlText places;
  std::vector<FileProblem> problems;
};
// Errors: not_found, io, too_large, invalid (a folder): about the file itself.
Result<JsonFile> read_json_file(const std::string& file);
// The problems with the file's name, and with their lines.
std::vector<FileProblem> located(const std::string& file, const YamlText&, std::vector<PlanProblem>);

struct ManifestFile {
  std::shared_ptr<const nlohmann::json> document;
  CodeFiles code;
  ManifestRef manifest;  // nullptr: there are problems
  std::vector<FileProblem> problems;
};
// The manifest, and all modules that it names, which lie beside it or below. The code is loaded by the engine, so that
// its syntax, its top level and its entrypoints are known to work. Errors: as read_json_file(), and those of the
// engine.
Result<ManifestFile> read_manifest_file(workflow::EngineOptions, const std::string& file);

// The engine of this installation.
workflow::EngineOptions engine_options(const Settings&);

}  // namespace mycojobs
