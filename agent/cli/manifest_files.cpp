#include "cli/manifest_files.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "cli/job_submission.h"
#include "model/codec.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/utf8.h"
#include "text/utf8_cut.h"
#include "workflows/engine/code_check.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 16U << 20;

// Parses "... at line 3, column 5: ..." of the parser.
PlanProblem syntax_problem(const std::string& message) {
  PlanProblem problem{"", message};
  const auto at = message.find("line ");
  if (at != message.npos &&
      std::sscanf(message.c_str() + at, "line %zu, column %zu", &problem.line, &problem.column) != 2 &&
      std::sscanf(message.c_str() + at, "line %zu column %zu", &problem.line, &problem.column) != 2)
    problem.line = problem.column = 0;
  return problem;
}

// Position and use of a module's name.
struct NamedModule {
  std::string path, module, entrypoint;  // entrypoint: only for a workflow
};
const std::string* text_at(const json& map, const char* name) {
  const auto found = map.is_object() ? map.find(name) : map.end();
  return map.is_object() && found != map.end() ? found->get_ptr<const std::string*>() : nullptr;
}
void of_workflow(const json& workflow, const std::string& path, std::vector<NamedModule>& out) {
  if (!workflow.is_object() || !workflow.contains("impl")) return;
  const json& impl = workflow["impl"];
  const auto *module = text_at(impl, "module"), *entrypoint = text_at(impl, "entrypoint");
  if (module != nullptr)
    out.push_back({path + "impl.module", *module, entrypoint == nullptr ? std::string() : *entrypoint});
}
// Returns the modules of a manifest, even if the manifest has other problems.
std::vector<NamedModule> modules_of(const json& document) {
  std::vector<NamedModule> out;
  if (!document.is_object()) return out;
  of_workflow(document, "", out);
  const auto list = [&](const char* name, const auto& see) {
    const auto found = document.find(name);
    if (found == document.end() || !found->is_array()) return;
    for (std::size_t i = 0; i < found->size(); ++i) see((*found)[i], fmt::format("{}[{}]", name, i));
  };
  list("workflows", [&](const json& each, const std::string& path) { of_workflow(each, path + '.', out); });
  list("effects", [&](const json& each, const std::string& path) {
    if (const auto* module = text_at(each, "module")) out.push_back({path + ".module", *module, ""});
  });
  return out;
}

bool stays_below(const fs::path& path) {
  if (path.empty() || path.is_absolute()) return false;
  for (const auto& part : path)
    if (part == "..") return false;
  return true;
}

class ManifestFiles {
 public:
  ManifestFiles(workflow::EngineOptions options, std::string file)
      : check_state_(std::move(options)), file_(std::move(file)), folder_(fs::path(file_).parent_path()) {}

  Result<ManifestFile> whole() {
    MJ_TRY(read, read_json_file(file_));
    job_states_ = std::move(read.places);
    made_.document = read.document, made_.problems = std::move(read.problems);
    if (!made_.document) return std::move(made_);
    const auto named = modules_of(*made_.document);
    for (const auto& each : named) read_module(each);
    for (const auto& each : named)
      if (!each.entrypoint.empty()) MJ_CHECK(load(each));
    CodeFiles known = made_.code;
    for (const auto& missing : missing_) known[missing];  // each missing module is reported once
    auto manifest = read_manifest(*made_.document, std::move(known), ManifestUse::offered);
    for (auto& each : located(file_, job_states_, std::move(manifest.problems)))
      made_.problems.push_back(std::move(each));
    if (made_.problems.empty()) made_.manifest = std::move(manifest.manifest);
    return std::move(made_);
  }

 private:
  void refuse(const std::string& path, std::string message) {
    for (auto& each : located(file_, job_states_, {{path, std::move(message)}}))
      made_.problems.push_back(std::move(each));
  }
  void read_module(const NamedModule& named) {
    if (made_.code.contains(named.module) || !seen_.insert(named.module).second) return;
    missing_.insert(named.module);
    if (!stays_below(named.module))
      return refuse(named.path, excerpt(named.module, 200) + " is no path below the manifest");
    const std::string at = (folder_ / named.module).string();
    auto text = read_script(at, kMaxFileBytes);
    if (!text) return refuse(named.path, text.error().message);
    if (const auto fine = check_script(at, *text); !fine) return refuse(named.path, fine.error().message);
    missing_.erase(named.module);
    made_.code[named.module] = without_byte_order_mark(*text);
  }
  Result<void> load(const NamedModule& named) {
    const auto code = made_.code.find(named.module);
    if (code == made_.code.end() || !loaded_.insert({named.module, named.entrypoint}).second) return {};
    MJ_TRY(fault, check_state_.check_code(named.module, named.entrypoint, code->second));
    if (!fault) return {};
    if (fault->no_entrypoint)
      return refuse(named.path.substr(0, named.path.rfind('.')) + ".entrypoint", named.module + ": " + fault->message),
             Result<void>();
    if (!loaded_.insert({named.module, ""}).second) return {};  // further entrypoints have the same fault
    PlanProblem problem{"", std::move(fault->message)};
    problem.line = fault->line, problem.column = problem.line == 0 ? 0 : 1;
    made_.problems.push_back({(folder_ / named.module).string(), std::move(problem)});
    return {};
  }

  workflow::CodeChecker check_state_;
  const std::string file_;
  const fs::path folder_;
  YamlText job_states_;
  ManifestFile made_;
  std::set<std::string> seen_, missing_;
  std::set<std::pair<std::string, std::string>> loaded_;
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

std::vector<FileProblem> located(const std::string& file, const YamlText& text, std::vector<PlanProblem> problems) {
  std::vector<FileProblem> out;
  for (auto& problem : problems) {
    for (std::string path = problem.path; problem.line == 0;) {
      if (const auto found = text.places.find(path); found != text.places.end())
        std::tie(problem.line, problem.column) = found->second;
      if (path.empty()) break;
      const auto end = path.find_last_of(".[");
      path.resize(end == std::string::npos ? 0 : end);
    }
    out.push_back({file, std::move(problem)});
  }
  return out;
}

Result<JsonFile> read_json_file(const std::string& file) {
  MJ_TRY(text, read_script(file, kMaxFileBytes));
  JsonFile read;
  auto document = parse_exact_json(text, kMaxFileBytes);
  if (!document) {
    read.problems.push_back({file, syntax_problem(document.error().message)});
    return read;
  }
  read.document = std::make_shared<const json>(std::move(*document));
  // Nearly all JSON is valid YAML, and the YAML reader determines the positions of values. Otherwise problems have only
  // paths.
  if (!yaml_to_json(text, kMaxFileBytes, read.places)) read.places = {};
  return read;
}

Result<ManifestFile> read_manifest_file(workflow::EngineOptions options, const std::string& file) {
  return ManifestFiles(std::move(options), file).whole();
}

workflow::EngineOptions engine_options(const Settings& settings) {
  workflow::EngineOptions options;
  options.program = settings.libexec_dir + "/" + "mycojobs-workflowhost";
  return options;
}

}  // namespace mycojobs
