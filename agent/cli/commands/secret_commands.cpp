// mycojobs secret list, secret check: print names and states, but not values.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "security/secrets.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

struct SecretLine {
  std::string name, state, path, problem;
};

// Returns the existing secrets, and missing secrets that the ceiling allows, sorted by name.
Result<std::vector<SecretLine>> look(const Invocation& call) {
  const SecretSources places = secret_states(call.settings);
  MJ_TRY(files, find_secrets(places, context_of(call)));
  const auto& allowed = call.settings.ceilings.of(context_of(call)).max.secrets;
  const auto state_of = [&](const SecretFile& file) {
    if (!file.problem.empty()) return "refused";
    if (std::find(allowed.begin(), allowed.end(), file.name) != allowed.end()) return "ready";
    return is_always_redacted(places, context_of(call), file.name) ? "redacted only" : "not granted";
  };
  std::vector<SecretLine> rows;
  for (const SecretFile& file : files)
    rows.push_back({to_utf8(file.name), state_of(file), to_utf8(file.path), to_utf8(file.problem)});
  for (const std::string& name : allowed) {
    const bool there = std::any_of(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
    if (!there) rows.push_back({name, "missing", "", "the ceiling allows it, and there is no file of this name"});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const SecretLine& a, const SecretLine& b) { return a.name < b.name; });
  return rows;
}

void show(const Invocation& call, const std::vector<SecretLine>& rows) {
  if (call.json) {
    auto array = nlohmann::json::array();
    for (const SecretLine& row : rows)
      array.push_back({{"name", row.name}, {"state", row.state}, {"path", row.path}, {"problem", row.problem}});
    print(dump_json(array, 2) + "\n");
    return;
  }
  std::vector<std::vector<std::string>> table{{"SECRET", "STATE", "WHY"}};
  for (const SecretLine& row : rows)
    table.push_back({one_line(row.name), row.state, one_line(row.problem.empty() ? row.path : row.problem)});
  print_table(table);
}

Result<int> list_secrets(const Invocation& call) {
  MJ_TRY(rows, look(call));
  if (rows.empty() && !call.json) {
    print_message("context " + std::to_string(context_of(call)) + " has no secrets: they are files in " +
                  printable(call.settings.secrets_dir) + "/" + std::to_string(context_of(call)));
    return 0;
  }
  show(call, rows);
  return 0;
}

Result<int> check_secrets(const Invocation& call) {
  MJ_TRY(rows, look(call));
  std::erase_if(rows, [](const SecretLine& row) { return row.problem.empty(); });
  if (call.json || !rows.empty()) show(call, rows);
  if (rows.empty() && !call.json) print_message("all is well");
  return rows.empty() ? 0 : 1;
}

}  // namespace

int secret_list_command(Invocation& call) { return finish(list_secrets(call)); }
int secret_check_command(Invocation& call) { return finish(check_secrets(call)); }

}  // namespace mycojobs
