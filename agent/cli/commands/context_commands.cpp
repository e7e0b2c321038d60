// mycojobs context create | list | show | delete | grant | revoke | notify | refusals
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ed25519.h"
#include "cli/command_output.h"
#include "cli/commands/commands.h"
#include "cli/commands/flow_commands.h"
#include "cli/key_files.h"
#include "cli/request_arguments.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "model/codec.h"
#include "model/notify_targets.h"
#include "service/actor_service.h"
#include "service/record_service.h"
#include "text/json.h"
#include "text/timestamp.h"

namespace mycojobs {
namespace {

Result<Id> parse_context_argument(const Invocation& call) {
  if (call.arguments.empty()) return call.context();
  return parse_id("context", call.arguments.at(0));
}

// Returns the request context of the command, with the context that the argument names (default: that of the settings).
Result<service::RequestContext> make_argument_request_context(const Invocation& call) {
  MJ_TRY(id, parse_context_argument(call));
  MJ_TRY(caller, request_context(call));
  caller.context = id;
  return caller;
}

std::string format_ids(const std::vector<Id>& ids) {
  return ids.empty() ? paint(OutputStyle::faint, "none") : fmt::format("{}", fmt::join(ids, ", "));
}

// Prints the roles and the kinds of objects of a context. exists: the context has a record.
int print_context(const Invocation& call, const Context& context, bool exists, const std::vector<KindInfo>& kinds) {
  if (call.json) {
    auto object = to_json(context);
    for (const service::Role& role : service::roles()) object[std::string(role.field)] = context.*role.ids;
    object["id"] = context.id;
    object["exists"] = exists;
    object["kinds"] = nlohmann::json::array();
    for (const KindInfo& entry : kinds) {
      object["kinds"].push_back({{"namespace", entry.kind.name_space},
                                 {"kind", entry.kind.kind},
                                 {"count", entry.count},
                                 {"index", entry.index},
                                 {"text", entry.text}});
    }
    return print_json(object);
  }
  print(fmt::format("context {}{}\n", context.id,
                    exists
                        ? ""
                        : paint(OutputStyle::warn,
                                " has no record: it is closed to RPC and scripts, and open to clients of its Redis")));
  for (const service::Role& role : service::roles())
    print(fmt::format("  {:<11}{}\n", role.field, format_ids(context.*role.ids)));
  if (kinds.empty()) return EXIT_SUCCESS;
  print("\n");
  TableRows rows{{"NAMESPACE", "KIND", "OBJECTS", "FOUND BY", "WORDS OF"}};
  for (const KindInfo& entry : kinds) {
    rows.push_back({entry.kind.name_space, entry.kind.kind, std::to_string(entry.count),
                    to_printable(fmt::format("{}", fmt::join(entry.index, ", "))),
                    to_printable(fmt::format("{}", fmt::join(entry.text, ", ")))});
  }
  print_table(rows);
  return EXIT_SUCCESS;
}

// Returns the actor for an id, or for the name of a key of `key new`: the actor that has this key.
Result<Id> find_actor(const Invocation& call, Store& store, const std::string& flag, const std::string& text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) return parse_id(flag, text);
  auto file = key_file_path(call.settings, text);
  if (!file) return fail(file.error(), flag);
  auto key = SigningKey::load(*file);
  if (!key) return fail(key.error(), flag + ": " + text + " is neither an id nor a key that names its actor");
  MJ_TRY(caller, request_context(call));
  MJ_TRY(actors, service::list_actors(caller, store));
  std::vector<Id> ids;
  for (const Actor& actor : actors) {
    if (actor.pubkey == key->public_key()) ids.push_back(actor.id);
  }
  if (ids.size() == 1) return ids.front();
  if (ids.empty())
    return fail(Code::not_found,
                fmt::format("{}: no actor has the key {}: mycojobs actor create --key {}", flag, text, text));
  return fail(Code::invalid,
              fmt::format("{}: the key {} is of the actors {}: give an id", flag, text, fmt::join(ids, ", ")));
}

// Returns the actors of the role flags, with their roles.
Result<std::vector<service::RoleChange>> read_role_flags(const Invocation& call, Store& store) {
  std::vector<service::RoleChange> changes;
  for (const service::Role& role : service::roles()) {
    for (const std::string& text : call.get_all(role.name)) {
      MJ_TRY(actor, find_actor(call, store, "--" + std::string(role.name), text));
      changes.push_back({&role, actor});
    }
  }
  return changes;
}

Result<int> change_roles(Invocation& call, bool is_grant) {
  MJ_TRY(caller, make_argument_request_context(call));
  const auto roles = service::roles();
  if (std::none_of(roles.begin(), roles.end(), [&](const service::Role& role) { return call.has(role.name); })) {
    return fail(Code::invalid, "name a role and its actor: --admin ID, --submitter ID, --executor ID or --reader ID");
  }
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(changes, read_role_flags(call, *session.store));
  MJ_TRY(changed, service::change_roles(caller, *session.store, is_grant, changes));
  print_context(call, changed, true, {});
  if (changed.admins.empty()) {
    print_warning(
        fmt::format("context {} has no admin: only an operator can change it or write its objects; mycojobs "
                    "context grant {} --admin ID",
                    caller.context, caller.context));
  }
  return 0;
}

int print_notify_targets(const Invocation& call, const Context& context) {
  if (call.json)
    return print_json({{"id", context.id}, {"notify", to_json(context).value("notify", nlohmann::json::array())}});
  if (context.notify.empty()) {
    print(fmt::format("context {}: no receivers of notifications\n", context.id));
    return EXIT_SUCCESS;
  }
  print(fmt::format("context {}: receivers of the ends of flows and of jobs outside of flows\n", context.id));
  const auto targets = parse_json(context.notify);
  if (!targets || !targets->is_array()) {
    print("  " + to_printable_line(context.notify) + "\n");
    return EXIT_SUCCESS;
  }
  for (const auto& target : *targets)
    print("  " + to_printable_line(target.is_string() ? target.get<std::string>() : dump_json(target)) + "\n");
  return EXIT_SUCCESS;
}

}  // namespace

Result<int> context_notify_command(Invocation& call) {
  MJ_TRY(caller, make_argument_request_context(call));
  if (call.has("none") && call.has("target")) return fail(Code::invalid, "--target and --none: use only one of them");
  std::string targets_json;
  for (const std::string& target : call.get_all("target")) {
    if (auto result = add_notify_target(target, targets_json); !result) return fail(result.error(), "--target");
  }
  MJ_TRY(session, open_store_for_query(call));
  Context context;
  if (call.has("none") || call.has("target")) {
    MJ_TRY(changed_record, service::set_notify(caller, *session.store, targets_json));
    context = std::move(changed_record);
  } else {
    MJ_TRY(record, service::load_context(*session.store, caller.context));
    context = record.value_or(Context());
  }
  context.id = caller.context;
  return print_notify_targets(call, context);
}

Result<int> context_create_command(Invocation& call) {
  MJ_TRY(caller, request_context(call));
  MJ_TRY(id, parse_id("context", call.arguments.at(0)));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(changes, read_role_flags(call, *session.store));
  Context context;
  context.id = id;
  for (const service::RoleChange& entry : changes) (context.*entry.role->ids).push_back(entry.actor);
  MJ_TRY(stored_context, service::create_context(caller, *session.store, context));
  return print_context(call, stored_context, true, {});
}

Result<int> context_list_command(Invocation& call) {
  MJ_TRY(caller, request_context(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(ids, find_contexts(call, *session.store));
  MJ_TRY(result, service::list_contexts(caller, *session.store, ids));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"CONTEXT", "ADMINS", "SUBMITTERS", "EXECUTORS", "READERS"}};
  for (const Context& context : result.contexts) {
    array.push_back(to_json(context));
    rows.push_back({std::to_string(context.id), format_ids(context.admins), format_ids(context.submitters),
                    format_ids(context.executors), format_ids(context.readers)});
  }
  if (call.json) return print_json(array);
  print_table(rows);
  if (!result.ids_without_record.empty())
    print_message(fmt::format("without a record, closed to RPC: {}", fmt::join(result.ids_without_record, ", ")));
  return 0;
}

Result<int> context_delete_command(Invocation& call) {
  MJ_TRY(caller, make_argument_request_context(call));
  MJ_TRY(session, open_flow_session_for_query(call));
  MJ_CHECK(to_command_line_error(call, service::delete_context(caller, session.stores())));
  return print_deleted(call, fmt::format("context:{}", caller.context));
}

Result<int> context_refusals_command(Invocation& call) {
  MJ_TRY(caller, make_argument_request_context(call));
  MJ_TRY(request, read_request(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(refusals, service::list_refusals(caller, *session.store, request.number("limit")));
  nlohmann::json array = nlohmann::json::array();
  TableRows rows{{"NUMBER", "AT", "ACTOR", "MAY NOT", "WHAT", "LIST"}};
  for (const RefusalNote& note : refusals) {
    array.push_back({{"number", note.number},
                     {"at_ms", note.at_ms},
                     {"actor", note.actor},
                     {"action", to_printable(note.action)},
                     {"thing", to_printable(note.resource)},
                     {"list", to_printable(note.access_list)}});
    rows.push_back({std::to_string(note.number), format_local_time(note.at_ms), std::to_string(note.actor),
                    to_printable(note.action), to_printable(note.resource), to_printable(note.access_list)});
  }
  return print_listing(call, array, rows);
}

Result<int> context_show_command(Invocation& call) {
  MJ_TRY(id, parse_context_argument(call));
  MJ_TRY(session, open_store_for_query(call));
  MJ_TRY(record, service::load_context(*session.store, id));
  MJ_TRY(objects, session.services.stores->open_objects());
  MJ_TRY(kinds, objects->kinds(id));
  Context context = record.value_or(Context());
  context.id = id;
  return print_context(call, context, record.has_value(), kinds);
}
Result<int> context_grant_command(Invocation& call) { return change_roles(call, true); }
Result<int> context_revoke_command(Invocation& call) { return change_roles(call, false); }

}  // namespace mycojobs
