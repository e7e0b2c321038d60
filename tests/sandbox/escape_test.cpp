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

TEST(Escape, BytesInConnectionsAreBoundedByTheMemoryLimit) {
  RunSpec spec = spec_with();
  spec.grants.network = Network::loopback;
  spec.limits.memory_bytes = 64U << 20;
  const Ran ran = run_attempts(shared_sandbox(), spec, "hold_connections 60");
  if (ran.outcome.status == RunStatus::oom) return;  // where the kernel counts them as any other memory
  EXPECT_EQ(word(ran.outcome.status), "ok") << ran.outcome.reason;
  EXPECT_LE(std::stoul(ran.answer("hold_connections 60")), 64U);
}

}  // namespace
}  // namespace mycojobs::test
