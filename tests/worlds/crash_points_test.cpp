// Each scenario first runs undisturbed, which numbers the writing calls of coordinators: ingress, step, publication of
// effects, receipt, continuation, snapshot, collection. Then the scenario is repeated with a fault at each call: the
// coordinator is killed before or after the call, or the call or its reply is lost. Every instance, job and flow must
// end as in the undisturbed run: each effect was executed once, each receipt was delivered once, and replays agree.
#include <cstdio>
#include <cstdlib>

#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

struct WorldScenario {
  const char* name;
  void (*play)(WorldStage&);
  DeploymentLimits limits = {};
  const char* calls = "";  // names of calls that must be among the disturbed calls
};
void PrintTo(const WorldScenario& scenario, std::ostream* out) { *out << scenario.name; }

const DeploymentLimits kSmall{.snapshot_every = 4, .max_inbox_entries = 2, .max_steps = 2};

const WorldScenario kScenarios[] = {
    {"Ingress",
     [](WorldStage& stage) { stage.place_order(1, "keep"), stage.place_order(2, "keep"); },
     {},
     "world_commit"},
    {"Job", [](WorldStage& stage) { stage.place_order(1, "job"), stage.place_order(2, "slow"); }, {}, "submit"},
    {"SignedJob",
     [](WorldStage& stage) {
       stage.runner_key = std::make_shared<SigningKey>(SigningKey::make());
       ASSERT_TRUE(stage.store->save(1, "runner:7", {{"id", "7"}, {"pubkey", stage.runner_key->public_key()}}));
       stage.place_order(1, "job");
     },
     {},
     "submit"},
    {"Timer", [](WorldStage& stage) { stage.place_order(1, "timer"); }, {}, "world_commit"},
    {"Flow", [](WorldStage& stage) { stage.place_order(1, "flow"); }, {}, "flow_create"},
    {"Signal", [](WorldStage& stage) { stage.place_order(1, "signal"); }, {}, "flow_commit"},
    {"Cancel", [](WorldStage& stage) { stage.place_order(1, "withdraw"); }, {}, "world_commit"},
    {"CancelJob", [](WorldStage& stage) { stage.place_order(1, "stop"); }, {}, "cancel"},
    {"CancelInstance",
     [](WorldStage& stage) {
       stage.place_order(1, "hold");
       for (int i = 0; i < 50 && stage.status(1) != "waiting"; ++i) stage.step();
       ASSERT_TRUE(service::cancel_instance(stage.by, stage.stores(), {"order", "1"}, "enough"));
     },
     {},
     "cancel"},
    {"Derived",
     [](WorldStage& stage) { stage.place_order(1, "chat"), stage.place_order(2, "chat"); },
     {},
     "world_commit"},
    {"OneAfterTheOther", [](WorldStage& stage) { stage.place_order(1, "all"); }, {}, "submit"},
    {"Snapshots",
     [](WorldStage& stage) {
       for (int i = 1; i <= 3; ++i) stage.place_order(i, "job");
     },
     kSmall, "world_commit"},
    {"SmallCache",
     [](WorldStage& stage) {
       for (int i = 1; i <= 4; ++i) stage.place_order(i, i == 4 ? "job" : "keep");
       for (int i = 1; i <= 3; ++i) stage.place_order(i, "keep");
     },
     {.snapshot_every = 4, .max_inbox_entries = 2, .max_steps = 2, .cell_cache = {.max_cells = 1}},
     "world_commit"},
    {"SnapshotInParts",
     [](WorldStage& stage) {
       for (int round = 0; round < 3; ++round) {
         for (int i = 1; i <= 6; ++i) stage.place_order(i, i == 5 ? "big" : "keep");
         stage.step();
       }
     },
     {.snapshot_every = 8,
      .max_inbox_entries = 4,
      .max_steps = 4,
      .snapshot_part_cells = 1,
      .snapshot_part_bytes = 1,
      .cell_cache = {.max_cells = 1}},
     "world_commit"},
    {"Collection",
     [](WorldStage& stage) {
       for (int i = 0; i < 6; ++i) {
         stage.place_order(1, "big");
         stage.step();
       }
     },
     kSmall, "world_collect"},
    {"LongStates",
     [](WorldStage& stage) {
       for (int i = 0; i < 6; ++i) {
         stage.place_order(1, "big"), stage.place_order(2, "big");
         stage.step();
       }
     },
     {.snapshot_every = 1'000'000, .max_commit_bytes = 100U << 10, .min_collection_bytes = 200U << 10},
     "world_collect"},
};

class DeploymentCrashPoints : public testing::TestWithParam<WorldScenario> {
 protected:
  void SetUp() override {
    play({});
    ASSERT_EQ(failures_, 0);
    ASSERT_GT(calls_, 1U);
  }
  void play(const std::vector<WorldDisturbance>& disturbed) {
    WorldStage stage(GetParam().limits);
    ASSERT_TRUE(stage.apply());
    stage.disturb(disturbed);
    GetParam().play(stage);
    std::string wrong = stage.play() ? "" : "it does not end; ";
    const std::string outcome = stage.outcome();
    for (const std::string& line : stage.find_violations()) wrong += line + "; ";
    if (undisturbed_.empty()) {
      undisturbed_ = outcome;
      calls_ = stage.calls();
      EXPECT_GT(stage.calls_by_name[GetParam().calls], 0) << GetParam().calls;
    }
    if (outcome != undisturbed_) wrong += "another end:\n" + outcome;
    if (wrong.empty() || ++failures_ > 3) return;
    std::string where;
    for (const WorldDisturbance& each : disturbed)
      where += std::to_string(each.call) + '/' + std::to_string(static_cast<int>(each.fate)) + ' ';
    ADD_FAILURE() << where << ": " << wrong << "\nundisturbed:\n" << undisturbed_;
  }
  bool is_enough() const { return failures_ >= 3; }

  std::string undisturbed_;
  std::uint64_t calls_ = 0;
  int failures_ = 0;
};

TEST_P(DeploymentCrashPoints, OneCrashAnywhereChangesNothing) {
  for (std::uint64_t call = 1; call <= calls_ && !is_enough(); ++call) {
    for (const WorldFate fate : kWorldFates) play({{call, fate}});
  }
  std::printf("%s: %llu calls\n%s", GetParam().name, static_cast<unsigned long long>(calls_), undisturbed_.c_str());
}

// Tests all pairs if MYCOJOBS_SIM_ROUNDS is set, otherwise a sample.
TEST_P(DeploymentCrashPoints, TwoCrashesAnywhereChangeNothing) {
  const bool all = std::getenv("MYCOJOBS_SIM_ROUNDS") != nullptr;
  constexpr std::uint64_t kFew = 60;
  const std::uint64_t stride = all ? 1 : 1 + calls_ * calls_ / kFew;
  std::uint64_t turn = 0;
  for (std::uint64_t first = 1; first <= calls_ && !is_enough(); ++first) {
    for (std::uint64_t second = first + 1 + turn % stride; second <= calls_ + 10 && !is_enough();
         second += stride, ++turn)
      play({{first, kWorldFates[turn % 4]}, {second, kWorldFates[turn / 4 % 4]}});
  }
}

INSTANTIATE_TEST_SUITE_P(Of, DeploymentCrashPoints, testing::ValuesIn(kScenarios),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace mycojobs
