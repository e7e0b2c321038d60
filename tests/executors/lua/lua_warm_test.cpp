// Warm scripts in Lua (docs/warm.md) with the real host and the real sandbox. The behaviour of warm scripts in all
// languages is tested in tests/executors/python/python_warm_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lua_driver.h"
#include "security/profiles.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kScript = R"(
local before = calls or 0
calls, kept = 0, {}
function main(job)
  calls = calls + 1
  result.calls = calls
  local how = inputs.how and inputs.how.how or ""
  assert(load(how, "=how", "t"))(job)
end
)";

// Runs the script with `code` as input of main().
LuaRunResult run_warm(const std::string& code, char key, const std::string& script = kScript,
                      const std::string& executor = "sal") {
  LuaJob job{.script = script,
             .executor = executor,
             .policy = profile(executor),
             .name = "named",
             .environment = {{"A", code.substr(0, 5)}}};
  job.policy.warm_runs = 100000;
  job.inputs["how"] = {7, {{"how", code}}};
  job.warm_key = std::string(64, key);
  return run_lua_confined(job);
}
// Returns the number of earlier runs in the same process.
std::uint32_t count_earlier_runs(const LuaRunResult& result) { return result.outcome.reused.value_or(9999); }
// Reports whether this host permits warm scripts.
bool keeps_processes() {
  run_warm("", 'z');
  return count_earlier_runs(run_warm("", 'z')) > 0;
}
#define MJ_NEEDS_WARM() \
  if (!keeps_processes()) GTEST_SKIP() << "this host permits no groups for memory and processes"

TEST(WarmLua, EachRunHasItsOwnArgumentsAndInput) {
  MJ_NEEDS_WARM();
  LuaJob job{.script = "function main() result.first = arg[1] or '-' result.line = io.read() or '-' end",
             .policy = profile("sal")};
  job.policy.warm_runs = 100000;
  job.warm_key = std::string(64, 'i');
  const auto run_with = [&](std::vector<std::string> args, const SubmittedFiles& files) {
    job.args = std::move(args);
    job.files = files;
    return run_lua_confined(job);
  };
  EXPECT_EQ(run_with({"a"}, {"one\nleft over\n", {{"n", "1"}}}).end.result, (TextMap{{"first", "a"}, {"line", "one"}}));
  EXPECT_EQ(run_with({"b"}, {"two\n", {{"n", "2"}}}).end.result, (TextMap{{"first", "b"}, {"line", "two"}}));
  const LuaRunResult last = run_with({}, {});
  EXPECT_EQ(last.end.result, (TextMap{{"first", "-"}, {"line", "-"}}));
  EXPECT_EQ(count_earlier_runs(last), 2U);
}

TEST(WarmLua, OneStateServesManyRuns) {
  MJ_NEEDS_WARM();
  for (int i = 1; i <= 5; ++i) {
    const LuaRunResult result = run_warm(
        "print(job.id) result.env = env.A result.mine = job == mycojobs.job\n"
        "result.left = tostring(left) left = nil result.file = tostring(io.open('/tmp/f'))\n"
        "io.open('/tmp/f', 'w'):write('x'):close()",
        'a');
    EXPECT_EQ(result.end.error, "") << result.err;
    EXPECT_EQ(count_earlier_runs(result), static_cast<std::uint32_t>(i - 1));
    EXPECT_EQ(result.result_value("calls"), std::to_string(i));
    EXPECT_EQ(result.result_value("mine"), "true");
    EXPECT_EQ(result.result_value("left"), "nil");
    EXPECT_EQ(result.result_value("file"), "nil");
  }
  const LuaRunResult changed = run_warm("result.calls = nil kept.x = 1", 'a');
  EXPECT_EQ(changed.result_value("calls"), "<none>");
  EXPECT_EQ(run_warm("result.kept = kept.x", 'a').result_value("kept"), "1");
  EXPECT_EQ(run_warm("result.kept = tostring(kept.x)", 'b').result_value("kept"), "nil")
      << "another key has another process";
}

TEST(WarmLua, ErrorIsAnOrdinaryEnd) {
  MJ_NEEDS_WARM();
  EXPECT_EQ(count_earlier_runs(run_warm("", 'c')), 0U);
  const LuaRunResult failed = run_warm("error('not here')", 'c');
  EXPECT_THAT(failed.end.error, HasSubstr("not here"));
  EXPECT_THAT(run_warm("local t = {} while true do t[#t + 1] = string.rep('x', 1000) .. #t end", 'c').end.error,
              HasSubstr("not enough memory"));
  const LuaRunResult next = run_warm("", 'c');
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
  EXPECT_EQ(count_earlier_runs(run_warm("nothing", 'd', script)), 3U);
}

TEST(WarmLua, UnsuitableModulesAreReported) {
  MJ_NEEDS_WARM();
  for (int i = 0; i < 2; ++i) {
    const LuaRunResult none = run_warm("", 'e', "result.a = 1");
    EXPECT_THAT(none.end.error, HasSubstr("WarmError: the policy has warm, and the script has no function main(job)"));
    EXPECT_EQ(count_earlier_runs(none), 0U);
    const LuaRunResult early_read = run_warm("", 'f', "local x = inputs.how\nfunction main() end");
    EXPECT_THAT(early_read.end.error, HasSubstr("belong to one run: read them in main(job)"));
    EXPECT_EQ(count_earlier_runs(early_read), 0U);
  }
}

TEST(WarmLua, OsExitEndsTheProcess) {
  MJ_NEEDS_WARM();
  EXPECT_EQ(count_earlier_runs(run_warm("", 'g')), 0U);
  const LuaRunResult exited = run_warm("result.a = 'b' os.exit(0)", 'g');
  EXPECT_EQ(exited.result_value("a"), "b");
  EXPECT_EQ(count_earlier_runs(exited), 1U);
  EXPECT_EQ(count_earlier_runs(run_warm("", 'g')), 0U);
}

TEST(WarmLua, ThousandsOfRunsLeaveNothing) {
  MJ_NEEDS_WARM();
  const std::string read_pages =
      "local f = io.open('/proc/self/statm') result.rss = f:read('a'):match('%d+ (%d+)') f:close()";
  const auto measure_pages = [&] { return std::stol(run_warm(read_pages, 'h').result_value("rss")); };
  constexpr std::uint32_t kRuns = 4000;
  const auto run_range = [](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t i = from; i < to; ++i)
      ASSERT_EQ(count_earlier_runs(run_warm(i % 7 == 0 ? "error('x')" : "print('x')", 'h')), i);
  };
  run_range(0, kRuns);  // until the heap has reached its usual size
  const long early_pages = measure_pages();
  run_range(kRuns + 1, 2 * kRuns);
  EXPECT_LT(measure_pages() - early_pages, 256);
}

}  // namespace
}  // namespace mycojobs::test
