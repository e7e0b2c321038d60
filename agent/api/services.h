// Shared parts of all methods: leased connections to the store, the settings, and the call with its caller. The tables
// of methods are declared at the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/auth/sessions.h"
#include "api/rpc/json_rpc.h"
#include "api/server.h"
#include "base/clock.h"
#include "flows/flow_progress.h"
#include "messaging/message_receiver.h"
#include "service/flow_service.h"
#include "service/workflow_service.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs::api {

// Connections to the store, with caches. Used by one thread at a time.
struct Backend {
  std::unique_ptr<Store> store;
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> deployments;
  RunCache runs{20000};
  PublicKeyCache known;
};

// A pool of backends. Connections are opened on demand and reused. Thread-safe.
class BackendPool {
 public:
  BackendPool(StoreFactory& stores, std::uint32_t max, std::uint32_t most_of_actor = UINT32_MAX)
      : stores_(stores), most_(max), most_of_actor_(most_of_actor) {}

  // The exclusive use of a backend; the destructor returns the backend to the pool. Not thread-safe.
  class Lease {
   public:
    Lease(BackendPool& from, std::unique_ptr<Backend> backend, Id actor)
        : from_(&from), backend_(std::move(backend)), actor_(actor) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() { release_backend(); }
    void release_backend() {
      if (backend_) from_->release_backend(std::move(backend_), actor_);
    }
    Result<void> reacquire_backend() {
      MJ_TRY(again, from_->take(actor_));
      backend_ = std::move(again.backend_);
      return {};
    }
    Backend* operator->() const { return backend_.get(); }
    Store& store() const { return *backend_->store; }

   private:
    BackendPool* from_;
    std::unique_ptr<Backend> backend_;
    Id actor_;
  };
  // Waits for one of `max` backends. An actor has at most `most_of_actor` of them; actor 0 has no limit. A call
  // of the waiting actor with the fewest backends is served first. Error `unavailable` after 10 s.
  Result<Lease> take(Id actor = 0);
  std::uint32_t waiting();  // number of threads that wait in take()
  Result<std::unique_ptr<Store>> open_reader() { return stores_.open_reader(); }  // not counted as a lease
  Result<std::unique_ptr<FlowStore>> open_flows() { return stores_.open_flows(); }
  Result<std::unique_ptr<ObjectStore>> open_objects() { return stores_.open_objects(); }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() { return stores_.open_workflows(); }

 private:
  void release_backend(std::unique_ptr<Backend>, Id actor);
  // REQUIRES for the next four functions: the lock is held.
  std::uint32_t used_of(Id actor) const;
  bool is_free(Id actor) const;
  void release(Id actor);
  void forget_waiting(Id actor);

  StoreFactory& stores_;
  std::uint32_t most_, most_of_actor_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<std::unique_ptr<Backend>> idle_;
  std::uint32_t open_ = 0;
  std::map<Id, std::uint32_t> used_, waiting_;  // by actor
};

// State that all methods of a server share. Its members are thread-safe or constant while the server runs.
struct Services {
  Services(StoreFactory& stores, const Clock& time, ApiSettings chosen)
      : backends(stores, chosen.limits.calls, chosen.limits.actor_calls),
        operators(stores, chosen.limits.calls),
        health(stores, 1),
        peers(stores, chosen.limits.peer_calls),
        logins(stores, chosen.limits.login_calls),
        sessions(time),
        clock(time),
        settings(std::move(chosen)),
        started_ms(time.unix_ms()) {}
  // Backends of callers with a token, operators, the health check, remote supervisors, and clients that log in.
  BackendPool backends, operators, health, peers, logins;
  BackendPool& backends_of(const RpcCaller& caller) { return caller.operator_token ? operators : backends; }
  Sessions sessions;
  service::ManifestCache manifests;
  service::ApprovalCache approvals;
  const Clock& clock;
  ApiSettings settings;
  std::uint64_t started_ms;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> calls{0}, refusals{0};
};

// Converts a caller to the form that the functions of agent/service need.
service::RequestContext request_context(const Services&, const RpcCaller&, Id context);
// Counts and logs a refusal.
void note_refusal(Services&, const Error&);

// A call of a method: its parameters, caller, context and a leased backend. Not thread-safe.
class MethodCall {
 public:
  // Leases a backend and selects the context. The parameters must outlive the call. Errors: those of
  // BackendPool::take(), and `invalid` (the server does not serve the context).
  static Result<MethodCall> begin(Services&, const nlohmann::json& params, const RpcCaller&);

  const nlohmann::json& params() const { return params_; }
  bool has(std::string_view name) const;
  // Each returns a parameter of a type that was checked before; missing: 0, false, empty or `otherwise`.
  Id id(std::string_view name) const;
  std::uint64_t number(std::string_view name, std::uint64_t otherwise) const;
  std::string text(std::string_view name) const;
  bool flag(std::string_view name) const;
  Id context() const { return context_; }
  Result<void> switch_context(Id context);               // for methods with another parameter for the context
  Id actor() const { return caller_.actor; }             // the calling actor
  std::optional<Id> named(std::string_view name) const;  // an id; no value: it is missing
  service::RequestContext request_context_of() const { return request_context(services_, caller_, context_); }
  service::FlowStores stores(FlowStore& flows) const { return {store(), flows, lease_->runs}; }
  // Returns the key of the job that the parameters `id` and caller_id identify: "job:12:2001". Error `invalid`.
  Result<std::string> job_key() const;
  // Counts and logs the error if it is `denied`. Returns its argument.
  template <class T>
  Result<T> record_refusal(Result<T> answer) const {
    if (!answer && answer.error().code == Code::denied) note_refusal(services_, answer.error());
    return answer;
  }
  bool operator_context() const { return caller_.operator_token || caller_.anonymous; }

  // Returns the backend to the pool, sleeps, and leases a backend again. Error `unavailable`: the server stops, the
  // connection was closed in favour of another client, or no backend is free.
  Result<void> rest(std::uint32_t ms);

  Services& services() const { return services_; }
  Store& store() const { return lease_.store(); }
  Result<FlowStore*> flows() const;
  Result<WorkflowStore*> worlds() const;
  RunCache& runs() const { return lease_->runs; }

 private:
  MethodCall(Services& services, const nlohmann::json& params, const RpcCaller& caller, BackendPool::Lease lease)
      : services_(services), params_(params), caller_(caller), lease_(std::move(lease)) {}

  Services& services_;
  const nlohmann::json& params_;
  RpcCaller caller_;
  BackendPool::Lease lease_;
  Id context_ = 0;
};

using Run = Result<nlohmann::json> (*)(MethodCall&);
// Returns a row of the table of methods. It creates a MethodCall, passes it to `run`, and counts the result.
Method method(Services&, std::string_view name, std::string_view help, std::vector<Param>, std::string_view result,
              Run);

// Each adds the methods of one part of the API to the table.
void add_record_methods(Services&, std::vector<Method>&);  // actor, context, runner, message
void add_job_methods(Services&, std::vector<Method>&);
void add_flow_methods(Services&, std::vector<Method>&);
void add_view_methods(Services&, std::vector<Method>&);  // views of a context
void add_workflow_methods(Services&, std::vector<Method>&);
void add_system_methods(Services&, std::vector<Method>&);  // queue, system
void add_session_methods(Services&, std::vector<Method>&);
std::vector<Method> login_methods(Services&);  // the session methods that need no token
void add_supervisor_methods(Services&, std::vector<Method>&);
std::vector<Method> methods_of(Services&, ApiRole);  // the whole table of a server

}  // namespace mycojobs::api
