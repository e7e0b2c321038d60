// mycojobs actor create | list | show | update | delete
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/key_files.h"
#include "cli/request_arguments.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "service/actor_service.h"
#include "service/record_service.h"

namespace mycojobs {
namespace {

int print_actor(const Invocation& call, const Actor& actor) {
  if (call.json) return print_json(to_json(actor));
  print(fmt::format("actor {}\n  key      {}\n", actor.id,
                    actor.pubkey.empty() ? paint(OutputStyle::faint, "none") : to_printable(actor.pubkey)));
  for (const std::string& address : actor.address) print("  address  " + to_printable(address) + "\n");
  return EXIT_SUCCESS;
}

// Returns an actor with the fields of the flags, and appends the names of these fields.
Result<Actor> read_actor_flags(const Invocation& call, nlohmann::json arguments, std::vector<std::string>& fields) {
  MJ_TRY(params, read_request(call, std::move(arguments)));
  Actor actor;
  actor.id = params.id("id");
  if (call.has("key") && call.has("no-key")) return fail(Code::invalid, "--key and --no-key: use only one of them");
  if (call.has("key")) {
    MJ_TRY(key, parse_public_key(call, call.get("key")));
    actor.pubkey = key;
  }
  if (call.has("key") || call.has("no-key")) fields.emplace_back("pubkey");
  if (params.has_param("address")) {
    actor.address = params.params().at("address").get<std::vector<std::string>>();
    fields.emplace_back("address");
  }
  return actor;
}

}  // namespace

Result<int> actor_create_command(Invocation& call) {
  std::vector<std::string> fields;
  MJ_TRY(caller, request_context(call));
  MJ_TRY(actor, read_actor_flags(call, nlohmann::json::object(), fields));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(stored_actor, to_command_line_error(call, service::create_actor(caller, *session.store, actor)));
  return print_actor(call, stored_actor);
}

Result<int> actor_list_command(Invocation& call) {
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(actors, service::list_actors(caller, *session.store));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"ACTOR", "KEY", "ADDRESSES"}};
  for (const Actor& actor : actors) {
    array.push_back(to_json(actor));
    rows.push_back({std::to_string(actor.id), actor.pubkey.empty() ? "-" : to_printable(actor.pubkey),
                    actor.address.empty() ? "-" : to_printable(fmt::format("{}", fmt::join(actor.address, ", ")))});
  }
  return print_listing(call, array, rows);
}

Result<int> actor_show_command(Invocation& call) {
  MJ_TRY(id, parse_id("actor", call.arguments.at(0)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(actor, service::read_actor(caller, *session.store, id));
  return print_actor(call, actor);
}

Result<int> actor_update_command(Invocation& call) {
  std::vector<std::string> fields;
  MJ_TRY(id, parse_id("actor", call.arguments.at(0)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(actor, read_actor_flags(call, {{"id", id}}, fields));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(stored_actor, to_command_line_error(call, service::update_actor(caller, *session.store, actor, fields)));
  return print_actor(call, stored_actor);
}

Result<int> actor_delete_command(Invocation& call) {
  MJ_TRY(id, parse_id("actor", call.arguments.at(0)));
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(contexts, find_contexts(call, *session.store));
  MJ_CHECK(to_command_line_error(call, service::delete_actor(caller, *session.store, id, contexts)));
  return print_deleted(call, fmt::format("actor:{}", id));
}

}  // namespace mycojobs
