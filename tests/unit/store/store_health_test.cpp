#include "store/store_health.h"

#include <gtest/gtest.h>

namespace mycojobs {
namespace {

TEST(StoreHealth, UnavailableContextsAreNamed) {
  StoreHealth health;
  EXPECT_EQ(describe_unavailable_contexts(health.unavailable_contexts()), "");
  for (const Id context : {1U, 2U}) health.on_failure(context, "test", Error{Code::unavailable, "no answer"});
  EXPECT_EQ(describe_unavailable_contexts(health.unavailable_contexts()), "Redis is unavailable for context 1 2");
  health.on_success(2);
  EXPECT_EQ(describe_unavailable_contexts(health.unavailable_contexts()), "Redis is unavailable for context 1");
  health.on_failure(0, "test", Error{Code::unavailable, "no answer"});
  EXPECT_EQ(describe_unavailable_contexts(health.unavailable_contexts()), "Redis is unavailable");
}

}  // namespace
}  // namespace mycojobs
