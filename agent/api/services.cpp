#include "api/services.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/methods/wait_methods.h"
#include "base/log.h"
#include "inspect/job_view.h"
#include "model/enums.h"
#include "service/record_service.h"

namespace mycojobs::api {
namespace {

constexpr std::chrono::seconds kWaitForBackend{10};
constexpr Id kDefaultActor = 1;  // for callers without an actor: operators and clients without a token

}  // namespace

std::uint32_t BackendPool::used_of(Id actor) const {
  const auto used = used_.find(actor);
  return used == used_.end() ? 0 : used->second;
}

bool BackendPool::is_free(Id actor) const {
  const std::uint32_t used = used_of(actor);
  if ((idle_.empty() && open_ >= most_) || used >= most_of_actor_) return false;
  return std::none_of(waiting_.begin(), waiting_.end(), [&](const auto& each) { return used_of(each.first) < used; });
}

void BackendPool::forget_waiting(Id actor) {
  const auto waiting = waiting_.find(actor);
  if (--waiting->second == 0) waiting_.erase(waiting);
  freed_.notify_all();  // is_free() of other calls may have become true
}

void BackendPool::release(Id actor) {
  const auto used = used_.find(actor);
  if (used != used_.end() && --used->second == 0) used_.erase(used);
  freed_.notify_all();
}

Result<BackendPool::Lease> BackendPool::take(Id actor) {
  std::unique_lock lock(mutex_);
  ++waiting_[actor];
  const bool is_free_now = freed_.wait_for(lock, kWaitForBackend, [this, actor] { return is_free(actor); });
  if (is_free_now && actor != 0) ++used_[actor];
  forget_waiting(actor);
  if (!is_free_now) {
    const bool is_actors = used_of(actor) >= most_of_actor_;
    return fail(Code::unavailable,
                is_actors ? "the server is busy: too many calls of actor " + std::to_string(actor) + " are under way"
                          : "the server is busy: all its connections to the store are in use");
  }
  if (!idle_.empty()) {
    auto backend = std::move(idle_.back());
    idle_.pop_back();
    return Lease(*this, std::move(backend), actor);
  }
  ++open_;
  lock.unlock();
  const auto give_up_place = [&] {
    lock.lock();
    --open_;
    release(actor);
  };
  try {
    auto backend = std::make_unique<Backend>();
    auto store = stores_.open();
    if (store) {
      backend->store = std::move(*store);
      return Lease(*this, std::move(backend), actor);
    }
    give_up_place();
    return tl::unexpected<Error>(std::move(store).error());
  } catch (const std::exception&) {
    give_up_place();
    throw;
  }
}

std::uint32_t BackendPool::waiting() {
  const std::lock_guard lock(mutex_);
  std::uint32_t count = 0;
  for (const auto& [actor, of_actor] : waiting_) count += of_actor;
  return count;
}

void BackendPool::release_backend(std::unique_ptr<Backend> backend, Id actor) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(backend));
  release(actor);
}

service::RequestContext request_context(const Services& services, const RpcCaller& caller, Id context) {
  const bool all_powerful = caller.operator_token || caller.anonymous;
  return {context,
          caller.actor == 0 ? kDefaultActor : caller.actor,
          all_powerful ? EntryPoint::command : EntryPoint::rpc,
          all_powerful,
          services.settings.max_script_bytes,
          caller.traceparent,
          services.settings.ceilings.now()};
}

void note_refusal(Services& services, const Error& error) {
  ++services.refusals;
  log(LogLevel::warn, "api", "refused: {}", error.message);
}

Result<MethodCall> MethodCall::begin(Services& services, const nlohmann::json& params, const RpcCaller& caller) {
  ++services.calls;
  MJ_TRY(lease, services.backends_of(caller).take(caller.actor));
  MethodCall call(services, params, caller, std::move(lease));
  if (call.caller_.actor == 0) call.caller_.actor = kDefaultActor;
  const auto& contexts = services.settings.contexts;
  MJ_CHECK(call.switch_context(call.has("context_id") ? call.id("context_id")
                               : contexts.empty()     ? 1
                                                      : contexts.front()));
  return call;
}

Result<void> MethodCall::switch_context(Id context) {
  MJ_CHECK(service::check_served(services_.settings.contexts, context));
  context_ = context;
  return {};
}

bool MethodCall::has(std::string_view name) const {
  const auto found = params_.find(name);
  return found != params_.end() && !found->is_null();
}

Id MethodCall::id(std::string_view name) const { return static_cast<Id>(number(name, 0)); }

std::uint64_t MethodCall::number(std::string_view name, std::uint64_t otherwise) const {
  const auto found = params_.find(name);
  if (found == params_.end() || !found->is_number_integer()) return otherwise;
  const bool negative = !found->is_number_unsigned() && found->get<std::int64_t>() < 0;
  return negative ? otherwise : found->get<std::uint64_t>();
}

std::string MethodCall::text(std::string_view name) const {
  const auto found = params_.find(name);
  return found != params_.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool MethodCall::flag(std::string_view name) const {
  const auto found = params_.find(name);
  return found != params_.end() && found->is_boolean() && found->get<bool>();
}

std::optional<Id> MethodCall::named(std::string_view name) const {
  return has(name) ? std::optional(id(name)) : std::nullopt;
}

Result<std::string> MethodCall::job_key() const {
  const auto found = params_.find("id");
  if (found != params_.end() && found->is_string()) {
    auto key = parse_job_key(found->get<std::string>(), has("caller_id") ? id("caller_id") : actor());
    if (!key) return fail(key.error(), "id");
    return key;
  }
  return mycojobs::job_key(has("caller_id") ? id("caller_id") : actor(), id("id"));
}

Result<FlowStore*> MethodCall::flows() const {
  if (!lease_->flows) {
    MJ_TRY(flows, services_.backends.open_flows());
    lease_->flows = std::move(flows);
  }
  return lease_->flows.get();
}

Result<WorkflowStore*> MethodCall::worlds() const {
  if (!lease_->deployments) {
    MJ_TRY(deployments, services_.backends.open_workflows());
    lease_->deployments = std::move(deployments);
  }
  return lease_->deployments.get();
}

Result<void> MethodCall::rest(std::uint32_t ms) {
  lease_.release_backend();
  constexpr std::uint32_t kStep = 50;
  const auto note_wait = [this](bool waits) { return !caller_.note_wait || caller_.note_wait(waits); };
  bool has_connection = true;
  for (std::uint32_t slept = 0; slept < ms && !services_.stopping && has_connection; slept += kStep) {
    has_connection = note_wait(true);
    if (has_connection) std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kStep, ms - slept)));
  }
  has_connection = note_wait(false) && has_connection;
  if (services_.stopping) return fail(Code::unavailable, "the server is stopping");
  if (!has_connection)
    return fail(Code::unavailable, "the connection was closed to free capacity for another connection");
  return lease_.reacquire_backend();
}

Method method(Services& services, std::string_view name, std::string_view help, std::vector<Param> params,
              std::string_view result, Run run) {
  return {name, help, std::move(params), result,
          [&services, run, name](const nlohmann::json& given, const RpcCaller& caller) -> Result<nlohmann::json> {
            auto call = MethodCall::begin(services, given, caller);
            auto answer = call ? call->record_refusal(run(*call)) : tl::unexpected<Error>(std::move(call).error());
            services.settings.metrics->add(Metric::calls, {name, answer ? "ok" : to_string(answer.error().code)});
            return answer;
          }};
}

std::vector<Method> methods_of(Services& services, ApiRole role) {
  std::vector<Method> all;
  if (role == ApiRole::supervisor) {
    add_supervisor_methods(services, all);
  } else {
    add_record_methods(services, all);
    add_job_methods(services, all);
    add_flow_methods(services, all);
    add_workflow_methods(services, all);
    add_wait_methods(services, all);
    add_view_methods(services, all);
    add_session_methods(services, all);
  }
  add_system_methods(services, all);
  if (role == ApiRole::supervisor)
    std::erase_if(all, [](const Method& each) { return each.name.starts_with("queue."); });
  return all;
}

}  // namespace mycojobs::api
