// Coordinators that take turns over the workflows of context 1, a runner that ends each job at once, and one clock.
// Code of workflows is a C++ function. Any call of a coordinator that can change anything can be disturbed; one that is
// killed begins anew.
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
#include "coordinator/world_rounds.h"
#include "service/workflows.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"

namespace mycojobs {

enum class WorldFate { killed_before, killed_after, reply_lost, request_lost };
inline constexpr WorldFate kWorldFates[] = {WorldFate::killed_before, WorldFate::killed_after, WorldFate::reply_lost,
                                            WorldFate::request_lost};
struct WorldDisturbance {
  std::uint64_t call = 0;  // the number of the coordinators' call, from 1
  WorldFate fate = WorldFate::killed_before;
};

// An order of the shop: Placed {id, how} asks for what `how` names: job, slow (a job that fails), here (a job for
// runner 7), again (a job that fails twice and has two retries), timer, approval, flow, signal, withdraw (it cancels
// its deadline once it is paid; stop: and a job); hold (a job and a flow that end when they are told to); big is a
// state of 80 KiB; all is one after the other; chat emits an event for a ledger. Each receipt is noted in the state;
// the last one of an order that is not kept ends it.
nlohmann::json shop_manifest();
StepOutput shop_step(const WorkflowSpec&, const StepRequest&);

class WorldStage {
 public:
  explicit WorldStage(WorldLimits limits = {}, int coordinators = 1);
  ~WorldStage();

  static constexpr Id kContext = 1;
  static constexpr const char* kShop = "acme/shop@1";
  test::HandClock& clock;
  MemoryServer& server;
  std::unique_ptr<Store> store;  // of clients and runner: never disturbed
  std::unique_ptr<FlowStore> flows;
  std::unique_ptr<WorkflowStore> worlds;
  Id runner = 7;                                               // of claims; 0: a router's
  std::shared_ptr<const SigningKey> runner_key;                // null: the runner signs nothing
  std::function<void(Job&, JobEnd&)> tamper;                   // with an end, before it is stored
  std::function<std::vector<std::string>(const Job&)> writes;  // what a job writes before it ends
  std::map<std::string, int> ran;                              // by name and parameters of jobs: how often
  std::map<std::string, int> carried;                          // the same by idempotency key
  std::function<Result<StepOutput>(const WorkflowSpec&, const StepRequest&)> code = shop_step;

  JobLimits job_limits;  // of coordinators that begin from now on
  service::Caller by{kContext, 1, WayIn::command, true};
  service::WorldStores in() { return {*store, *worlds}; }
  Result<service::AppliedWorkflow> apply(const nlohmann::json& manifest = shop_manifest(),
                                         const std::string& text = "return {}");
  Result<service::SentEvent> send(const std::string& event, const nlohmann::json& value);
  void place(int id, const std::string& how) { ASSERT_TRUE(send("acme/Placed@1", {{"id", id}, {"how", how}})); }
  nlohmann::json show(int id);  // null: it is not there
  std::string status(int id);
  LoadedWorld world(bool from_beginning = false);
  std::vector<WorkflowFact> journal();
  std::string text(const std::vector<std::string>& words) { return std::string(server.plain(kContext, words).text()); }

  void disturb(std::vector<WorldDisturbance> of) { disturbed_ = std::move(of); }
  void step(std::uint64_t ms = 100);  // of everybody
  bool play(int rounds = 300);        // until nothing is under way but what waits for people; false: that never came
  bool is_quiet();
  void coordinate(std::size_t which);
  void replace(std::size_t which);  // by one that has just been started
  void run_jobs();
  std::uint64_t calls() const { return calls_; }
  std::map<std::string, int> calls_by_name;

  // Of every instance, job and flow, in words that do not rest on heights or on what was disturbed.
  std::string outcome();
  std::vector<std::string> trouble();  // what must never be

 private:
  struct Coordinating {
    std::unique_ptr<Store> store;
    std::unique_ptr<FlowStore> flows;
    std::unique_ptr<WorkflowStore> worlds;
    std::unique_ptr<WorldRounds> rounds;
    bool recovers = true, is_dead = false;
  };
  void begin(Coordinating&);
  Fault judge(const ServerCall&);

  WorldLimits limits_;
  std::vector<Coordinating> coordinators_;
  std::unique_ptr<ContextRounds> flow_rounds_;  // undisturbed
  std::vector<WorldDisturbance> disturbed_;
  std::uint64_t calls_ = 0;
  Coordinating* at_work_ = nullptr;
};

}  // namespace mycojobs
