// Coordinators that take turns over the workflows of context 1, a runner that ends each job at once, and one clock. The
// code of workflows is a C++ function. A fault can be injected into every writing call of a coordinator; a killed
// coordinator is restarted.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/ed25519.h"
#include "coordinator/context_loop.h"
#include "service/workflow_service.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"
#include "workflows/deployment/deployment_loop.h"

namespace mycojobs {

enum class WorldFate { killed_before, killed_after, reply_lost, request_lost };
inline constexpr WorldFate kWorldFates[] = {WorldFate::killed_before, WorldFate::killed_after, WorldFate::reply_lost,
                                            WorldFate::request_lost};
struct WorldDisturbance {
  std::uint64_t call = 0;  // number of the coordinators' call, from 1
  WorldFate fate = WorldFate::killed_before;
};

// A shop with orders. Placed {id, how} requests the effect named by `how`: job, slow (a job that fails), here (a job
// for runner 7), again (a job that fails twice and has two retries), timer, approval, flow, signal, withdraw (cancels
// its deadline once it is paid; stop: also a job), hold (a job and a flow that end when they are cancelled). keep
// requests no effect, big has a state of 80 KiB, all requests the effects one after the other, chat emits an event to a
// ledger. The state records each receipt. Closed ends an order.
nlohmann::json shop_manifest();
StepOutput shop_step(const WorkflowSpec&, const StepRequest&);

class WorldStage {
 public:
  explicit WorldStage(DeploymentLimits limits = {}, int coordinators = 1);
  ~WorldStage();

  static constexpr Id kContext = 1;
  static constexpr const char* kShop = "acme/shop@1";
  test::ManualClock& clock;
  MemoryServer& server;
  std::unique_ptr<Store> store;  // for clients and runner; without faults
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> deployments;
  Id runner = 7;                                               // runner of the claims; 0: claims of the router
  std::shared_ptr<const SigningKey> runner_key;                // null: the runner does not sign
  std::function<void(Job&, JobEnd&)> tamper;                   // changes the end of a job before it is stored
  std::function<std::vector<std::string>(const Job&)> writes;  // lines that a job writes before it ends
  std::map<std::string, int> run_counts;                       // number of runs, by name and parameters of the job
  std::map<std::string, int> job_counts;                       // number of jobs, by idempotency key
  std::function<Result<StepOutput>(const WorkflowSpec&, const StepRequest&)> code = shop_step;

  JobLimits job_limits;  // for coordinators started from now on
  // Coordinators started from now on read cells with the threads of their steps.
  bool reads_cells_in_background = false;
  service::RequestContext by{kContext, 1, EntryPoint::command, true};
  service::WorkflowStores stores() { return {*store, *deployments}; }
  Result<service::AppliedWorkflow> apply(const nlohmann::json& manifest = shop_manifest(),
                                         const std::string& text = "return {}");
  Result<service::SentEvent> send(const std::string& event, const nlohmann::json& value);
  void place_order(int id, const std::string& how) { ASSERT_TRUE(send("acme/Placed@1", {{"id", id}, {"how", how}})); }
  nlohmann::json show(int id);  // null if the instance does not exist
  std::string status(int id);
  LoadedDeployment load_deployment(bool from_beginning = false);
  std::vector<WorkflowFact> journal();
  std::string text(const std::vector<std::string>& words) {
    return std::string(server.run_command(kContext, words).text());
  }

  void disturb(std::vector<WorldDisturbance> disturbances) { disturbed_ = std::move(disturbances); }
  void step(std::uint64_t ms = 100);  // a step of all participants
  // Runs until only approvals are pending; false if work is left after `rounds` rounds.
  bool play(int rounds = 300);
  bool is_quiet();
  void coordinate(std::size_t which);
  void replace(std::size_t which);  // replaces the coordinator by a new one
  void run_jobs();
  std::uint64_t calls() const { return calls_; }
  std::map<std::string, int> calls_by_name;

  // Describes every instance, job and flow, independently of heights and injected faults.
  std::string outcome();
  std::vector<std::string> find_violations();  // returns the violated invariants

 private:
  struct StagedCoordinator {
    std::unique_ptr<Store> store;
    std::unique_ptr<FlowStore> flows;
    std::unique_ptr<WorkflowStore> deployments, cells;
    std::unique_ptr<DeploymentLoop> rounds;
    bool recovers = true, is_dead = false;
  };
  void begin(StagedCoordinator&);
  Fault choose_fault(const ServerCall&);

  DeploymentLimits limits_;
  std::vector<StagedCoordinator> coordinators_;
  std::unique_ptr<ContextLoop> flow_rounds_;  // without faults
  std::vector<WorldDisturbance> disturbed_;
  std::uint64_t calls_ = 0;
  StagedCoordinator* active_coordinator_ = nullptr;
};

}  // namespace mycojobs
