#include "service/service_caller.h"

#include "base/log.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "security/profiles.h"
#include "store/acl_context.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

Error not_as(const RequestContext& by, Id named, const char* field) {
  return {Code::denied, std::string(field) + ": this token is of actor " + std::to_string(by.actor) +
                            " and cannot act as " + std::to_string(named) + ": leave " + field + " out"};
}

}  // namespace

Result<RequestContext> as_named(const RequestContext& by, std::optional<Id> named, const char* field) {
  if (!named) return by;
  if (by.is_operator)
    return RequestContext{by.context,          *named, EntryPoint::command, false,
                          by.max_script_bytes, {},     by.ceilings,         by.agents_decide};
  if (*named == by.actor) return by;
  return tl::unexpected<Error>(not_as(by, *named, field));
}

Result<Id> resource_owner(const RequestContext& by, std::optional<Id> named) {
  if (!named || *named == by.actor || by.is_operator) return named.value_or(by.actor);
  return tl::unexpected<Error>(not_as(by, *named, "caller_id"));
}

Result<AclContext> acl_context_of(const RequestContext& by, Store& store) {
  return read_acl_context(store, by.context, by.way);
}

// A context without a record is not given one for a refusal; otherwise any unknown client could fill a database that is
// not in use. A failure to record the refusal does not change the result.
Error refuse(Store& store, const Refusal& refusal) {
  if (refusal.recorded) {
    RefusalNote note;
    note.actor = refusal.actor;
    note.action = to_string(refusal.action);
    note.thing = whole_characters(refusal.thing, 200);
    note.list = refusal.list;
    if (auto noted = store.record_refusal(refusal.context, note); !noted) {
      log(LogLevel::warn, "service", "context {}: a refusal was not recorded: {}", refusal.context,
          noted.error().message);
    }
  }
  return refusal_error(refusal);
}

Result<void> check_permission(const RequestContext& by, Store& store, Action action, const Resource& thing) {
  if (by.is_operator) return {};
  MJ_TRY(place, acl_context_of(by, store));
  const auto no = find_refusal(by.actor, action, place, thing);
  if (!no) return {};
  return tl::unexpected<Error>(refuse(store, *no));
}

Result<std::optional<Id>> listable_actor(const RequestContext& by, Store& store) {
  if (by.is_operator) return std::nullopt;
  MJ_TRY(place, acl_context_of(by, store));
  const auto no = find_refusal(by.actor, Action::read, place);
  if (!no) return std::nullopt;
  if (!find_refusal(by.actor, Action::create, place)) return by.actor;
  return tl::unexpected<Error>(refuse(store, *no));
}

Result<Fields> open_record(const RequestContext& by, Store& store, Action action, const std::string& key,
                           const std::string& name, Id (*maker)(const Fields&)) {
  auto fields = store.load(by.context, key);
  if (!fields && !is_absent(fields.error())) return fields;
  MJ_CHECK(check_permission(by, store, action, {.name = name, .maker = fields ? maker(*fields) : 0}));
  return fields;
}

JobLimits limits_of(const RequestContext& by) {
  static const Ceilings kBuiltIn;
  JobLimits limits{(by.ceilings ? *by.ceilings : kBuiltIn).of(by.context), by.max_script_bytes};
  if (by.agents_decide) limits.agents.emplace();
  return limits;
}

Result<JobLimits> limits_of(const RequestContext& by, Store& store) {
  JobLimits limits = limits_of(by);
  if (!by.agents_decide) return limits;
  MJ_TRY(runners, store.runners(by.context));
  for (const RunnerInfo& each : runners) {
    if (presence(each) != RunnerPresence::live || !each.runner.local) continue;
    const std::string_view published = field_of(each.runner.unknown, kPublishedCeiling);
    limits.agents->push_back({each.runner.id, each.runner.executors, read_published_ceiling(published, by.context)});
  }
  return limits;
}

Result<void> check_script(const RequestContext& by, const std::string& script) {
  return mycojobs::check_script(script, by.max_script_bytes);
}

Result<void> check_policy(const RequestContext& by, const Job& job) {
  if (job.policy.empty()) return {};  // no policy requested
  return mycojobs::check_policy(job, limits_of(by));
}

Result<void> check_policy(const RequestContext& by, Store& store, const Job& job) {
  if (job.policy.empty()) return {};  // no policy requested
  MJ_TRY(limits, limits_of(by, store));
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
