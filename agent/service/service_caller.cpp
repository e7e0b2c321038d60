#include "service/service_caller.h"

#include "base/log.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "security/ceilings.h"
#include "store/acl_context.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

Error impersonation_error(const RequestContext& caller, Id actor_id, const char* field) {
  return {Code::denied, std::string(field) + ": this token is of actor " + std::to_string(caller.actor) +
                            " and cannot act as " + std::to_string(actor_id) + ": leave " + field + " out"};
}

}  // namespace

Result<RequestContext> impersonate(const RequestContext& caller, std::optional<Id> actor_id, const char* field) {
  if (!actor_id) return caller;
  if (caller.is_operator)
    return RequestContext{caller.context,          *actor_id, EntryPoint::command, false,
                          caller.max_script_bytes, {},        caller.ceilings,     caller.agents_decide};
  if (*actor_id == caller.actor) return caller;
  return tl::unexpected<Error>(impersonation_error(caller, *actor_id, field));
}

Result<Id> resolve_owner(const RequestContext& caller, std::optional<Id> actor_id) {
  if (!actor_id || *actor_id == caller.actor || caller.is_operator) return actor_id.value_or(caller.actor);
  return tl::unexpected<Error>(impersonation_error(caller, *actor_id, "caller_id"));
}

Result<AclContext> load_acl_context(const RequestContext& caller, Store& store) {
  return read_acl_context(store, caller.context, caller.entry_point);
}

// Store::record_refusal() writes nothing into a context without a record; otherwise any unknown client could fill an
// unused database. A failure to record the refusal does not change the result.
Error refuse(Store& store, const Refusal& refusal) {
  if (refusal.has_context_record) {
    RefusalNote note;
    note.actor = refusal.actor;
    note.action = to_string(refusal.action);
    note.resource = whole_characters(refusal.resource, 200);
    note.access_list = refusal.list;
    if (auto result = store.record_refusal(refusal.context, note); !result) {
      log(LogLevel::warn, "service", "context {}: a refusal was not recorded: {}", refusal.context,
          result.error().message);
    }
  }
  return make_refusal_error(refusal);
}

Result<void> check_permission(const RequestContext& caller, Store& store, Action action, const Resource& resource) {
  if (caller.is_operator) return {};
  MJ_TRY(acl, load_acl_context(caller, store));
  const auto denial = find_refusal(caller.actor, action, acl, resource);
  if (!denial) return {};
  return tl::unexpected<Error>(refuse(store, *denial));
}

Result<std::optional<Id>> find_listable_actor(const RequestContext& caller, Store& store) {
  if (caller.is_operator) return std::nullopt;
  MJ_TRY(acl, load_acl_context(caller, store));
  const auto denial = find_refusal(caller.actor, Action::read, acl);
  if (!denial) return std::nullopt;
  if (!find_refusal(caller.actor, Action::create, acl)) return caller.actor;
  return tl::unexpected<Error>(refuse(store, *denial));
}

Result<Fields> open_record(const RequestContext& caller, Store& store, Action action, const std::string& key,
                           const std::string& name, Id (*get_owner)(const Fields&)) {
  auto fields = store.load(caller.context, key);
  if (!fields && !is_absent(fields.error())) return fields;
  MJ_CHECK(check_permission(caller, store, action, {.name = name, .creator = fields ? get_owner(*fields) : 0}));
  return fields;
}

JobLimits get_job_limits(const RequestContext& caller) {
  static const Ceilings kBuiltIn;
  JobLimits limits{(caller.ceilings ? *caller.ceilings : kBuiltIn).get(caller.context), caller.max_script_bytes};
  if (caller.agents_decide) limits.agents.emplace();
  return limits;
}

Result<JobLimits> get_job_limits(const RequestContext& caller, Store& store) {
  JobLimits limits = get_job_limits(caller);
  if (!caller.agents_decide) return limits;
  MJ_TRY(runners, store.runners(caller.context));
  for (const RunnerInfo& info : runners) {
    if (get_presence(info) != RunnerPresence::live || !info.runner.local) continue;
    const std::string_view published = field_of(info.runner.unknown, kPublishedCeiling);
    limits.agents->push_back(
        {info.runner.id, info.runner.executors, read_published_ceiling(published, caller.context)});
  }
  return limits;
}

Result<void> check_script(const RequestContext& caller, const std::string& script) {
  return mycojobs::check_script(script, caller.max_script_bytes);
}

Result<void> check_policy(const RequestContext& caller, const Job& job) {
  if (job.policy.empty()) return {};  // no policy requested
  return mycojobs::check_policy(job, get_job_limits(caller));
}

Result<void> check_policy(const RequestContext& caller, Store& store, const Job& job) {
  if (job.policy.empty()) return {};  // no policy requested
  MJ_TRY(limits, get_job_limits(caller, store));
  return mycojobs::check_policy(job, limits);
}

Result<void> check_length(const char* field, const std::string& text, std::size_t max) {
  if (text.size() <= max) return {};
  return fail(Code::too_large, std::string(field) + ": is over " + std::to_string(max) + " bytes: shorten it");
}

Result<void> check_key(const char* field, const std::optional<std::string>& key) {
  if (!key) return {};
  if (key->empty()) return fail(Code::invalid, std::string(field) + ": is empty");
  return check_length(field, *key, kMaxKey);
}

}  // namespace mycojobs::service
