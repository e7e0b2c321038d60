// Parts of explain(): dependency cycles, times and durations, runners.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inspect/explain.h"
#include "inspect/runner_view.h"
#include "unit/situations.h"

namespace mycojobs {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Cycle, PathLeadsFromTheStartIntoTheCycle) {
  EXPECT_THAT(find_cycle({{"a", {"b"}}, {"b", {"c"}}, {"c", {"b"}}}, "a"), ElementsAre("a", "b", "c", "b"));
  EXPECT_THAT(find_cycle({{"a", {"a"}}}, "a"), ElementsAre("a", "a"));
  EXPECT_THAT(find_cycle({{"a", {"x", "b"}}, {"x", {"y"}}, {"b", {"a"}}}, "a"), ElementsAre("a", "b", "a"));
}

TEST(Cycle, DiamondIsNotACycle) {
  EXPECT_THAT(find_cycle({{"a", {"b", "c"}}, {"b", {"d"}}, {"c", {"d"}}, {"d", {}}}, "a"), IsEmpty());
  EXPECT_THAT(find_cycle({}, "a"), IsEmpty());
}

TEST(Cycle, VeryLongChainNeedsNoStack) {
  WaitGraph chain;
  for (int i = 0; i < 200000; ++i) chain.emplace_back(std::to_string(i), std::vector{std::to_string(i + 1)});
  EXPECT_THAT(find_cycle(chain, "0"), IsEmpty());
}

TEST(DurationText, AreWrittenInWords) {
  EXPECT_EQ(format_duration(800), "800 ms");
  EXPECT_EQ(format_duration(4200), "4 s");
  EXPECT_EQ(format_duration(119'000), "119 s");
  EXPECT_EQ(format_duration(1'800'000), "30 min");
  EXPECT_EQ(format_duration(40'000'000), "11 h");
  EXPECT_EQ(format_duration(400'000'000), "4 d");
  EXPECT_EQ(format_time(~0ULL), "9999-12-31T23:59:59Z");
}

TEST(Runners, ServeTheTypesOfTheirRegistration) {
  RunnerInfo info = make_runner(20, {"python", "v"});
  EXPECT_TRUE(serves_queue(info, "queue:v"));
  EXPECT_FALSE(serves_queue(info, "queue:sal"));
  EXPECT_TRUE(serves_queue(info, "mj:queue:runner20"));
  EXPECT_FALSE(serves_queue(info, "mj:queue:runner2"));
  info.runner.local = false;
  EXPECT_FALSE(serves_queue(info, "queue:v"));
  EXPECT_TRUE(serves_queue(info, "mj:queue:runner20"));
}

TEST(Runners, AreLiveSilentOrStopped) {
  RunnerInfo info = make_runner(20, {"v"});
  EXPECT_EQ(get_presence(info), RunnerPresence::live);
  info.hold_remaining_ms = 0;
  EXPECT_EQ(get_presence(info), RunnerPresence::silent);
  EXPECT_EQ(describe(info, kNow), "20 on host-a (silent for 12 s)");
  info.holder = {};
  EXPECT_EQ(get_presence(info), RunnerPresence::signed_off);
  EXPECT_EQ(list_served_queues({info}), "");
}

}  // namespace
}  // namespace mycojobs
