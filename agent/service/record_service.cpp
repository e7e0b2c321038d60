#include "service/record_service.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "model/notify_targets.h"
#include "net/http_client.h"
#include "service/actor_service.h"
#include "service/job_service.h"
#include "text/json.h"

namespace mycojobs::service {
namespace {

constexpr std::array kRoles{
    Role{"admin", "admins", &Context::admins}, Role{"submitter", "submitters", &Context::submitters},
    Role{"executor", "executors", &Context::executors}, Role{"reader", "readers", &Context::readers}};
const Resource kRunners{.name = "runners"};

std::string context_key(Id id) {
  Context context;
  context.id = id;
  return redis_key(context);
}

bool is_maintained_by_store(const std::string& name) {
  return name == "id" || name == "created_at" || name == "updated_at";
}

Result<bool> has_context_record(Store& store, Id id) {
  auto found = store.load(id, context_key(id));
  if (!found && found.error().code == Code::not_found) return false;
  MJ_CHECK(found);
  return true;
}

// Returns the first id without a record among `served`, or among all databases of the server if `served` is empty. On a
// server that hides its number of databases, the search ends with error `unsupported`.
Result<Id> find_free_context(Store& store, std::vector<Id> served) {
  std::sort(served.begin(), served.end());
  for (const Id id : served) {
    MJ_TRY(exists, has_context_record(store, id));
    if (!exists) return id;
  }
  if (!served.empty())
    return fail(Code::conflict,
                "id: each context that this server serves has a record: add one to its setting `context`, and name it");
  MJ_TRY(server_info, store.server_info());
  for (Id id = 1; server_info.databases == 0 || id < server_info.databases; ++id) {
    const auto exists = has_context_record(store, id);
    // The database of another context is denied. Without a number of databases, this would not end.
    const bool is_skipped = !exists && exists.error().code == Code::denied && server_info.databases != 0;
    if (!exists && !is_skipped) return tl::unexpected<Error>(exists.error());
    if (exists && !*exists) return id;
  }
  return fail(Code::conflict, "id: all " + std::to_string(server_info.databases) +
                                  " databases have a context: raise the server's setting `databases`");
}

// Stores `local` only if the caller has set it, or if it is true. An agent with the runner's id uses the value of the
// record; without a value, the agent decides. field_names: the fields that the caller has set.
Fields encode_runner(const Runner& runner, std::span<const std::string> field_names) {
  Fields record = encode(runner);
  const bool is_set = std::find(field_names.begin(), field_names.end(), "local") != field_names.end();
  if (!is_set && !runner.local) std::erase_if(record, [](const auto& field) { return field.first == "local"; });
  return record;
}

Result<void> check_runner(const Runner& runner, const Networks& networks) {
  MJ_CHECK(check_pubkey(runner.pubkey));
  MJ_CHECK(check_topic(runner.topic));
  if (!runner.address.empty()) MJ_CHECK(check_address(runner.address));
  return check_supervisor_address(runner.address, networks);
}

// Rejects a runner without any setting, since an agent creates the record of its own runner when it starts.
Result<void> check_has_content(const Runner& runner, const Fields& record) {
  Runner empty_runner;
  empty_runner.id = runner.id;
  if (record != encode_runner(empty_runner, {})) return {};
  return fail(Code::invalid,
              "set at least one of address (of a supervisor on another host), topic, pubkey, type, target_context, "
              "local; an agent creates the record of its own runner when it starts");
}

Result<void> check_target(const Runner& runner) {
  if (runner.target_context == 0 || !runner.address.empty()) return {};
  return fail(Code::invalid, "target_context: belongs to a runner on another host: set its address, too");
}

// Loads the record of the context for a change. Error `not_found`: the context has no record; `reason` starts the
// advice of the message.
Result<Context> require_context_record(const RequestContext& caller, Store& store, const std::string& reason) {
  MJ_TRY(found, load_context(store, caller.context));
  if (found) return std::move(*found);
  const std::string id = std::to_string(caller.context);
  return fail(Code::not_found, "context " + id + " has no record: " + reason + "`mycojobs context grant " + id +
                                   " --admin ID` creates one");
}

constexpr int kMaxTries = 100;  // attempts of a change while other clients change the same record

// Repeats a read-modify-write operation as long as other clients change the record in between. Each of these conflicts
// means that another client's change was stored.
template <class Operation>
auto retry_on_conflict(const std::string& key, const Operation& operation) -> decltype(operation()) {
  for (int i = 0; i < kMaxTries; ++i) {
    auto result = operation();
    if (result || result.error().code != Code::conflict) return result;
  }
  return fail(Code::conflict, key + ": other clients have changed it " + std::to_string(kMaxTries) +
                                  " times in between: repeat the request");
}

Result<CreatedRecord> write_record(Store& store, Id context, NewRecord& record) {
  std::erase_if(record.fields, [](const auto& field) { return is_maintained_by_store(field.first); });
  return store.create_record(context, record);
}

// Creates a context with the first free id. Repeats the search if another client uses the id in between.
Result<Context> create_next_context(Store& store, Context context, std::span<const Id> served) {
  while (true) {
    MJ_TRY(free_id, find_free_context(store, {served.begin(), served.end()}));
    context.id = free_id;
    NewRecord record{"context:", "context", free_id, encode(context)};
    MJ_TRY(created, write_record(store, free_id, record));
    if (!created.existed) return decode<Context>(created.record).record;
  }
}

}  // namespace

// A topic is a channel of the Redis server, which carries other kinds of hints too.
Result<void> check_topic(const std::string& topic) {
  constexpr std::size_t kMaxLength = 64;
  const bool is_valid =
      topic.size() <= kMaxLength &&
      topic.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (is_valid) return {};
  return fail(Code::invalid, "topic: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', or omit it for runner<id>");
}

Result<Fields> create_record(Store& store, Id context, NewRecord record) {
  MJ_TRY(created, write_record(store, context, record));
  if (!created.existed) return std::move(created.record);
  for (const auto& field : record.fields) {
    if (field.first == "detail") continue;  // `created` until the message is sent
    if (std::find(created.record.begin(), created.record.end(), field) == created.record.end())
      return fail(Code::conflict, created.key + " exists with another " + field.first + ": change it with " +
                                      created.key.substr(0, created.key.find(':')) +
                                      (created.key.starts_with("context:") ? " grant or revoke" : " update") +
                                      ", or use another id");
  }
  return std::move(created.record);
}

Result<Fields> select_fields(const Fields& record, std::span<const std::string> fields) {
  if (fields.empty()) return fail(Code::invalid, "no change is given: name a field and its value");
  Fields out;
  for (const std::string& name : fields) out.emplace_back(name, field_of(record, name));
  return out;
}

Error operator_required_error(const RequestContext& caller, const std::string& action) {
  return {Code::denied, "actor " + std::to_string(caller.actor) + " may not " + action +
                            ": an operator's token is required (mycojobs key token --operator)"};
}

std::vector<std::string> list_changed_fields(const nlohmann::json& params) {
  std::vector<std::string> names;
  for (const auto& item : params.items()) {
    if (item.key() != "id" && item.key() != "context_id" && !item.value().is_null()) names.push_back(item.key());
  }
  return names;
}

nlohmann::json runner_to_json(const Runner& runner) {
  nlohmann::json object = to_json(runner);
  object.erase("secret");
  return object;
}

Result<Context> read_context_record(Id id, const Fields& fields) {
  auto decoded = decode<Context>(fields);
  if (!decoded.ok()) return fail(Code::invalid, context_key(id) + ": " + join(decoded.problems));
  decoded.record.id = id;
  return std::move(decoded.record);
}

Result<std::optional<Context>> load_context(Store& store, Id id) {
  auto fields = store.load(id, context_key(id));
  if (!fields && fields.error().code == Code::not_found) return std::nullopt;
  MJ_CHECK(fields);
  MJ_TRY(context, read_context_record(id, *fields));
  return std::move(context);
}

Result<void> check_served(std::span<const Id> served, Id context) {
  if (served.empty() || std::find(served.begin(), served.end(), context) != served.end()) return {};
  std::string ids;
  for (const Id id : served) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  return fail(Code::invalid,
              "context_id: this server does not serve context " + std::to_string(context) + "; it serves " + ids);
}

Result<Context> create_context(const RequestContext& caller, Store& store, Context context,
                               std::span<const Id> served) {
  if (!caller.is_operator) return tl::unexpected<Error>(operator_required_error(caller, "create a context"));
  if (context.id != 0) MJ_CHECK(check_served(served, context.id));
  if (const auto problems = parse_notify(context.notify, "notify").problems; !problems.empty())
    return fail(Code::invalid, join(problems));
  if (context.admins.empty()) context.admins = {caller.actor};
  if (context.id == 0) return create_next_context(store, std::move(context), served);
  MJ_TRY(stored, create_record(store, context.id, {"context:", "context", context.id, encode(context)}));
  return decode<Context>(stored).record;
}

Result<Context> read_context(const RequestContext& caller, Store& store) {
  MJ_CHECK(check_permission(caller, store, Action::read));
  MJ_TRY(found, load_context(store, caller.context));
  if (found) return std::move(*found);
  return fail(Code::not_found,
              context_key(caller.context) + " does not exist in context " + std::to_string(caller.context));
}

std::span<const Role> roles() { return kRoles; }

Result<std::vector<Id>> list_known_contexts(Store& store, std::span<const Id> additional) {
  MJ_TRY(all, store.find_contexts());
  all.insert(all.end(), additional.begin(), additional.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Result<ContextList> list_contexts(const RequestContext& caller, Store& store, std::span<const Id> candidates) {
  ContextList list;
  for (const Id id : candidates) {
    MJ_TRY(found, load_context(store, id));
    const auto has_caller = [&](const Role& role) {
      const auto& ids = (*found).*role.ids;
      return std::find(ids.begin(), ids.end(), caller.actor) != ids.end();
    };
    if (!found) {
      if (caller.is_operator) list.ids_without_record.push_back(id);
    } else if (caller.is_operator || std::any_of(kRoles.begin(), kRoles.end(), has_caller)) {
      list.contexts.push_back(std::move(*found));
    }
  }
  return list;
}

Result<Context> update_context(const RequestContext& caller, Store& store, const Context& values,
                               std::span<const std::string> fields) {
  MJ_CHECK(check_permission(caller, store, Action::administer));
  if (const auto problems = parse_notify(values.notify, "notify").problems; !problems.empty())
    return fail(Code::invalid, join(problems));
  MJ_TRY(changes, select_fields(encode(values), fields));
  MJ_CHECK(require_context_record(caller, store, ""));
  MJ_TRY(record, store.change_record(caller.context, context_key(caller.context), changes));
  return decode<Context>(record).record;
}

namespace {

// Returns one active job, or an empty string. Error `too_large`: there are too many jobs to read all of them.
Result<std::string> find_active_job(Store& store, Id context) {
  for (const JobStatus status : {JobStatus::started, JobStatus::dispatched, JobStatus::waiting_for_prerequisites}) {
    JobFilter filter;
    filter.status = status;
    std::uint64_t rows_read = 0;
    do {
      MJ_TRY(page, store.jobs(context, filter));
      if (!page.jobs.empty()) return page.jobs.front().key;
      if (!page.unprocessed_jobs.empty()) return page.unprocessed_jobs.front().key;
      rows_read += page.rows_read;
      filter.cursor = page.next_cursor;
      if (rows_read > kMaxJobChecks)
        return fail(Code::too_large, "it has too many jobs to scan: wait for the retention");
    } while (!filter.cursor.empty());
  }
  return std::string();
}

Result<std::string> find_pending_message(Store& store, Id context) {
  for (const char* outbox : {"msg_out", "msg_out_coordinator"}) {
    MJ_TRY(length, store.queue_length(context, outbox));
    if (length > 0) return std::string("messages in ") + outbox;
  }
  MJ_TRY(keys, store.keys(context, "message:", kMaxJobChecks));
  constexpr std::string_view kCheckedFields[] = {"message_type", "status"};
  MJ_TRY(records, store.load_batch(context, keys, kCheckedFields));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (records[i].empty()) continue;
    const Message message = decode<Message>(records[i]).record;
    const bool is_pending =
        message.status == MessageStatus::dispatched || message.status == MessageStatus::acknowledged;
    if (is_pending && message.message_type == MessageType::job) return keys[i];
  }
  return std::string();
}

// Returns the resources that prevent the deletion of a context; empty if there are none.
Result<std::string> find_active_resources(const FlowStores& stores, Id context) {
  std::string resources;
  const auto add_resource = [&resources](const std::string& resource) {
    resources += (resources.empty() || resource.empty() ? "" : ", ") + resource;
  };
  MJ_TRY(flows, stores.flows.active_flows(context, 0, 1));
  if (!flows.empty()) add_resource("flow:" + std::to_string(flows.front()));
  MJ_TRY(job, find_active_job(stores.records, context));
  add_resource(job);
  MJ_TRY(message, find_pending_message(stores.records, context));
  add_resource(message);
  return resources;
}

}  // namespace

Result<void> delete_context(const RequestContext& caller, const FlowStores& stores) {
  if (!caller.is_operator) return tl::unexpected<Error>(operator_required_error(caller, "delete a context"));
  constexpr int kMaxDeletionTries = 10;  // each attempt reads all jobs and messages
  for (int i = 0; i < kMaxDeletionTries; ++i) {
    MJ_TRY(revision, stores.records.context_revision(caller.context));
    MJ_TRY(found, load_context(stores.records, caller.context));
    if (!found)
      return fail(Code::not_found,
                  "context " + std::to_string(caller.context) + " has no record: there is nothing to delete");
    MJ_TRY(resources, find_active_resources(stores, caller.context));
    if (!resources.empty())
      return fail(Code::conflict, context_key(caller.context) + " is not deleted: there lives " + resources +
                                      "; let it end, or cancel and delete it");
    MJ_TRY(deleted, stores.records.delete_context_if(caller.context, revision));
    if (deleted) return {};
  }
  return fail(Code::conflict, context_key(caller.context) + " is not deleted: it has changed during each of " +
                                  std::to_string(kMaxDeletionTries) + " checks: repeat the request");
}

Result<std::vector<RefusalNote>> list_refusals(const RequestContext& caller, Store& store, std::uint64_t limit) {
  MJ_CHECK(check_permission(caller, store, Action::administer));
  constexpr std::uint64_t kMaxRedisCount = INT64_MAX;
  return store.refusals(caller.context, std::min(limit, kMaxRedisCount));
}

namespace {

// Returns the lists of the named roles after the changes, as fields of the record.
Fields apply_role_changes(Context context, bool grant, std::span<const RoleChange> changes) {
  for (const RoleChange& change : changes) {
    auto& ids = context.*change.role->ids;
    const auto position = std::find(ids.begin(), ids.end(), change.actor);
    if (grant && position == ids.end()) ids.push_back(change.actor);
    if (!grant && position != ids.end()) ids.erase(position);
  }
  Fields fields;
  for (const Role& role : kRoles) {
    const bool is_changed = std::any_of(changes.begin(), changes.end(),
                                        [&](const RoleChange& change) { return change.role->ids == role.ids; });
    if (is_changed) fields.emplace_back(role.field, dump_json(nlohmann::json(context.*role.ids)));
  }
  return fields;
}

// Makes one attempt to change the lists. Error `conflict`: another client has changed the lists since they were read.
Result<Context> change_roles_once(const RequestContext& caller, Store& store, bool grant,
                                  std::span<const RoleChange> changes) {
  const std::string key = context_key(caller.context);
  auto old_record = store.load(caller.context, key);
  if (!old_record && old_record.error().code == Code::not_found) {
    if (!grant) return require_context_record(caller, store, "there is nothing to take; ");
    const NewRecord record{"context:", "context", caller.context, apply_role_changes({}, grant, changes)};
    MJ_TRY(created, store.create_record(caller.context, record));
    if (created.existed) return fail(Code::conflict, key);
    return read_context_record(caller.context, created.record);
  }
  MJ_CHECK(old_record);
  MJ_TRY(context, read_context_record(caller.context, *old_record));
  const Fields new_lists = apply_role_changes(std::move(context), grant, changes);
  Fields expected;
  for (const auto& field : new_lists) expected.emplace_back(field.first, field_of(*old_record, field.first));
  auto new_record = store.change_record_if(caller.context, key, new_lists, expected);
  if (!new_record && new_record.error().code == Code::not_found)
    return fail(Code::conflict, key);  // deleted in between
  MJ_CHECK(new_record);
  return read_context_record(caller.context, *new_record);
}

}  // namespace

Result<Context> change_roles(const RequestContext& caller, Store& store, bool grant,
                             std::span<const RoleChange> changes) {
  MJ_CHECK(check_permission(caller, store, Action::administer));
  return retry_on_conflict(context_key(caller.context),
                           [&] { return change_roles_once(caller, store, grant, changes); });
}

Result<Context> set_notify(const RequestContext& caller, Store& store, const std::string& notify) {
  MJ_CHECK(check_permission(caller, store, Action::administer));
  MJ_CHECK(require_context_record(caller, store, ""));
  MJ_TRY(record, store.change_record(caller.context, context_key(caller.context), {{"notify", notify}}));
  return read_context_record(caller.context, record);
}

Result<Runner> create_runner(const RequestContext& caller, Store& store, const Runner& runner, const Networks& networks,
                             std::span<const std::string> field_names) {
  MJ_CHECK(check_permission(caller, store, Action::administer, kRunners));
  const Fields record = encode_runner(runner, field_names);
  MJ_CHECK(check_has_content(runner, record));
  MJ_CHECK(check_runner(runner, networks));
  MJ_CHECK(check_target(runner));
  MJ_TRY(stored, create_record(store, caller.context, {"runner:", "runner", runner.id, record}));
  return decode<Runner>(stored).record;
}

Result<Runner> read_runner(const RequestContext& caller, Store& store, Id id) {
  MJ_CHECK(check_permission(caller, store, Action::read, kRunners));
  MJ_TRY(fields, store.load(caller.context, "runner:" + std::to_string(id)));
  return decode<Runner>(fields).record;
}

Result<std::vector<RunnerInfo>> list_runners(const RequestContext& caller, Store& store) {
  MJ_CHECK(check_permission(caller, store, Action::read, kRunners));
  return store.runners(caller.context);
}

Result<Runner> update_runner(const RequestContext& caller, Store& store, const Runner& values,
                             std::span<const std::string> fields, const Networks& networks) {
  MJ_CHECK(check_permission(caller, store, Action::administer, kRunners));
  MJ_CHECK(check_runner(values, networks));
  const std::string key = "runner:" + std::to_string(values.id);
  return retry_on_conflict(key, [&]() -> Result<Runner> {
    MJ_TRY(changes, select_fields(encode(values), fields));
    MJ_TRY(old_record, store.load(caller.context, key));
    // A target belongs to an address, so both are checked with their values after the change.
    Runner new_runner = decode<Runner>(old_record).record;
    Fields expected;
    for (const char* name : {"address", "target_context"}) expected.emplace_back(name, field_of(old_record, name));
    if (std::find(fields.begin(), fields.end(), "address") != fields.end()) new_runner.address = values.address;
    if (std::find(fields.begin(), fields.end(), "target_context") != fields.end())
      new_runner.target_context = values.target_context;
    MJ_CHECK(check_target(new_runner));
    MJ_TRY(stored, store.change_record_if(caller.context, key, changes, expected));
    return decode<Runner>(stored).record;
  });
}

Result<void> delete_runner(const RequestContext& caller, Store& store, Id id) {
  MJ_CHECK(check_permission(caller, store, Action::administer, kRunners));
  return store.delete_record(caller.context, "runner:" + std::to_string(id));
}

}  // namespace mycojobs::service
