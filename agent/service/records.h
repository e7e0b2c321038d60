// Contexts, runners: records that stand for themselves. Actors: service/actors.h; messages: service/messages.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "domain/networks.h"
#include "service/caller.h"
#include "service/flows.h"

namespace mycojobs::service {

// Created, or there already with the same content. Fields that others have added since do not matter. Error conflict:
// it is there with other content.
Result<Fields> create_record(Store&, Id context, NewRecord);

// These fields of a record, as Store::change_record() wants them. Error invalid: none is named, so that nothing would
// change.
Result<Fields> chosen(const Fields& record, std::span<const std::string> fields);
Error not_operator(const Caller&, const std::string& what);  // denied: it takes an operator

// A context's record. Nothing: it has none. Error invalid: it cannot be read.
Result<std::optional<Context>> load_context(Store&, Id);
// id 0: the first that has no record; serves: whether the server does, else an error. For operators.
Result<Context> create_context(const Caller&, Store&, Context, const std::function<Result<void>(Id)>& serves);
Result<Context> read_context(const Caller&, Store&);

struct ContextList {
  std::vector<Context> contexts;  // by id
  std::vector<Id> without;        // hold keys, and have no record; for operators
};
// Of these contexts: an operator sees all; others those whose record names them.
Result<ContextList> list_contexts(const Caller&, Store&, std::span<const Id> among);
// Every context that may be there: databases that hold keys, and `more`. By id.
Result<std::vector<Id>> known_contexts(Store&, std::span<const Id> more);
// Gives the caller's context these fields of `wanted`: lists of roles, notify. Error not_found: it has no record.
Result<Context> update_context(const Caller&, Store&, const Context& wanted, std::span<const std::string> fields);
// Its record goes, for operators; what has ended in it stays until its retention is over. Error conflict: jobs, flows
// or messages live there, and which.
Result<void> delete_context(const Caller&, const FlowStores&);
// Who asked in vain for what, for who may change the context; newest first.
Result<std::vector<RefusalNote>> list_refusals(const Caller&, Store&, std::uint64_t limit);

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
Result<void> check_topic(const std::string&);
// given: names of the fields that the caller has given, so that `local` is stored also where it is false; absent, the
// runner's agent decides.
Result<Runner> create_runner(const Caller&, Store&, const Runner&, const Networks& networks,
                             std::span<const std::string> given = {});
Result<Runner> read_runner(const Caller&, Store&, Id);
Result<std::vector<RunnerInfo>> list_runners(const Caller&, Store&);
// Gives it these fields of `wanted`, as it was created with.
Result<Runner> update_runner(const Caller&, Store&, const Runner& wanted, std::span<const std::string> fields,
                             const Networks&);
// Error conflict: an agent is this runner now, or work waits for it.
Result<void> delete_runner(const Caller&, Store&, Id);

}  // namespace mycojobs::service
