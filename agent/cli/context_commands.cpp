// mycojobs context show | grant | revoke | notify
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/notify.h"
#include "service/records.h"

namespace mycojobs {
namespace {

Result<Id> read_id(std::string_view what, std::string_view text) {
  std::uint64_t id = 0;
  if (parse_u64(text, id) && id >= 1 && id <= UINT32_MAX) return static_cast<Id>(id);
  return fail(Code::invalid, fmt::format("{}: \"{}\" is no id: a whole number from 1 to {}", what, text, UINT32_MAX));
}

Result<Id> context_argument(const Invocation& call) {
  if (call.arguments.empty()) return context_of(call);
  return read_id("context", call.arguments.at(0));
}

// The operator, in the context that is named.
Result<service::Caller> who_changes(const Invocation& call) {
  MJ_TRY(id, context_argument(call));
  MJ_TRY(by, who_asks(call));
  by.context = id;
  return by;
}

std::string listed(const std::vector<Id>& ids) {
  return ids.empty() ? paint(Tone::faint, "none") : fmt::format("{}", fmt::join(ids, ", "));
}

// exists: it has a record.
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
  print(fmt::format(
      "context {}{}\n", context.id,
      exists
          ? ""
          : paint(Tone::warn, " has no record: it is closed to RPC and scripts, open to those who reach its Redis")));
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

// What the flags name, by role.
Result<std::vector<service::RoleChange>> named_roles(const Invocation& call) {
  std::vector<service::RoleChange> named;
  for (const service::Role& role : service::roles()) {
    const auto given = call.flags.find(role.name);
    if (given == call.flags.end()) continue;
    for (const std::string& text : given->second) {
      MJ_TRY(actor, read_id("--" + std::string(role.name), text));
      named.push_back({&role, actor});
    }
  }
  if (!named.empty()) return named;
  return fail(Code::invalid,
              "name a role and who it is about: --admin ID, --submitter ID, --executor ID or --reader ID");
}

Result<int> change(Invocation& call, bool grant) {
  MJ_TRY(by, who_changes(call));
  MJ_TRY(named, named_roles(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(after, service::change_roles(by, *opened.store, grant, named));
  show(call, after, true, {});
  if (after.admins.empty()) {
    say(paint(Tone::warn, "warning: ", true) +
        fmt::format("context {} has no admin: nobody but an operator can change it or write its objects; mycojobs "
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
  if (notify.empty()) return print(fmt::format("context {}: nobody hears of ends\n", context.id));
  print(fmt::format("context {}: of the ends of flows, and of jobs outside of flows, hear\n", context.id));
  if (!list || !list->is_array()) return print("  " + one_line(notify) + "\n");
  for (const auto& each : *list)
    print("  " + one_line(each.is_string() ? each.get<std::string>() : dump_json(each)) + "\n");
}

Result<int> notify(Invocation& call) {
  MJ_TRY(by, who_changes(call));
  if (call.has("none") && call.has("target")) return fail(Code::invalid, "--target and --none: give one of them");
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
int context_show_command(Invocation& call) { return finish(show_one(call)); }
int context_grant_command(Invocation& call) { return finish(change(call, true)); }
int context_revoke_command(Invocation& call) { return finish(change(call, false)); }

}  // namespace mycojobs
