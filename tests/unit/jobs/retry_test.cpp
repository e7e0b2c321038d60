#include "jobs/retry.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

JobEnd failure(const std::string& detail = "exit") {
  JobEnd end;
  end.detail = detail;
  return end;
}
constexpr RetryPolicy kPolicy{1000, 300000};

TEST(Retry, PauseDoublesWithJitterUpToTheMaximum) {
  const std::uint64_t max[] = {1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000, 300000};
  std::uint32_t attempt = 0;
  for (const std::uint64_t pause : max) {
    ++attempt;
    EXPECT_EQ(compute_retry_delay_ms(kPolicy, failure(), attempt, 255, 0), pause / 2) << attempt;
    EXPECT_EQ(compute_retry_delay_ms(kPolicy, failure(), attempt, 255, 0.5), pause / 2 + pause / 4) << attempt;
    EXPECT_LE(*compute_retry_delay_ms(kPolicy, failure(), attempt, 255, 0.999999), pause) << attempt;
  }
}

TEST(Retry, RetriesAreAttemptsBesideTheFirst) {
  EXPECT_FALSE(compute_retry_delay_ms(kPolicy, failure(), 1, 0, 0));
  EXPECT_TRUE(compute_retry_delay_ms(kPolicy, failure(), 1, 1, 0));
  EXPECT_FALSE(compute_retry_delay_ms(kPolicy, failure(), 2, 1, 0));
  EXPECT_TRUE(compute_retry_delay_ms(kPolicy, failure(), 255, 255, 0));
}

TEST(Retry, PermanentErrorIsNotRetried) {
  for (const char* detail : {"cancelled", "violation", "dead_letter", "result_too_large"}) {
    EXPECT_FALSE(compute_retry_delay_ms(kPolicy, failure(detail), 1, 5, 0)) << detail;
  }
  for (const char* detail : {"exit", "signal", "exception", "timeout", "oom", "setup_error"}) {
    EXPECT_TRUE(compute_retry_delay_ms(kPolicy, failure(detail), 1, 5, 0)) << detail;
  }
  JobEnd good = failure("ok");
  good.status = JobStatus::finished;
  EXPECT_FALSE(compute_retry_delay_ms(kPolicy, good, 1, 5, 0));
}

TEST(Retry, FailureMayForbidItOrSetItsPause) {
  JobEnd end = failure();
  end.retry_after_ms = 77;
  EXPECT_EQ(compute_retry_delay_ms(kPolicy, end, 1, 5, 0.9), 77U);
  EXPECT_FALSE(compute_retry_delay_ms(kPolicy, end, 6, 5, 0.9)) << "the hint does not add attempts";
  end.retry_after_ms = UINT64_MAX;
  EXPECT_LT(*compute_retry_delay_ms(kPolicy, end, 1, 5, 0), UINT64_MAX / 2)
      << "the delay can be added to the store's clock without overflow";
  end.retry_forbidden = true;
  EXPECT_FALSE(compute_retry_delay_ms(kPolicy, end, 1, 5, 0));
}

TEST(Retry, ExtremePoliciesStayWithinTheMaximum) {
  EXPECT_EQ(compute_retry_delay_ms({0, 1000}, failure(), 200, 255, 0.5), 0U);
  EXPECT_EQ(compute_retry_delay_ms({5000, 1000}, failure(), 1, 5, 0), 500U) << "the maximum applies";
  const RetryPolicy huge{UINT64_MAX / 2 + 2, UINT64_MAX};
  EXPECT_GE(*compute_retry_delay_ms(huge, failure(), 255, 255, 0), UINT64_MAX / 2);
}

}  // namespace
}  // namespace mycojobs
