// Infrastructure of the RPC methods: pools of connections to the store, the state that all methods share, and
// MethodCall, which gives a method its parameters, its caller and a connection. The functions at the end build the
// tables of methods.
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

#include "api/api_settings.h"
#include "api/artifacts/artifact_tickets.h"
#include "api/auth/sessions.h"
#include "api/rpc/json_rpc.h"
#include "artifacts/transfer/job_log_reader.h"
#include "base/clock.h"
#include "flows/flow_progress.h"
#include "messaging/message_receiver.h"
#include "service/flow_service.h"
#include "service/request_params.h"
#include "service/workflow_service.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs::api {

// Connections to the store, with caches. Used by one thread at a time.
struct Backend {
  std::unique_ptr<Store> store;
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> workflows;
  RunCache run_cache{20000};
  PublicKeyCache public_keys;
};

// A pool of backends. Connections are opened on demand and reused. Thread-safe.
class BackendPool {
 public:
  BackendPool(StoreFactory& stores, std::uint32_t max_backends, std::uint32_t max_per_actor = UINT32_MAX)
      : stores_(stores), max_backends_(max_backends), max_per_actor_(max_per_actor) {}

  // The exclusive use of a backend; the destructor returns the backend to the pool. Not thread-safe.
  class Lease {
   public:
    Lease(BackendPool& pool, std::unique_ptr<Backend> backend, Id actor)
        : pool_(&pool), backend_(std::move(backend)), actor_(actor) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() { release(); }
    void release() {
      if (backend_) pool_->return_backend(std::move(backend_), actor_);
    }
    Result<void> reacquire() {
      MJ_TRY(lease, pool_->acquire(actor_));
      backend_ = std::move(lease.backend_);
      return {};
    }
    Backend* operator->() const { return backend_.get(); }
    Store& store() const { return *backend_->store; }

   private:
    BackendPool* pool_;
    std::unique_ptr<Backend> backend_;
    Id actor_;
  };
  // Waits for one of `max_backends` backends. An actor can have at most `max_per_actor`; actor 0 has no limit. A call
  // of the waiting actor with the fewest backends is served first. Error `unavailable` after 10 s.
  Result<Lease> acquire(Id actor = 0);
  std::uint32_t waiting_count();  // number of threads that wait in acquire()
  // The next four functions open a connection that the caller owns and that does not count as a backend.
  Result<std::unique_ptr<Store>> open_reader() { return stores_.open_reader(); }
  Result<std::unique_ptr<FlowStore>> open_flows() { return stores_.open_flows(); }
  Result<std::unique_ptr<ObjectStore>> open_objects() { return stores_.open_objects(); }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() { return stores_.open_workflows(); }

 private:
  void return_backend(std::unique_ptr<Backend>, Id actor);
  // REQUIRES for the next four functions: the lock is held.
  std::uint32_t count_leased(Id actor) const;
  bool can_acquire(Id actor) const;
  void decrement_leased(Id actor);
  void remove_waiter(Id actor);

  StoreFactory& stores_;
  std::uint32_t max_backends_, max_per_actor_;
  std::mutex mutex_;
  std::condition_variable capacity_changed_;
  std::vector<std::unique_ptr<Backend>> idle_backends_;
  std::uint32_t open_count_ = 0;
  std::map<Id, std::uint32_t> leased_counts_, waiter_counts_;  // numbers of leases and of waiting threads, by actor
};

// State that all methods of a server share. Its members are thread-safe or constant while the server runs.
struct Services {
  Services(StoreFactory& stores, const Clock& server_clock, ApiSettings api_settings)
      : backends(stores, api_settings.limits.max_calls, api_settings.limits.max_calls_per_actor),
        operator_backends(stores, api_settings.limits.max_calls),
        health_backends(stores, 1),
        peer_backends(stores, api_settings.limits.max_peer_calls),
        login_backends(stores, api_settings.limits.max_login_calls),
        sessions(server_clock),
        tickets(server_clock),
        clock(server_clock),
        settings(std::move(api_settings)),
        logs(stores, server_clock, settings.state_dir),
        started_ms(server_clock.unix_ms()) {}
  // Separate pools for callers with a token, operators, the health check, remote supervisors, and clients that log in,
  // so that one group of callers cannot block another.
  BackendPool backends, operator_backends, health_backends, peer_backends, login_backends;
  BackendPool& select_backends(const RpcCaller& caller) { return caller.operator_token ? operator_backends : backends; }
  Sessions sessions;
  ArtifactTickets tickets;
  service::ManifestCache manifests;
  service::ApprovalCache approvals;
  const Clock& clock;
  ApiSettings settings;
  JobLogReader logs;
  std::uint64_t started_ms;
  std::atomic<bool> stopping{false};
  std::atomic<std::uint64_t> call_count{0}, refusal_count{0};
};

// Converts an RPC caller to the request context that the functions of agent/service require.
service::RequestContext make_request_context(const Services&, const RpcCaller&, Id context);
// Counts a request that the table of rights denied, and logs its error.
void report_refusal(Services&, const Error&);

// A call of a method: its parameters, caller, context and a leased backend. Not thread-safe.
class MethodCall : public service::RequestParams {
 public:
  // Leases a backend and selects the context. The parameters must outlive the call. Errors: those of
  // BackendPool::acquire(), and `invalid` (the server does not serve the context).
  static Result<MethodCall> create(Services&, service::RequestParams, const RpcCaller&);
  // Same, with parameters that belong to no request of the table: those of an event stream.
  static Result<MethodCall> create(Services&, const nlohmann::json& params, const RpcCaller&);

  Id context() const { return context_; }
  // Selects the context that another parameter than context_id identifies. Error `invalid`: the server does not serve
  // it.
  Result<void> switch_context(Id context);
  Id actor() const { return caller_.actor; }  // the calling actor
  service::RequestContext request_context() const { return make_request_context(services_, caller_, context_); }
  service::FlowStores make_flow_stores(FlowStore& flows) const { return {store(), flows, lease_->run_cache}; }
  // Returns the key of the job that the parameters `id` and caller_id identify: "job:12:2001". Error `invalid`.
  Result<std::string> job_key() const;
  // Counts and logs the error if it is `denied`. Returns its argument.
  template <class T>
  Result<T> report_if_denied(Result<T> result) const {
    if (!result && result.error().code == Code::denied) report_refusal(services_, result.error());
    return result;
  }
  bool is_operator() const { return caller_.operator_token || caller_.anonymous; }

  // Returns the backend (the store connection of this call) to the pool, sleeps, and leases a backend again. Error
  // `unavailable`: the server stops, the connection was closed in favour of another client, or no backend is free.
  Result<void> release_backend_and_sleep(std::uint32_t ms);

  // Returns the backend to the pool before work that may block on a disk. The functions that use the store must not be
  // called afterwards.
  void release_backend() { lease_.release(); }

  const RpcCaller& caller() const { return caller_; }
  Services& services() const { return services_; }
  Store& store() const { return lease_.store(); }
  // The next two functions open the connection of the backend on the first use. Errors: those of the store.
  Result<FlowStore*> open_flow_store() const;
  Result<WorkflowStore*> open_workflow_store() const;
  RunCache& run_cache() const { return lease_->run_cache; }

 private:
  MethodCall(Services& services, const service::RequestParams& params, const RpcCaller& caller,
             BackendPool::Lease lease)
      : RequestParams(params), services_(services), caller_(caller), lease_(std::move(lease)) {}

  Services& services_;
  RpcCaller caller_;
  BackendPool::Lease lease_;
  Id context_ = 0;
};

using MethodHandler = Result<nlohmann::json> (*)(MethodCall&);
struct MethodBinding {
  std::string_view request;  // name in the table of requests (service/request_table.h)
  MethodHandler handler;
};
// Adds methods for these requests. A method creates a MethodCall, passes it to the handler and counts the result.
void bind_methods(Services&, std::initializer_list<MethodBinding>, std::vector<Method>&);
// Adds a method that does not use a MethodCall.
void bind_method(std::string_view request,
                 std::function<Result<nlohmann::json>(const nlohmann::json& params, const RpcCaller&)>,
                 std::vector<Method>&);

// Each of these functions adds the methods of one part of the API to the table.
void add_record_methods(Services&, std::vector<Method>&);  // actor, context, runner, message
void add_job_methods(Services&, std::vector<Method>&);
void add_flow_methods(Services&, std::vector<Method>&);
void add_view_methods(Services&, std::vector<Method>&);  // methods that summarize several records of a context
void add_workflow_methods(Services&, std::vector<Method>&);
void add_system_methods(Services&, std::vector<Method>&);  // queue, system
void add_session_methods(Services&, std::vector<Method>&);
void add_artifact_methods(Services&, std::vector<Method>&);
void add_supervisor_methods(Services&, std::vector<Method>&);
std::vector<Method> make_login_methods(Services&);     // the session methods that need no token
std::vector<Method> make_methods(Services&, ApiRole);  // the complete table of a server

}  // namespace mycojobs::api
