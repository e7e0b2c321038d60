#include "api/services.h"

#include <algorithm>
#include <cassert>
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

constexpr std::chrono::seconds kBackendTimeout{10};
constexpr Id kDefaultActor = 1;  // for callers without an actor: operators and clients without a token

}  // namespace

std::uint32_t BackendPool::count_leased(Id actor) const {
  const auto it = leased_counts_.find(actor);
  return it == leased_counts_.end() ? 0 : it->second;
}

bool BackendPool::can_acquire(Id actor) const {
  const std::uint32_t leased_count = count_leased(actor);
  if ((idle_backends_.empty() && open_count_ >= max_backends_) || leased_count >= max_per_actor_) return false;
  return std::none_of(waiter_counts_.begin(), waiter_counts_.end(),
                      [&](const auto& entry) { return count_leased(entry.first) < leased_count; });
}

void BackendPool::remove_waiter(Id actor) {
  const auto it = waiter_counts_.find(actor);
  if (--it->second == 0) waiter_counts_.erase(it);
  capacity_changed_.notify_all();  // can_acquire() of other calls may have become true
}

void BackendPool::decrement_leased(Id actor) {
  const auto it = leased_counts_.find(actor);
  if (it != leased_counts_.end() && --it->second == 0) leased_counts_.erase(it);
  capacity_changed_.notify_all();
}

Result<BackendPool::Lease> BackendPool::acquire(Id actor) {
  std::unique_lock lock(mutex_);
  ++waiter_counts_[actor];
  const bool has_capacity =
      capacity_changed_.wait_for(lock, kBackendTimeout, [this, actor] { return can_acquire(actor); });
  if (has_capacity && actor != 0) ++leased_counts_[actor];
  remove_waiter(actor);
  if (!has_capacity) {
    const bool is_actor_limit = count_leased(actor) >= max_per_actor_;
    return fail(Code::unavailable, is_actor_limit ? "the server is busy: too many calls of actor " +
                                                        std::to_string(actor) + " are under way"
                                                  : "the server is busy: all its connections to the store are in use");
  }
  if (!idle_backends_.empty()) {
    auto backend = std::move(idle_backends_.back());
    idle_backends_.pop_back();
    return Lease(*this, std::move(backend), actor);
  }
  ++open_count_;
  lock.unlock();
  const auto release_capacity = [&] {
    lock.lock();
    --open_count_;
    decrement_leased(actor);
  };
  try {
    auto backend = std::make_unique<Backend>();
    auto store = stores_.open();
    if (store) {
      backend->store = std::move(*store);
      return Lease(*this, std::move(backend), actor);
    }
    release_capacity();
    return tl::unexpected<Error>(std::move(store).error());
  } catch (const std::exception&) {
    release_capacity();
    throw;
  }
}

std::uint32_t BackendPool::waiting_count() {
  const std::lock_guard lock(mutex_);
  std::uint32_t sum = 0;
  for (const auto& [actor, count] : waiter_counts_) sum += count;
  return sum;
}

void BackendPool::return_backend(std::unique_ptr<Backend> backend, Id actor) {
  const std::lock_guard lock(mutex_);
  idle_backends_.push_back(std::move(backend));
  decrement_leased(actor);
}

service::RequestContext make_request_context(const Services& services, const RpcCaller& caller, Id context) {
  const bool is_operator = caller.operator_token || caller.anonymous;
  return {context,
          caller.actor == 0 ? kDefaultActor : caller.actor,
          is_operator ? EntryPoint::command : EntryPoint::rpc,
          is_operator,
          services.settings.max_script_bytes,
          caller.traceparent,
          services.settings.ceilings.now()};
}

void report_refusal(Services& services, const Error& error) {
  ++services.refusal_count;
  log(LogLevel::warn, "api", "refused: {}", error.message);
}

Result<MethodCall> MethodCall::create(Services& services, service::RequestParams params, const RpcCaller& caller) {
  ++services.call_count;
  MJ_TRY(lease, services.select_backends(caller).acquire(caller.actor));
  MethodCall call(services, params, caller, std::move(lease));
  if (call.caller_.actor == 0) call.caller_.actor = kDefaultActor;
  const auto& contexts = services.settings.contexts;
  MJ_CHECK(call.switch_context(call.has_param("context_id") ? call.id("context_id")
                               : contexts.empty()           ? 1
                                                            : contexts.front()));
  return call;
}

Result<MethodCall> MethodCall::create(Services& services, const nlohmann::json& params, const RpcCaller& caller) {
  return create(services, service::RequestParams(params), caller);
}

Result<void> MethodCall::switch_context(Id context) {
  MJ_CHECK(service::check_served(services_.settings.contexts, context));
  context_ = context;
  return {};
}

Result<std::string> MethodCall::job_key() const {
  const Id owner = optional_id("caller_id").value_or(actor());
  const auto it = params().find("id");
  if (it == params().end() || !it->is_string()) return mycojobs::job_key(owner, id("id"));
  auto key = parse_job_key(it->get<std::string>(), owner);
  if (!key) return fail(key.error(), "id");
  return key;
}

Result<FlowStore*> MethodCall::open_flow_store() const {
  if (!lease_->flows) {
    MJ_TRY(flows, services_.backends.open_flows());
    lease_->flows = std::move(flows);
  }
  return lease_->flows.get();
}

Result<WorkflowStore*> MethodCall::open_workflow_store() const {
  if (!lease_->workflows) {
    MJ_TRY(workflows, services_.backends.open_workflows());
    lease_->workflows = std::move(workflows);
  }
  return lease_->workflows.get();
}

Result<void> MethodCall::release_backend_and_sleep(std::uint32_t ms) {
  lease_.release();
  constexpr std::uint32_t kStepMs = 50;
  const auto report_wait = [this](bool is_waiting) { return !caller_.report_wait || caller_.report_wait(is_waiting); };
  bool has_connection = true;
  for (std::uint32_t slept_ms = 0; slept_ms < ms && !services_.stopping && has_connection; slept_ms += kStepMs) {
    has_connection = report_wait(true);
    if (has_connection) std::this_thread::sleep_for(std::chrono::milliseconds(std::min(kStepMs, ms - slept_ms)));
  }
  has_connection = report_wait(false) && has_connection;
  if (services_.stopping) return fail(Code::unavailable, "the server is stopping");
  if (!has_connection)
    return fail(Code::unavailable, "the connection was closed to free capacity for another connection");
  return lease_.reacquire();
}

void bind_method(std::string_view request,
                 std::function<Result<nlohmann::json>(const nlohmann::json& params, const RpcCaller&)> run,
                 std::vector<Method>& methods) {
  const service::Request* row = service::find_request(request);
  assert(row != nullptr);
  methods.push_back({*row, std::move(run)});
}

void bind_methods(Services& services, std::initializer_list<MethodBinding> bindings, std::vector<Method>& methods) {
  for (const MethodBinding& binding : bindings) {
    const service::Request* row = service::find_request(binding.request);
    bind_method(
        binding.request,
        [&services, row, handler = binding.handler](const nlohmann::json& values,
                                                    const RpcCaller& caller) -> Result<nlohmann::json> {
          auto call = MethodCall::create(services, service::RequestParams(*row, values), caller);
          auto result = call ? call->report_if_denied(handler(*call)) : tl::unexpected<Error>(std::move(call).error());
          services.settings.metrics->add(Metric::rpc_calls,
                                         {row->name, result ? "ok" : to_string(result.error().code)});
          return result;
        },
        methods);
  }
}

std::vector<Method> make_methods(Services& services, ApiRole role) {
  std::vector<Method> methods;
  if (role == ApiRole::supervisor) {
    add_supervisor_methods(services, methods);
  } else {
    add_record_methods(services, methods);
    add_job_methods(services, methods);
    add_artifact_methods(services, methods);
    add_flow_methods(services, methods);
    add_workflow_methods(services, methods);
    add_wait_methods(services, methods);
    add_view_methods(services, methods);
    add_session_methods(services, methods);
  }
  add_system_methods(services, methods);
  if (role == ApiRole::supervisor)
    std::erase_if(methods, [](const Method& method) { return method.name.starts_with("queue."); });
  return methods;
}

}  // namespace mycojobs::api
