#include "cli/config/ceilings.h"

#include <algorithm>
#include <filesystem>

#include "domain/codec.h"

namespace mycojobs {
namespace {

Result<PolicyRequest> read_ceiling(const PolicyText& text, const std::string& name) {
  PolicyRead read = read_policy(text.json, name, PolicyKind::ceiling);
  if (read.ok()) return std::move(read.request);
  const FieldProblem& first = read.problems.front();
  const std::string field = first.field.substr(std::min(name.size() + 1, first.field.size()));
  return fail(Code::invalid, place_of(text, field) + ": " + first.message);
}

void tell(const Policy& most, const std::string& name, const PolicyRequest& own, const PolicyText* text, bool all,
          Config& config) {
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (field == PolicyField::output_kill || (!all && !own.named[i])) continue;
    const std::string source = own.named[i] ? place_of(*text, std::string(word(field))) : "default";
    config.values.push_back({name + '.' + std::string(word(field)), value_text(field, most), source, true});
  }
}

// What the operator gives to every job is no more than a job may have, unless a ceiling says so.
Policy built_in(const Settings& settings) {
  Policy most = default_ceiling();
  most.memory_bytes = std::max(most.memory_bytes, settings.sandbox_memory_bytes);
  most.pids = std::max(most.pids, settings.sandbox_pids);
  most.disk_bytes = std::max(most.disk_bytes, settings.sandbox_tmp_bytes);
  most.output_bytes = std::max(most.output_bytes, settings.job_output_bytes);
  return most;
}

// In normal form, and where links lead to: compared with what a policy names.
void add_own(std::vector<std::string>& folders, const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code unknown;
  const auto absolute = std::filesystem::absolute(folder, unknown).lexically_normal();
  for (const auto& path : {absolute, std::filesystem::weakly_canonical(absolute, unknown)}) {
    std::string text = path.string();
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    if (!text.empty() && std::find(folders.begin(), folders.end(), text) == folders.end()) folders.push_back(text);
  }
}

}  // namespace

Result<void> set_ceilings(const FileValues& file, Config& config) {
  Settings& settings = config.settings;
  Ceilings& ceilings = settings.ceilings;
  PolicyRequest standard;
  const auto own = file.ceilings.find(0);
  if (own != file.ceilings.end()) {
    MJ_TRY(read, read_ceiling(own->second, "ceiling"));
    standard = std::move(read);
  }
  ceilings.written[0] = standard.named;
  ceilings.standard = applied(built_in(settings), standard);
  tell(ceilings.standard, "ceiling", standard, own == file.ceilings.end() ? nullptr : &own->second, true, config);
  for (const auto& [id, text] : file.ceilings) {
    if (id == 0) continue;
    const std::string name = "contexts." + std::to_string(id) + ".ceiling";
    MJ_TRY(read, read_ceiling(text, name));
    ceilings.written[id] = read.named;
    ceilings.contexts[id] = applied(ceilings.standard, read);
    tell(ceilings.contexts[id], name, read, &text, false, config);
  }
  add_own(ceilings.own_folders, settings.state_dir);
  add_own(ceilings.own_folders, settings.secrets_dir);
  add_own(ceilings.own_folders, settings.plugins_dir);
  add_own(ceilings.own_folders, config.file);  // no folder, but who has the one around it has it too
  return {};
}

}  // namespace mycojobs
