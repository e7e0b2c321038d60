// mycojobs key new | show | list, mycojobs receipt verify
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/ed25519.h"
#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/receipt_check.h"
#include "text/json.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

Result<int> make_key(Invocation& call) {
  MJ_TRY(file, key_file(call.settings, call.arguments.at(0)));
  std::error_code failed;
  const auto folder = std::filesystem::path(file).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, failed);
  const SigningKey key = SigningKey::make();
  MJ_CHECK(key.save(file));
  if (call.json) {
    print(dump_json({{"file", file}, {"public_key", key.public_key()}}) + "\n");
  } else {
    print_message("the secret half is in " + file + ", readable by you alone; this is the public key:");
    print(key.public_key() + "\n");
  }
  return 0;
}

// Prints the public key of the named key, or of all keys.
Result<int> show_keys(Invocation& call) {
  std::vector<std::string> names = call.arguments;
  if (names.empty()) {
    std::error_code failed;
    for (std::filesystem::directory_iterator each(call.settings.keys_dir, failed), end; !failed && each != end;
         each.increment(failed)) {
      if (each->path().extension() == ".key") names.push_back(each->path().stem());
    }
    if (failed && failed != std::errc::no_such_file_or_directory)
      return fail(Code::io, call.settings.keys_dir + ": " + failed.message());
    std::sort(names.begin(), names.end());
  }
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table{{"NAME", "PUBLIC KEY"}};
  for (const std::string& name : names) {
    MJ_TRY(file, key_file(call.settings, name));
    MJ_TRY(key, SigningKey::load(file));
    rows.push_back({{"name", name}, {"file", file}, {"public_key", key.public_key()}});
    table.push_back({printable(name), key.public_key()});
  }
  const bool one = !call.arguments.empty();
  if (call.json) {
    print(dump_json(one ? rows.front() : rows, 2) + "\n");
  } else if (one) {
    print(table.back().back() + "\n");
  } else {
    print_table(table);
  }
  return 0;
}

Result<int> verify_receipt(Invocation& call) {
  MJ_TRY(key, job_argument(call));
  const std::string pubkey = call.get("key");
  if (call.has("key") && !is_public_key(pubkey))
    return fail(Code::invalid,
                "--key: " + excerpt(pubkey, 80) + " is not a public key: 64 characters of lower-case hex");
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(checks, check_receipt_of(*opened.store, context_of(call), key, pubkey));
  bool all = true;
  nlohmann::json rows = nlohmann::json::array();
  std::vector<std::vector<std::string>> table;
  for (const ReceiptCheck& check : checks) {
    all = all && check.holds;
    rows.push_back({{"what", check.what}, {"holds", check.holds}, {"detail", to_utf8(check.detail)}});
    table.push_back({check.holds ? "holds" : "DOES NOT HOLD", check.what, printable(check.detail)});
  }
  if (call.json) {
    print(dump_json({{"job", key}, {"holds", all}, {"checks", rows}}) + "\n");
  } else {
    print_table(table);
  }
  return all ? 0 : 1;
}

}  // namespace

int key_new_command(Invocation& call) { return finish(make_key(call)); }
int key_show_command(Invocation& call) { return finish(show_keys(call)); }
int key_list_command(Invocation& call) { return finish(show_keys(call)); }
int receipt_verify_command(Invocation& call) { return finish(verify_receipt(call)); }

}  // namespace mycojobs
