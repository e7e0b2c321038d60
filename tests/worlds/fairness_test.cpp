// Owners that share the thread of a context: how long the deployments of one owner keep those of another one waiting.
// Counted in steps, commits and waits, not in time; the clock moves only where a step or a call moves it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "text/cbor.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using nlohmann::json;

struct AtomicClock final : Clock {
  std::atomic<std::uint64_t> ms{1'000'000};
  std::uint64_t unix_ms() const override { return ms; }
  std::uint64_t boot_ms() const override { return ms; }
};

class DeploymentFairness : public testing::Test {
 protected:
  static constexpr Id kMany = 1, kFew = 12;  // owners
  static constexpr const char* kLast = "z/few@1";

  void TearDown() override {
    open_gate();
    gate_again_.set_value();
    rounds_.reset();
  }
  // Applies a deployment with one workflow. Workflow and event have the name of the deployment.
  void apply(const std::string& name, Id owner) {
    const json event{{"type", "object"}, {"required", {"id"}}, {"properties", {{"id", {{"type", "integer"}}}}}};
    const json manifest{{"name", name},
                        {"state", {{"type", "integer"}}},
                        {"key_schema", {{"type", "integer"}}},
                        {"schemas", {{name, event}}},
                        {"event", name},
                        {"effects_emitted", json::array()},
                        {"impl", {{"module", "w.lua"}, {"entrypoint", "step"}}},
                        {"routing", {{"subscriptions", {{{"event", name}, {"workflow", name}, {"key_field", "id"}}}}}}};
    const auto done = service::apply_workflow(stage_.by, stage_.stores(), manifest, {{{"w.lua", "return {}"}}, owner});
    ASSERT_TRUE(done) << done.error().message;
  }
  void apply_many(int count) {
    for (int i = 0; i < count; ++i) apply(many(i), kMany);
  }
  static std::string many(int i) { return "many/w" + std::to_string(100 + i) + "@1"; }
  void post(const std::string& deployment, int id = 1) {
    const InstanceId cell{deployment, encode_cbor(id).value()};
    PostRules rules;
    rules.targets = {{store_name(cell), display_name(cell)}};
    const Fields fields{{"schema", deployment}, {"value", json{{"id", id}}.dump()}, {"source", "actor:1"}};
    ASSERT_TRUE(stage_.deployments->post(WorldStage::kContext, deployment, "event", fields, rules));
  }
  // A coordinator that has nothing to do yet. on_step: runs in each step, on a thread of the pool.
  void begin(DeploymentLimits limits, const Clock& clock, std::function<void(const std::string& deployment)> on_step) {
    const StepRunner take = [this, on_step = std::move(on_step)](const WorkflowSpec& spec, const WorkflowManifest&,
                                                                 const StepRequest&) -> Result<StepAnswer> {
      on_step(spec.name);
      const std::lock_guard lock(mutex_);
      steps_.push_back(spec.name);
      StepOutput output;
      output.state = encode_cbor(1).value();
      return StepAnswer(std::move(output));
    };
    rounds_ = std::make_unique<DeploymentLoop>(
        DeploymentLoop::Dependencies{*stage_.store, *stage_.flows, *stage_.deployments, take, clock},
        WorldStage::kContext, limits);
    ASSERT_TRUE(rounds_->recover());
    for (int i = 0; i < 100; ++i) {
      const auto next = rounds_->run_round();
      ASSERT_TRUE(next) << next.error().message;
      if (*next > 0) return;
    }
    FAIL() << "the deployment does not become idle";
  }
  // Steps run one at a time, and each commit waits for its steps.
  static DeploymentLimits in_step() {
    DeploymentLimits limits;
    limits.shares.max_threads = limits.shares.max_per_deployment = 1;
    limits.step_wait_ms = 60'000;
    return limits;
  }
  void round() { ASSERT_TRUE(rounds_->run_round()); }
  std::vector<std::string> steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }
  std::size_t count_steps(const std::string& deployment) {
    const auto all = steps();
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), deployment));
  }
  void open_gate() {
    if (!std::exchange(is_open_, true)) gate_.set_value();
  }
  std::uint64_t height(const std::string& deployment) {
    return stage_.deployments->read(WorldStage::kContext, deployment, 0, 0).value().height;
  }

  WorldStage stage_;
  AtomicClock clock_;
  SystemClock system_clock_;
  std::promise<void> gate_, gate_again_;
  std::shared_future<void> opened_ = gate_.get_future().share(), opened_again_ = gate_again_.get_future().share();
  std::atomic<bool> blocks_again_{false};
  bool is_open_ = false;
  std::mutex mutex_;
  std::vector<std::string> steps_;          // by world, in their order
  std::unique_ptr<DeploymentLoop> rounds_;  // last: its threads use the above
};

TEST_F(DeploymentFairness, OwnersAreServedInTurn) {
  apply_many(30);
  apply(kLast, kFew);
  begin(in_step(), stage_.clock, [this](const std::string&) { stage_.clock.advance(20); });
  for (int i = 0; i < 30; ++i)
    for (int id = 1; id <= 5; ++id) post(many(i), id);
  post(kLast);
  for (int i = 0; i < 1000 && count_steps(kLast) == 0; ++i) round();
  EXPECT_LE(steps().size(), 10U) << "only the commit of one deployment was earlier, not of all 30";
  for (int i = 0; i < 1000 && steps().size() < 151; ++i) round();
  EXPECT_EQ(steps().size(), 151U) << "all deployments are served";
}

TEST_F(DeploymentFairness, RoundSpendsABoundedTimeOnAnOwner) {
  apply_many(30);
  apply(kLast, kFew);
  DeploymentLimits limits = in_step();
  limits.owner_ms = 50;
  begin(limits, stage_.clock, [this](const std::string&) { stage_.clock.advance(20); });
  for (int i = 0; i < 30; ++i) post(many(i));
  post(kLast);
  round();
  EXPECT_EQ(count_steps(kLast), 1U);
  EXPECT_EQ(steps().size(), 4U) << "three deployments of the other owner, 20 ms each";
  for (int i = 0; i < 1000 && steps().size() < 31; ++i) round();
  EXPECT_EQ(steps().size(), 31U);
}

// Steps that hang: each deployment would wait for its own.
TEST_F(DeploymentFairness, DeploymentsOfAnOwnerShareTheWaitsOfARound) {
  apply_many(20);
  DeploymentLimits limits;
  limits.step_wait_ms = 5;
  limits.owner_ms = 3'600'000;
  begin(limits, system_clock_, [this](const std::string&) { opened_.wait(); });
  for (int i = 0; i < 20; ++i) post(many(i));
  round();
  EXPECT_GE(rounds_->step_waits(), 1U);
  EXPECT_LE(rounds_->step_waits(), 4U) << "10 ms, of 5 ms each";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(height(many(i)), 2U) << "the event of each deployment is journaled anyway";
}

// The only thread of the owner is busy with another deployment, so a short step ends late.
TEST_F(DeploymentFairness, DeploymentWithQueuedStepsIsAwaitedOnce) {
  const std::string busy = many(0), queued = many(1);
  apply_many(2);
  DeploymentLimits limits;
  limits.shares.max_per_owner = 1;
  limits.step_wait_ms = 20;
  limits.owner_ms = 3'600'000;
  begin(limits, clock_, [this, busy](const std::string& deployment) {
    if (deployment == busy) opened_.wait();
    if (blocks_again_) opened_again_.wait();
  });
  post(busy);
  round();
  post(queued);
  round();
  ASSERT_EQ(steps().size(), 0U);
  clock_.ms += 1000;
  open_gate();
  for (int i = 0; i < 10'000 && (height(busy) < 3 || height(queued) < 3); ++i) {
    round();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(height(queued), 3U);
  blocks_again_ = true;
  const std::uint64_t before = rounds_->step_waits();
  post(queued);
  round();
  EXPECT_EQ(height(queued), 4U);
  EXPECT_EQ(rounds_->step_waits(), before) << "the deployment is known as slow";
}

// One step requests 20 effects, and the creation of each job takes 10 ms.
TEST_F(DeploymentFairness, CommitPublishesEffectsForABoundedTime) {
  ASSERT_TRUE(stage_.apply());
  stage_.code = [](const WorkflowSpec&, const StepRequest& request) -> Result<StepOutput> {
    StepOutput output;
    output.state = encode_cbor(json{{"id", 1}}).value();
    if (request.state) return output;
    for (std::size_t i = 0; i < 20; ++i)
      output.effects.push_back({"acme/pay@1", encode_cbor(json{{"id", i}}).value(), i, "ref"});
    return output;
  };
  DeploymentLimits limits = in_step();
  const StepRunner take = [this](const WorkflowSpec& spec, const WorkflowManifest&,
                                 const StepRequest& request) -> Result<StepAnswer> {
    MJ_TRY(output, stage_.code(spec, request));
    return StepAnswer(std::move(output));
  };
  limits.owner_ms = 1;
  rounds_ = std::make_unique<DeploymentLoop>(
      DeploymentLoop::Dependencies{*stage_.store, *stage_.flows, *stage_.deployments, take, stage_.clock},
      WorldStage::kContext, limits);
  ASSERT_TRUE(rounds_->recover());
  stage_.place_order(1, "job");
  stage_.server.set_faults([this](const ServerCall& call) {
    if (call.name == "submit") stage_.clock.advance(10);
    return Fault::none;
  });
  const auto jobs = [this] {
    return stage_.server.run_command(WorldStage::kContext, {"LLEN", "queue:python"}).number();
  };
  for (int i = 0; i < 10 && jobs() == 0; ++i) round();
  EXPECT_EQ(jobs(), 2) << "16 ms";
  for (int i = 0; i < 100 && jobs() < 20; ++i) round();
  EXPECT_EQ(jobs(), 20) << "the others follow";
}

TEST_F(DeploymentFairness, OnlyTheThrowingStepIsDeferred) {
  ASSERT_TRUE(stage_.apply());
  std::atomic<bool> throws{true};
  stage_.code = [&throws](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    if (throws && request.event.key == encode_cbor(1).value()) throw std::bad_alloc();
    return shop_step(spec, request);
  };
  stage_.place_order(1, "keep");
  stage_.place_order(2, "keep");
  for (int i = 0; i < 5; ++i) stage_.step();
  EXPECT_EQ(stage_.status(1), "running");
  EXPECT_EQ(stage_.status(2), "waiting");
  throws = false;
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.status(1), "waiting") << "only the step has failed, not the instance";
}

}  // namespace
}  // namespace mycojobs
