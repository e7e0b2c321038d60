// Tests the number of slots that fit into the limits of a host.
#include "sandbox/host_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace mycojobs::sandbox {
namespace {

TEST(HostLimits, SlotsFitWithoutLimits) {
  const SlotFit fit = fit_slots(1000, {});
  EXPECT_EQ(fit.slots, 1000U);
  EXPECT_EQ(fit.reason, "");
}

TEST(HostLimits, DescriptorsBoundTheSlots) {
  const SlotFit fit = fit_slots(256, {.descriptors = 1024});
  EXPECT_LT(fit.slots, 128U);
  EXPECT_GT(fit.slots, 64U);
  EXPECT_EQ(fit.reason.rfind("slots: 256 are set, and " + std::to_string(fit.slots) +
                                 " fit into the limit of 1024 descriptors: raise the limit of open files",
                             0),
            0U)
      << fit.reason;
  EXPECT_EQ(fit_slots(fit.slots, {.descriptors = 1024}).reason, "");
}

TEST(HostLimits, ProcessesBoundTheSlots) {
  const SlotFit fit = fit_slots(64, {.tasks = 100});
  EXPECT_EQ(fit.slots, 34U);
  EXPECT_NE(fit.reason.find("fit into the limit of 100 processes or threads: raise the limit of processes"),
            std::string::npos)
      << fit.reason;
}

TEST(HostLimits, OneSlotRemainsUnderAnyLimits) {
  EXPECT_EQ(fit_slots(4, {.descriptors = 10}).slots, 1U);
  EXPECT_EQ(fit_slots(4, {.tasks = 1}).slots, 1U);
}

TEST(HostLimits, LimitsOfThisProcessAreRead) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(read_host_limits().descriptors, files.rlim_cur);
  EXPECT_GT(read_host_limits().tasks, 0U);
}

}  // namespace
}  // namespace mycojobs::sandbox
