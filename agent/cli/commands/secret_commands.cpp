// mycojobs secret list, secret check: print names and states, but not values.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/service_setup.h"
#include "cli/terminal.h"
#include "security/secrets.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

struct SecretEntry {
  std::string name, state, path, problem;
};

// Returns the existing secrets, and missing secrets that the ceiling allows, sorted by name.
Result<std::vector<SecretEntry>> find_secret_entries(const Invocation& call) {
  const SecretSources sources = get_secret_sources(call.settings);
  MJ_TRY(files, find_secrets(sources, call.context()));
  const auto& allowed = call.settings.ceilings.get(call.context()).max.secrets;
  const auto get_state = [&](const SecretFile& file) {
    if (!file.problem.empty()) return "refused";
    if (std::find(allowed.begin(), allowed.end(), file.name) != allowed.end()) return "ready";
    return is_always_redacted(sources, call.context(), file.name) ? "redacted only" : "not granted";
  };
  std::vector<SecretEntry> entries;
  for (const SecretFile& file : files)
    entries.push_back({to_utf8(file.name), get_state(file), to_utf8(file.path), to_utf8(file.problem)});
  for (const std::string& name : allowed) {
    const bool exists = std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
    if (!exists) entries.push_back({name, "missing", "", "the ceiling allows it, and there is no file of this name"});
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const SecretEntry& a, const SecretEntry& b) { return a.name < b.name; });
  return entries;
}

int print_secrets(const Invocation& call, const std::vector<SecretEntry>& entries) {
  auto array = nlohmann::json::array();
  TableRows rows{{"SECRET", "STATE", "WHY"}};
  for (const SecretEntry& entry : entries) {
    array.push_back({{"name", entry.name}, {"state", entry.state}, {"path", entry.path}, {"problem", entry.problem}});
    rows.push_back({to_printable_line(entry.name), entry.state,
                    to_printable_line(entry.problem.empty() ? entry.path : entry.problem)});
  }
  return print_listing(call, array, rows);
}

}  // namespace

Result<int> secret_list_command(Invocation& call) {
  MJ_TRY(entries, find_secret_entries(call));
  if (entries.empty() && !call.json) {
    print_message("context " + std::to_string(call.context()) + " has no secrets: they are files in " +
                  to_printable(call.settings.secrets_dir) + "/" + std::to_string(call.context()));
    return 0;
  }
  return print_secrets(call, entries);
}

Result<int> secret_check_command(Invocation& call) {
  MJ_TRY(entries, find_secret_entries(call));
  std::erase_if(entries, [](const SecretEntry& entry) { return entry.problem.empty(); });
  if (call.json || !entries.empty()) print_secrets(call, entries);
  if (entries.empty() && !call.json) print_message("all is well");
  return entries.empty() ? 0 : 1;
}

}  // namespace mycojobs
