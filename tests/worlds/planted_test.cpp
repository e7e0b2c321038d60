// A plain client plants each kind of damage to a deployment. `verify` reports exactly that damage; a rebuild fixes it
// if the journal allows, and otherwise reports that it cannot.
#include <gmock/gmock.h>

#include <set>

#include "base/sha256.h"
#include "inspect/verify/deployment_verify.h"
#include "text/cbor.h"
#include "workflows/workflow_snapshot.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Instance 1 waits for a job that no runner has taken, 2 for a timer, 3 for an approval, 4 for an event; 5 has a long
// state.
class DeploymentFindings : public testing::Test {
 protected:
  static constexpr const char* kHead = "mj:deployment-head:acme/shop@1";
  static constexpr const char* kJournal = "mj:deployment:acme/shop@1";
  static constexpr const char* kBlobs = "mj:deployment-blobs:acme/shop@1";
  static constexpr const char* kInbox = "mj:deployment-inbox:acme/shop@1";

  void SetUp() override {
    ASSERT_TRUE(stage_.apply());
    stage_.place_order(2, "timer");
    stage_.place_order(3, "approval");
    stage_.place_order(4, "keep");
    stage_.place_order(5, "big");
    for (int i = 0; i < 3; ++i) stage_.step();
    stage_.place_order(1, "job");
    for (int i = 0; i < 5; ++i) stage_.coordinate(0);  // no runner takes the job
    job_ = stage_.show(1).at("intents")[0].at("carrier");
    ASSERT_THAT(found(), IsEmpty());
  }
  Reply run_command(const std::vector<std::string>& words) { return stage_.server.run_command(1, words); }
  std::set<std::string> found() {
    std::set<std::string> rules;
    const auto all = verify_deployments(*stage_.deployments, *stage_.store, 1);
    EXPECT_TRUE(all) << all.error().message;
    texts_.clear();
    for (const Finding& each : all.value_or(std::vector<Finding>())) {
      rules.insert(each.rule);
      texts_ += each.rule + ": " + each.text + '\n';
    }
    return rules;
  }
  std::vector<std::string> rebuild(bool dry_run = false) {
    return rebuild_deployments(*stage_.deployments, *stage_.store, 1, dry_run).value();
  }
  // Exactly this rule is reported, and no rule is reported after a rebuild.
  void mends(const std::string& rule) {
    EXPECT_EQ(found(), std::set<std::string>{rule}) << texts_;
    EXPECT_FALSE(rebuild(true).empty());
    EXPECT_EQ(found(), std::set<std::string>{rule}) << "a dry run repairs nothing";
    EXPECT_FALSE(rebuild().empty());
    EXPECT_THAT(found(), IsEmpty()) << texts_;
    EXPECT_THAT(rebuild(), IsEmpty()) << "a second rebuild changes nothing";
  }
  void cannot_mend(const std::string& rule, const std::string& text) {
    EXPECT_EQ(found(), std::set<std::string>{rule}) << texts_;
    EXPECT_THAT(texts_, HasSubstr(text));
    const auto shown = rebuild();
    ASSERT_EQ(shown.size(), 1U);
    EXPECT_THAT(shown[0], HasSubstr("(cannot be repaired)"));
    EXPECT_EQ(found(), std::set<std::string>{rule});
  }
  // The deployment proceeds as if undamaged: the job's receipt arrives, and no work is left.
  void expect_goes_on(const std::string& status) {
    EXPECT_TRUE(stage_.play());
    EXPECT_EQ(stage_.show(1).at("state").at("receipts")[0].at("status"), status);
  }

  WorldStage stage_{{.snapshot_every = 5}};
  std::string job_, texts_;
};

TEST_F(DeploymentFindings, FindsAMissingFact) {
  run_command({"XDEL", kJournal, "3-0"});
  cannot_mend("deployment-journal", "workflow-height");
}
TEST_F(DeploymentFindings, FindsMissingFirstFacts) {
  run_command({"XTRIM", kJournal, "MINID", "5"});
  cannot_mend("deployment-journal", "the next height is 1");
}
TEST_F(DeploymentFindings, FindsAnInvalidFact) {
  const std::string next = std::to_string(stage_.load_deployment().state().height + 1);
  run_command({"XADD", kJournal, next + "-0", "f", "nonsense"});
  cannot_mend("deployment-journal", "height " + next + " is not a valid fact");
}
TEST_F(DeploymentFindings, FindsAnInconsistentFact) {
  const WorkflowFact fact{stage_.load_deployment().state().height + 1, 1,
                          InstanceCompleted{{"acme/order@1", encode_cbor(4).value()}}};
  run_command({"XADD", kJournal, std::to_string(fact.height) + "-0", "f", encode(fact).value()});
  cannot_mend("deployment-journal", "workflow-state");
}
TEST_F(DeploymentFindings, FindsAJournalOfAnotherType) {
  run_command({"DEL", kJournal});
  run_command({"SET", kJournal, "x"});
  EXPECT_EQ(found(), std::set<std::string>{"deployment-journal"}) << texts_;
  EXPECT_THAT(texts_, HasSubstr("where a stream belongs"));
}
TEST_F(DeploymentFindings, FindsAMissingHead) {
  run_command({"HDEL", kHead, "manifest"});
  mends("deployment-index");
}
TEST_F(DeploymentFindings, FindsAHeadOfAnotherDeployment) {
  run_command({"HSET", kHead, "manifest", std::string(64, 'a')});
  mends("deployment-index");
  EXPECT_TRUE(stage_.apply()->repeated);
}
TEST_F(DeploymentFindings, FindsAnUnlistedDeployment) {
  run_command({"SREM", "mj:deployments", WorldStage::kShop});
  mends("deployment-index");
  EXPECT_EQ(stage_.deployments->list_deployments(1)->size(), 1U);
}
TEST_F(DeploymentFindings, FindsAnInstanceWronglyMarkedFull) {
  run_command({"SADD", "mj:deployment-full:acme/shop@1", store_name({"acme/order@1", encode_cbor(4).value()})});
  EXPECT_FALSE(stage_.send("acme/Placed@1", {{"id", 4}, {"how", "keep"}}));
  mends("deployment-index");
  EXPECT_TRUE(stage_.send("acme/Placed@1", {{"id", 4}, {"how", "keep"}}));
}
TEST_F(DeploymentFindings, FindsAMissingSnapshot) {
  const DeploymentReadResult head = stage_.deployments->read(1, WorldStage::kShop, 0, 0).value();
  ASSERT_GT(head.snapshot_height, 0U);
  run_command({"HDEL", kBlobs, head.snapshot});
  mends("deployment-snapshot");
  expect_goes_on("ok");
}
TEST_F(DeploymentFindings, FindsAnInvalidSnapshot) {
  const DeploymentReadResult head = stage_.deployments->read(1, WorldStage::kShop, 0, 0).value();
  run_command({"HSET", kBlobs, head.snapshot, "something else"});
  mends("deployment-snapshot");
}
TEST_F(DeploymentFindings, FindsASnapshotWithoutOneOfItsPages) {
  const DeploymentReadResult head = stage_.deployments->read(1, WorldStage::kShop, 0, 0).value();
  const auto read = [&](const std::string& hash) { return stage_.deployments->blob(1, WorldStage::kShop, hash); };
  run_command({"HDEL", kBlobs, *read_snapshot(head.snapshot, read)->pages.begin()});
  mends("deployment-snapshot");
}
TEST_F(DeploymentFindings, FindsASnapshotOfAnotherDeployment) {
  const DeploymentReadResult head = stage_.deployments->read(1, WorldStage::kShop, 0, 0).value();
  const auto read = [&](const std::string& hash) { return stage_.deployments->blob(1, WorldStage::kShop, hash); };
  DeploymentState other = read_snapshot(head.snapshot, read).value().deployment;
  other.refused_receipts = 7;
  const DeploymentSnapshot made = build_snapshot(other).value();
  for (const WorkflowBlob& page : made.pages) run_command({"HSET", kBlobs, page.hash, page.bytes});
  run_command({"HSET", kBlobs, made.root.hash, made.root.bytes});
  run_command({"HSET", kHead, "hash", made.root.hash});
  EXPECT_EQ(stage_.load_deployment().state().refused_receipts, 7U) << "a loader accepts the stored value";
  mends("deployment-snapshot");
  EXPECT_EQ(stage_.load_deployment().state().refused_receipts, 0U);
}
TEST_F(DeploymentFindings, FindsAMissingState) {
  run_command({"HDEL", kBlobs, stage_.show(5).at("state_hash")});
  cannot_mend("deployment-blob", "acme/order@1[5]");
}
TEST_F(DeploymentFindings, FindsAWrongState) {
  run_command({"HSET", kBlobs, stage_.show(5).at("state_hash"), "x"});
  cannot_mend("deployment-blob", "does not have the content of its hash");
}
TEST_F(DeploymentFindings, FindsAMissingManifest) {
  run_command({"DEL", "mj:deployment-manifests:acme/shop@1"});
  cannot_mend("deployment-manifest", "does not exist");
  ASSERT_TRUE(stage_.apply()) << "apply the remedy of the finding";
  EXPECT_THAT(found(), IsEmpty()) << texts_;
}
TEST_F(DeploymentFindings, FindsAWrongManifest) {
  const std::string hash = stage_.deployments->read(1, WorldStage::kShop, 0, 0)->manifest;
  run_command({"HSET", "mj:deployment-manifests:acme/shop@1", hash, "{}"});
  cannot_mend("deployment-manifest", "cannot be read");
}
TEST_F(DeploymentFindings, FindsAnUnreportedEnd) {
  for (int i = 0; i < 3; ++i) stage_.run_jobs();
  run_command({"DEL", kInbox});
  mends("deployment-event-missing");
  expect_goes_on("ok");
}
TEST_F(DeploymentFindings, FindsAMissingJob) {
  run_command({"DEL", job_});
  EXPECT_EQ(found(), std::set<std::string>{"deployment-effect"}) << texts_;
  EXPECT_FALSE(rebuild().empty());
  expect_goes_on("error");
  EXPECT_THAT(found(), IsEmpty()) << texts_;
}
TEST_F(DeploymentFindings, FindsAJobWithoutItsOrigin) {
  run_command({"HDEL", job_, "effect_of"});
  mends("deployment-effect");
  expect_goes_on("ok");
}
TEST_F(DeploymentFindings, FindsAJobOfAnotherIntent) {
  run_command({"HSET", job_, "idempotency_key", "intent " + std::string(64, 'a')});
  cannot_mend("deployment-effect", "carries another intent");
}
TEST_F(DeploymentFindings, FindsAnUnscheduledTimer) {
  run_command({"ZREM", "mj:deployments:due", WorldStage::kShop});
  mends("deployment-due");
  stage_.clock.advance(6000);
  for (int i = 0; i < 5; ++i) stage_.step();
  EXPECT_EQ(stage_.show(2).at("state").at("receipts")[0].at("effect"), "sys/timer@1");
}
TEST_F(DeploymentFindings, FindsAnUnscheduledInbox) {
  stage_.place_order(6, "keep");
  run_command({"ZREM", "mj:deployments:due", WorldStage::kShop});
  mends("deployment-due");
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_EQ(stage_.status(6), "waiting");
}
TEST_F(DeploymentFindings, FindsAnEmptyEntry) {
  ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "nonsense", {{"a", "b"}}));
  EXPECT_EQ(found(), std::set<std::string>{"deployment-inbox"}) << texts_;
  EXPECT_THAT(rebuild(), IsEmpty()) << "only a note, because the coordinator removes the entry";
  for (int i = 0; i < 3; ++i) stage_.step();
  EXPECT_THAT(found(), IsEmpty()) << texts_;
}
TEST_F(DeploymentFindings, RejectedReceiptIsNoFinding) {
  ASSERT_TRUE(stage_.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", SigningKey::make().public_key()}}));
  for (int i = 0; i < 5; ++i) stage_.step();
  EXPECT_EQ(stage_.show(1).at("refused"), 1);
  EXPECT_THAT(found(), IsEmpty()) << texts_;
}

}  // namespace
}  // namespace mycojobs
