// mycojobs key new | show | list, mycojobs receipt verify
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/ed25519.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/key_files.h"
#include "cli/request_arguments.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "inspect/receipt_check.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {

Result<int> key_new_command(Invocation& call) {
  MJ_TRY(file, key_file_path(call.settings, call.arguments.at(0)));
  std::error_code error;
  const auto folder = std::filesystem::path(file).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const SigningKey key = SigningKey::make();
  MJ_CHECK(key.save(file));
  if (call.json) {
    print_json_line({{"file", file}, {"public_key", key.public_key()}});
  } else {
    print_message("the secret half is in " + file + ", readable by you alone; this is the public key:");
    print(key.public_key() + "\n");
  }
  return 0;
}

// Command of `key show NAME` and `key list`: prints the public key of the named key, or of all keys without a name.
Result<int> key_show_command(Invocation& call) {
  std::vector<std::string> names = call.arguments;
  if (names.empty()) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(call.settings.keys_dir, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().extension() == ".key") names.push_back(entry->path().stem());
    }
    if (error && error != std::errc::no_such_file_or_directory)
      return fail(Code::io, call.settings.keys_dir + ": " + error.message());
    std::sort(names.begin(), names.end());
  }
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"NAME", "PUBLIC KEY"}};
  for (const std::string& name : names) {
    MJ_TRY(file, key_file_path(call.settings, name));
    MJ_TRY(key, SigningKey::load(file));
    array.push_back({{"name", name}, {"file", file}, {"public_key", key.public_key()}});
    rows.push_back({to_printable(name), key.public_key()});
  }
  const bool is_single = !call.arguments.empty();
  if (call.json) {
    print_json(is_single ? array.front() : array);
  } else if (is_single) {
    print(rows.back().back() + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

Result<int> receipt_verify_command(Invocation& call) {
  MJ_TRY(key, parse_job_argument(call));
  const std::string pubkey = call.get("key");
  if (call.has("key") && !is_public_key(pubkey))
    return fail(Code::invalid,
                "--key: " + excerpt(pubkey, 80) + " is not a public key: 64 characters of lower-case hex");
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(checks, check_receipt(*session.store, call.context(), key, pubkey));
  bool all_hold = true;
  nlohmann::json array = nlohmann::json::array();
  TableRows rows;
  for (const ReceiptCheck& check : checks) {
    all_hold = all_hold && check.passed;
    array.push_back({{"what", check.part}, {"holds", check.passed}, {"detail", to_utf8(check.detail)}});
    rows.push_back({check.passed ? "holds" : "DOES NOT HOLD", check.part, to_printable(check.detail)});
  }
  if (call.json) {
    print_json_line({{"job", key}, {"holds", all_hold}, {"checks", array}});
  } else {
    print_table(rows);
  }
  return all_hold ? 0 : 1;
}

}  // namespace mycojobs
