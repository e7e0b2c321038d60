// What a Lua script meets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executors/lua/lua_executor.h"
#include "lua_driver.h"

namespace mycojobs::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Lua, PrintsAndHandsBackItsResult) {
  const LuaRan ran = run_lua("print('hello')\nresult.answer = 'yes'\n");
  EXPECT_EQ(ran.out, "hello\n");
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.end.status, JobStatus::finished) << ran.end.error;
  EXPECT_EQ(ran.end.result, (TextMap{{"answer", "yes"}}));
}

}  // namespace
}  // namespace mycojobs::test
