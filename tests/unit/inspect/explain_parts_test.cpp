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
  Waits chain;
  for (int i = 0; i < 200000; ++i) chain.emplace_back(std::to_string(i), std::vector{std::to_string(i + 1)});
  EXPECT_THAT(find_cycle(chain, "0"), IsEmpty());
}

TEST(DurationText, AreWrittenInWords) {
  EXPECT_EQ(span_text(800), "800 ms");
  EXPECT_EQ(span_text(4200), "4 s");
  EXPECT_EQ(span_text(119'000), "119 s");
  EXPECT_EQ(span_text(1'800'000), "30 min");
  EXPECT_EQ(span_text(40'000'000), "11 h");
  EXPECT_EQ(span_text(400'000'000), "4 d");
  EXPECT_EQ(moment_text(~0ULL), "9999-12-31T23:59:59Z");
}

TEST(Runners, ServeTheTypesOfTheirRegistration) {
  RunnerInfo info = runner(20, {"python", "v"});
  EXPECT_TRUE(serves(info, "queue:v"));
  EXPECT_FALSE(serves(info, "queue:sal"));
  EXPECT_TRUE(serves(info, "mj:queue:runner20"));
  EXPECT_FALSE(serves(info, "mj:queue:runner2"));
  info.runner.local = false;
  EXPECT_FALSE(serves(info, "queue:v"));
  EXPECT_TRUE(serves(info, "mj:queue:runner20"));
}

TEST(Runners, AreLiveSilentOrStopped) {
  RunnerInfo info = runner(20, {"v"});
  EXPECT_EQ(presence(info), RunnerPresence::live);
  info.held_ms = 0;
  EXPECT_EQ(presence(info), RunnerPresence::silent);
  EXPECT_EQ(describe(info, kNow), "20 on host-a (silent for 12 s)");
  info.hold = {};
  EXPECT_EQ(presence(info), RunnerPresence::left);
  EXPECT_EQ(served_by_live({info}), "");
}

}  // namespace
}  // namespace mycojobs
