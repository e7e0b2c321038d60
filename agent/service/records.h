// Actors, contexts, runners, messages: records that stand for themselves.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "domain/networks.h"
#include "service/caller.h"

namespace mycojobs::service {

// Created, or there already with the same content. Fields that others have added since do not matter. Error conflict:
// it is there with other content.
Result<Fields> create_record(Store&, Id context, NewRecord);

Result<Actor> create_actor(const Caller&, Store&, const Actor&);  // of another than itself: operators alone
Result<Actor> read_actor(const Caller&, Store&, Id);

// A context's record. Nothing: it has none. Error invalid: it cannot be read.
Result<std::optional<Context>> load_context(Store&, Id);
// id 0: the first that has no record; serves: whether the server does, else an error. For operators.
Result<Context> create_context(const Caller&, Store&, Context, const std::function<Result<void>(Id)>& serves);
Result<Context> read_context(const Caller&, Store&);

struct Role {
  std::string_view name, field;  // "admin", "admins"
  std::vector<Id> Context::*ids;
};
std::span<const Role> roles();
struct RoleChange {
  const Role* role;
  Id actor = 0;
};
// Gives or takes roles; the record afterwards. grant makes the record, if there is none. Error not_found: there is none
// to take from.
Result<Context> change_roles(const Caller&, Store&, bool grant, std::span<const RoleChange>);
// notify: as add_notify() makes it; empty: nobody. Error not_found: it has no record.
Result<Context> set_notify(const Caller&, Store&, const std::string& notify);

// networks: in which its supervisor may be called.
Result<Runner> create_runner(const Caller&, Store&, const Runner&, const Networks& networks);
Result<Runner> read_runner(const Caller&, Store&, Id);
Result<std::vector<RunnerInfo>> list_runners(const Caller&, Store&);

// Stored, and handed to its topic if it names one. owner: whose; nothing: who asks. Its jobs are checked as new ones
// (service/jobs.h). Error not_found: its topic is that of no runner of the context.
Result<Message> send_message(const Caller&, Store&, std::optional<Id> owner, Message);
Result<Message> read_message(const Caller&, Store&, Id maker, Id id);
// The newest first, without text and jobs; of those that the caller may see. limit: at most 1000.
Result<std::vector<Message>> list_messages(const Caller&, Store&, std::uint64_t limit);

}  // namespace mycojobs::service
