// mycojobs actor create | list | show | update | delete
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/ed25519.h"
#include "cli/commands/command_table.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "service/actor_service.h"
#include "service/record_service.h"
#include "text/json.h"

namespace mycojobs {
namespace {

void show_actor(const Invocation& call, const Actor& actor) {
  if (call.json) return print(dump_json(to_json(actor), 2) + "\n");
  print(fmt::format("actor {}\n  key      {}\n", actor.id,
                    actor.pubkey.empty() ? paint(OutputStyle::faint, "none") : printable(actor.pubkey)));
  for (const std::string& each : actor.address) print("  address  " + printable(each) + "\n");
}

// Returns an actor with the fields of the flags, and appends the names of these fields.
Result<Actor> typed_actor(const Invocation& call, std::vector<std::string>& fields) {
  Actor actor;
  if (call.has("key") && call.has("no-key")) return fail(Code::invalid, "--key and --no-key: use only one of them");
  if (call.has("key")) {
    MJ_TRY(key, typed_public_key(call, call.get("key")));
    actor.pubkey = key;
  }
  if (call.has("key") || call.has("no-key")) fields.emplace_back("pubkey");
  if (const auto given = call.flags.find("address"); given != call.flags.end()) {
    actor.address = given->second;
    fields.emplace_back("address");
  }
  return actor;
}

Result<int> make_actor(Invocation& call) {
  std::vector<std::string> fields;
  MJ_TRY(by, request_context(call));
  MJ_TRY(actor, typed_actor(call, fields));
  MJ_TRY(id, id_flag(call, "id", 0));
  actor.id = id;
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(made, with_original_arguments(call, service::create_actor(by, *opened.store, actor)));
  show_actor(call, made);
  return 0;
}

Result<int> list_all_actors(Invocation& call) {
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(all, service::list_actors(by, *opened.store));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"ACTOR", "KEY", "ADDRESSES"}};
  for (const Actor& actor : all) {
    array.push_back(to_json(actor));
    rows.push_back({std::to_string(actor.id), actor.pubkey.empty() ? "-" : printable(actor.pubkey),
                    actor.address.empty() ? "-" : printable(fmt::format("{}", fmt::join(actor.address, ", ")))});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

Result<int> show_one_actor(Invocation& call) {
  MJ_TRY(id, typed_id("actor", call.arguments.at(0)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(actor, service::read_actor(by, *opened.store, id));
  show_actor(call, actor);
  return 0;
}

Result<int> change_actor(Invocation& call) {
  std::vector<std::string> fields;
  MJ_TRY(id, typed_id("actor", call.arguments.at(0)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(wanted, typed_actor(call, fields));
  wanted.id = id;
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(after, with_original_arguments(call, service::update_actor(by, *opened.store, wanted, fields)));
  show_actor(call, after);
  return 0;
}

Result<int> remove_actor(Invocation& call) {
  MJ_TRY(id, typed_id("actor", call.arguments.at(0)));
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(contexts, contexts_of_store(call, *opened.store));
  MJ_CHECK(with_original_arguments(call, service::delete_actor(by, *opened.store, id, contexts)));
  print_deleted(call, fmt::format("actor:{}", id));
  return 0;
}

}  // namespace

int actor_create_command(Invocation& call) { return finish(make_actor(call)); }
int actor_list_command(Invocation& call) { return finish(list_all_actors(call)); }
int actor_show_command(Invocation& call) { return finish(show_one_actor(call)); }
int actor_update_command(Invocation& call) { return finish(change_actor(call)); }
int actor_delete_command(Invocation& call) { return finish(remove_actor(call)); }

}  // namespace mycojobs
