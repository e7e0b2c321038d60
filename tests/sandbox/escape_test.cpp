// What nobody had tried: limits that are dodged, grants that are changed while they are made, and what a call that is
// added opens beside itself.
#include "fixture.h"

namespace mycojobs::test {
namespace {

TEST(Escape, CpuOfChildrenThatNobodyWaitsForCounts) {
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 500;
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "spin_unwaited 30 4000").outcome;
  EXPECT_EQ(word(outcome.status), "timeout_cpu") << outcome.reason << ": " << outcome.usage.user_us << " us";
}

}  // namespace
}  // namespace mycojobs::test
