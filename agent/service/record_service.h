// Operations on contexts and runners. Actors: service/actor_service.h; messages: service/message_service.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/networks.h"
#include "service/flow_service.h"
#include "service/service_caller.h"

namespace mycojobs::service {

// Creates a record, or returns the existing record if it has the same content. Fields that other clients have added
// since are ignored. Error `conflict`: the record exists with other content.
Result<Fields> create_record(Store&, Id context, NewRecord);

// Returns these fields of a record, in the form that Store::change_record() needs. Error `invalid`: `fields` is empty,
// so that nothing would change.
Result<Fields> select_fields(const Fields& record, std::span<const std::string> fields);
// Returns the error `denied`: only an operator may perform the action, such as "create a context".
Error operator_required_error(const RequestContext&, const std::string& action);

// Returns the names of the fields that a request sets: all parameters except those that identify the record.
std::vector<std::string> list_changed_fields(const nlohmann::json& params);
nlohmann::json runner_to_json(const Runner&);  // without the secret

// Parses the record of a context. Error `invalid`: the record cannot be parsed.
Result<Context> read_context_record(Id, const Fields&);
// Returns the record of a context, or no value if the context has no record. Error `invalid`: it cannot be parsed.
Result<std::optional<Context>> load_context(Store&, Id);
// Checks whether a server serves a context. Error `invalid`: `served` is not empty and does not contain the context.
Result<void> check_served(std::span<const Id> served, Id context);

// Creates a context. Id 0 means the first id without a record among `served`; if `served` is empty, among all databases
// of the server. Only for operators. Errors: `conflict` if each of them has a record, or if the record has other
// content; those of check_served().
Result<Context> create_context(const RequestContext&, Store&, Context, std::span<const Id> served = {});
Result<Context> read_context(const RequestContext&, Store&);

struct ContextList {
  std::vector<Context> contexts;       // sorted by id
  std::vector<Id> ids_without_record;  // contexts with keys and without a record; only for operators
};
// Returns the candidates that the caller can see. An operator can see all contexts, other callers those whose records
// name them.
Result<ContextList> list_contexts(const RequestContext&, Store&, std::span<const Id> candidates);
// Returns all contexts that may exist: the databases that hold keys, and `additional`. Sorted by id.
Result<std::vector<Id>> list_known_contexts(Store&, std::span<const Id> additional);
// Sets these fields (lists of roles, notify) of the caller's context to the fields of `values`. Error `not_found`: the
// context has no record.
Result<Context> update_context(const RequestContext&, Store&, const Context& values,
                               std::span<const std::string> fields);
// Deletes the record of the context. Only for operators. Ended jobs and flows stay until their retention has passed.
// Error `conflict` names the active jobs, flows or messages.
Result<void> delete_context(const RequestContext&, const FlowStores&);
// Returns the recorded refusals, newest first. Needs the right to change the context.
Result<std::vector<RefusalNote>> list_refusals(const RequestContext&, Store&, std::uint64_t limit);

struct Role {
  std::string_view name, field;  // "admin", "admins"
  std::vector<Id> Context::*ids;
};
std::span<const Role> roles();
struct RoleChange {
  const Role* role;
  Id actor = 0;
};
// Grants or revokes roles and returns the record after the change. A grant creates a missing record. Error `not_found`:
// there is no record to revoke from.
Result<Context> change_roles(const RequestContext&, Store&, bool grant, std::span<const RoleChange>);
// Sets `notify`. notify: in the form of add_notify_target(); empty: no notifications. Error `not_found`: the context
// has no record.
Result<Context> set_notify(const RequestContext&, Store&, const std::string& notify);

// Checks the name of a topic: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'.
Result<void> check_topic(const std::string&);
// Creates a runner. networks: the networks in which the supervisor of the runner may be called. field_names: names of
// the fields that the caller has set, so that `local` is stored even if it is false. If `local` is not stored, the
// agent of the runner decides.
Result<Runner> create_runner(const RequestContext&, Store&, const Runner&, const Networks& networks,
                             std::span<const std::string> field_names = {});
Result<Runner> read_runner(const RequestContext&, Store&, Id);
Result<std::vector<RunnerInfo>> list_runners(const RequestContext&, Store&);
// Sets these fields of a runner to the fields of `values`, which have the form used at creation.
Result<Runner> update_runner(const RequestContext&, Store&, const Runner& values, std::span<const std::string> fields,
                             const Networks&);
// Deletes a runner. Error `conflict`: an agent runs as this runner now, or work waits for the runner.
Result<void> delete_runner(const RequestContext&, Store&, Id);

}  // namespace mycojobs::service
