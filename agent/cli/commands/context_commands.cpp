// mycojobs context create | list | show | delete | grant | revoke | notify | refusals
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ed25519.h"
#include "cli/commands/command_table.h"
#include "cli/commands/flow_commands.h"
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

Result<Id> context_argument(const Invocation& call) {
  if (call.arguments.empty()) return context_of(call);
  return typed_id("context", call.arguments.at(0));
}

// Returns the caller for changes of the named context.
Result<service::RequestContext> changing_actor(const Invocation& call) {
  MJ_TRY(id, context_argument(call));
  MJ_TRY(by, request_context(call));
  by.context = id;
  return by;
}

std::string listed(const std::vector<Id>& ids) {
  return ids.empty() ? paint(OutputStyle::faint, "none") : fmt::format("{}", fmt::join(ids, ", "));
}

// exists: the context has a record.
void show(const Invocation& call, const Context& context, bool exists, const std::vector<KindInfo>& kinds) {
  if (call.json) {
    auto object = to_json(context);
    for (const service::Role& role : service::roles()) object[std::string(role.field)] = context.*role.ids;
    object["id"] = context.id;
    object["exists"] = exists;
    object["kinds"] = nlohmann::json::array();
    for (const KindInfo& each : kinds) {
      object["kinds"].push_back({{"namespace", each.of.space},
                                 {"kind", each.of.kind},
                                 {"count", each.count},
                                 {"index", each.index},
                                 {"text", each.text}});
    }
    return print(dump_json(object, 2) + "\n");
  }
  print(fmt::format("context {}{}\n", context.id,
                    exists
                        ? ""
                        : paint(OutputStyle::warn,
                                " has no record: it is closed to RPC and scripts, and open to clients of its Redis")));
  for (const service::Role& role : service::roles())
    print(fmt::format("  {:<11}{}\n", role.field, listed(context.*role.ids)));
  if (kinds.empty()) return;
  print("\n");
  std::vector<std::vector<std::string>> rows{{"NAMESPACE", "KIND", "OBJECTS", "FOUND BY", "WORDS OF"}};
  for (const KindInfo& each : kinds) {
    rows.push_back({each.of.space, each.of.kind, std::to_string(each.count),
                    printable(fmt::format("{}", fmt::join(each.index, ", "))),
                    printable(fmt::format("{}", fmt::join(each.text, ", ")))});
  }
  print_table(rows);
}

Result<int> show_one(Invocation& call) {
  MJ_TRY(id, context_argument(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(found, service::load_context(*opened.store, id));
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(kinds, objects->kinds(id));
  Context context = found.value_or(Context());
  context.id = id;
  show(call, context, found.has_value(), kinds);
  return 0;
}

// Returns the actor for an id, or for the name of a key of `key new`: the actor that has this key.
Result<Id> named_actor(const Invocation& call, Store& store, const std::string& flag, const std::string& text) {
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) return typed_id(flag, text);
  auto file = key_file(call.settings, text);
  if (!file) return fail(file.error(), flag);
  auto key = SigningKey::load(*file);
  if (!key) return fail(key.error(), flag + ": " + text + " is neither an id nor a key that names its actor");
  MJ_TRY(by, request_context(call));
  MJ_TRY(actors, service::list_actors(by, store));
  std::vector<Id> found;
  for (const Actor& each : actors) {
    if (each.pubkey == key->public_key()) found.push_back(each.id);
  }
  if (found.size() == 1) return found.front();
  if (found.empty())
    return fail(Code::not_found,
                fmt::format("{}: no actor has the key {}: mycojobs actor create --key {}", flag, text, text));
  return fail(Code::invalid,
              fmt::format("{}: the key {} is of the actors {}: give an id", flag, text, fmt::join(found, ", ")));
}

// Returns the actors of the role flags, with their roles.
Result<std::vector<service::RoleChange>> named_roles(const Invocation& call, Store& store) {
  std::vector<service::RoleChange> named;
  for (const service::Role& role : service::roles()) {
    const auto given = call.flags.find(role.name);
    if (given == call.flags.end()) continue;
    for (const std::string& text : given->second) {
      MJ_TRY(actor, named_actor(call, store, "--" + std::string(role.name), text));
      named.push_back({&role, actor});
    }
  }
  return named;
}

Result<int> make_context(Invocation& call) {
  MJ_TRY(by, request_context(call));
  MJ_TRY(id, typed_id("context", call.arguments.at(0)));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(named, named_roles(call, *opened.store));
  Context context;
  context.id = id;
  for (const service::RoleChange& each : named) (context.*each.role->ids).push_back(each.actor);
  MJ_TRY(made, service::create_context(by, *opened.store, context));
  show(call, made, true, {});
  return 0;
}

Result<int> list_all_contexts(Invocation& call) {
  MJ_TRY(by, request_context(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(known, contexts_of_store(call, *opened.store));
  MJ_TRY(found, service::list_contexts(by, *opened.store, known));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"CONTEXT", "ADMINS", "SUBMITTERS", "EXECUTORS", "READERS"}};
  for (const Context& context : found.contexts) {
    array.push_back(to_json(context));
    rows.push_back({std::to_string(context.id), listed(context.admins), listed(context.submitters),
                    listed(context.executors), listed(context.readers)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
    return 0;
  }
  print_table(rows);
  if (!found.without.empty())
    print_message(fmt::format("without a record, closed to RPC: {}", fmt::join(found.without, ", ")));
  return 0;
}

Result<int> remove_context(Invocation& call) {
  MJ_TRY(by, changing_actor(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_CHECK(with_original_arguments(call, service::delete_context(by, open.stores())));
  print_deleted(call, fmt::format("context:{}", by.context));
  return 0;
}

Result<int> show_refusals(Invocation& call) {
  MJ_TRY(by, changing_actor(call));
  MJ_TRY(limit, id_flag(call, "limit", 50));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(notes, service::list_refusals(by, *opened.store, limit));
  nlohmann::json array = nlohmann::json::array();
  std::vector<std::vector<std::string>> rows{{"NUMBER", "AT", "ACTOR", "MAY NOT", "WHAT", "LIST"}};
  for (const RefusalNote& note : notes) {
    array.push_back({{"number", note.number},
                     {"at_ms", note.at_ms},
                     {"actor", note.actor},
                     {"action", printable(note.action)},
                     {"thing", printable(note.thing)},
                     {"list", printable(note.list)}});
    rows.push_back({std::to_string(note.number), local_time(note.at_ms), std::to_string(note.actor),
                    printable(note.action), printable(note.thing), printable(note.list)});
  }
  if (call.json) {
    print(dump_json(array, 2) + "\n");
  } else {
    print_table(rows);
  }
  return 0;
}

Result<int> change(Invocation& call, bool grant) {
  MJ_TRY(by, changing_actor(call));
  const auto roles = service::roles();
  if (std::none_of(roles.begin(), roles.end(), [&](const service::Role& role) { return call.has(role.name); })) {
    return fail(Code::invalid, "name a role and its actor: --admin ID, --submitter ID, --executor ID or --reader ID");
  }
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(named, named_roles(call, *opened.store));
  MJ_TRY(after, service::change_roles(by, *opened.store, grant, named));
  show(call, after, true, {});
  if (after.admins.empty()) {
    print_message(paint(OutputStyle::warn, "warning: ", true) +
                  fmt::format("context {} has no admin: only an operator can change it or write its objects; mycojobs "
                              "context grant {} --admin ID",
                              by.context, by.context));
  }
  return 0;
}

void show_notify(const Invocation& call, const Context& context) {
  const std::string& notify = context.notify;
  if (call.json)
    return print(
        dump_json({{"id", context.id}, {"notify", to_json(context).value("notify", nlohmann::json::array())}}, 2) +
        "\n");
  const auto list = parse_json(notify);
  if (notify.empty()) return print(fmt::format("context {}: no receivers of notifications\n", context.id));
  print(fmt::format("context {}: receivers of the ends of flows and of jobs outside of flows\n", context.id));
  if (!list || !list->is_array()) return print("  " + one_line(notify) + "\n");
  for (const auto& each : *list)
    print("  " + one_line(each.is_string() ? each.get<std::string>() : dump_json(each)) + "\n");
}

Result<int> notify(Invocation& call) {
  MJ_TRY(by, changing_actor(call));
  if (call.has("none") && call.has("target")) return fail(Code::invalid, "--target and --none: use only one of them");
  std::string wanted;
  const auto targets = call.flags.find("target");
  for (const std::string& typed : targets == call.flags.end() ? std::vector<std::string>() : targets->second) {
    if (auto added = add_notify(typed, wanted); !added) return fail(added.error(), "--target");
  }
  MJ_TRY(opened, open_to_answer(call));
  Context context;
  if (call.has("none") || call.has("target")) {
    MJ_TRY(changed, service::set_notify(by, *opened.store, wanted));
    context = std::move(changed);
  } else {
    MJ_TRY(found, service::load_context(*opened.store, by.context));
    context = found.value_or(Context());
  }
  context.id = by.context;
  show_notify(call, context);
  return 0;
}

}  // namespace

int context_notify_command(Invocation& call) { return finish(notify(call)); }
int context_create_command(Invocation& call) { return finish(make_context(call)); }
int context_list_command(Invocation& call) { return finish(list_all_contexts(call)); }
int context_delete_command(Invocation& call) { return finish(remove_context(call)); }
int context_refusals_command(Invocation& call) { return finish(show_refusals(call)); }
int context_show_command(Invocation& call) { return finish(show_one(call)); }
int context_grant_command(Invocation& call) { return finish(change(call, true)); }
int context_revoke_command(Invocation& call) { return finish(change(call, false)); }

}  // namespace mycojobs
