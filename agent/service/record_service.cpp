#include "service/record_service.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "model/notify_targets.h"
#include "net/http_client.h"
#include "service/actor_service.h"
#include "service/job_service.h"
#include "store/record_changes.h"
#include "text/json.h"

namespace mycojobs::service {
namespace {

constexpr std::array kRoles{
    Role{"admin", "admins", &Context::admins}, Role{"submitter", "submitters", &Context::submitters},
    Role{"executor", "executors", &Context::executors}, Role{"reader", "readers", &Context::readers}};
const Resource kRunners{.name = "runners"};

std::string context_key(Id id) {
  Context wanted;
  wanted.id = id;
  return redis_key(wanted);
}

bool is_bookkeeping(const std::string& name) { return name == "id" || name == "created_at" || name == "updated_at"; }

Result<bool> has_context_record(Store& store, Id id) {
  auto found = store.load(id, context_key(id));
  if (!found && found.error().code == Code::not_found) return false;
  MJ_CHECK(found);
  return true;
}

// Reads one record more than there are contexts. A server that hides its number of databases ends the search with
// `unsupported`.
Result<Id> free_context(Store& store, std::vector<Id> served) {
  std::sort(served.begin(), served.end());
  for (const Id id : served) {
    MJ_TRY(exists, has_context_record(store, id));
    if (!exists) return id;
  }
  if (!served.empty())
    return fail(Code::conflict,
                "id: each context that this server serves has a record: add one to its setting `context`, and name it");
  MJ_TRY(facts, store.facts());
  for (Id id = 1; facts.databases == 0 || id < facts.databases; ++id) {
    MJ_TRY(exists, has_context_record(store, id));
    if (!exists) return id;
  }
  return fail(Code::conflict, "id: all " + std::to_string(facts.databases) +
                                  " databases have a context: raise the server's setting `databases`");
}

// `local` is stored only if it was given: an agent with the runner's id follows the record, and decides itself if the
// record has no value.
Fields record_of(const Runner& runner, std::span<const std::string> given) {
  Fields record = encode(runner);
  const bool is_given = std::find(given.begin(), given.end(), "local") != given.end();
  if (!is_given && !runner.local) std::erase_if(record, [](const auto& field) { return field.first == "local"; });
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
  Runner bare;
  bare.id = runner.id;
  if (record != record_of(bare, {})) return {};
  return fail(Code::invalid,
              "set at least one of address (of a supervisor on another host), topic, pubkey, type, target_context, "
              "local; an agent creates the record of its own runner when it starts");
}

Result<void> check_target(const Runner& runner) {
  if (runner.target_context == 0 || !runner.address.empty()) return {};
  return fail(Code::invalid, "target_context: belongs to a runner on another host: set its address, too");
}

// Returns the record to change. Error `not_found`: the context has no record.
Result<Context> existing(const RequestContext& by, Store& store, const std::string& why) {
  MJ_TRY(found, load_context(store, by.context));
  if (found) return std::move(*found);
  const std::string id = std::to_string(by.context);
  return fail(Code::not_found, "context " + id + " has no record: " + why + "`mycojobs context grant " + id +
                                   " --admin ID` creates one");
}

constexpr int kMaxTries = 100;  // attempts of a change while other clients change the same record

// Repeats a read-modify-write operation as long as other clients change the record in between. Each of these conflicts
// means that another client's change was stored.
template <class Change>
auto repeat(const std::string& key, const Change& change) -> decltype(change()) {
  for (int i = 0; i < kMaxTries; ++i) {
    auto changed = change();
    if (changed || changed.error().code != Code::conflict) return changed;
  }
  return fail(Code::conflict, key + ": other clients have changed it " + std::to_string(kMaxTries) +
                                  " times in between: repeat the request");
}

Result<CreatedRecord> write_record(Store& store, Id context, NewRecord& record) {
  std::erase_if(record.fields, [](const auto& field) { return is_bookkeeping(field.first); });
  return store.create_record(context, record);
}

// Creates a context with the first free id. Another client may take the id in between.
Result<Context> create_next_context(Store& store, Context context, std::span<const Id> served) {
  while (true) {
    MJ_TRY(free, free_context(store, {served.begin(), served.end()}));
    context.id = free;
    NewRecord record{"context:", "context", free, encode(context)};
    MJ_TRY(made, write_record(store, free, record));
    if (!made.existed) return decode<Context>(made.record).record;
  }
}

}  // namespace

// A topic is a channel of the Redis server, which carries other kinds of hints too.
Result<void> check_topic(const std::string& topic) {
  constexpr std::size_t kMaxLength = 64;
  const bool fits =
      topic.size() <= kMaxLength &&
      topic.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (fits) return {};
  return fail(Code::invalid, "topic: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', or omit it for runner<id>");
}

Result<Fields> create_record(Store& store, Id context, NewRecord record) {
  MJ_TRY(made, write_record(store, context, record));
  if (!made.existed) return std::move(made.record);
  for (const auto& field : record.fields) {
    if (field.first == "detail") continue;  // `created` until the message is sent
    if (std::find(made.record.begin(), made.record.end(), field) == made.record.end())
      return fail(Code::conflict, made.key + " exists with another " + field.first + ": change it with " +
                                      made.key.substr(0, made.key.find(':')) +
                                      (made.key.starts_with("context:") ? " grant or revoke" : " update") +
                                      ", or use another id");
  }
  return std::move(made.record);
}

Result<Fields> chosen_roles(const Fields& record, std::span<const std::string> fields) {
  if (fields.empty()) return fail(Code::invalid, "no change is given: name a field and its value");
  Fields out;
  for (const std::string& name : fields) out.emplace_back(name, field_of(record, name));
  return out;
}

Error operator_required_error(const RequestContext& by, const std::string& what) {
  return {Code::denied, "actor " + std::to_string(by.actor) + " may not " + what +
                            ": an operator's token is required (mycojobs key token --operator)"};
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
  std::string list;
  for (const Id each : served) list += (list.empty() ? "" : ", ") + std::to_string(each);
  return fail(Code::invalid,
              "context_id: this server does not serve context " + std::to_string(context) + "; it serves " + list);
}

Result<Context> create_context(const RequestContext& by, Store& store, Context context, std::span<const Id> served) {
  if (!by.is_operator) return tl::unexpected<Error>(operator_required_error(by, "create a context"));
  if (context.id != 0) MJ_CHECK(check_served(served, context.id));
  if (const auto wrong = read_notify(context.notify, "notify").problems; !wrong.empty())
    return fail(Code::invalid, join(wrong));
  if (context.admins.empty()) context.admins = {by.actor};
  if (context.id == 0) return create_next_context(store, std::move(context), served);
  MJ_TRY(stored, create_record(store, context.id, {"context:", "context", context.id, encode(context)}));
  return decode<Context>(stored).record;
}

Result<Context> read_context(const RequestContext& by, Store& store) {
  MJ_CHECK(check_permission(by, store, Action::read));
  MJ_TRY(found, load_context(store, by.context));
  if (found) return std::move(*found);
  return fail(Code::not_found, context_key(by.context) + " does not exist in context " + std::to_string(by.context));
}

std::span<const Role> roles() { return kRoles; }

Result<std::vector<Id>> known_contexts(Store& store, std::span<const Id> more) {
  MJ_TRY(facts, store.facts());
  std::vector<Id> all = std::move(facts.used);
  all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Result<ContextList> list_contexts(const RequestContext& by, Store& store, std::span<const Id> among) {
  ContextList list;
  for (const Id id : among) {
    MJ_TRY(found, load_context(store, id));
    const auto names_caller = [&](const Role& role) {
      const auto& ids = (*found).*role.ids;
      return std::find(ids.begin(), ids.end(), by.actor) != ids.end();
    };
    if (!found) {
      if (by.is_operator) list.without.push_back(id);
    } else if (by.is_operator || std::any_of(kRoles.begin(), kRoles.end(), names_caller)) {
      list.contexts.push_back(std::move(*found));
    }
  }
  return list;
}

Result<Context> update_context(const RequestContext& by, Store& store, const Context& wanted,
                               std::span<const std::string> fields) {
  MJ_CHECK(check_permission(by, store, Action::administer));
  if (const auto wrong = read_notify(wanted.notify, "notify").problems; !wrong.empty())
    return fail(Code::invalid, join(wrong));
  MJ_TRY(changed, chosen_roles(encode(wanted), fields));
  MJ_CHECK(existing(by, store, ""));
  MJ_TRY(after, store.change_record(by.context, context_key(by.context), changed));
  return decode<Context>(after).record;
}

namespace {

// Returns one active job, or an empty string. Error `too_large`: there are too many jobs to read all of them.
Result<std::string> living_job(Store& store, Id context) {
  for (const JobStatus status : {JobStatus::started, JobStatus::dispatched, JobStatus::waiting_for_prerequisites}) {
    JobFilter wanted;
    wanted.status = status;
    std::uint64_t looked = 0;
    do {
      MJ_TRY(page, store.jobs(context, wanted));
      if (!page.jobs.empty()) return page.jobs.front().key;
      if (!page.unseen.empty()) return page.unseen.front().key;
      looked += page.looked_at;
      wanted.after = page.after;
      if (looked > kMaxJobChecks) return fail(Code::too_large, "it has too many jobs to scan: wait for the retention");
    } while (!wanted.after.empty());
  }
  return std::string();
}

Result<std::string> living_message(Store& store, Id context) {
  for (const char* list : {"msg_out", "msg_out_coordinator"}) {
    MJ_TRY(waiting, store.queue_length(context, list));
    if (waiting > 0) return std::string("messages in ") + list;
  }
  MJ_TRY(keys, store.keys(context, "message:", kMaxJobChecks));
  constexpr std::string_view kCheckedFields[] = {"message_type", "status"};
  MJ_TRY(records, store.load_some(context, keys, kCheckedFields));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (records[i].empty()) continue;
    const Message message = decode<Message>(records[i]).record;
    const bool open = message.status == MessageStatus::dispatched || message.status == MessageStatus::acknowledged;
    if (open && message.message_type == MessageType::job) return keys[i];
  }
  return std::string();
}

}  // namespace

namespace {

// Returns the resources that prevent the deletion of a context; empty if there are none.
Result<std::string> living_things(const FlowStores& in, Id context) {
  std::string lives;
  const auto add = [&lives](const std::string& what) { lives += (lives.empty() || what.empty() ? "" : ", ") + what; };
  MJ_TRY(flows, in.flows.active(context, 0, 1));
  if (!flows.empty()) add("flow:" + std::to_string(flows.front()));
  MJ_TRY(job, living_job(in.records, context));
  add(job);
  MJ_TRY(message, living_message(in.records, context));
  add(message);
  return lives;
}

}  // namespace

Result<void> delete_context(const RequestContext& by, const FlowStores& in) {
  if (!by.is_operator) return tl::unexpected<Error>(operator_required_error(by, "delete a context"));
  constexpr int kTries = 10;  // each attempt reads all jobs and messages
  for (int i = 0; i < kTries; ++i) {
    MJ_TRY(revision, context_revision(in.records, by.context));
    MJ_TRY(found, load_context(in.records, by.context));
    if (!found)
      return fail(Code::not_found,
                  "context " + std::to_string(by.context) + " has no record: there is nothing to delete");
    MJ_TRY(lives, living_things(in, by.context));
    if (!lives.empty())
      return fail(Code::conflict, context_key(by.context) + " is not deleted: there lives " + lives +
                                      "; let it end, or cancel and delete it");
    MJ_TRY(deleted, delete_context_if(in.records, by.context, revision));
    if (deleted) return {};
  }
  return fail(Code::conflict, context_key(by.context) + " is not deleted: it has changed during each of " +
                                  std::to_string(kTries) + " checks: repeat the request");
}

Result<std::vector<RefusalNote>> list_refusals(const RequestContext& by, Store& store, std::uint64_t limit) {
  MJ_CHECK(check_permission(by, store, Action::administer));
  constexpr std::uint64_t kMaxRefusals = 1000;
  return store.refusals(by.context, std::min(limit, kMaxRefusals));
}

namespace {

// Returns the lists of the named roles after the changes, as fields of the record.
Fields lists_after(Context context, bool grant, std::span<const RoleChange> changes) {
  for (const RoleChange& each : changes) {
    auto& ids = context.*each.role->ids;
    const auto at = std::find(ids.begin(), ids.end(), each.actor);
    if (grant && at == ids.end()) ids.push_back(each.actor);
    if (!grant && at != ids.end()) ids.erase(at);
  }
  Fields changed;
  for (const Role& role : kRoles) {
    const bool named =
        std::any_of(changes.begin(), changes.end(), [&](const RoleChange& each) { return each.role->ids == role.ids; });
    if (named) changed.emplace_back(role.field, dump_json(nlohmann::json(context.*role.ids)));
  }
  return changed;
}

// Error `conflict`: the lists have changed since they were read.
Result<Context> change_roles_once(const RequestContext& by, Store& store, bool grant,
                                  std::span<const RoleChange> changes) {
  const std::string key = context_key(by.context);
  auto before = store.load(by.context, key);
  if (!before && before.error().code == Code::not_found) {
    if (!grant) return existing(by, store, "there is nothing to take; ");
    const NewRecord record{"context:", "context", by.context, lists_after({}, grant, changes)};
    MJ_TRY(made, store.create_record(by.context, record));
    if (made.existed) return fail(Code::conflict, key);
    return read_context_record(by.context, made.record);
  }
  MJ_CHECK(before);
  MJ_TRY(context, read_context_record(by.context, *before));
  const Fields changed = lists_after(std::move(context), grant, changes);
  Fields expected;
  for (const auto& field : changed) expected.emplace_back(field.first, field_of(*before, field.first));
  auto after = change_record_if(store, by.context, key, changed, expected);
  if (!after && after.error().code == Code::not_found) return fail(Code::conflict, key);  // deleted in between
  MJ_CHECK(after);
  return read_context_record(by.context, *after);
}

}  // namespace

Result<Context> change_roles(const RequestContext& by, Store& store, bool grant, std::span<const RoleChange> changes) {
  MJ_CHECK(check_permission(by, store, Action::administer));
  return repeat(context_key(by.context), [&] { return change_roles_once(by, store, grant, changes); });
}

Result<Context> set_notify(const RequestContext& by, Store& store, const std::string& notify) {
  MJ_CHECK(check_permission(by, store, Action::administer));
  MJ_CHECK(existing(by, store, ""));
  MJ_TRY(after, store.change_record(by.context, context_key(by.context), {{"notify", notify}}));
  return read_context_record(by.context, after);
}

Result<Runner> create_runner(const RequestContext& by, Store& store, const Runner& runner, const Networks& networks,
                             std::span<const std::string> given) {
  MJ_CHECK(check_permission(by, store, Action::administer, kRunners));
  const Fields record = record_of(runner, given);
  MJ_CHECK(check_has_content(runner, record));
  MJ_CHECK(check_runner(runner, networks));
  MJ_CHECK(check_target(runner));
  MJ_TRY(stored, create_record(store, by.context, {"runner:", "runner", runner.id, record}));
  return decode<Runner>(stored).record;
}

Result<Runner> read_runner(const RequestContext& by, Store& store, Id id) {
  MJ_CHECK(check_permission(by, store, Action::read, kRunners));
  MJ_TRY(fields, store.load(by.context, "runner:" + std::to_string(id)));
  return decode<Runner>(fields).record;
}

Result<std::vector<RunnerInfo>> list_runners(const RequestContext& by, Store& store) {
  MJ_CHECK(check_permission(by, store, Action::read, kRunners));
  return store.runners(by.context);
}

Result<Runner> update_runner(const RequestContext& by, Store& store, const Runner& wanted,
                             std::span<const std::string> fields, const Networks& networks) {
  MJ_CHECK(check_permission(by, store, Action::administer, kRunners));
  MJ_CHECK(check_runner(wanted, networks));
  const std::string key = "runner:" + std::to_string(wanted.id);
  return repeat(key, [&]() -> Result<Runner> {
    MJ_TRY(changed, chosen_roles(encode(wanted), fields));
    MJ_TRY(before, store.load(by.context, key));
    // A target belongs to an address, so both are checked with their values after the change.
    Runner after = decode<Runner>(before).record;
    Fields expected;
    for (const char* name : {"address", "target_context"}) expected.emplace_back(name, field_of(before, name));
    if (std::find(fields.begin(), fields.end(), "address") != fields.end()) after.address = wanted.address;
    if (std::find(fields.begin(), fields.end(), "target_context") != fields.end())
      after.target_context = wanted.target_context;
    MJ_CHECK(check_target(after));
    MJ_TRY(stored, change_record_if(store, by.context, key, changed, expected));
    return decode<Runner>(stored).record;
  });
}

Result<void> delete_runner(const RequestContext& by, Store& store, Id id) {
  MJ_CHECK(check_permission(by, store, Action::administer, kRunners));
  return store.delete_record(by.context, "runner:" + std::to_string(id));
}

}  // namespace mycojobs::service
