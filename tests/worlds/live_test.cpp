// The invariants of workflows (docs/workflows) that need a store and a coordinator, numbered as in
// tests/workflow/invariants_test.cpp.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "security/signatures.h"
#include "text/cbor.h"
#include "text/json.h"
#include "workflows/workflow_snapshot.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DeploymentRun : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(stage_.apply()); }
  void expect_fine(WorldStage& stage) { EXPECT_THAT(stage.find_violations(), IsEmpty()); }
  std::string refusal(const std::string& event, const json& value) {
    const auto sent = stage_.send(event, value);
    return sent ? "" : sent.error().message;
  }
  int kinds(WorldStage& stage, std::string_view kind) {
    int found = 0;
    for (const WorkflowFact& fact : stage.journal()) found += fact_kind(fact) == kind ? 1 : 0;
    return found;
  }
  static Result<ParsedSnapshot> snapshot_in(WorldStage& stage) {
    const std::string root = stage.deployments->read(1, WorldStage::kShop, 0, 0).value().snapshot;
    return read_snapshot(root,
                         [&](const std::string& hash) { return stage.deployments->blob(1, WorldStage::kShop, hash); });
  }
  WorldStage stage_;
};

TEST_F(DeploymentRun, 02_InvalidEventIsRejectedAndNotJournaled) {
  const std::uint64_t height = stage_.load_deployment().state().height;
  EXPECT_THAT(refusal("acme/None@1", json::object()), HasSubstr("no workflow"));
  EXPECT_THAT(refusal("acme/Placed@1", {{"how", "job"}}), HasSubstr("id"));
  EXPECT_THAT(refusal("acme/Placed@1", {{"id", "seven"}, {"how", "job"}}), HasSubstr("id"));
  EXPECT_THAT(refusal("acme/Placed@1", {{"id", 7}, {"how", "job"}, {"more", 1}}), HasSubstr("more"));
  EXPECT_THAT(refusal("sys/EffectReceiptEnvelope@1", json::object()), testing::Not(IsEmpty()));
  stage_.step();
  EXPECT_EQ(stage_.load_deployment().state().height, height);
  EXPECT_EQ(stage_.text({"XLEN", "mj:deployment-inbox:acme/shop@1"}), stage_.text({"XLEN", "nothing"}));
}

TEST_F(DeploymentRun, 03_IntentIsTheIdempotencyKeyOfItsJob) {
  stage_.place_order(1, "job");
  ASSERT_TRUE(stage_.play());
  const std::string key = stage_.text({"HGET", "job:1:3", "idempotency_key"});
  std::string intent;
  for (const WorkflowFact& fact : stage_.journal())
    if (const auto* carried = std::get_if<EffectPublished>(&fact.content)) intent = carried->intent;
  EXPECT_EQ(key, "intent " + intent);
}

TEST_F(DeploymentRun, 04_ForgedReceiptIsRejectedJournaledAndCounted) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.tamper = [](Job&, JobEnd& end) { end.result = {{"paid", "false"}}; };
  stage_.place_order(1, "job");
  for (int i = 0; i < 20; ++i) stage_.step();
  EXPECT_EQ(kinds(stage_, "receipt_refused"), 1);
  EXPECT_EQ(kinds(stage_, "receipt"), 0);
  EXPECT_EQ(stage_.show(1).at("refused"), 1);
  EXPECT_EQ(stage_.load_deployment().state().refused_receipts, 1U);
  EXPECT_EQ(stage_.show(1).at("intents").size(), 1U) << "nothing is settled";
}

TEST_F(DeploymentRun, 04_ReceiptOfAnotherIntentIsRejected) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.tamper = [this](Job&, JobEnd& end) {
    json receipt = json::parse(end.receipt);
    receipt["intent"] = std::string(64, 'a');
    ASSERT_TRUE(sign(receipt, "receipt", *stage_.runner_key));
    end.receipt = receipt.dump();
  };
  stage_.place_order(1, "job");
  for (int i = 0; i < 20; ++i) stage_.step();
  EXPECT_EQ(kinds(stage_, "receipt_refused"), 1);
  const json why = service::explain_instance(stage_.by, stage_.stores(), {"order", "1"}, "here").value();
  EXPECT_EQ(why[0].at("cause"), "receipt_refused");
}

TEST_F(DeploymentRun, 04_UnsignedReceiptOfARunnerWithAKeyIsRejected) {
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", SigningKey::make().public_key()}}));
  stage_.place_order(1, "job");
  for (int i = 0; i < 20; ++i) stage_.step();
  EXPECT_EQ(kinds(stage_, "receipt_refused"), 1);
}

// A submitter may change the record of the effect's job between the end of the job and the receipt.
class ForgedReceipts : public DeploymentRun {
 protected:
  static constexpr const char* kJob = "job:1:3";
  void end_of_job() {
    for (int i = 0; i < 20 && stage_.text({"HGET", kJob, "ended_ms"}).empty(); ++i) stage_.step();
    ASSERT_EQ(stage_.text({"HGET", kJob, "status"}), "finished");
    ASSERT_EQ(kinds(stage_, "receipt"), 0) << "the effect already exists";
  }
  void write(std::vector<std::string> fields) {
    fields.insert(fields.begin(), {"HSET", kJob});
    stage_.server.run_command(1, fields);
  }
  void expect_refused() {
    for (int i = 0; i < 20; ++i) stage_.step();
    EXPECT_EQ(kinds(stage_, "receipt"), 0);
    EXPECT_EQ(kinds(stage_, "receipt_refused"), 1);
    EXPECT_EQ(stage_.show(1).at("intents").size(), 1U) << "nothing is settled";
    const json why = service::explain_instance(stage_.by, stage_.stores(), {"order", "1"}, "here").value();
    EXPECT_EQ(why[0].at("cause"), "receipt_refused");
  }
};

TEST_F(ForgedReceipts, 04_ResultMissingFromTheEndIsRejected) {
  stage_.place_order(1, "job");
  end_of_job();
  write({"result", R"({"paid":"false"})"});
  expect_refused();
}

TEST_F(ForgedReceipts, 04_RecordOfAnotherRunnerIsRejected) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.place_order(1, "job");
  end_of_job();
  write({"result", R"({"paid":"false"})", "runner_id", "8", "receipt", ""});
  expect_refused();
}

// The effect was sent as a message: the receipt names the job that ran on the other host, and is signed by a runner
// that the other host knows.
class RemoteReceipts : public ForgedReceipts {
 protected:
  void SetUp() override {
    ForgedReceipts::SetUp();
    stage_.runner = 0;
    stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
    stage_.tamper = [this](Job&, JobEnd& end) {
      json receipt = json::parse(end.receipt);
      receipt["job"] = "job:5:1";
      receipt["claim"] = "theirs";
      change(receipt);
      ASSERT_TRUE(sign(receipt, "receipt", *stage_.runner_key));
      if (spoils) receipt["log_lines"] = 7;
      end.receipt = receipt.dump();
    };
    stage_.place_order(1, "here");
  }
  std::function<void(json&)> change = [](json&) {};
  bool spoils = false;
};

TEST_F(RemoteReceipts, 04_RemoteReceiptIsThatOfTheRemoteJob) {
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
  EXPECT_EQ(stage_.show(1).at("state").at("receipts").at(0).at("status"), "ok");
}

TEST_F(RemoteReceipts, 04_RemoteReceiptMustNameThisIntent) {
  change = [](json& receipt) { receipt["intent"] = std::string(64, 'a'); };
  expect_refused();
}

TEST_F(RemoteReceipts, 04_RemoteReceiptMustBeValid) {
  spoils = true;
  expect_refused();
}

// The end is written to a new record, which does not identify its job.
TEST_F(ForgedReceipts, DeletedRecordOfARunningJobIsLost) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.tamper = [&](Job&, JobEnd&) { stage_.server.run_command(1, {"DEL", kJob}); };
  stage_.place_order(1, "job");
  for (int i = 0; i < 30 && kinds(stage_, "receipt") == 0; ++i) stage_.step(10000);
  EXPECT_EQ(kinds(stage_, "receipt_refused"), 0);
  ASSERT_EQ(kinds(stage_, "receipt"), 1);
  const json receipt = stage_.show(1).at("state").at("receipts").at(0);
  EXPECT_EQ(receipt.at("status"), "error") << receipt;
  const auto journal = stage_.journal();
  EXPECT_TRUE(std::any_of(journal.begin(), journal.end(), [](const WorkflowFact& fact) {
    const auto* admitted = std::get_if<ReceiptAdmitted>(&fact.content);
    return admitted != nullptr && admitted->payload.find("lost") != std::string::npos;
  }));
}

TEST_F(ForgedReceipts, 04_DifferentEndIsRejected) {
  stage_.place_order(1, "job");
  end_of_job();
  write({"status", "error", "detail", "exit", "error", "it never came"});
  expect_refused();
}

TEST_F(ForgedReceipts, 04_RunnerIsTheHolderOfTheClaim) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.place_order(1, "job");
  end_of_job();
  write({"runner_id", "8"});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
}

TEST_F(ForgedReceipts, 04_EndOnlyInTheRecordIsIgnored) {
  stage_.place_order(1, "job");
  stage_.coordinate(0);
  ASSERT_EQ(stage_.text({"HGET", kJob, "status"}), "dispatched");
  write({"status", "finished", "result", R"({"paid":"false"})", "result_json", R"(["paid"])"});
  ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "job", {{"key", kJob}}));
  stage_.coordinate(0);
  EXPECT_EQ(kinds(stage_, "receipt"), 0) << "the receipt is queued and not processed yet";
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
  EXPECT_EQ(stage_.show(1).at("state").at("receipts").at(0).at("paid"), true) << "the result of the runner";
}

TEST_F(ForgedReceipts, 04_RecordWithoutAClaimNeedsASignature) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.place_order(1, "job");
  end_of_job();
  stage_.server.run_command(1, {"DEL", "mj:claim:" + std::string(kJob)});
  write({"receipt", "", "runner_id", "8"});
  expect_refused();
}

TEST_F(ForgedReceipts, 04_SignedRecordIsAcceptedWithoutAClaim) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage_.runner_key->public_key()}}));
  stage_.place_order(1, "job");
  end_of_job();
  stage_.server.run_command(1, {"DEL", "mj:claim:" + std::string(kJob)});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
}

TEST_F(DeploymentRun, 06_RepeatedEndChangesNothing) {
  stage_.place_order(1, "job");
  ASSERT_TRUE(stage_.play());
  const std::uint64_t height = stage_.load_deployment().state().height;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "job", {{"key", "job:1:3"}}));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.load_deployment().state().height, height);
}

TEST_F(DeploymentRun, 09_OneBusyCellDoesNotStarveTheOthers) {
  for (int i = 0; i < 500; ++i) stage_.place_order(1, "keep");
  for (int id = 2; id <= 20; ++id) stage_.place_order(id, "keep");
  std::set<std::string> seen;
  std::uint64_t hot = 0;
  ASSERT_TRUE(stage_.play());
  for (const WorkflowFact& fact : stage_.journal()) {
    const auto* step = std::get_if<StepTaken>(&fact.content);
    if (step == nullptr) continue;
    const bool is_hot = step->instance.key == encode_cbor(1).value();
    if (is_hot) ++hot;
    if (!is_hot && seen.insert(step->instance.key).second) {
      EXPECT_LT(hot, 400U) << "the other instances waited for the busy instance";
    }
  }
  EXPECT_EQ(seen.size(), 19U);
  EXPECT_EQ(hot, 500U);
  expect_fine(stage_);
}

// Waits are counted in steps of other instances, not in time.
class DeploymentHotCell : public testing::Test {
 protected:
  static constexpr int kCells = 10'000, kEach = 50, kHot = 1'000'000;
  struct Waits {
    std::uint64_t from_journal = 0;  // longest wait after the event was journaled
    std::uint64_t from_inbox = 0;    // longest wait after the event was sent
  };
  void SetUp() override {
    ASSERT_TRUE(stage_.apply());
    for (int id = 1; id <= kCells; ++id) post(id);
    ASSERT_TRUE(stage_.play());
    ASSERT_EQ(stage_.load_deployment().state().instances.size(), static_cast<std::size_t>(kCells));
  }
  // Sends an event like send_event(), without its checks.
  void post(int id) {
    const InstanceId cell{"acme/order@1", encode_cbor(id).value()};
    PostRules rules;
    rules.targets = {{store_name(cell), display_name(cell)}};
    const json value{{"id", id}, {"how", "keep"}};
    const Fields fields{{"schema", "acme/Placed@1"}, {"value", value.dump()}, {"source", "actor:1"}};
    ASSERT_TRUE(stage_.deployments->post(WorldStage::kContext, WorldStage::kShop, "event", fields, rules));
  }
  // Returns the waits of kEach instances that receive an event after the events of a busy instance.
  Waits waits_beside(int hot_events) {
    const std::uint64_t before = stage_.load_deployment().state().height;
    for (int i = 0; i < hot_events; ++i) post(kHot);
    for (int i = 0; i < kEach; ++i) post(1 + i * (kCells / kEach));
    EXPECT_TRUE(stage_.play());
    std::map<InstanceId, std::uint64_t> came;
    std::uint64_t steps = 0, of_others = 0;
    Waits longest;
    for (const WorkflowFact& fact : stage_.journal()) {
      if (fact.height <= before) continue;
      if (const auto* event = std::get_if<EventAccepted>(&fact.content))
        came.emplace(event->targets.at(0).instance, steps);
      const auto* step = std::get_if<StepTaken>(&fact.content);
      if (step == nullptr) continue;
      if (step->instance.key != encode_cbor(kHot).value()) {
        ++of_others;
        longest.from_inbox = std::max(longest.from_inbox, steps);
        longest.from_journal = std::max(longest.from_journal, steps - came.at(step->instance));
      }
      ++steps;
    }
    EXPECT_EQ(of_others, static_cast<std::uint64_t>(kEach));
    EXPECT_EQ(steps, static_cast<std::uint64_t>(kEach + hot_events));
    return longest;
  }
  WorldStage stage_{{.snapshot_every = 1'000'000}};
};

TEST_F(DeploymentHotCell, 09_HotCellDelaysEachOtherCellByOneTurn) {
  const DeploymentLimits limits;
  const std::uint64_t others = kEach;
  const Waits alone = waits_beside(0), hot = waits_beside(2'000), hotter = waits_beside(6'000);
  EXPECT_LT(alone.from_inbox, others);
  for (const Waits& beside : {hot, hotter})
    EXPECT_LE(beside.from_journal, limits.max_steps + others)
        << "at most one full commit and one round of the other instances";
  EXPECT_LE(hot.from_inbox, 3 * limits.max_steps + others) << "the inbox is read ahead by one page for each commit";
  EXPECT_LE(hotter.from_inbox, 7 * limits.max_steps + others);
}

TEST_F(DeploymentRun, 10_UncommittedStepDispatchesNothing) {
  stage_.place_order(1, "job");
  // The commit of the step always fails.
  std::vector<WorldDisturbance> all;
  for (std::uint64_t call = 1; call < 50; ++call) all.push_back({call, WorldFate::request_lost});
  stage_.disturb(all);
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.text({"HGET", "job:1:3", "id"}), "");
  EXPECT_TRUE(stage_.run_counts.empty());
  stage_.disturb({});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.run_counts.size(), 1U);
}

TEST_F(DeploymentRun, 12_OtherOutputOnReplayFailsOnlyItsInstance) {
  stage_.place_order(1, "keep");
  stage_.place_order(2, "keep");
  ASSERT_TRUE(stage_.play());
  const StepRunner other = [](const WorkflowSpec& spec, const WorkflowManifest&,
                              const StepRequest& request) -> Result<StepAnswer> {
    StepOutput output = shop_step(spec, request);
    if (request.event.key == encode_cbor(2).value()) output.state = encode_cbor(json{{"other", 1}}).value();
    return StepAnswer(std::move(output));
  };
  const auto done = service::verify_workflow(stage_.by, stage_.stores(), "order", other);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_TRUE(done->mismatch);
  EXPECT_EQ(display_name(done->mismatch->instance), "acme/order@1[2]");
  EXPECT_EQ(stage_.status(1), "waiting");
  EXPECT_EQ(stage_.status(2), "failed");
  EXPECT_EQ(stage_.show(2).at("failure"), "nondeterministic");
  stage_.place_order(1, "keep");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.show(1).at("steps"), 2);
}

TEST_F(DeploymentRun, 13_DeploymentIsTheSameWithoutItsSnapshot) {
  WorldStage stage({.snapshot_every = 5});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 6; ++id) stage.place_order(id, "job");
  ASSERT_TRUE(stage.play());
  const DeploymentReadResult head = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
  ASSERT_GT(head.snapshot_height, 0U);
  const DeploymentState with = stage.load_deployment().state();
  stage.server.run_command(1, {"DEL", "mj:deployment-blobs:acme/shop@1"});
  EXPECT_TRUE(stage.load_deployment().state() == with);
  stage.server.run_command(1, {"DEL", "mj:deployment-head:acme/shop@1"});
  EXPECT_TRUE(stage.load_deployment().state() == with);
  stage.place_order(7, "job");
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(stage.status(7), "waiting");
}

TEST_F(DeploymentRun, 13_LongStateIsABlobWithACheckedHash) {
  stage_.place_order(1, "big");
  ASSERT_TRUE(stage_.play());
  const std::string hash = stage_.show(1).at("state_hash");
  EXPECT_GT(stage_.deployments->blob(1, WorldStage::kShop, hash).value().size(), 80U << 10);
  stage_.server.run_command(1, {"HSET", "mj:deployment-blobs:acme/shop@1", hash, "something else"});
  stage_.place_order(1, "big");
  stage_.place_order(2, "keep");
  for (int i = 0; i < 5; ++i) stage_.step();
  EXPECT_EQ(stage_.load_deployment().state().instances.size(), 2U) << "the other instances continue";
  EXPECT_EQ(stage_.status(2), "waiting");
  const LoadedDeployment now = stage_.load_deployment();
  const InstanceState* cell = now.state().find_instance({"acme/order@1", encode_cbor(1).value()});
  ASSERT_NE(cell, nullptr);
  EXPECT_EQ(cell->status(), InstanceStatus::running) << "no step runs without its stored state";
  EXPECT_FALSE(service::show_instance(stage_.by, stage_.stores(), {"order", "1"}));
}

TEST_F(DeploymentRun, 13_CollectionKeepsReferencedBlobs) {
  WorldStage stage({.snapshot_every = 3});
  ASSERT_TRUE(stage.apply());
  for (int i = 0; i < 8; ++i) {
    stage.place_order(1, "big");
    ASSERT_TRUE(stage.play());
  }
  const auto blobs = stage.deployments->blobs(1, WorldStage::kShop).value();
  EXPECT_LE(blobs.size(), 5U) << "old states were removed: a root, a node, a page, and at most two states remain";
  EXPECT_TRUE(stage.deployments->blob(1, WorldStage::kShop, stage.show(1).at("state_hash")));
  expect_fine(stage);
}

TEST_F(DeploymentRun, 13_ReplacedStateIsRemovedWithoutASnapshot) {
  WorldStage stage({.snapshot_every = 1'000'000, .min_collection_bytes = 300U << 10});
  ASSERT_TRUE(stage.apply());
  stage.place_order(2, "big");
  for (int i = 0; i < 20; ++i) {
    stage.place_order(1, "big");
    ASSERT_TRUE(stage.play());
    const auto blobs = stage.deployments->blobs(1, WorldStage::kShop).value();
    EXPECT_LE(blobs.size(), 7U) << "the blobs of two instances and of the latest writes: " << i;
    for (const int id : {1, 2})
      EXPECT_TRUE(stage.deployments->blob(1, WorldStage::kShop, stage.show(id).at("state_hash")));
  }
  expect_fine(stage);
}

TEST_F(DeploymentRun, 13_LeftoversOfADeadCoordinatorAreCollected) {
  WorldStage stage({.snapshot_every = 1'000'000, .min_collection_bytes = 1U << 30});
  ASSERT_TRUE(stage.apply());
  for (int i = 0; i < 6; ++i) {
    stage.place_order(1, "big");
    ASSERT_TRUE(stage.play());
  }
  EXPECT_GE(stage.deployments->blobs(1, WorldStage::kShop).value().size(), 5U) << "garbage collection has not run";
  stage.disturb({{stage.calls() + 1, WorldFate::killed_before}});
  stage.place_order(1, "big");
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(stage.deployments->blobs(1, WorldStage::kShop).value().size(), 1U);
  expect_fine(stage);
}

TEST_F(DeploymentRun, 13_StatesNamedByTheSnapshotAreKept) {
  WorldStage stage({.snapshot_every = 4, .min_collection_bytes = 100U << 10});
  ASSERT_TRUE(stage.apply());
  for (int i = 0; i < 8; ++i) {
    stage.place_order(1, "big");
    ASSERT_TRUE(stage.play());
    const DeploymentReadResult head = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
    if (head.snapshot_height == 0) continue;
    const auto snapshot = snapshot_in(stage);
    ASSERT_TRUE(snapshot) << i;
    const std::set<std::string> named = referenced_blobs(snapshot->deployment);
    EXPECT_EQ(named.size(), 1U);
    for (const std::string& hash : named) EXPECT_TRUE(stage.deployments->blob(1, WorldStage::kShop, hash)) << i;
  }
  EXPECT_GT(stage.deployments->read(1, WorldStage::kShop, 0, 0).value().snapshot_height, 0U);
}

// 100 instances of 60 KB each: the pages exceed the limit of a commit and are stored before the fact that names them. A
// coordinator killed between two pages leaves no partial snapshot and loses nothing.
TEST_F(DeploymentRun, 13_PagedSnapshotSurvivesAKillAtEachCommit) {
  constexpr int kMany = 100;
  const auto play = [this](const std::vector<WorldDisturbance>& disturbed) {
    WorldStage stage({.snapshot_every = 2 * kMany});
    stage.code = [](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
      StepOutput out = shop_step(spec, request);
      json state = decode_cbor(out.state.value()).value();
      state["bulk"] = std::string(60'000, 'x');
      out.state = encode_cbor(state).value();
      return out;
    };
    EXPECT_TRUE(stage.apply());
    for (int id = 1; id <= kMany; ++id) stage.place_order(id, "keep");
    stage.disturb(disturbed);
    EXPECT_TRUE(stage.play());
    const auto snapshot = snapshot_in(stage);
    EXPECT_TRUE(snapshot);
    EXPECT_EQ(stage.load_deployment().state().instances.size(), static_cast<std::size_t>(kMany));
    expect_fine(stage);
    const std::size_t pages = snapshot ? snapshot->pages.size() : 0;
    EXPECT_GE(pages, 5U);
    EXPECT_EQ(stage.deployments->blobs(1, WorldStage::kShop).value().size(), pages + 1)
        << "the remaining blobs were collected";
    return stage.calls();
  };
  const std::uint64_t calls = play({});
  for (std::uint64_t call = calls - 3; call <= calls; ++call) play({{call, WorldFate::killed_after}});
}

TEST_F(DeploymentRun, 13_OversizedDeploymentNeedsNoSnapshot) {
  WorldStage stage({.snapshot_every = 4, .max_snapshot_bytes = 100});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 6; ++id) stage.place_order(id, "job");
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(stage.deployments->read(1, WorldStage::kShop, 0, 0).value().snapshot_height, 0U);
  for (int id = 1; id <= 6; ++id) EXPECT_EQ(stage.status(id), "waiting");
  expect_fine(stage);
}

TEST_F(DeploymentRun, CommitIsBoundedByBytes) {
  std::set<std::uint64_t> moments[2];
  for (const bool bounded : {false, true}) {
    WorldStage stage(bounded ? DeploymentLimits{.max_commit_bytes = 200U << 10} : DeploymentLimits{});
    ASSERT_TRUE(stage.apply());
    for (int id = 1; id <= 12; ++id) stage.place_order(id, "big");
    for (int id = 1; id <= 12; ++id) stage.place_order(id, "big");
    ASSERT_TRUE(stage.play());
    for (int id = 1; id <= 12; ++id) EXPECT_EQ(stage.show(id).at("steps"), 2);
    expect_fine(stage);
    moments[bounded ? 1 : 0].insert(static_cast<std::uint64_t>(stage.calls_by_name["world_commit"]));
  }
  EXPECT_LE(*moments[0].begin(), 4U);
  EXPECT_GE(*moments[1].begin(), 8U) << "24 states of 80 KiB, at most 3 for each commit";
}

TEST_F(DeploymentRun, 14_ApplyIsRejectedWhileInstancesAreBusy) {
  json next = shop_manifest();
  next["description"] = "the next one";
  stage_.place_order(1, "keep");
  auto done = stage_.apply(next);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("1 event wait")) << "the error counts the events in the inbox";
  ASSERT_TRUE(stage_.play());
  stage_.place_order(2, "approval");
  ASSERT_TRUE(stage_.play());
  done = stage_.apply(next);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::conflict);
  EXPECT_THAT(done.error().message, HasSubstr("acme/order@1[2]: 1 intent in flight"));
  ASSERT_TRUE(service::answer_approval(stage_.by, stage_.stores(), {{"order", "2"}, "", true, ""}));
  ASSERT_TRUE(stage_.play());
  done = stage_.apply(next);
  ASSERT_TRUE(done) << done.error().message;
  stage_.place_order(3, "keep");
  stage_.place_order(1, "keep");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.show(3).at("manifest"), done->hash) << "new instances use the new code";
  EXPECT_EQ(stage_.show(1).at("manifest"), done->replaced) << "old intents keep the old manifest";
  expect_fine(stage_);
}

TEST_F(DeploymentRun, 16_IntentLinksStepJobAndReceipt) {
  stage_.place_order(1, "job");
  ASSERT_TRUE(stage_.play());
  const json rows = service::read_instance_timeline(stage_.by, stage_.stores(), {"order", "1"}).value();
  std::vector<std::string> kinds;
  for (const json& row : rows) kinds.push_back(row.at("kind"));
  EXPECT_THAT(kinds, ElementsAre("event", "step", "published", "receipt", "step"));
  EXPECT_EQ(rows[1].at("effects")[0].at("intent"), rows[2].at("intent"));
  EXPECT_EQ(rows[2].at("intent"), rows[3].at("intent"));
  EXPECT_EQ(rows[2].at("carrier"), "job:1:3");
}

class LostNotice : public DeploymentRun {
 protected:
  void lose_due() { stage_.server.run_command(1, {"DEL", "mj:deployments:due"}); }
  void pass_a_minute() {
    for (int i = 0; i < 62; ++i) stage_.step(1000);
  }
};

TEST_F(LostNotice, InboxEventIsFoundWithinAMinute) {
  stage_.step();
  stage_.place_order(1, "keep");
  lose_due();
  pass_a_minute();
  EXPECT_EQ(stage_.status(1), "waiting");
  expect_fine(stage_);
}

TEST_F(LostNotice, TimerStillFires) {
  stage_.place_order(1, "timer");
  stage_.step();
  lose_due();
  pass_a_minute();
  EXPECT_EQ(stage_.show(1).at("state").at("receipts").size(), 1U);
  expect_fine(stage_);
}

TEST_F(LostNotice, UnannouncedEndIsFound) {
  stage_.place_order(1, "job"), stage_.place_order(2, "job");
  stage_.coordinate(0);
  stage_.run_jobs();
  stage_.server.run_command(1, {"DEL", "mj:deployment-inbox:acme/shop@1"});
  lose_due();
  pass_a_minute();
  EXPECT_EQ(stage_.show(1).at("state").at("receipts").size(), 1U);
  EXPECT_EQ(stage_.show(2).at("state").at("receipts").size(), 1U);
  expect_fine(stage_);
}

TEST_F(LostNotice, DeploymentAddedDuringLeadershipIsFound) {
  stage_.step();
  json other = shop_manifest();
  other["name"] = "acme/other@1";
  ASSERT_TRUE(stage_.apply(other));
  stage_.clock.advance(1000);
  ASSERT_TRUE(service::send_event(stage_.by, stage_.stores(),
                                  {"acme/Placed@1", R"({"id": 1, "how": "keep"})", "acme/other@1"}));
  lose_due();
  pass_a_minute();
  pass_a_minute();
  EXPECT_EQ(LoadedDeployment::load(*stage_.deployments, 1, "acme/other@1").value().state().instances.size(), 1U);
}

TEST_F(LostNotice, RejectedReceiptIsNotedOnce) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", SigningKey::make().public_key()}}));
  stage_.place_order(1, "job");
  for (int i = 0; i < 5; ++i) stage_.step();
  const int once = kinds(stage_, "receipt_refused");
  EXPECT_GE(once, 1);
  for (int i = 0; i < 5; ++i) pass_a_minute();
  EXPECT_LE(kinds(stage_, "receipt_refused"), once + 1) << "the first check cannot detect the loss";
}

// The record had a different key than the one that the runner signs with; an operator repairs the record.
TEST_F(LostNotice, ReceiptIsAcceptedAfterItsKeyIsRepaired) {
  stage_.runner_key = std::make_shared<SigningKey>(SigningKey::make());
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", SigningKey::make().public_key()}}));
  stage_.place_order(1, "job");
  for (int i = 0; i < 5; ++i) stage_.step();
  for (int i = 0; i < 3; ++i) pass_a_minute();
  ASSERT_EQ(kinds(stage_, "receipt"), 0);
  ASSERT_GE(kinds(stage_, "receipt_refused"), 1);
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"pubkey", stage_.runner_key->public_key()}}));
  for (int i = 0; i < 3; ++i) pass_a_minute();
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
}

// The runner ran without its key for a while. The operator removes the key from the record until the unsigned ends have
// settled.
TEST_F(LostNotice, UnsignedReceiptIsAcceptedWithoutAKey) {
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", SigningKey::make().public_key()}}));
  stage_.place_order(1, "job");
  for (int i = 0; i < 5; ++i) stage_.step();
  for (int i = 0; i < 3; ++i) pass_a_minute();
  ASSERT_EQ(kinds(stage_, "receipt"), 0);
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"pubkey", ""}}));
  for (int i = 0; i < 3; ++i) pass_a_minute();
  EXPECT_EQ(kinds(stage_, "receipt"), 1);
}

TEST_F(LostNotice, IdlePollWritesNothing) {
  stage_.place_order(1, "keep"), stage_.place_order(2, "approval");
  ASSERT_TRUE(stage_.play());
  const std::uint64_t before = stage_.calls();
  for (int i = 0; i < 5; ++i) stage_.step(10000);
  EXPECT_EQ(stage_.calls(), before);
}

TEST_F(DeploymentRun, JobsOfAnEventAreInItsTrace) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", context = "00-" + trace + "-00f067aa0ba902b7-01";
  const auto place = [&](int id, const std::string& traceparent) {
    return service::send_event(stage_.by, stage_.stores(),
                               {"acme/Placed@1", dump_json({{"id", id}, {"how", "job"}}), "", {}, traceparent});
  };
  ASSERT_TRUE(place(1, context));
  ASSERT_TRUE(place(2, ""));
  ASSERT_TRUE(stage_.play());
  std::map<std::string, int> traces;
  for (int id = 3; id < 10; ++id) {
    const std::string job = "job:1:" + std::to_string(id);
    if (stage_.text({"EXISTS", job}) == "0" || stage_.text({"HGET", job, "name"}).empty()) continue;
    ++traces[stage_.text({"HGET", job, "traceparent"})];
  }
  EXPECT_EQ(traces[context], 1);
  EXPECT_EQ(traces[""], 1);
  EXPECT_EQ(place(3, "x").error().code, Code::invalid);
}

// A job, a job after its receipt, a timer, and then a flow: the next leader reads the trace from the record of the job
// or flow that performs the effect.
TEST_F(DeploymentRun, TraceContinuesUnderAnotherCoordinator) {
  const std::string context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  ASSERT_TRUE(service::send_event(stage_.by, stage_.stores(),
                                  {"acme/Placed@1", R"({"id": 1, "how": "all"})", "", {}, context}));
  stage_.coordinate(0);
  ASSERT_EQ(stage_.text({"HGET", "job:1:3", "name"}), "acme/pay@1");
  stage_.replace(0);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.text({"HGET", "job:1:4", "name"}), "acme/slow@1");
  EXPECT_EQ(stage_.text({"HGET", "job:1:4", "traceparent"}), context);
  EXPECT_EQ(stage_.text({"HGET", "flow:3", "traceparent"}), context);
}

TEST_F(DeploymentRun, TimelineIsReadBackwardsInPages) {
  stage_.place_order(1, "job");
  stage_.place_order(2, "job");
  ASSERT_TRUE(stage_.play());
  const service::InstanceReference order{"order", "1"};
  const json whole = service::read_instance_timeline(stage_.by, stage_.stores(), order).value();
  json met = json::array();
  std::uint64_t before = 0;
  for (int pages = 0; pages < 4; ++pages) {
    json page = service::read_instance_timeline(stage_.by, stage_.stores(), order, {2, before}).value();
    if (page.empty()) break;
    EXPECT_LE(page.size(), 2U);
    before = page.front().at("height");
    for (json& row : met) page.push_back(std::move(row));
    met = std::move(page);
  }
  EXPECT_EQ(met, whole);
}

// Every open page polls the waiting approvals.
TEST_F(DeploymentRun, ApprovalsAreCachedUntilTheyChange) {
  service::ApprovalCache cache;
  int loads = 0;
  const auto titles = [&] {
    loads = 0;
    stage_.server.set_faults([&loads](const ServerCall& call) {
      loads += call.name == "HGET" ? 1 : 0;  // a manifest, which every load of the approvals reads
      return Fault::none;
    });
    std::multiset<std::string> out;
    const auto waiting = service::list_waiting_approvals(*stage_.deployments, 1, 10, &cache).value();
    for (const auto& each : waiting) out.insert(each.key);
    stage_.server.set_faults([](const ServerCall&) { return Fault::none; });
    return out;
  };
  stage_.place_order(2, "approval");
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(titles(), ElementsAre("2"));
  EXPECT_GT(loads, 0);
  EXPECT_THAT(titles(), ElementsAre("2"));
  EXPECT_EQ(loads, 0) << "no change since the last load";
  stage_.place_order(1, "job");
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(titles(), ElementsAre("2"));
  EXPECT_EQ(loads, 0) << "no event has changed the deployment";
  stage_.place_order(3, "approval");
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(titles(), ElementsAre("2", "3"));
  ASSERT_TRUE(service::answer_approval(stage_.by, stage_.stores(), {{"order", "2"}, "", true, ""}));
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(titles(), ElementsAre("3"));
}

TEST_F(DeploymentRun, PaidOrderCancelsItsDeadline) {
  stage_.place_order(1, "stop");
  ASSERT_TRUE(stage_.play());
  const json order = stage_.show(1);
  EXPECT_TRUE(order.at("intents").empty()) << order.dump();
  std::vector<std::string> answer;
  for (const json& each : order.at("state").at("receipts"))
    answer.push_back(each.at("effect").get<std::string>() + ' ' + each.at("status").get<std::string>());
  EXPECT_THAT(answer,
              testing::UnorderedElementsAre("acme/pay@1 ok", "sys/timer@1 cancelled", "sys/approval@1 cancelled",
                                            "acme/never@1 cancelled", "sys/cancel@1 ok"));
  EXPECT_THAT(order.at("state").dump(), HasSubstr(R"("cancelled":2)"));
  json next = shop_manifest();
  next["description"] = "the next one";
  const auto done = stage_.apply(next);
  EXPECT_TRUE(done) << done.error().message;
  expect_fine(stage_);
}

TEST_F(DeploymentRun, EffectOfOneRunnerIsInItsQueue) {
  stage_.place_order(1, "here");
  for (int i = 0; i < 5; ++i) stage_.coordinate(0);
  EXPECT_EQ(stage_.server.run_command(1, {"LLEN", "mj:queue:runner7"}).number(), 1U);
  EXPECT_EQ(stage_.server.run_command(1, {"LLEN", "queue:python"}).number(), 0U);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.show(1).at("state").at("receipts")[0].at("status"), "ok");
  expect_fine(stage_);
}

TEST_F(DeploymentRun, EffectPolicyIsItsJobsPolicy) {
  stage_.place_order(1, "again");
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.text({"HGET", "job:1:3", "policy"}), R"({"memory":"64 MiB"})");
  stage_.place_order(2, "job");
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.text({"HGET", "job:1:4", "policy"}), "");
}

TEST_F(DeploymentRun, WorkflowReceivesAFailureAfterTheLastRetry) {
  stage_.place_order(1, "again");
  stage_.place_order(2, "slow");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.run_counts.at(R"(acme/again@1 {"id":1})"), 3) << "two retries";
  EXPECT_EQ(stage_.run_counts.at(R"(acme/slow@1 {"id":2})"), 1) << "no retry, because the manifest names none";
  EXPECT_EQ(kinds(stage_, "receipt"), 2) << "one receipt of each intent";
  EXPECT_EQ(stage_.show(1).at("state").at("receipts")[0].at("status"), "ok");
  EXPECT_EQ(stage_.show(2).at("state").at("receipts")[0].at("status"), "error");
  expect_fine(stage_);
}

TEST_F(DeploymentRun, ApprovalNeedsANamedActor) {
  stage_.place_order(1, "approval");
  ASSERT_TRUE(stage_.play());
  const service::RequestContext other{1, 12, EntryPoint::command, false};
  const auto denied = service::answer_approval(other, stage_.stores(), {{"order", "1"}, "", true, ""});
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, Code::denied);
  ASSERT_TRUE(service::answer_approval(stage_.by, stage_.stores(), {{"order", "1"}, "", false, "no"}));
  ASSERT_TRUE(service::answer_approval(stage_.by, stage_.stores(), {{"order", "1"}, "", true, "yes"}));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.show(1).at("state").at("receipts")[0].at("approved"), false) << "the first answer counts";
  const auto late = service::answer_approval(stage_.by, stage_.stores(), {{"order", "1"}, "", true, ""});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::not_found);
}

TEST_F(DeploymentRun, UnansweredApprovalTimesOut) {
  stage_.place_order(1, "approval");
  ASSERT_TRUE(stage_.play());
  for (int i = 0; i < 8; ++i) stage_.step(10000);
  EXPECT_EQ(stage_.show(1).at("state").at("receipts")[0].at("status"), "timeout");
}

TEST_F(DeploymentRun, FailedStepDelaysNoOther) {
  stage_.code = [](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    if (request.event.key == encode_cbor(1).value()) return fail(Code::unavailable, "its process died");
    return shop_step(spec, request);
  };
  stage_.place_order(1, "keep");
  stage_.place_order(2, "keep");
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.status(1), "running");
  EXPECT_EQ(stage_.status(2), "waiting");
  stage_.code = [](const WorkflowSpec& spec, const StepRequest& request) {
    return Result<StepOutput>(shop_step(spec, request));
  };
  for (int i = 0; i < 60; ++i) stage_.step(1000);
  EXPECT_EQ(stage_.status(1), "waiting");
}

// Runs rounds until the condition holds; steps run on their own threads.
void play_until(WorldStage& stage, const std::function<bool()>& is_so) {
  for (int i = 0; i < 20'000 && !is_so(); ++i) {
    stage.step(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The steps of one deployment hang; the instances of another deployment proceed.
TEST(DeploymentIsolation, SlowStepDelaysOnlyItsDeployment) {
  WorldStage stage({.step_wait_ms = 1});
  ASSERT_TRUE(stage.apply());
  json slow = shop_manifest();
  slow["name"] = "acme/slow@1";
  ASSERT_TRUE(stage.apply(slow, "return {'slow'}"));
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> is_slow{true};
  stage.code = [&](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    if (is_slow && request.event.key == encode_cbor(1).value()) released.wait();
    return shop_step(spec, request);
  };
  const auto place = [&](const char* deployment, int id) {
    return service::send_event(stage.by, stage.stores(),
                               {"acme/Placed@1", json{{"id", id}, {"how", "keep"}}.dump(), deployment});
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(place("acme/slow@1", 1));
  stage.step();
  ASSERT_TRUE(place("acme/slow@1", 1));
  for (int id = 2; id < 40; ++id) ASSERT_TRUE(place(WorldStage::kShop, id));
  const auto status_in = [&](const char* deployment, int id) {
    const LoadedDeployment loaded =
        LoadedDeployment::load(*stage.deployments, WorldStage::kContext, deployment).value();
    const InstanceState* cell = loaded.state().find_instance({"acme/order@1", encode_cbor(id).value()});
    return cell == nullptr ? "none" : std::string(to_string(cell->status()));
  };
  const auto all_wait = [&] {
    for (int id = 2; id < 40; ++id)
      if (status_in(WorldStage::kShop, id) != "waiting") return false;
    return true;
  };
  play_until(stage, all_wait);
  EXPECT_TRUE(all_wait());
  EXPECT_EQ(status_in("acme/slow@1", 1), "running");
  is_slow = false;
  release.set_value();
  play_until(stage, [&] { return status_in("acme/slow@1", 1) == "waiting"; });
  EXPECT_EQ(status_in("acme/slow@1", 1), "waiting");
  EXPECT_THAT(stage.find_violations(), IsEmpty());
}

// An instance that was cancelled during its step ignores the answer of the step.
TEST(DeploymentIsolation, CancelledInstanceStaysCancelled) {
  WorldStage stage({.step_wait_ms = 1});
  ASSERT_TRUE(stage.apply());
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> begun{0}, ended{0};
  stage.code = [&](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    ++begun;
    released.wait();
    ++ended;
    return shop_step(spec, request);
  };
  stage.place_order(1, "keep");
  play_until(stage, [&] { return begun > 0; });
  ASSERT_TRUE(service::cancel_instance(stage.by, stage.stores(), {"acme/order@1", "1"}, "enough"));
  play_until(stage, [&] { return stage.status(1) == "failed"; });
  EXPECT_EQ(stage.status(1), "failed");
  release.set_value();
  play_until(stage, [&] { return ended > 0; });
  for (int i = 0; i < 10; ++i) stage.step(1);
  EXPECT_EQ(stage.status(1), "failed");
  EXPECT_EQ(stage.show(1).at("steps"), 0) << stage.show(1);
}

TEST_F(DeploymentRun, EventWithALostReplyIsSentOnceByItsKey) {
  const auto send = [&](int id, const std::string& key) {
    service::SendEvent wanted{"Placed", json{{"id", id}, {"how", "job"}}.dump(), ""};
    wanted.idempotency_key = key;
    return service::send_event(stage_.by, stage_.stores(), wanted);
  };
  for (const Fault fault : {Fault::before, Fault::after}) {
    const int id = fault == Fault::before ? 1 : 2;
    int calls = 0;
    stage_.server.set_faults(
        [&](const ServerCall& call) { return call.name == "world_post" && ++calls <= 2 ? fault : Fault::none; });
    const std::string key = "order " + std::to_string(id);
    EXPECT_EQ(send(id, key).error().code, Code::unavailable);
    EXPECT_EQ(send(id, key).error().code, Code::unavailable) << "the event is sent twice";
    const auto sent = send(id, key);
    ASSERT_TRUE(sent) << sent.error().message;
    EXPECT_EQ(sent->repeated, fault == Fault::after);
    ASSERT_TRUE(stage_.play());
    EXPECT_EQ(send(id, key)->id, sent->id) << "the key finds the event after it was processed, too";
    stage_.server.set_faults(nullptr);
  }
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(kinds(stage_, "event"), 2);
  EXPECT_EQ(stage_.show(1).at("steps"), 2) << "the event and its receipt";
  const auto other = send(3, "order 1");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::conflict);
  const service::RequestContext someone{1, 12, EntryPoint::command, true};
  service::SendEvent wanted{"Placed", R"({"how": "keep", "id": 1})", ""};
  wanted.idempotency_key = "order 1";
  EXPECT_FALSE(service::send_event(someone, stage_.stores(), wanted)->repeated) << "a key belongs to its actor";
  EXPECT_EQ(send(1, "").error().code, Code::invalid);
  expect_fine(stage_);
}

TEST_F(DeploymentRun, FullInstanceRejectsEventsByName) {
  WorldStage stage({.max_inbox_events = 20});
  ASSERT_TRUE(stage.apply());
  bool stuck = true;
  stage.code = [&](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    if (stuck && request.event.key == encode_cbor(1).value()) return fail(Code::unavailable, "its process died");
    return shop_step(spec, request);
  };
  for (int i = 0; i < 30; ++i) stage.place_order(1, "keep");  // sent before the coordinator counts them
  stage.place_order(2, "keep");
  for (int i = 0; i < 3; ++i) stage.step();
  EXPECT_EQ(stage.deployments->read_inbox(1, WorldStage::kShop, 100).value().size(), 0U)
      << "no event blocks the others";
  EXPECT_EQ(stage.status(2), "waiting");
  const auto refused = stage.send("acme/Placed@1", {{"id", 1}, {"how", "keep"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::too_large);
  EXPECT_THAT(refused.error().message, HasSubstr("acme/order@1[1]"));
  EXPECT_TRUE(stage.send("acme/Placed@1", {{"id", 2}, {"how", "keep"}})) << "events of other senders are accepted";
  ASSERT_TRUE(stage.apply()->repeated);

  // The coordinator waits, and retries only when the failed step may be repeated.
  for (int i = 0; i < 3; ++i) stage.step();
  const int before = stage.calls_by_name["world_commit"];
  for (int i = 0; i < 100; ++i) stage.step(100);
  EXPECT_LE(stage.calls_by_name["world_commit"] - before, 6);

  stuck = false;
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(stage.show(1).at("steps"), 30) << "exactly the accepted events";
  EXPECT_TRUE(stage.send("acme/Placed@1", {{"id", 1}, {"how", "keep"}})) << "the deployment accepts events again";
  ASSERT_TRUE(stage.play());
  expect_fine(stage);
}

TEST_F(DeploymentRun, InvalidEventIsRejectedWithoutDelayingOthers) {
  const std::string large = json{{"id", 1}, {"how", std::string(5U << 20, 'x')}}.dump();
  ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "event", {{"schema", "acme/Placed@1"}, {"value", large}}));
  stage_.place_order(2, "keep");
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.status(1), "none");
  EXPECT_EQ(stage_.status(2), "waiting");
}

TEST_F(DeploymentRun, UnreadableDeploymentDelaysNoOther) {
  json other = shop_manifest();
  other["name"] = "acme/other@1";
  ASSERT_TRUE(stage_.apply(other));
  stage_.server.run_command(1, {"XADD", "mj:deployment:acme/other@1", "2-0", "f", "nonsense"});
  ASSERT_TRUE(stage_.deployments->post(1, "acme/other@1", "event", {{"schema", "x"}}));
  const auto sent =
      service::send_event(stage_.by, stage_.stores(), {"acme/Placed@1", R"({"id": 1, "how": "keep"})", "acme/shop@1"});
  ASSERT_TRUE(sent) << sent.error().message;
  for (int i = 0; i < 5; ++i) stage_.step();
  EXPECT_EQ(stage_.status(1), "waiting");
}

TEST_F(DeploymentRun, ExplainNamesTheEffectsOfAWaitingInstance) {
  const auto cause = [&](int id) {
    return service::explain_instance(stage_.by, stage_.stores(), {"order", std::to_string(id)}, "here")
        .value()[0]
        .at("cause")
        .get<std::string>();
  };
  EXPECT_EQ(cause(9), "none");
  stage_.place_order(1, "approval");
  stage_.place_order(2, "keep");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(cause(1), "approval");
  EXPECT_EQ(cause(2), "event");
  const auto alone = service::explain_instance(stage_.by, stage_.stores(), {"order", "1"}, "").value();
  EXPECT_EQ(alone[0].at("cause"), "no_coordinator");
  const auto approval = service::explain_instance(stage_.by, stage_.stores(), {"order", "1"}, "here").value();
  EXPECT_EQ(approval[0].at("next"), "`mycojobs workflow approve acme/order@1 1 --actor 1`, or `reject`");
}

TEST_F(DeploymentRun, ExplainReportsAnEventInTheInbox) {
  stage_.place_order(8, "keep");
  stage_.place_order(9, "keep");
  auto why = service::explain_instance(stage_.by, stage_.stores(), {"order", "9"}, "here").value();
  ASSERT_EQ(why.size(), 1U) << why.dump();
  EXPECT_EQ(why[0].at("cause"), "inbox");
  EXPECT_EQ(why[0].at("reason"), "1 event for it in the inbox, not taken by a coordinator yet; for others: 1");
  EXPECT_THAT(why[0].at("evidence")[0].get<std::string>(), testing::StartsWith("event acme/Placed@1 "));
  why = service::explain_instance(stage_.by, stage_.stores(), {"order", "9"}, "").value();
  EXPECT_EQ(why[0].at("cause"), "no_coordinator");
  EXPECT_EQ(why[1].at("cause"), "inbox");
  why = service::explain_instance(stage_.by, stage_.stores(), {"order", "10"}, "").value();
  EXPECT_EQ(why[0].at("cause"), "none");
  EXPECT_THAT(why[0].at("next").get<std::string>(), HasSubstr("timeline acme/order@1 10"));
  ASSERT_TRUE(stage_.play());
  why = service::explain_instance(stage_.by, stage_.stores(), {"order", "9"}, "here").value();
  EXPECT_EQ(why[0].at("cause"), "event");
}

TEST_F(DeploymentRun, InstanceIsCancelledWithItsRunningJobs) {
  stage_.place_order(1, "hold");
  stage_.place_order(2, "hold");
  stage_.place_order(3, "keep");
  for (int i = 0; i < 20; ++i) stage_.step();
  ASSERT_EQ(stage_.show(1).at("intents").size(), 3U);
  const auto cancel = [&](const char* key) {
    return service::cancel_instance(stage_.by, stage_.stores(), {"order", key}, "the customer has called");
  };
  ASSERT_TRUE(cancel("1"));
  ASSERT_TRUE(cancel("1")) << "the job has not ended yet; a second cancel changes nothing";
  for (int i = 0; i < 20; ++i) stage_.step();
  EXPECT_EQ(stage_.show(1).at("failure"), "cancelled");
  EXPECT_EQ(stage_.show(1).at("message"), "by actor:1: the customer has called");
  EXPECT_THAT(stage_.outcome(), HasSubstr("flow gate error cancelled\n"));
  EXPECT_THAT(stage_.outcome(), HasSubstr("job of nobody dispatched queued\njob of nobody error cancelled\n"));
  const auto again = cancel("1");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::conflict);
  EXPECT_THAT(again.error().message, HasSubstr("has ended: it is failed"));
  EXPECT_EQ(cancel("9").error().code, Code::not_found);
  EXPECT_FALSE(service::cancel_instance(stage_.by, stage_.stores(), {"order", "2"}, std::string(5000, 'x')));
  const auto why = service::explain_instance(stage_.by, stage_.stores(), {"order", "1"}, "here").value();
  EXPECT_THAT(why[0].at("next").get<std::string>(), testing::StartsWith("`mycojobs workflow remove"));
  EXPECT_EQ(stage_.show(2).at("intents").size(), 3U) << "another deployment continues";
  ASSERT_TRUE(cancel("2"));
  ASSERT_TRUE(cancel("3"));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.status(3), "failed");
  expect_fine(stage_);
}

TEST_F(DeploymentRun, FailedInstanceIsRemovedByItsOperator) {
  stage_.code = [](const WorkflowSpec&, const StepRequest&) -> Result<StepOutput> {
    StepOutput output;
    output.effects.push_back({"acme/undeclared@1", encode_cbor(json::object()).value(), 0, ""});
    return output;
  };
  stage_.place_order(1, "keep");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.status(1), "failed");
  ASSERT_TRUE(service::remove_instance(stage_.by, stage_.stores(), {"order", "1"}));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.status(1), "none");
}

TEST(CoordinatorPair, TwoCoordinatorsDoEverythingOnce) {
  WorldStage stage({.snapshot_every = 10, .max_inbox_entries = 3, .max_steps = 3}, 2);
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 12; ++id) stage.place_order(id, id % 3 == 0 ? "all" : id % 3 == 1 ? "job" : "chat");
  ASSERT_TRUE(stage.play());
  EXPECT_THAT(stage.find_violations(), IsEmpty());
  EXPECT_EQ(stage.status(3), "waiting");
}

}  // namespace
}  // namespace mycojobs
