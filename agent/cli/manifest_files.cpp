#include "cli/manifest_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/job_submission.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"
#include "workflows/engine/code_check.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMaxManifestFileBytes = 16U << 20;

// A reference to a module, with its path in the manifest.
struct ModuleReference {
  std::string path, module, entrypoint;  // entrypoint: only for a workflow
};
const std::string* find_text(const json& map, const char* name) {
  const auto entry = map.is_object() ? map.find(name) : map.end();
  return map.is_object() && entry != map.end() ? entry->get_ptr<const std::string*>() : nullptr;
}
void add_workflow_module(const json& workflow, const std::string& path, std::vector<ModuleReference>& modules) {
  if (!workflow.is_object() || !workflow.contains("impl")) return;
  const json& impl = workflow["impl"];
  const auto *module = find_text(impl, "module"), *entrypoint = find_text(impl, "entrypoint");
  if (module != nullptr)
    modules.push_back({path + "impl.module", *module, entrypoint == nullptr ? std::string() : *entrypoint});
}
// Returns the modules of a manifest, even if the manifest has other problems.
std::vector<ModuleReference> find_modules(const json& document) {
  std::vector<ModuleReference> modules;
  if (!document.is_object()) return modules;
  add_workflow_module(document, "", modules);
  const auto visit_list = [&](const char* name, const auto& visit) {
    const auto list = document.find(name);
    if (list == document.end() || !list->is_array()) return;
    for (std::size_t i = 0; i < list->size(); ++i) visit((*list)[i], fmt::format("{}[{}]", name, i));
  };
  visit_list("workflows",
             [&](const json& entry, const std::string& path) { add_workflow_module(entry, path + '.', modules); });
  visit_list("effects", [&](const json& entry, const std::string& path) {
    if (const auto* module = find_text(entry, "module")) modules.push_back({path + ".module", *module, ""});
  });
  return modules;
}

bool is_path_below(const fs::path& path) {
  if (path.empty() || path.is_absolute()) return false;
  for (const auto& part : path)
    if (part == "..") return false;
  return true;
}

class ManifestReader {
 public:
  ManifestReader(workflow::EngineOptions options, std::string file)
      : checker_(std::move(options)), file_(std::move(file)), folder_(fs::path(file_).parent_path()) {}

  Result<ManifestFile> read() {
    MJ_TRY(file, read_json_file(file_));
    positions_ = std::move(file.positions);
    result_.document = file.document, result_.problems = std::move(file.problems);
    if (!result_.document) return std::move(result_);
    const auto references = find_modules(*result_.document);
    for (const auto& reference : references) read_module(reference);
    for (const auto& reference : references)
      if (!reference.entrypoint.empty()) MJ_CHECK(check_code(reference));
    CodeFiles code = result_.code;
    // Empty code for missing modules, because read_module() has reported them.
    for (const auto& module : missing_modules_) code[module];
    auto manifest = read_manifest(*result_.document, std::move(code), ManifestUse::offered);
    add_problems(std::move(manifest.problems));
    if (result_.problems.empty()) result_.manifest = std::move(manifest.manifest);
    return std::move(result_);
  }

 private:
  void add_problems(std::vector<DocumentProblem> problems) {
    for (auto& problem : locate_problems(file_, positions_, std::move(problems)))
      result_.problems.push_back(std::move(problem));
  }
  void reject(const std::string& path, std::string message) { add_problems({{path, std::move(message)}}); }
  void read_module(const ModuleReference& reference) {
    if (result_.code.contains(reference.module) || !visited_modules_.insert(reference.module).second) return;
    missing_modules_.insert(reference.module);
    if (!is_path_below(reference.module))
      return reject(reference.path, excerpt(reference.module, 200) + " is no path below the manifest");
    const std::string path = (folder_ / reference.module).string();
    auto text = read_script(path, kMaxManifestFileBytes);
    if (!text) return reject(reference.path, text.error().message);
    if (const auto valid = check_script(path, *text); !valid) return reject(reference.path, valid.error().message);
    missing_modules_.erase(reference.module);
    result_.code[reference.module] = without_byte_order_mark(*text);
  }
  Result<void> check_code(const ModuleReference& reference) {
    const auto code = result_.code.find(reference.module);
    if (code == result_.code.end() || !checked_entrypoints_.insert({reference.module, reference.entrypoint}).second)
      return {};
    MJ_TRY(fault, checker_.check_code(reference.module, reference.entrypoint, code->second));
    if (!fault) return {};
    if (fault->lacks_entrypoint)
      return reject(reference.path.substr(0, reference.path.rfind('.')) + ".entrypoint",
                    reference.module + ": " + fault->message),
             Result<void>();
    if (!checked_entrypoints_.insert({reference.module, ""}).second)
      return {};  // further entrypoints have the same fault
    DocumentProblem problem{"", std::move(fault->message)};
    problem.line = fault->line, problem.column = problem.line == 0 ? 0 : 1;
    result_.problems.push_back({(folder_ / reference.module).string(), std::move(problem)});
    return {};
  }

  workflow::CodeChecker checker_;
  const std::string file_;
  const fs::path folder_;
  YamlText positions_;
  ManifestFile result_;
  std::set<std::string> visited_modules_, missing_modules_;
  std::set<std::pair<std::string, std::string>> checked_entrypoints_;
};

}  // namespace

std::string join(const std::vector<FileProblem>& problems) {
  std::string out;
  for (const auto& [file, problem] : problems) {
    out += (out.empty() ? "" : "\n") + file;
    if (problem.line != 0) out += fmt::format(":{}:{}", problem.line, problem.column);
    out += ": " + (problem.path.empty() ? "" : problem.path + ": ") + problem.message;
  }
  return out;
}

json to_json(const std::vector<FileProblem>& problems) {
  json out = json::array();
  for (const auto& [file, problem] : problems)
    out.push_back({{"file", to_utf8(file)},
                   {"path", to_utf8(problem.path)},
                   {"message", to_utf8(problem.message)},
                   {"line", problem.line},
                   {"column", problem.column}});
  return out;
}

std::vector<FileProblem> locate_problems(const std::string& file, const YamlText& text,
                                         std::vector<DocumentProblem> problems) {
  std::vector<FileProblem> out;
  for (auto& problem : problems) {
    set_position(text, problem);
    out.push_back({file, std::move(problem)});
  }
  return out;
}

Result<JsonFile> read_json_file(const std::string& file) {
  MJ_TRY(text, read_script(file, kMaxManifestFileBytes));
  JsonFile json_file;
  auto document = parse_exact_json(text, kMaxManifestFileBytes);
  if (!document) {
    json_file.problems.push_back({file, parse_syntax_error(document.error().message)});
    return json_file;
  }
  json_file.document = std::make_shared<const json>(std::move(*document));
  // Nearly all JSON is valid YAML, and the YAML reader determines the positions of values. Otherwise problems have only
  // paths.
  if (!yaml_to_json(text, kMaxManifestFileBytes, json_file.positions)) json_file.positions = {};
  return json_file;
}

Result<ManifestFile> read_manifest_file(workflow::EngineOptions options, const std::string& file) {
  return ManifestReader(std::move(options), file).read();
}

workflow::EngineOptions make_engine_options(const Settings& settings) {
  workflow::EngineOptions options;
  options.program = settings.libexec_dir + "/" + "mycojobs-workflowhost";
  return options;
}

}  // namespace mycojobs
