// mycojobs context show | grant | revoke | notify
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/notify.h"

namespace mycojobs {
namespace {

struct Role {
  std::string_view flag, field;
  std::vector<Id> Context::*ids;
};
constexpr std::array kRoles{
    Role{"admin", "admins", &Context::admins}, Role{"submitter", "submitters", &Context::submitters},
    Role{"executor", "executors", &Context::executors}, Role{"reader", "readers", &Context::readers}};

Result<Id> read_id(std::string_view what, std::string_view text) {
  std::uint64_t id = 0;
  if (parse_u64(text, id) && id >= 1 && id <= UINT32_MAX) return static_cast<Id>(id);
  return fail(Code::invalid, fmt::format("{}: \"{}\" is no id: a whole number from 1 to {}", what, text, UINT32_MAX));
}

Result<Id> context_argument(const Invocation& call) {
  if (call.arguments.empty()) return context_of(call);
  return read_id("context", call.arguments.at(0));
}

struct Found {
  Context record;
  bool exists = true;
};
Result<Found> load(Store& store, Id id) {
  Found found;
  found.record.id = id;
  auto fields = store.load(id, redis_key(found.record));
  if (!fields && fields.error().code == Code::not_found) {
    found.exists = false;
    return found;
  }
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  auto decoded = decode<Context>(*fields);
  if (!decoded.ok()) return fail(Code::invalid, redis_key(found.record) + ": " + join(decoded.problems));
  found.record = std::move(decoded.record);
  found.record.id = id;
  return found;
}

std::string listed(const std::vector<Id>& ids) {
  return ids.empty() ? paint(Tone::faint, "none") : fmt::format("{}", fmt::join(ids, ", "));
}

void show(const Invocation& call, const Found& found, const std::vector<KindInfo>& kinds) {
  if (call.json) {
    auto object = to_json(found.record);
    for (const Role& role : kRoles) object[std::string(role.field)] = found.record.*role.ids;
    object["id"] = found.record.id;
    object["exists"] = found.exists;
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
      "context {}{}\n", found.record.id,
      found.exists
          ? ""
          : paint(Tone::warn, " has no record: it is closed to RPC and scripts, open to those who reach its Redis")));
  for (const Role& role : kRoles) print(fmt::format("  {:<11}{}\n", role.field, listed(found.record.*role.ids)));
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
  MJ_TRY(found, load(*opened.store, id));
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(kinds, objects->kinds(id));
  show(call, found, kinds);
  return 0;
}

// What the flags name, by role.
Result<std::vector<std::pair<Role, Id>>> named_roles(const Invocation& call) {
  std::vector<std::pair<Role, Id>> named;
  for (const Role& role : kRoles) {
    const auto given = call.flags.find(role.flag);
    if (given == call.flags.end()) continue;
    for (const std::string& text : given->second) {
      MJ_TRY(actor, read_id("--" + std::string(role.flag), text));
      named.emplace_back(role, actor);
    }
  }
  if (!named.empty()) return named;
  return fail(Code::invalid,
              "name a role and who it is about: --admin ID, --submitter ID, --executor ID or --reader ID");
}

Result<int> change(Invocation& call, bool grant) {
  MJ_TRY(id, context_argument(call));
  MJ_TRY(named, named_roles(call));
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(found, load(*opened.store, id));
  if (!grant && !found.exists) {
    return fail(
        Code::not_found,
        fmt::format(
            "context {} has no record: there is nothing to take; `mycojobs context grant {} --admin ID` makes one", id,
            id));
  }
  MJ_TRY(now_ms, opened.store->now_ms());
  Fields changed{{"updated_at", std::to_string(now_ms / 1000)}};
  if (!found.exists)
    changed.emplace_back("id", std::to_string(id)), changed.emplace_back("created_at", changed[0].second);
  for (const auto& [role, actor] : named) {
    auto& ids = found.record.*role.ids;
    const auto at = std::find(ids.begin(), ids.end(), actor);
    if (grant && at == ids.end()) ids.push_back(actor);
    if (!grant && at != ids.end()) ids.erase(at);
  }
  for (const Role& role : kRoles) {
    if (call.has(role.flag)) {
      changed.emplace_back(role.field, dump_json(nlohmann::json(found.record.*role.ids)));
    }
  }
  MJ_CHECK(opened.store->save(id, redis_key(found.record), changed));
  MJ_TRY(after, load(*opened.store, id));
  show(call, after, {});
  if (after.record.admins.empty()) {
    say(paint(Tone::warn, "warning: ", true) +
        fmt::format("context {} has no admin: nobody but an operator can change it or write its objects; mycojobs "
                    "context grant {} --admin ID",
                    id, id));
  }
  return 0;
}

void show_notify(const Invocation& call, const Found& found) {
  const std::string& notify = found.record.notify;
  if (call.json)
    return print(
        dump_json({{"id", found.record.id}, {"notify", to_json(found.record).value("notify", nlohmann::json::array())}},
                  2) +
        "\n");
  const auto list = parse_json(notify);
  if (notify.empty()) return print(fmt::format("context {}: nobody hears of ends\n", found.record.id));
  print(fmt::format("context {}: of the ends of flows, and of jobs outside of flows, hear\n", found.record.id));
  if (!list || !list->is_array()) return print("  " + one_line(notify) + "\n");
  for (const auto& each : *list)
    print("  " + one_line(each.is_string() ? each.get<std::string>() : dump_json(each)) + "\n");
}

Result<int> notify(Invocation& call) {
  MJ_TRY(id, context_argument(call));
  if (call.has("none") && call.has("target")) return fail(Code::invalid, "--target and --none: give one of them");
  std::string wanted;
  const auto targets = call.flags.find("target");
  for (const std::string& typed : targets == call.flags.end() ? std::vector<std::string>() : targets->second) {
    if (auto added = add_notify(typed, wanted); !added) return fail(added.error(), "--target");
  }
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(found, load(*opened.store, id));
  if (call.has("none") || call.has("target")) {
    if (!found.exists)
      return fail(Code::not_found,
                  fmt::format("context {} has no record: `mycojobs context grant {} --admin ID` makes one", id, id));
    MJ_TRY(now_ms, opened.store->now_ms());
    MJ_CHECK(opened.store->save(id, redis_key(found.record),
                                {{"notify", wanted}, {"updated_at", std::to_string(now_ms / 1000)}}));
    found.record.notify = wanted;
  }
  show_notify(call, found);
  return 0;
}

}  // namespace

int context_notify_command(Invocation& call) { return finish(notify(call)); }
int context_show_command(Invocation& call) { return finish(show_one(call)); }
int context_grant_command(Invocation& call) { return finish(change(call, true)); }
int context_revoke_command(Invocation& call) { return finish(change(call, false)); }

}  // namespace mycojobs
