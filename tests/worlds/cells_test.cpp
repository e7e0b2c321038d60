// Deployments with more cells than the cache: the same history with every size of the cache, after restarts, and for
// deployments that an earlier version of the program has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <random>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "text/cbor.h"
#include "workflows/workflow_snapshot.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using nlohmann::json;

class DeploymentCells : public testing::Test {
 protected:
  static LoadOptions with_cache(std::size_t cells) {
    LoadOptions options;
    options.cache.max_cells = cells;
    return options;
  }
  static LoadedDeployment load(WorldStage& stage, std::size_t cells) {
    return LoadedDeployment::load(*stage.deployments, 1, WorldStage::kShop, with_cache(cells)).value();
  }
  static std::size_t count_idle(const LoadedDeployment& deployment) {
    std::size_t idle = 0;
    for (const auto& [id, instance] : deployment.state().instances) idle += is_idle(instance) ? 1 : 0;
    return idle;
  }

  // The history of a scripted deployment: its facts, and the root of each snapshot.
  struct History {
    std::vector<std::string> facts, roots;
    bool operator==(const History&) const = default;
  };
  // Delivers events to random cells and executes their steps. Commits, snapshots and restarts are at the same heights
  // for every size of the cache.
  static History run_script(std::size_t max_cells, unsigned seed) {
    WorldStage stage;
    EXPECT_TRUE(stage.apply());
    std::mt19937 random(seed);
    const auto number = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    std::uint64_t time = 1000;
    const auto sample = [&] { return Sample{++time, std::string(32, static_cast<char>(time % 251))}; };
    std::optional<LoadedDeployment> deployment = load(stage, max_cells);
    History history;
    std::set<int> closable, timed;
    for (int round = 0; round < 60; ++round) {
      for (int i = number(8); i >= 0; --i) {
        const int id = 1 + number(40);
        const char* kHows[] = {"keep", "keep", "big", "chat", "timer"};
        const char* how = kHows[number(5)];
        // An order that waits for a timer is not closed, since its code needs the state when the receipt arrives.
        const bool closes = number(6) == 0 && closable.contains(id);
        if (how == std::string("timer")) closable.erase(id), timed.insert(id);
        if (closes)
          closable.erase(id);
        else if (!timed.contains(id))
          closable.insert(id);
        const json value = closes ? json{{"id", id}} : json{{"id", id}, {"how", how}};
        EXPECT_TRUE(
            deployment->decide({sample(), EventArrived{closes ? "acme/Closed@1" : "acme/Placed@1", value.dump()}}));
      }
      while (!deployment->state().ready_instances.empty()) run_next_step(stage, *deployment, sample());
      const auto unpublished = deployment->index().unpublished_intents();
      for (const auto& [order, intent] : unpublished)
        EXPECT_TRUE(deployment->decide({sample(), EffectDispatched{intent, kTimerEffectRef}}));
      if (number(2) == 0 && !deployment->index().timers().empty()) {
        ReceiptArrived receipt;
        receipt.intent = deployment->index().timers().begin()->second;
        receipt.payload = json{{"fired_ms", time}}.dump();
        EXPECT_TRUE(deployment->decide({sample(), receipt}));
        while (!deployment->state().ready_instances.empty()) run_next_step(stage, *deployment, sample());
      }
      if (round % 5 == 4) {
        EXPECT_TRUE(deployment->decide({sample(), TakeSnapshot{}}));
      }
      EXPECT_TRUE(deployment->commit(*stage.deployments, 0));
      EXPECT_LE(count_idle(*deployment), 2 * max_cells + 8) << "the limit of two workflows, and long new states";
      if (round % 7 == 6) deployment = load(stage, max_cells);
    }
    for (const WorkflowFact& fact : stage.journal()) {
      history.facts.push_back(encode(fact).value());
      if (const auto* taken = std::get_if<SnapshotTaken>(&fact.content)) history.roots.push_back(taken->hash);
    }
    const DeploymentState again = stage.load_deployment(true).state();
    EXPECT_TRUE(stage.load_deployment().state() == again) << "the snapshot and the journal agree";
    EXPECT_TRUE(deployment->load_all_cells());
    EXPECT_TRUE(deployment->state() == again) << "the deployment in memory and the journal agree";
    std::map<std::string, std::map<std::string, CellCounts>> counts;
    for (const auto& [id, instance] : again.instances)
      ++counts[id.workflow][instance.manifest][static_cast<std::size_t>(instance.status())];
    EXPECT_EQ(deployment->cell_counts(), counts);
    EXPECT_EQ(stage.load_deployment().cell_counts(), counts);
    EXPECT_GT(again.instances.size(), 20U);
    return history;
  }
  static void run_next_step(WorldStage& stage, LoadedDeployment& deployment, const Sample& sample) {
    const InstanceId id = next_instances(deployment.state(), 1).at(0);
    const InstanceState& instance = *deployment.state().find_instance(id);
    const InboxEventId event = instance.inbox.front().id;
    const WorkflowSpec& spec = *deployment.catalog().find(instance.manifest)->workflow(id.workflow);
    const auto request = deployment.build_step_request(*stage.deployments, id);
    ASSERT_TRUE(request) << request.error().message;
    ASSERT_TRUE(deployment.decide({sample, StepCompleted{id, event, shop_step(spec, *request)}}));
  }
};

TEST_F(DeploymentCells, HistoryIsTheSameWithEachSizeOfTheCache) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    const History expected = run_script(4096, seed);
    EXPECT_EQ(expected.roots.size(), 12U);
    for (const std::size_t cells : {1U, 7U}) {
      const History history = run_script(cells, seed);
      EXPECT_TRUE(history.facts == expected.facts) << cells << " cells, seed " << seed;
      EXPECT_EQ(history.roots, expected.roots) << cells << " cells, seed " << seed;
    }
  }
}

TEST_F(DeploymentCells, OutcomeIsTheSameWithEachSizeOfTheCache) {
  std::string expected;
  for (const auto& [cells, in_background] : {std::pair(4096U, false), std::pair(7U, false), std::pair(1U, false),
                                             std::pair(7U, true), std::pair(1U, true)}) {
    DeploymentLimits limits{.snapshot_every = 10, .max_inbox_entries = 5, .max_steps = 5};
    limits.cell_cache.max_cells = cells;
    WorldStage stage(limits);
    stage.reads_cells_in_background = in_background;
    stage.replace(0);
    ASSERT_TRUE(stage.apply());
    for (int round = 0; round < 4; ++round) {
      for (int id = 1; id <= 20; ++id) stage.place_order(id, id % 3 == 0 ? "job" : id % 3 == 1 ? "keep" : "big");
      ASSERT_TRUE(stage.play(3000)) << cells;
      if (round == 2) stage.replace(0);
    }
    if (expected.empty()) expected = stage.outcome();
    EXPECT_EQ(stage.outcome(), expected) << cells;
    EXPECT_THAT(stage.find_violations(), testing::IsEmpty()) << cells;
  }
}

// Two deployments of one owner: the steps of the busy one delay the other by one commit.
TEST_F(DeploymentCells, BusyDeploymentDelaysAnotherByOneCommit) {
  constexpr int kMaxSteps = 10, kOther = 9999;
  WorldStage stage({.max_inbox_entries = kMaxSteps, .max_steps = kMaxSteps});
  json other = shop_manifest();
  other["name"] = "acme/second@1";
  ASSERT_TRUE(stage.apply());
  ASSERT_TRUE(stage.apply(other));
  std::atomic<int> steps{0}, steps_before{-1};
  const std::string other_key = encode_cbor(kOther).value();
  stage.code = [&](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    if (request.event.key == other_key)
      steps_before = steps.load();
    else
      ++steps;
    return shop_step(spec, request);
  };
  const auto post = [&](const std::string& deployment, int id) {
    const Fields fields{
        {"schema", "acme/Placed@1"}, {"value", json{{"id", id}, {"how", "keep"}}.dump()}, {"source", "actor:1"}};
    ASSERT_TRUE(stage.deployments->post(1, deployment, "event", fields));
  };
  for (int id = 1; id <= 300; ++id) post(WorldStage::kShop, id);
  post("acme/second@1", kOther);
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(steps, 300);
  EXPECT_GE(steps_before, 0);
  EXPECT_LE(steps_before, 2 * kMaxSteps) << "one commit, and the steps that were started in it";
}

TEST_F(DeploymentCells, IdleCellsAreReadWhenTheyAreNeeded) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 100; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  stage.place_order(7, "keep");
  ASSERT_TRUE(stage.play());
  LoadedDeployment deployment = load(stage, 4096);
  EXPECT_LE(deployment.state().instances.size(), 5U) << "only cells that changed after the snapshot";
  EXPECT_NE(deployment.find_instance({"acme/order@1", encode_cbor(50).value()}).value(), nullptr);
  EXPECT_EQ(deployment.find_instance({"acme/order@1", encode_cbor(500).value()}).value(), nullptr);
  EXPECT_EQ(stage.show(7).at("steps"), 2);
  EXPECT_EQ(stage.show(50).at("steps"), 1);
  EXPECT_TRUE(stage.show(101).is_null());
  const json rows = service::list_workflows(stage.by, stage.stores()).value();
  const auto orders =
      std::find_if(rows.begin(), rows.end(), [](const json& row) { return row.at("workflow") == "acme/order@1"; });
  ASSERT_NE(orders, rows.end());
  EXPECT_EQ(orders->at("instances").at("waiting"), 100);
}

TEST_F(DeploymentCells, ReaderOfACellReadsNoFactsOfOtherCells) {
  WorldStage stage({.snapshot_every = 200});
  ASSERT_TRUE(stage.apply());
  for (int round = 0; round < 3; ++round)
    for (int id = 1; id <= 40; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  for (int id = 1; id <= 40; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  const std::string name = store_name({"acme/order@1", encode_cbor(7).value()});
  const InstanceFacts read = stage.deployments->read_instance_facts(1, WorldStage::kShop, name).value();
  EXPECT_GT(read.snapshot_height, 0U);
  EXPECT_GT(read.height, read.snapshot_height + 20) << "there are later facts of other cells";
  EXPECT_LE(read.facts.size(), 2U);
  const std::vector<json> expected = [&] {
    std::vector<json> shown;
    for (int id = 1; id <= 40; ++id) shown.push_back(stage.show(id));
    return shown;
  }();
  EXPECT_EQ(expected[6].at("steps"), 4);
  stage.server.run_command(1, {"DEL", "mj:deployment-changes:acme/shop@1"});
  for (int id = 1; id <= 40; ++id) EXPECT_EQ(stage.show(id), expected[static_cast<std::size_t>(id - 1)]) << id;
}

TEST_F(DeploymentCells, ListIsReadPageByPage) {
  WorldStage stage({.snapshot_every = 50});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 60; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  for (int id : {3, 61, 62}) stage.place_order(id, id == 62 ? "timer" : "keep");
  ASSERT_TRUE(stage.send("acme/Closed@1", {{"id", 5}}));
  ASSERT_TRUE(stage.play());
  service::ListInstances request{"acme/order@1", "", 7};
  std::vector<json> keys;
  for (;;) {
    const json rows = service::list_instances(stage.by, stage.stores(), request).value();
    for (const json& row : rows) keys.push_back(row.at("key"));
    if (rows.size() < request.limit) break;
    request.after = rows.back().at("cursor");
  }
  std::vector<json> expected;
  for (int id = 1; id <= 62; ++id)
    if (id != 5) expected.emplace_back(id);
  EXPECT_EQ(keys, expected);
  request = {"acme/order@1", "failed", 100};
  EXPECT_EQ(service::list_instances(stage.by, stage.stores(), request)->size(), 0U);
  for (const char* cursor : {"acme/ledger@1 07", "acme/order@1 0g", "acme/order@1", "acme/order@1 0A"}) {
    const auto rows = service::list_instances(stage.by, stage.stores(), {"acme/order@1", "", 100, cursor});
    ASSERT_FALSE(rows) << cursor;
    EXPECT_EQ(rows.error().code, Code::invalid) << cursor;
    EXPECT_THAT(rows.error().message, testing::StartsWith("after: "));
  }
}

// A deployment with a latest snapshot in the form of earlier versions.
TEST_F(DeploymentCells, SnapshotOfAnEarlierVersionIsCarriedOver) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, id % 10 == 0 ? "big" : "keep");
  ASSERT_TRUE(stage.play());
  const DeploymentReadResult head = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
  const auto read = [&](const std::string& hash) { return stage.deployments->blob(1, WorldStage::kShop, hash); };
  const DeploymentState state = read_snapshot(head.snapshot, read).value().deployment;
  json pages = json::array();
  const auto put = [&](const std::string& bytes) {
    stage.server.run_command(1, {"HSET", "mj:deployment-blobs:acme/shop@1", sha256_hex(bytes), bytes});
    return sha256_hex(bytes);
  };
  for (const auto& [id, instance] : state.instances) {
    DeploymentState page;
    page.id = state.id;
    page.instances[id] = instance;
    pages.push_back(put(encode(page).value()));
  }
  DeploymentState without_cells = state;
  without_cells.instances.clear();
  const std::string bytes = encode(without_cells).value();
  const json root{
      {"version", 2}, {"head", json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()))}, {"pages", pages}};
  stage.server.run_command(1, {"HSET", "mj:deployment-head:acme/shop@1", "hash", put(encode_cbor(root).value())});
  const DeploymentState before = stage.load_deployment(true).state();
  EXPECT_TRUE(stage.load_deployment().state() == before) << "it is read";
  stage.replace(0);
  stage.place_order(7, "keep");
  ASSERT_TRUE(stage.play());
  const DeploymentReadResult after = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
  ASSERT_NE(after.snapshot, head.snapshot);
  EXPECT_FALSE(read_snapshot_root(after.snapshot, read(after.snapshot).value())->has_pages) << "it is carried over";
  EXPECT_TRUE(stage.load_deployment().state() == stage.load_deployment(true).state());
  EXPECT_EQ(stage.show(7).at("steps"), 2);
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
  const std::size_t blobs = stage.deployments->blobs(1, WorldStage::kShop)->size();
  EXPECT_EQ(blobs, read_snapshot(after.snapshot, read)->pages.size() + 1 + 3) << "the old pages were collected";
}

// An index without a salt, as an earlier version wrote it, is replaced by an index with a salt.
TEST_F(DeploymentCells, NextSnapshotAddsTheSalt) {
  WorldStage stage({.snapshot_every = 20, .snapshot_part_cells = 7});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 60; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  const auto read = [&](const std::string& hash) { return stage.deployments->blob(1, WorldStage::kShop, hash); };
  const auto get_root = [&] {
    const std::string hash = stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot;
    return read_snapshot_root(hash, read(hash).value()).value();
  };
  const std::string salt = get_root().cells.salt();
  EXPECT_EQ(salt.size(), kCellSaltBytes);
  const std::string salted = stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot;
  const DeploymentSnapshot unsalted = build_snapshot(read_snapshot(salted, read).value().deployment).value();
  const auto put = [&](const WorkflowBlob& blob) {
    stage.server.run_command(1, {"HSET", "mj:deployment-blobs:acme/shop@1", blob.hash, blob.bytes});
  };
  for (const WorkflowBlob& page : unsalted.pages) put(page);
  put(unsalted.root);
  stage.server.run_command(1, {"HSET", "mj:deployment-head:acme/shop@1", "hash", unsalted.root.hash});
  EXPECT_EQ(get_root().cells.salt(), "");
  stage.replace(0);
  for (int id = 50; id <= 70; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(get_root().cells.salt().size(), kCellSaltBytes);
  EXPECT_NE(get_root().cells.salt(), salt);
  EXPECT_TRUE(stage.load_deployment().state() == stage.load_deployment(true).state());
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
  const std::string after = stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot;
  EXPECT_EQ(stage.deployments->blobs(1, WorldStage::kShop)->size(), read_snapshot(after, read)->pages.size() + 1);
}

// While the shop takes a snapshot, the other deployment has a commit after each part.
TEST_F(DeploymentCells, SnapshotDelaysAnotherDeploymentByOnePart) {
  constexpr int kFirst = 1000, kShopOrders = 45, kOthers = 40;
  WorldStage stage({.snapshot_every = 2 * kShopOrders,
                    .max_inbox_entries = 5,
                    .max_steps = 5,
                    .snapshot_part_cells = 1,
                    .snapshot_part_bytes = 1});
  json other = shop_manifest();
  other["name"] = "acme/second@1";
  ASSERT_TRUE(stage.apply());
  ASSERT_TRUE(stage.apply(other));
  const auto post = [&](const std::string& deployment, int id) {
    const Fields fields{
        {"schema", "acme/Placed@1"}, {"value", json{{"id", id}, {"how", "keep"}}.dump()}, {"source", "actor:1"}};
    EXPECT_TRUE(stage.deployments->post(1, deployment, "event", fields));
  };
  int shop_steps = 0, steps_during_snapshot = 0;
  std::set<std::string> other_keys;
  for (int id = kFirst; id < kFirst + kOthers; ++id) other_keys.insert(encode_cbor(id).value());
  stage.code = [&](const WorkflowSpec& spec, const StepRequest& request) -> Result<StepOutput> {
    const bool is_other = request.event.key && other_keys.contains(*request.event.key);
    const bool has_snapshot = stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot_height > 0;
    steps_during_snapshot += is_other && !has_snapshot ? 1 : 0;
    if (!is_other && ++shop_steps == kShopOrders)
      for (int id = kFirst; id < kFirst + kOthers; ++id) post("acme/second@1", id);
    return shop_step(spec, request);
  };
  for (int id = 1; id <= kShopOrders; ++id) post(WorldStage::kShop, id);
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(shop_steps, kShopOrders);
  EXPECT_GE(steps_during_snapshot, kOthers / 2);
  EXPECT_GT(stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot_height, 0U);
  EXPECT_TRUE(stage.load_deployment().state() == stage.load_deployment(true).state());
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
}

TEST_F(DeploymentCells, DecisionDropsThePartsOfASnapshot) {
  WorldStage stage({.snapshot_every = 1'000'000});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 50; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  const Sample sample{1000, std::string(32, 'x')};
  LoadedDeployment deployment = load(stage, 1);
  ASSERT_TRUE(deployment.start_snapshot(sample));
  EXPECT_FALSE(deployment.build_snapshot_part(10).value());
  EXPECT_GT(deployment.unwritten_snapshot_bytes(), 0U);
  ASSERT_TRUE(deployment.write_snapshot_blobs(*stage.deployments));
  EXPECT_GT(deployment.unwritten_snapshot_bytes(), 0U) << "the next part may replace the last page and the node";
  while (stage.deployments->blobs(1, WorldStage::kShop)->empty()) {
    ASSERT_FALSE(deployment.build_snapshot_part(10).value());
    ASSERT_TRUE(deployment.write_snapshot_blobs(*stage.deployments));
  }
  EXPECT_GT(stage.deployments->blobs(1, WorldStage::kShop)->size(), 0U);
  const json closed{{"id", 1}, {"how", "keep"}};
  ASSERT_TRUE(deployment.decide({sample, EventArrived{"acme/Placed@1", closed.dump()}}));
  EXPECT_FALSE(deployment.is_building_snapshot());
  run_next_step(stage, deployment, sample);
  ASSERT_TRUE(deployment.commit(*stage.deployments, 0));
  ASSERT_TRUE(deployment.collect_garbage_blobs(*stage.deployments, 0));
  EXPECT_EQ(stage.deployments->blobs(1, WorldStage::kShop)->size(), 0U) << "the parts belong to no snapshot";
  ASSERT_TRUE(deployment.start_snapshot(sample));
  int parts = 1;
  while (!deployment.build_snapshot_part(10).value()) {
    ASSERT_TRUE(deployment.write_snapshot_blobs(*stage.deployments));
    ++parts;
  }
  EXPECT_EQ(parts, 6) << "5 parts with cells, and the root";
  ASSERT_TRUE(deployment.commit(*stage.deployments, 0));
  EXPECT_TRUE(stage.load_deployment().state() == stage.load_deployment(true).state());
}

TEST_F(DeploymentCells, LargeSnapshotIsRefusedBeforeItsCellsAreRead) {
  WorldStage stage({.snapshot_every = 40});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, id == 1 ? "chat" : "keep");
  ASSERT_TRUE(stage.play());
  stage.place_order(7, "keep");
  ASSERT_TRUE(stage.play());
  LoadedDeployment deployment = load(stage, 1);
  deployment.set_max_snapshot_bytes(100);  // less than the node of the ledger, which has not changed
  int reads = 0;
  stage.server.set_faults([&](const ServerCall& call) {
    reads += call.name == "HMGET" ? 1 : 0;
    return Fault::none;
  });
  const Sample sample{1000, std::string(32, 'x')};
  EXPECT_EQ(deployment.start_snapshot(sample).error().code, Code::too_large);
  stage.server.set_faults(nullptr);
  EXPECT_EQ(reads, 0);
}

// Events without known receivers, as another client posts them.
void post_orders(WorldStage& stage, int count) {
  for (int id = 1; id <= count; ++id) {
    const Fields fields{
        {"schema", "acme/Placed@1"}, {"value", json{{"id", id}, {"how", "keep"}}.dump()}, {"source", "actor:1"}};
    ASSERT_TRUE(stage.deployments->post(1, WorldStage::kShop, "event", fields));
  }
}

TEST_F(DeploymentCells, EventStaysWhileItsCellCannotBeRead) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  stage.replace(0);
  stage.coordinate(0);
  post_orders(stage, 30);
  // The first read of a node is lost, and then the first read of a page.
  int reads = 0;
  stage.server.set_faults([&](const ServerCall& call) {
    if (call.name == "HMGET") ++reads;
    return call.name == "HMGET" && (reads == 1 || reads == 3) ? Fault::before : Fault::none;
  });
  for (int i = 0; i < 5; ++i) stage.coordinate(0);
  EXPECT_GT(reads, 3);
  stage.server.set_faults(nullptr);
  ASSERT_TRUE(stage.play());
  for (int id = 1; id <= 30; ++id) EXPECT_EQ(stage.show(id).at("steps"), 2) << id;
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
}

TEST_F(DeploymentCells, EventStaysWhileItsPageIsLost) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  const DeploymentReadResult head = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
  const auto read = [&](const std::string& hash) { return stage.deployments->blob(1, WorldStage::kShop, hash); };
  const ParsedSnapshot snapshot = read_snapshot(head.snapshot, read).value();
  for (const std::string& page : snapshot.pages)
    stage.server.run_command(1, {"HDEL", "mj:deployment-blobs:acme/shop@1", page});
  stage.replace(0);
  post_orders(stage, 30);
  ASSERT_TRUE(stage.play());
  for (int id = 1; id <= 30; ++id) EXPECT_EQ(stage.show(id).at("steps"), 2) << id;
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
}

TEST_F(DeploymentCells, ExceptionInABackgroundReadIsRepeated) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  stage.reads_cells_in_background = true;
  stage.replace(0);
  stage.coordinate(0);
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  bool was_thrown = false;
  stage.server.set_faults([&](const ServerCall& call) {
    if (call.name == "HMGET" && !std::exchange(was_thrown, true)) throw std::bad_alloc();
    return Fault::none;
  });
  ASSERT_TRUE(stage.play());
  EXPECT_TRUE(was_thrown);
  for (int id = 1; id <= 30; ++id) EXPECT_EQ(stage.show(id).at("steps"), 2) << id;
}

// Without a snapshot another load cannot help, so the error is not a conflict, which is repeated without a pause.
TEST_F(DeploymentCells, LostFactIsNoConflictWithoutASnapshot) {
  WorldStage stage({.snapshot_every = 1'000'000});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 10; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  LoadedDeployment deployment = load(stage, 1);
  ASSERT_LE(deployment.state().instances.size(), 1U);
  stage.server.run_command(1, {"DEL", "mj:deployment:acme/shop@1"});
  const auto found = deployment.load_all_cells();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::invalid) << found.error().message;
  EXPECT_TRUE(deployment.has_load_error());
}

TEST_F(DeploymentCells, RefusedSnapshotDoublesTheInterval) {
  WorldStage stage({.snapshot_every = 1'000'000});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 10; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  LoadedDeployment deployment = load(stage, 1);
  const Sample sample{1000, std::string(32, 'x')};
  deployment.set_max_snapshot_bytes(1);
  for (const std::uint64_t factor : {2U, 4U}) {
    EXPECT_EQ(deployment.decide({sample, TakeSnapshot{}}).error().code, Code::too_large);
    deployment.skip_snapshot();
    EXPECT_EQ(deployment.snapshot_interval_factor(), factor);
  }
  deployment.set_max_snapshot_bytes(kMaxSnapshotBytes);
  ASSERT_TRUE(deployment.decide({sample, TakeSnapshot{}}));
  EXPECT_EQ(deployment.snapshot_interval_factor(), 1U);
}

// A page that is lost is noticed when one of its cells is needed; the journal then replaces the snapshot.
TEST_F(DeploymentCells, LostPageIsReplacedByTheJournal) {
  WorldStage stage({.snapshot_every = 20});
  ASSERT_TRUE(stage.apply());
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  const DeploymentReadResult head = stage.deployments->read(1, WorldStage::kShop, 0, 0).value();
  const auto read = [&](const std::string& hash) { return stage.deployments->blob(1, WorldStage::kShop, hash); };
  const ParsedSnapshot snapshot = read_snapshot(head.snapshot, read).value();
  for (const std::string& page : snapshot.pages)
    stage.server.run_command(1, {"HDEL", "mj:deployment-blobs:acme/shop@1", page});
  stage.replace(0);
  for (int id = 1; id <= 30; ++id) stage.place_order(id, "keep");
  ASSERT_TRUE(stage.play());
  for (int id = 1; id <= 30; ++id) EXPECT_EQ(stage.show(id).at("steps"), 2) << id;
  EXPECT_THAT(stage.find_violations(), testing::IsEmpty());
}

}  // namespace
}  // namespace mycojobs
