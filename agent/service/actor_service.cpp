#include "service/actor_service.h"

#include <algorithm>

#include "base/ed25519.h"
#include "base/parse.h"
#include "model/codec.h"
#include "net/mycelium_address.h"
#include "service/record_service.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxActors = 100000, kMaxAddresses = 16, kMaxAddressBytes = 2048;

std::string actor_key(Id id) { return "actor:" + std::to_string(id); }

Result<void> check_actor(const Actor& actor) {
  MJ_CHECK(check_pubkey(actor.pubkey));
  if (actor.address.size() > kMaxAddresses)
    return fail(Code::too_large, "address: an actor has at most " + std::to_string(kMaxAddresses));
  for (const std::string& address : actor.address) MJ_CHECK(check_address(address));
  return {};
}

Result<std::vector<Actor>> load_actors(Store& store) {
  MJ_TRY(keys, store.keys(0, "actor:", kMaxActors));
  std::vector<Actor> actors;
  for (const std::string& key : keys) {
    std::uint64_t id = 0;
    if (!parse_u64(key.substr(6), id) || id == 0 || id > UINT32_MAX) continue;  // a key that another client has written
    auto fields = store.load(0, key);
    if (!fields && is_absent(fields.error())) continue;
    if (!fields) return tl::unexpected<Error>(std::move(fields).error());
    actors.push_back(decode<Actor>(*fields).record);
    actors.back().id = static_cast<Id>(id);
  }
  std::sort(actors.begin(), actors.end(), [](const Actor& a, const Actor& b) { return a.id < b.id; });
  return actors;
}

}  // namespace

Result<void> check_pubkey(const std::string& key) {
  if (key.empty() || is_public_key(key)) return {};
  if (is_hex(key, 64))
    return fail(Code::invalid, "pubkey: " + key + " is not a public key: it is not a point of the curve ed25519");
  return fail(Code::invalid,
              "pubkey: " + excerpt(key, 80) +
                  " is not a public key: use 64 characters of lower-case hex, as printed by `mycojobs key new`");
}

Result<void> check_address(const std::string& text) {
  if (text.size() > kMaxAddressBytes)
    return fail(Code::too_large, "address: is over " + std::to_string(kMaxAddressBytes) + " bytes: shorten it");
  const bool is_printable_ascii = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (is_printable_ascii) {
    if (parse_mycelium(text)) return {};
    for (const std::string_view scheme : {"http://", "https://", "redis://", "rediss://", "unix:"})
      if (text.starts_with(scheme) && text.size() > scheme.size()) return {};
  }
  return fail(Code::invalid,
              "address: " + excerpt(text, 80) +
                  " is not an address: use 64 hex characters (a key of Mycelium), an IP address in 400::/7 (both with "
                  "or without mycelium://), http://..., https://..., redis://..., rediss://... or unix:...");
}

Result<Actor> create_actor(const RequestContext& caller, Store& store, const Actor& actor) {
  if (!caller.is_operator && actor.id != caller.actor)
    return tl::unexpected<Error>(operator_required_error(caller, "create an actor other than itself"));
  MJ_CHECK(check_actor(actor));
  MJ_TRY(stored, create_record(store, 0, {"actor:", "actor", actor.id, encode(actor)}));
  return decode<Actor>(stored).record;
}

Result<Actor> read_actor(const RequestContext& caller, Store& store, Id id) {
  if (id != caller.actor)
    MJ_CHECK(check_permission(caller, store, Action::read, {.name = "actor " + std::to_string(id)}));
  MJ_TRY(fields, store.load(0, actor_key(id)));
  return decode<Actor>(fields).record;
}

Result<std::vector<Actor>> list_actors(const RequestContext& caller, Store& store) {
  MJ_CHECK(check_permission(caller, store, Action::read, {.name = "actors"}));
  return load_actors(store);
}

Result<Actor> update_actor(const RequestContext& caller, Store& store, const Actor& new_values,
                           std::span<const std::string> field_names) {
  if (!caller.is_operator && new_values.id != caller.actor)
    return tl::unexpected<Error>(operator_required_error(caller, "change an actor other than itself"));
  MJ_CHECK(check_actor(new_values));
  MJ_TRY(changes, select_fields(encode(new_values), field_names));
  MJ_TRY(record, store.change_record(0, actor_key(new_values.id), changes));
  return decode<Actor>(record).record;
}

namespace {

struct ActorRoles {
  std::string text;  // "admins of context 1, readers of context 2"; empty if the actor has no role
  // The role lists at the time of this check. delete_actor_if() deletes nothing if they have changed since.
  std::vector<ExpectedContext> expected_contexts;
};

// Returns the roles that the actor has in these contexts.
Result<ActorRoles> find_roles(Store& store, Id id, std::span<const Id> contexts) {
  ActorRoles actor_roles;
  for (const Id context : contexts) {
    auto fields = store.load(context, "context:" + std::to_string(context));
    if (!fields && fields.error().code != Code::not_found) return tl::unexpected<Error>(std::move(fields).error());
    Context context_record;
    if (fields) {
      MJ_TRY(record, read_context_record(context, *fields));
      context_record = std::move(record);
    }
    ExpectedContext expected{context, {}};
    for (const Role& role : roles()) {
      expected.fields.emplace_back(role.field, fields ? field_of(*fields, role.field) : "");
      const auto& ids = context_record.*role.ids;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) continue;
      actor_roles.text += (actor_roles.text.empty() ? "" : ", ") + std::string(role.field);
      actor_roles.text += " of context " + std::to_string(context);
    }
    actor_roles.expected_contexts.push_back(std::move(expected));
  }
  return actor_roles;
}

}  // namespace

Result<void> delete_actor(const RequestContext& caller, Store& store, Id id, std::span<const Id> contexts_to_check) {
  if (!caller.is_operator) return tl::unexpected<Error>(operator_required_error(caller, "delete an actor"));
  constexpr int kMaxAttempts = 100;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    MJ_TRY(actor_roles, find_roles(store, id, contexts_to_check));
    if (!actor_roles.text.empty())
      return fail(Code::conflict, actor_key(id) + " is not deleted: it is among the " + actor_roles.text +
                                      "; revoke its roles first: mycojobs context revoke");
    MJ_TRY(deleted, store.delete_actor_if(id, actor_roles.expected_contexts));
    if (deleted) return {};
  }
  return fail(Code::conflict, actor_key(id) + " is not deleted: roles have changed during each of " +
                                  std::to_string(kMaxAttempts) + " checks: repeat the request");
}

}  // namespace mycojobs::service
