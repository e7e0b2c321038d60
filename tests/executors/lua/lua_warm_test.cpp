// Warm scripts in Lua (docs/warm.md) with the real host and the real sandbox. The behaviour of warm scripts in all
// languages is tested in tests/executors/python/python_warm_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lua_driver.h"
#include "security/profiles.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kHead = R"(
local before = calls or 0
calls, kept = 0, {}
function main(job)
  calls = calls + 1
  result.calls = calls
  local how = inputs.how and inputs.how.how or ""
  assert(load(how, "=how", "t"))(job)
end
)";

LuaRan run_warm(const std::string& how, char key, const std::string& script = kHead,
                const std::string& executor = "sal") {
  LuaJob job{.script = script,
             .executor = executor,
             .policy = profile(executor),
             .name = "named",
             .environment = {{"A", how.substr(0, 5)}}};
  job.policy.warm_runs = 100000;
  job.inputs["how"] = {7, {{"how", how}}};
  job.warm_key = std::string(64, key);
  return run_lua_confined(job);
}
std::uint32_t before(const LuaRan& ran) { return ran.outcome.reused.value_or(9999); }
bool stays() {
  run_warm("", 'z');
  return before(run_warm("", 'z')) > 0;
}
#define MJ_NEEDS_WARM() \
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here"

TEST(WarmLua, OneStateServesManyRuns) {
  MJ_NEEDS_WARM();
  for (int i = 1; i <= 5; ++i) {
    const LuaRan ran = run_warm(
        "print(job.id) result.env = env.A result.mine = job == mycojobs.job\n"
        "result.left = tostring(left) left = nil result.file = tostring(io.open('/tmp/f'))\n"
        "io.open('/tmp/f', 'w'):write('x'):close()",
        'a');
    EXPECT_EQ(ran.end.error, "") << ran.err;
    EXPECT_EQ(before(ran), static_cast<std::uint32_t>(i - 1));
    EXPECT_EQ(ran.result("calls"), std::to_string(i));
    EXPECT_EQ(ran.result("mine"), "true");
    EXPECT_EQ(ran.result("left"), "nil");
    EXPECT_EQ(ran.result("file"), "nil");
  }
  const LuaRan kept = run_warm("result.calls = nil kept.x = 1", 'a');
  EXPECT_EQ(kept.result("calls"), "<none>");
  EXPECT_EQ(run_warm("result.kept = kept.x", 'a').result("kept"), "1");
  EXPECT_EQ(run_warm("result.kept = tostring(kept.x)", 'b').result("kept"), "nil") << "another key is another process";
}

TEST(WarmLua, ErrorIsAnOrdinaryEnd) {
  MJ_NEEDS_WARM();
  EXPECT_EQ(before(run_warm("", 'c')), 0U);
  const LuaRan failed = run_warm("error('not here')", 'c');
  EXPECT_THAT(failed.end.error, HasSubstr("not here"));
  EXPECT_THAT(run_warm("local t = {} while true do t[#t + 1] = string.rep('x', 1000) .. #t end", 'c').end.error,
              HasSubstr("not enough memory"));
  const LuaRan next = run_warm("", 'c');
  EXPECT_EQ(next.end.error, "");
}

TEST(WarmLua, MainReturnsItsResultOrNothing) {
  MJ_NEEDS_WARM();
  const std::string script =
      "function main(job)\n  result.of = 'the global'\n"
      "  return ({table = {a = '1'}, number = 7})[inputs.how.how]\nend";
  EXPECT_EQ(run_warm("nothing", 'd', script).end.result, (TextMap{{"of", "the global"}}));
  EXPECT_EQ(run_warm("table", 'd', script).end.result, (TextMap{{"a", "1"}}));
  EXPECT_THAT(run_warm("number", 'd', script).end.error, HasSubstr("main(job) has returned a number: return a table"));
  EXPECT_EQ(before(run_warm("nothing", 'd', script)), 3U);
}

TEST(WarmLua, UnsuitableModulesAreReported) {
  MJ_NEEDS_WARM();
  for (int i = 0; i < 2; ++i) {
    const LuaRan none = run_warm("", 'e', "result.a = 1");
    EXPECT_THAT(none.end.error, HasSubstr("WarmError: the policy has warm, and the script has no function main(job)"));
    EXPECT_EQ(before(none), 0U);
    const LuaRan early = run_warm("", 'f', "local x = inputs.how\nfunction main() end");
    EXPECT_THAT(early.end.error, HasSubstr("belong to one run: read them in main(job)"));
    EXPECT_EQ(before(early), 0U);
  }
}

TEST(WarmLua, OsExitEndsTheProcess) {
  MJ_NEEDS_WARM();
  EXPECT_EQ(before(run_warm("", 'g')), 0U);
  const LuaRan left = run_warm("result.a = 'b' os.exit(0)", 'g');
  EXPECT_EQ(left.result("a"), "b");
  EXPECT_EQ(before(left), 1U);
  EXPECT_EQ(before(run_warm("", 'g')), 0U);
}

TEST(WarmLua, ThousandsOfRunsLeaveNothing) {
  MJ_NEEDS_WARM();
  const std::string look =
      "local f = io.open('/proc/self/statm') result.rss = f:read('a'):match('%d+ (%d+)') f:close()";
  const auto pages = [&] { return std::stol(run_warm(look, 'h').result("rss")); };
  constexpr std::uint32_t kRuns = 4000;
  const auto run = [](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t i = from; i < to; ++i)
      ASSERT_EQ(before(run_warm(i % 7 == 0 ? "error('x')" : "print('x')", 'h')), i);
  };
  run(0, kRuns);  // garbage collection needs some garbage
  const long early = pages();
  run(kRuns + 1, 2 * kRuns);
  EXPECT_LT(pages() - early, 256);
}

}  // namespace
}  // namespace mycojobs::test
