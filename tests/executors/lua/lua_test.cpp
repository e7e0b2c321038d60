// The environment of a Lua script, and the ends of its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "executors/lua/lua_executor.h"
#include "lua_driver.h"
#include "security/profiles.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

TEST(Lua, PrintsAndReturnsItsResult) {
  const LuaRunResult result = run_lua("print('hello')\nresult.answer = 'yes'\n");
  EXPECT_EQ(result.out, "hello\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.end.status, JobStatus::finished) << result.end.error;
  EXPECT_EQ(result.end.result, (TextMap{{"answer", "yes"}}));
}

TEST(Lua, ReceivesArgumentsInputAndFiles) {
  LuaJob job{.script =
                 "result.args = {arg[1], arg[2], #arg} result.line = io.read()\n"
                 "result.file = io.open(mycojobs.artifacts .. '/../files/lib/a'):read('a')\n"
                 "result.hidden = tostring(io.open(mycojobs.artifacts .. '/../.stdin'))"};
  job.args = {"-x", "two words"};
  job.files = {"one\ntwo\n", {{"lib/a", "text"}}};
  const LuaRunResult result = run_lua(job);
  EXPECT_EQ(result.end.error, "") << result.err;
  EXPECT_EQ(result.end.result,
            (TextMap{{"args", "[\"-x\",\"two words\",2]"}, {"line", "one"}, {"file", "text"}, {"hidden", "nil"}}));
  EXPECT_EQ(run_lua("result.none = #arg .. tostring(io.read())").result_value("none"), "0nil");
}

struct ResultRow {
  const char* name;
  const char* script;
  TextMap result;
  const char* error;  // empty for success
};
void PrintTo(const ResultRow& row, std::ostream* out) { *out << row.name; }

class LuaResult : public ::testing::TestWithParam<ResultRow> {};

TEST_P(LuaResult, IsReturnedOrRejectedByKey) {
  const LuaRunResult result = run_lua(GetParam().script);
  EXPECT_EQ(result.end.error, GetParam().error);
  EXPECT_EQ(result.end.result, GetParam().result);
  EXPECT_EQ(result.end.status, *GetParam().error == '\0' ? JobStatus::finished : JobStatus::error);
  if (result.end.status == JobStatus::error) {
    EXPECT_THAT(result.err, HasSubstr("result"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, LuaResult,
    ::testing::Values(
        ResultRow{"nothing", "local x", {}, ""},
        ResultRow{"numbers",
                  "result.a, result.b, result.c, result.d, result.e = 1, 1.5, true, json.null, 2^53",
                  {{"a", "1"}, {"b", "1.5"}, {"c", "true"}, {"d", "null"}, {"e", "9007199254740992"}},
                  ""},
        ResultRow{"nested", "result.x = {1, {k = 'é\"'}}", {{"x", "[1,{\"k\":\"é\\\"\"}]"}}, ""},
        ResultRow{"unicode", "result['ключ'] = '\u2713\\1\\n'", {{"ключ", "\xE2\x9C\x93\x01\n"}}, ""},
        ResultRow{"empty",
                  "result[''] = ''\nresult.o = {}\nresult.l = json.array{}",
                  {{"", ""}, {"o", "{}"}, {"l", "[]"}},
                  ""},
        ResultRow{"another table", "result = {new = 'table'}", {{"new", "table"}}, ""},
        ResultRow{"a name of its own",
                  "mycojobs.result.a = 'b'\nresult = 42",
                  {},
                  "ResultError: result is a number, not a table: return a value with result.NAME = VALUE, and give a "
                  "variable of the script's own another name"},
        ResultRow{"taken away", "result = nil", {}, ""},
        ResultRow{
            "a function",
            "result.x = print",
            {},
            "ResultError: result[\"x\"]: a value of type function is not JSON: write its parts, or its tostring()"},
        ResultRow{"not a number",
                  "result.x = 0/0",
                  {},
                  "ResultError: result[\"x\"]: -nan is not JSON: write json.null, or its tostring()"},
        ResultRow{"a circle",
                  "result.x = {}\nresult.x.x = result.x",
                  {},
                  "ResultError: result[\"x\"]: is nested too deep, or contains itself"},
        ResultRow{"a key that is no text",
                  "result[1] = 'x'",
                  {},
                  "ResultError: result: the key 1 is not text: write result[tostring(1)]"},
        ResultRow{"a mixed table",
                  "result.x = {1, a = 2}",
                  {},
                  "ResultError: result[\"x\"]: its key 1 is not text: keys are text, or all of 1..n for an array"},
        ResultRow{"half a character",
                  "result.x = '\\xff'",
                  {},
                  "ResultError: result[\"x\"]: contains bytes that are not text"}));

TEST(Lua, OwnGlobalNamedResultIsAWarning) {
  for (const char* script : {"result = 5", "result = {x = print}", "result = {1, 2}"}) {
    const LuaRunResult result = run_lua(script);
    EXPECT_EQ(result.end.status, JobStatus::finished) << script << ": " << result.end.error;
    EXPECT_TRUE(result.end.result.empty()) << script;
    EXPECT_THAT(result.err, HasSubstr("mycojobs: warning: result")) << script;
  }
}

TEST(Lua, RejectedResultIsNotRetried) {
  for (const char* script : {"result.x = print", "result.x = 1\nresult = 5"}) {
    const LuaRunResult result = run_lua(script);
    EXPECT_THAT(result.end.error, ::testing::StartsWith("ResultError: ")) << script;
    EXPECT_TRUE(result.end.retry_forbidden) << script;
  }
  EXPECT_FALSE(run_lua("error({type = 'ResultError', message = 'of the script'})").end.retry_forbidden);
}

TEST(Lua, ByteOrderMarkIsSkipped) {
  const LuaRunResult result = run_lua("\xEF\xBB\xBF#!/usr/bin/lua5.4\nprint('hello')\nerror('bad')");
  EXPECT_EQ(result.out, "hello\n");
  EXPECT_EQ(result.end.error, "Error: bad (line 3)");
}

TEST(Lua, LongLineOfATracebackIsCutBetweenCharacters) {
  std::string line = "error('";
  for (int i = 0; i < 100; ++i) line += "\u20ac";
  const LuaRunResult result = run_lua(line + "')");
  EXPECT_THAT(result.end.error_info, HasSubstr("\u20ac\\n"));
}

struct EndRow {
  const char* name;
  const char* script;
  const char* detail;
  const char* error;
};
void PrintTo(const EndRow& row, std::ostream* out) { *out << row.name; }

class LuaEnd : public ::testing::TestWithParam<EndRow> {};

TEST_P(LuaEnd, IsReported) {
  const LuaRunResult result = run_lua(LuaJob{.script = GetParam().script, .policy = profile("sal")});
  EXPECT_EQ(result.end.detail, GetParam().detail);
  EXPECT_EQ(result.end.error, GetParam().error) << result.err;
}

constexpr const char* kNoResult = "the script ended without returning its result";
constexpr const char* kTooMuch = "MemoryError: not enough memory: the policy's field memory is the limit";
constexpr const char* kTooDeep = "Error: stack overflow: a recursion used all memory of the job";

INSTANTIATE_TEST_SUITE_P(
    Errors, LuaEnd,
    ::testing::Values(
        EndRow{"text", "\n\nerror('bad')", "exception", "Error: bad (line 3)"},
        EndRow{"in a function", "local function f() error('bad') end\n\nf()", "exception", "Error: bad (line 1)"},
        EndRow{"of Lua", "local x\nx.y = 1", "exception", "Error: attempt to index a nil value (local 'x') (line 2)"},
        EndRow{"another level", "local function f() error('bad', 2) end\nf()", "exception", "Error: bad (line 2)"},
        EndRow{"table", "error{message = 'odd', type = 'Mine'}", "exception", "Mine: odd (line 1)"},
        EndRow{"table without a message", "error{a = 1}", "exception", "Error: {\"a\":1} (line 1)"},
        EndRow{"nothing", "error()", "exception", "Error: nil (line 1)"},
        EndRow{"number", "error(42)", "exception", "Error: 42 (line 1)"},
        EndRow{"NUL and broken text", "error('a\\0b\\xff')", "exception", "Error: a b? (line 1)"},
        EndRow{"text that fails", "error(setmetatable({}, {__tostring = function() error('no') end}))", "exception",
               "Error: <its text is not available> (line 1)"},
        EndRow{"failure", "mycojobs.failure('later')", "exception", "Failure: later (line 1)"},
        EndRow{"syntax", "x = 1\ny = = 2", "exception", "SyntaxError: unexpected symbol near '=' (line 2)"},
        EndRow{"bytecode", "\x1bLua", "exception", "SyntaxError: attempt to load a binary chunk (mode is 't')"},
        EndRow{"recursion", "local function f() return 1 + f() end\nf()", "exception", kTooDeep},
        EndRow{"recursion in C", "local function f(s) return (s:gsub('.', f)) end\nf('x')", "exception",
               "Error: C stack overflow (line 1)"},
        EndRow{"memory", "local t = {}\nwhile true do t[#t + 1] = ('x'):rep(1000) .. #t end", "exception", kTooMuch},
        EndRow{"one giant text", "local s = 'x'\nwhile true do s = s .. s end", "exception", kTooMuch},
        EndRow{"threads", "local t = {}\nwhile true do t[#t + 1] = coroutine.create(print) end", "exception", kTooMuch},
        EndRow{"memory that is caught", "pcall(function() local t = {} while true do t[#t + 1] = {} end end)", "ok",
               ""},
        EndRow{"handler that fails", "local function h() h() end\nxpcall(h, h)", "ok", ""}));

INSTANTIATE_TEST_SUITE_P(
    Exits, LuaEnd,
    ::testing::Values(EndRow{"0", "os.exit(0)", "ok", ""}, EndRow{"true", "os.exit(true)", "ok", ""},
                      EndRow{"none", "os.exit()", "ok", ""}, EndRow{"3", "os.exit(3)", "exit", "exit code 3"},
                      EndRow{"false", "os.exit(false)", "exit", "exit code 1"},
                      EndRow{"-1", "os.exit(-1)", "exit", "exit code 255"},
                      EndRow{"in pcall", "pcall(os.exit, 2)", "exit", "exit code 2"},
                      EndRow{"in a coroutine", "coroutine.wrap(function() os.exit(2) end)()", "exit", "exit code 2"},
                      EndRow{"in a finalizer", "setmetatable({}, {__gc = function() os.exit(0) end})", "exit",
                             kNoResult}));

// The end of a script is reported even if the script breaks its interpreter.
INSTANTIATE_TEST_SUITE_P(
    Sabotage, LuaEnd,
    ::testing::Values(
        EndRow{"libraries",
               "for _, t in pairs{string, table, math, utf8} do for k in pairs(t) do t[k] = nil end end\nerror('end')",
               "exception", "Error: end (line 2)"},
        EndRow{"globals", "local e, g = error, _G\nfor k in pairs(g) do g[k] = nil end\ne('end')", "exception",
               "Error: end (line 3)"},
        EndRow{"metatable of texts", "getmetatable('').__index = nil\ngetmetatable('').__concat = error\nerror('end')",
               "exception", "Error: end (line 3)"},
        EndRow{"metatable of globals",
               "setmetatable(_G, {__index = error, __newindex = error, __pairs = error})\nresult = nil", "ok", ""},
        EndRow{"result with a metatable", "setmetatable(result, {__pairs = error, __index = error, __len = error})",
               "ok", ""},
        EndRow{"null", "setmetatable(json.null, {})", "exception",
               "Error: cannot change a protected metatable (line 1)"},
        EndRow{"warnings", "warn('@off')\nwarn('x')", "ok", ""},
        EndRow{"collector", "collectgarbage('stop')", "ok", ""},
        EndRow{"late error", "setmetatable({}, {__gc = function() error('late') end})", "ok", ""},
        EndRow{"closed stdout", "io.stdout:close()", "ok", ""}));

TEST(Lua, UnpreparableJobReportsWhy) {
  LuaJob job{.script = "print('never')"};
  job.secrets = {{"../\"x\\", "value"}};
  const LuaRunResult result = run_lua(job);
  EXPECT_EQ(result.end.error, R"(SetupError: channel: a file outside of the job's folder: secrets/../"x\)");
  EXPECT_EQ(result.out, "");
}

TEST(Lua, TracebackHasTheScriptsOwnLines) {
  const LuaRunResult result =
      run_lua(LuaJob{.script = "local function inner()\n  error('bad')\nend\nfunction outer() inner() end\nouter()",
                     .name = "nightly.lua"});
  EXPECT_EQ(
      result.err,
      "nightly.lua:2: Error: bad\ntraceback, the innermost call first:\n  nightly.lua:2: in inner\n    error('bad')\n"
      "  nightly.lua:4: in outer\n    function outer() inner() end\n  nightly.lua:5: in the script\n    outer()\n");
  const auto info = nlohmann::json::parse(result.end.error_info);
  EXPECT_EQ(info.at("line"), 2);
  EXPECT_THAT(info.at("traceback").get<std::string>(), HasSubstr("nightly.lua:4: in outer"));
}

TEST(Lua, FailureControlsTheNextAttempt) {
  EXPECT_TRUE(run_lua("mycojobs.failure('never', {retry = false})").end.retry_forbidden);
  EXPECT_EQ(run_lua("mycojobs.failure('later', {retry = 2.5})").end.retry_after_ms, 2500U);
  EXPECT_TRUE(run_lua("error{message = 'never', retry = false}").end.retry_forbidden);
  const LuaRunResult plain = run_lua("error{message = 'x', retry = 'soon'}");
  EXPECT_FALSE(plain.end.retry_forbidden || plain.end.retry_after_ms);
  EXPECT_THAT(run_lua("mycojobs.failure('x', {retry = -1})").end.error, HasSubstr("retry = -1 is neither"));
}

TEST(Lua, FactsInputsSecretsAndEnvironmentAreAvailable) {
  const LuaRunResult result = run_lua(LuaJob{
      .script = "print(job.id, job.caller_id, job.name, job.granted, inputs.first.k, env.A, os.getenv('A'), env.HOME)\n"
                "print(mycojobs.secret('token'))\nprint(mycojobs.inputs == inputs, mycojobs.result == result)",
      .name = "größe",
      .environment = {{"A", "é"}},
      .inputs = {{"first", {1, {{"k", "v"}}}}},
      .secrets = {{"token", "s3cret"}}});
  EXPECT_EQ(result.out, "2001\t12\tgröße\tnil\tv\té\té\t/job\ns3cret\ntrue\ttrue\n") << result.err;
}

TEST(Lua, ResultsKeepTheirTypes) {
  const LuaRunResult result = run_lua("result.n, result.t, result.l = 1, '1', {'a'}");
  EXPECT_EQ(result.end.result, (TextMap{{"n", "1"}, {"t", "1"}, {"l", R"(["a"])"}}));
  EXPECT_EQ(result.end.result_json, (std::vector<std::string>{"l", "n"}));
  EXPECT_EQ(run_lua("local v = 1\nfor _ = 1, 48 do v = {v} end\nresult.x = v").end.detail, "ok");
  EXPECT_EQ(run_lua("local v = 1\nfor _ = 1, 49 do v = {v} end\nresult.x = v").end.detail, "exception");
}

TEST(Lua, InputsAreAvailableByNameOrIdUnchanged) {
  const LuaRunResult result = run_lua(LuaJob{
      .script = "local sum = 0\nfor _, each in pairs(inputs) do sum = sum + each.n end\n"
                "result.sum = sum\nresult.same = inputs.build == inputs['2002'] and inputs.build == inputs[2002]\n"
                "result.text, result.none, result.absent = inputs.build.text, inputs.build.none == json.null, "
                "inputs['2001'] == nil\nassert(job.input_names == nil)",
      .inputs = {{"build", {2002, {{"n", "1"}, {"text", "1"}, {"none", "null"}}, {"n", "none"}}},
                 {"2003", {2003, {{"n", "2"}}, {"n"}}}}});
  EXPECT_EQ(result.end.result,
            (TextMap{{"sum", "3"}, {"same", "true"}, {"text", "1"}, {"none", "true"}, {"absent", "true"}}))
      << result.err;
  EXPECT_EQ(result.end.result_json, (std::vector<std::string>{"absent", "none", "same", "sum"}));
}

TEST(Lua, FlowDataIsAvailable) {
  const LuaRunResult result = run_lua(LuaJob{
      .script = "local flow = mycojobs.flow\nresult.region, result.who = flow.inputs.region, flow.signals.go.who\n"
                "result.each, result.index = mycojobs.each.a, flow.index\n"
                "result.first, result.count = inputs.parts[1].n, #inputs.parts\nassert(job.flow == nil)",
      .inputs = {{"parts[1]", {2003, {{"n", "1"}}, {"n"}}}, {"parts[0]", {2004, {{"n", "2"}}, {"n"}}}},
      .flow_data = R"({"inputs": {"region": "eu"}, "signals": {"go": {"who": 12}},
                       "each": {"index": 1, "count": 2, "value": {"a": 1}}, "joins": {"parts": [2004, 2003]}})"});
  EXPECT_EQ(result.end.result,
            (TextMap{{"region", "eu"}, {"who", "12"}, {"each", "1"}, {"index", "1"}, {"first", "2"}, {"count", "2"}}))
      << result.err;
}

TEST(Lua, LogsProgressAndArtifactsWork) {
  const LuaRunResult result = run_lua(
      "log.info('a', 1, nil)\nlog.error('b')\nmycojobs.progress(0.5, "
      "'half')\nmycojobs.progress('on')\nmycojobs.progress(1)\n"
      "local f = io.open(mycojobs.artifacts .. '/left.txt', 'w')\nf:write('not closed')\n"
      "mycojobs.artifact('dir/deep/b.txt', 'b')\nprint(pcall(mycojobs.artifact, '../x', ''))\n"
      "print(pcall(mycojobs.progress, 2))");
  EXPECT_EQ(result.err, "INFO a 1 nil\nERROR b\n");
  EXPECT_THAT(result.notes, ElementsAre("progress 50 %: half", "on", "progress 100 %"));
  EXPECT_THAT(result.artifacts, ElementsAre(Pair("dir/deep/b.txt", "b"), Pair("left.txt", "not closed")));
  EXPECT_THAT(result.out, HasSubstr("2 is not from 0 to 1"));
  EXPECT_THAT(result.out, HasSubstr("\"../x\" is not a plain path"));
}

TEST(Lua, TermEndsAScriptWithoutAHandler) {
  const LuaRunResult result =
      run_lua(LuaJob{.script = "print('ready')\nmycojobs.sleep(30)\nprint('on')", .term_trigger = "ready"});
  EXPECT_EQ(result.outcome.signal, 15);
  EXPECT_EQ(result.out, "ready\n");
}

TEST(Lua, ScriptWithAHandlerMayCleanUp) {
  const LuaRunResult result = run_lua(LuaJob{.script = "mycojobs.cancelled()\nprint('ready')\nmycojobs.sleep(30)\n"
                                                       "result.told = mycojobs.cancelled()",
                                             .term_trigger = "ready"});
  EXPECT_EQ(result.result_value("told"), "true");
}

TEST(Lua, JsonIsReadAndWritten) {
  const LuaRunResult result = run_lua(R"(
print(json.encode(json.decode([=[[1,2.5,-3e2,{"a":[]},null,"\u00e9\ud83d\ude00\\/",true,{}]]=])))
for _, text in ipairs{'[1,', '{"a" 1}', '01', '"\\x"', 'nul', '[1]]', '"a\nb"', '', '[1,]', '"\\ud800"', '+1', '{1:2}', ('['):rep(200)} do
  local fine, err = pcall(json.decode, text)
  assert(not fine and err.code == 'invalid', text)
end
assert(json.decode(json.encode(math.mininteger)) == math.mininteger)
assert(json.decode(json.encode(0.1)) == 0.1 and math.type(json.decode('7')) == 'integer')
)");
  EXPECT_EQ(result.out, "[1,2.5,-300,{\"a\":[]},null,\"é😀\\\\/\",true,{}]\n") << result.err;
  EXPECT_EQ(result.end.error, "");
}

TEST(Lua, ShebangLineIsSkipped) { EXPECT_EQ(run_lua("#!/usr/bin/lua\nerror('x')").end.error, "Error: x (line 2)"); }

TEST(Lua, ProbeReportsTheVersion) {
  const auto version =
      LuaExecutor("sal", std::make_shared<LuaHost>(mj::test::program_path("mycojobs-luahost"))).probe();
  ASSERT_TRUE(version) << version.error().message;
  EXPECT_THAT(*version, StartsWith("Lua 5.4."));
  const auto missing = LuaExecutor("osis", std::make_shared<LuaHost>("/nowhere/luahost")).probe();
  EXPECT_THAT(missing.error().message, HasSubstr("osis: "));
  EXPECT_THAT(missing.error().message, HasSubstr("remedy: "));
}

}  // namespace
}  // namespace mycojobs::test
