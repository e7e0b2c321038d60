#include "fixture.h"

namespace mycojobs::test {
namespace {

TEST(Outcome, PlainRunIsOkWithItsLayersStepsAndUsage) {
  const Ran ran = run_attempts("getpid\nprint hello");
  EXPECT_EQ(word(ran.outcome.status), "ok") << ran.outcome.reason;
  EXPECT_EQ(ran.answer("getpid"), "2 of 1");
  EXPECT_EQ(ran.out, "hello");
  EXPECT_GT(ran.outcome.usage.wall_us, 0U);
  EXPECT_FALSE(ran.outcome.setup.empty());
  EXPECT_FALSE(ran.outcome.layers.empty());
  for (const auto& l : ran.outcome.layers) std::cerr << l << " ";
  for (const auto& l : ran.outcome.setup) std::cerr << l.step << "=" << l.us << " ";
  std::cerr << ran.outcome.usage.wall_us << " " << ran.outcome.usage.memory_peak_bytes << "\n";
}

}  // namespace
}  // namespace mycojobs::test
