// The inbox is served round-robin, and in order of arrival for each instance.
#include "workflows/deployment/deployment_inbox.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

#include "model/records.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Inbox : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(stage_.apply()); }
  void post(const std::string& value, const std::vector<std::string>& instances) {
    PostRules rules;
    for (const std::string& instance : instances) rules.targets.push_back({instance, instance});
    ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "event", {{"value", value}}, rules));
  }
  void read(DeploymentInbox& inbox) {
    ASSERT_TRUE(inbox.read(*stage_.deployments, 1, WorldStage::kShop, [](const InboxEntry& mail) {
      const std::string to(field_of(mail.fields, "to"));
      std::optional<std::vector<std::string>> all;
      if (to.empty()) return all;
      all.emplace();
      for (std::size_t from = 0; from < to.size(); from += all->back().size() + 1)
        all->push_back(to.substr(from, to.find(',', from) - from));
      return all;
    }));
  }
  // Takes the next event and commits it.
  std::string pop(DeploymentInbox& inbox, const std::function<bool(const std::string&)>& waits = nullptr) {
    const auto mail = inbox.pop(waits);
    if (!mail) return "";
    stage_.server.run_command(1, {"XDEL", "mj:deployment-inbox:acme/shop@1", mail->id});
    return std::string(field_of(mail->fields, "value"));
  }
  std::vector<std::string> consume_all(DeploymentInbox& inbox) {
    std::vector<std::string> all;
    for (std::string each = pop(inbox); !each.empty(); each = pop(inbox)) all.push_back(each);
    return all;
  }
  WorldStage stage_;
};

TEST_F(Inbox, BusyInstanceDelaysNoOther) {
  for (const char* each : {"a1", "a2", "a3", "a4"}) post(each, {"a"});
  post("b1", {"b"});
  post("c1", {"c"});
  post("b2", {"b"});
  DeploymentInbox inbox;
  read(inbox);
  EXPECT_THAT(consume_all(inbox), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4"));
  EXPECT_TRUE(inbox.empty());
}

TEST_F(Inbox, EntriesStayInTheStoreUntilACommit) {
  post("a1", {"a"});
  DeploymentInbox inbox;
  read(inbox);
  EXPECT_TRUE(inbox.pop());
  EXPECT_EQ(stage_.deployments->read_inbox(1, WorldStage::kShop, 100)->size(), 1U);
}

TEST_F(Inbox, RecreatedInboxIsRead) {
  post("a1", {"a"});
  DeploymentInbox inbox;
  read(inbox);
  EXPECT_EQ(pop(inbox), "a1");
  stage_.server.run_command(1, {"DEL", "mj:deployment-inbox:acme/shop@1"});
  stage_.server.run_command(
      1, {"XADD", "mj:deployment-inbox:acme/shop@1", "1-1", "kind", "event", "value", "a2", "to", "a"});
  read(inbox);
  EXPECT_EQ(pop(inbox), "a2");
}

TEST_F(Inbox, SharedEntryIsNextWhenItIsNextForEach) {
  post("a1", {"a"});
  post("a2", {"a"});
  post("ab", {"a", "b"});
  post("b1", {"b"});
  DeploymentInbox inbox;
  read(inbox);
  EXPECT_THAT(consume_all(inbox), ElementsAre("a1", "a2", "ab", "b1"));
}

TEST_F(Inbox, UnaddressedEntryFollowsAllEarlierEntries) {
  for (const char* each : {"a1", "a2"}) post(each, {"a"});
  for (const char* each : {"nobody", "nobody either"}) post(each, {});
  post("b1", {"b"});
  DeploymentInbox inbox;
  read(inbox);
  for (const char* each : {"a1", "a2"}) EXPECT_EQ(pop(inbox), each);
  EXPECT_EQ(pop(inbox), "") << "the entry is sorted by the next read";
  read(inbox);
  EXPECT_THAT(consume_all(inbox), ElementsAre("nobody", "nobody either"));
  read(inbox);
  EXPECT_EQ(pop(inbox), "b1");
}

TEST_F(Inbox, WaitingInstanceIsSkipped) {
  for (const char* each : {"a1", "a2"}) post(each, {"a"});
  post("ab", {"a", "b"});
  post("c1", {"c"});
  DeploymentInbox inbox;
  read(inbox);
  const auto a_waits = [](const std::string& instance) { return instance == "a"; };
  EXPECT_EQ(pop(inbox, a_waits), "c1");
  EXPECT_EQ(pop(inbox, a_waits), "");
  EXPECT_THAT(consume_all(inbox), ElementsAre("a1", "a2", "ab"));
}

TEST_F(Inbox, NumberOfEntriesIsLimited) {
  for (int i = 0; i < 40; ++i) post(std::string(10000, 'x'), {"a"});
  InboxLimits limits;
  limits.max_bytes = 100000;
  DeploymentInbox inbox(limits);
  for (int i = 0; i < 5; ++i) read(inbox);
  std::size_t kept = 0, all = 0;
  while (!pop(inbox).empty()) ++kept;
  EXPECT_GE(kept, 9U);
  EXPECT_LE(kept, 12U);
  for (all = kept; read(inbox), !inbox.empty();)
    while (!pop(inbox).empty()) ++all;
  EXPECT_EQ(all, 40U);
}

// The order for each instance equals the sent order, for random targets, pages and interleavings.
TEST_F(Inbox, OrderIsKeptForEachInstance) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    stage_.server.run_command(1, {"DEL", "mj:deployment-inbox:acme/shop@1"});
    std::map<std::string, std::vector<std::string>> sent, taken;
    std::map<std::string, std::vector<std::string>> targets;
    const auto note = [&](const std::string& value) {
      for (const std::string& target : targets[value]) taken[target].push_back(value);
    };
    InboxLimits limits;
    limits.max_read_entries = static_cast<std::uint32_t>(1 + random() % 7);
    DeploymentInbox inbox(limits);
    for (int i = 0; i < 120; ++i) {
      const std::string value = "e" + std::to_string(i);
      std::set<std::string> to;
      for (std::size_t n = random() % 4; n > 0; --n) to.insert(std::string(1, static_cast<char>('a' + random() % 5)));
      post(value, targets[value] = std::vector<std::string>(to.begin(), to.end()));
      for (const std::string& target : to) sent[target].push_back(value);
      if (random() % 2 == 0) read(inbox);
      if (random() % 3 == 0) note(pop(inbox));
    }
    std::size_t idle = 0;
    for (; idle < 2;) {
      read(inbox);
      const std::string value = pop(inbox);
      note(value);
      idle = value.empty() ? idle + 1 : 0;
    }
    EXPECT_EQ(taken, sent) << "seed " << seed;
    EXPECT_TRUE(inbox.empty()) << "seed " << seed;
  }
}

// ---- with a coordinator ----

std::uint64_t steps_of_the_first(WorldStage& stage) {
  const auto result = stage.show(1);
  return result.is_null() ? 0 : result.at("steps").get<std::uint64_t>();
}

TEST_F(Inbox, LateInstanceRunsInFirstRound) {
  for (int i = 0; i < 3000; ++i) stage_.place_order(1, "keep");
  stage_.place_order(2, "keep");
  stage_.coordinate(0);
  std::uint64_t before = 0;
  for (const WorkflowFact& fact : stage_.journal()) {
    const auto* step = std::get_if<StepTaken>(&fact.content);
    if (step != nullptr && display_name(step->instance) == "acme/order@1[2]") break;
    before += step != nullptr ? 1 : 0;
  }
  EXPECT_LT(before, 1000U);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(steps_of_the_first(stage_), 3000U);
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(Inbox, SnapshotPauseAdmitsInstancesWithoutEntries) {
  DeploymentLimits limits;
  limits.snapshot_every = 50;
  limits.max_inbox_entries = 20;
  limits.max_steps = 5;
  WorldStage stage(limits);
  ASSERT_TRUE(stage.apply());
  for (int i = 0; i < 2000; ++i) stage.place_order(1, "keep");
  stage.coordinate(0);
  int id = 2;
  for (; id <= 10 && steps_of_the_first(stage) < 2000; ++id) {
    stage.place_order(id, "keep");
    stage.coordinate(0);
    EXPECT_EQ(stage.status(id), "waiting") << id;
  }
  ASSERT_TRUE(stage.play());
  EXPECT_EQ(steps_of_the_first(stage), 2000U);
  EXPECT_GT(stage.deployments->read(1, WorldStage::kShop, 0, 0)->snapshot_height, 0U);
  EXPECT_THAT(stage.find_violations(), IsEmpty());
}

}  // namespace
}  // namespace mycojobs
