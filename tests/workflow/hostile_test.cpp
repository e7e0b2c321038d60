// Code that tries to exhaust the time, memory or processes of the coordinator: its step ends with the matching failure,
// and the next step of the same engine works.
#include <signal.h>

#include <regex>
#include <set>
#include <thread>

#include "support/build_paths.h"
#include "support/process.h"
#include "workflow/engine_fixture.h"

namespace mycojobs::workflow {
namespace {

struct Attack {
  const char* body;
  const char* begins;  // beginning of the answer
};

const Attack kAttacks[] = {
    {"while true do end", "limit"},
    {"repeat local ok = pcall(function() while true do end end) until false", "limit"},
    {"while true do pcall(error) end", "limit"},
    // Expensive operations inside one instruction are counted: a small number of iterations exceeds the limit.
    {"for i = 1, 2e4 do pcall(error) end return {}", "limit"},
    {"for i = 1, 2e4 do xpcall(error, error) end return {}", "limit"},
    {"local a, b = ('x'):rep(1e6) .. 'y', ('x'):rep(1e6) .. 'y' for i = 1, 1e4 do local _ = a == b end return {}",
     "limit"},
    {"local a, b = ('x'):rep(1e6) .. 'y', ('x'):rep(1e6) .. 'y' for i = 1, 1e4 do local _ = a < b end return {}",
     "limit"},
    {"for i = 1, 1e5 do local x = i ^ 1.1 end return {}", "limit"},
    {"for i = 1, 1e5 do local x = math.log(i) end return {}", "limit"},
    {"for i = 1, 2e4 do string.format('%99.99f', 1e308) end return {}", "limit"},
    {"local s = ('x'):rep(1e6) for i = 1, 2e3 do s:find('y', 1, true) end return {}", "limit"},
    {"local s = ('x'):rep(1e6) for i = 1, 2e3 do utf8.len(s) end return {}", "limit"},
    {"return pcall(function() while true do end end)", "limit"},
    {"xpcall(function() while true do end end, function() while true do end end) return {}", "limit"},
    {"local m = setmetatable({}, {__close = function() while true do end end}) local x <close> = m while true do end",
     "limit"},
    {"local function f() return f() end return f()", "limit"},
    {"local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) return t[1]", "script"},
    {"local function f() return 1 + f() end return f()", "memory"},
    {"local function f() pcall(f) end f() while true do f() end", "limit"},
    {"local t = {} for i = 1, math.huge do t[i] = i end", "memory"},
    {"local s, t = ('xxxxxxxxxxxxxxxx'):rep(6000), {} for i = 1, math.huge do pcall(function() t[i] = s .. i end) end",
     "memory"},
    {"local s = 'x' while true do s = s .. s end", "memory"},
    {"return ('x'):rep(1e10)", "memory"},
    {"return ('x'):rep(math.maxinteger)", "memory"},
    {"local s = ('xxxxxxxx'):rep(3e6) while true do local ok = pcall(string.upper, s) end", "memory"},
    {"return (''):rep(math.maxinteger)", "limit"},
    {"return ('x'):rep(1e5, ('y'):rep(1e5))", "memory"},
    {"local s = ('x'):rep(1e7) while true do s:upper() end", "limit"},
    {"local s = ('x'):rep(1e7) while true do local _ = s .. 'y' end", "limit"},
    {"return (('a'):rep(1e6):gsub('a', ('b'):rep(1e5)))", "memory"},
    {"local function f(s) return (s:gsub('.', function() return f(s) end)) end return f(('x'):rep(1e6))", "script"},
    {"return ('a'):rep(30000):find(('a?'):rep(100) .. ('a'):rep(100) .. 'b')", "limit"},
    {"return ('a'):rep(5000):find('.-.-.-.-.-.-b')", "limit"},
    {"return ('a'):rep(100000):find('(.*)(.*)(.*)(.*)b')", "limit"},
    {"return ('('):rep(1e6):find(('%b()'):rep(5))", "limit"},
    {"return ('x'):find(('('):rep(300))", "script"},
    {"return ('x'):rep(300):match(('x?'):rep(300))", "script"},
    {"return table.concat({}, 'x', 1, math.maxinteger)", "limit"},
    {"return table.unpack({}, 1, 1e7)", "script"},
    {"table.move({}, 1, math.maxinteger - 1, 2) return {}", "limit"},
    {"table.insert(setmetatable({}, {__len = function() return 1 << 60 end}), 1, 2)", "limit"},
    {"table.remove(setmetatable({}, {__len = function() return 1 << 60 end}), 1)", "limit"},
    {"table.sort({3, 1, 2}, function() while true do end end)", "limit"},
    {"local t = {} for i = 1, 1e5 do t[i] = i end while true do for k in pairs(t) do break end end", "limit"},
    {"local t = {} for i = 1, 1e4 do t['x' .. i] = i end while true do next(t, 'x5') end", "limit"},
    {"return ('x'):rep(10 * 2^20)", "output: the state is over 10 MiB"},
    {"local t = {} for i = 1, 3000 do t[i] = ('x'):rep(5000) end return t", "output: the state is over 10 MiB"},
    {"local e = {} for i = 1, 257 do e[i] = {schema = 'a', value = i} end return {}, e", "output: events: the step"},
    {"local e = {} for i = 1, 65 do e[i] = {kind = 'a', params = i} end return {}, {}, e", "output: effects: the step"},
    {"local a = {} a[1] = a return a", "value"},
    {"local a = {} for i = 1, 100 do a = {a} end return a", "value"},
    {"return {pcall(string.format, ('%d'):rep(1000))}", "[false"},
    {"return string.format('%99999d', 1)", "script"},
    {"return {tostring(1e308), string.format('%99.99f', 1e308)}", "[\"1e+308\""},
    {"error(('x'):rep(1e6))", "script"},
    {"error(setmetatable({}, {__tostring = function() while true do end end}))", "script"},
    {"error(setmetatable({}, {__index = function() while true do end end}))", "script"},
    // Metamethods that never end or call themselves, called in various ways.
    {"local m = {} m.__index = function(t, k) return t[k] end return setmetatable({}, m).x", "script"},
    {"local m = {} m.__newindex = function(t, k, v) t[k] = v end setmetatable({}, m).x = 1", "script"},
    {"local m = {} m.__eq = function(a, b) return a == b end return setmetatable({}, m) == setmetatable({}, m)",
     "script"},
    {"local m = {} m.__concat = function(a, b) return a .. b end return setmetatable({}, m) .. 'x'", "script"},
    {"local m = {} m.__lt = function(a, b) while true do end end return setmetatable({}, m) < setmetatable({}, m)",
     "limit"},
    {"local t = {} for i = 1, 1e5 do t = setmetatable({}, {__index = t}) end return t.x", "script"},
    {"tostring(setmetatable({}, {__tostring = function(s) return tostring(s) end}))", "script"},
    {"string.format('%s', setmetatable({}, {__tostring = function() while true do end end}))", "limit"},
    {"::again:: goto again", "limit"},
    {"for i = 1, math.huge do end", "limit"},
    {"for i = math.mininteger, math.maxinteger do end", "limit"},
    {"for i = 1.0, 1e300 do end", "limit"},
    {"return ('a'):rep(5000):find(('(a*)'):rep(30) .. 'b')", "limit"},
    {"return ('a'):rep(200):gsub(('a-'):rep(20) .. 'b', '')", "limit"},
    {"return ('x'):rep(1e5):find('%f[x]' .. ('.-'):rep(8) .. 'y')", "limit"},
    {"for k in (('x'):rep(1e6)):gmatch('()') do for j in (('x'):rep(1e6)):gmatch('()') do end end", "limit"},
    {"local s = ('x'):rep(1e5) for i = 1, 1e5 do s:reverse() end", "limit"},
    {"local s = ('x'):rep(1e5) for i = 1, 1e5 do s:byte(1, 200) s:lower() end", "limit"},
    {"local t = {} for i = 1, 1e4 do t[i] = 'x' end while true do table.concat(t, ',') end", "limit"},
    {"local t = {} for i = 1, 1e4 do t[i] = 1e4 - i end while true do table.sort(t, function(a, b) return a < b end) "
     "end",
     "limit"},
    {"local t = {} for i = 1, 1e4 do table.insert(t, 1, i) end while true do table.remove(t, 1) table.insert(t, 1, 1) "
     "end",
     "limit"},
    {"local t = {} while true do t = {t} end", "limit"},
    {"local t = {} while true do t[#t + 1] = function() return t end end", "limit"},
    {"local t = {} for i = 1, math.huge do t[('k'):rep(1000) .. i] = true end", "limit"},
    {"local s = ('x'):rep(1e6) local t = {} for i = 1, math.huge do t[i] = bytes(s .. i) end", "memory"},
    {"local t = {} for i = 1, 8e6 do t[i] = 0 end return {}", "memory"},
    {"local t = {} for i = 1, 3e5 do t[i] = i end return {}, nil, nil, t", "output: the step's output is over 1 MiB"},
    {"return {}, nil, nil, ('x'):rep(2^20)", "output"},
    {"return ('x'):rep(2^20), {{schema = ('x'):rep(2^20), value = 1}}", "output"},
    {"return ('x'):rep(2^20), nil, {{kind = 'a', params = 1, ref = ('x'):rep(2^20)}}", "output"},
    // A single call or instruction with a cost that depends on the size of its arguments.
    {"local function f(...) for i = 1, 1e3 do local n = select('#', ...) end end f(table.unpack({}, 1, 2e5)) return {}",
     "limit"},
    {"local function g(...) return ... end local function f(...) for i = 1, 1e3 do local a = g(...) end end "
     "f(table.unpack({}, 1, 2e5)) return {}",
     "limit"},
    {"local function f(n, ...) if n == 0 then return ... end return n, f(n - 1, ...) end for i = 1, 40 do "
     "f(7, table.unpack({}, 1, 1e5)) end return {}",
     "limit"},
    {"for i = 1, 1e5 do local x = math.fmod(1e308, 3) end return {}", "limit"},
    {"local a = 1e308 for i = 1, 1e5 do local x = a % 3 end return {}", "limit"},
    {"return {(('a'):rep(1e6):find(('a'):rep(5e5) .. 'b', 1, true)) == nil}", "[true]"},
    {"local s = ('x'):rep(1e6) for i = 1, 100 do s:find('y', 1, true) end return {}", "limit"},
    {"local p = '[' .. ('x'):rep(1e5) .. ']' for i = 1, 1e3 do (''):find(p) end return {}", "limit"},
    {"return {(('x'):rep(1e3):gsub('', ('%0'):rep(5e4)))}", "limit"},
    {"local s = ('1'):rep(1e6) for i = 1, 50 do tonumber(s, 36) end return {}", "limit"},
    {"local s = (' '):rep(1e6) .. '1' for i = 1, 50 do tonumber(s) end return {}", "limit"},
    {"local s = (' '):rep(1e6) .. '1' for i = 1, 50 do local x = s + 1 end return {}", "limit"},
    {"local s = ('x'):rep(1e6) for i = 1, 100 do utf8.len(s) end return {}", "limit"},
    {"local s = ('x'):rep(9e5) for i = 1, 100 do utf8.codepoint(s, 1, -1) end return {}", "limit"},
    {"local s = ('x'):rep(1e6) for i = 1, 100 do ('%q'):format(s) end return {}", "limit"},
    {"local t = {} for i = 1, 1e4 do t[i] = i end for i = 1, 2e3 do table.insert(t, 1.0, 1) end return {}", "limit"},
    {"local t = {} for i = 1, 1e4 do t[i] = i end for i = 1, 2e3 do table.insert(t, '1', 1) end return {}", "limit"},
    // Chains of metamethods.
    {"local t = {} for i = 1, 90 do t = setmetatable({}, {__index = t}) end for i = 1, 1e5 do local x = t.y end "
     "return {}",
     "limit"},
    {"local t = {} for i = 1, 90 do t = setmetatable({}, {__newindex = t}) end for i = 1, 1e5 do t.y = nil end "
     "return {}",
     "limit"},
    {"local m = {} m.__call = setmetatable({}, m) return setmetatable({}, m)()", "limit"},
    // Keys with colliding hashes, tables that scan all slots to grow by one, and empty slots.
    {"local t = {} for i = 1, 16383 do t[i * 16383] = true end return {}", "limit"},
    {"local t = {} for i = 1, 16383 do t[i * 16383 + 0.0] = true end return {}", "limit"},
    {"local t = {} for i = 1, 5e5 do t[i] = i end for i = 1, 2e4 do t['k' .. i] = 1 t['k' .. i - 3] = nil end "
     "return {}",
     "limit"},
    {"local t = {} for i = 1, 2^17 do t[-i] = i end for i = 1, 2^17 do t[-i] = nil end for i = 1, 400 do pairs(t) end "
     "return {}",
     "limit"},
    // Searches of Lua for the description of an error.
    {"for i = 1, 1e5 do _G['g' .. i] = i end for i = 1, 1e3 do pcall(string.rep) end return {}", "limit"},
    {"local function f(n) if n > 0 then return (f(n - 1)) end for i = 1, 1e3 do pcall(error, 'x', 1e5) end end f(1e5) "
     "return {}",
     "limit"},
    {"_ENV = nil return {}", "{}"},
    {"_G.pcall, _G.error, string.format = nil return {}", "{}"},
    {"string.rep = nil local g = _G for k in pairs(g) do g[k] = nil end return {}", "{}"},
};

TEST(WorkflowHostile, EndsOnlyItsStep) {
  EngineOptions one = options();
  one.processes = 1;
  one.instructions = 10'000'000;
  WorkflowEngine engine(one);
  for (const Attack& row : kAttacks) {
    const auto answer = engine.step(program(std::string("function step() ") + row.body + " end"), request());
    ASSERT_TRUE(answer) << row.body << ": " << answer.error().message;
    EXPECT_TRUE(text(*answer).starts_with(row.begins)) << row.body << "\n" << text(*answer).substr(0, 300);
    const auto after = engine.step(program("function step() return {1} end"), request());
    ASSERT_TRUE(after) << row.body;
    EXPECT_EQ(text(*after), "[1]") << row.body;
  }
  EXPECT_EQ(engine.started(), 1U) << "a process ended";
}

TEST(WorkflowHostile, TopLevelEndsOnlyItsStep) {
  EngineOptions small = options();
  small.instructions = 1'000'000;
  EXPECT_EQ(ran("while true do end", request(), small),
            "limit, line 1: its top level takes more than 1000000 instructions");
  EXPECT_TRUE(ran("t = {} for i = 1, math.huge do t[i] = ('x'):rep(10000) .. i end").starts_with("memory"));
  EXPECT_EQ(ran("t = ('x'):rep(5000000) function step() return {} end"), "load: its top level holds more than 4 MiB");
  EXPECT_TRUE(ran("return " + std::string(100000, '(')).starts_with("load"));
  EXPECT_TRUE(ran("x = " + std::string(300000, '{')).starts_with("load"));
  // Programs that are slow to parse.
  std::string labels, choices = "x = a";
  for (int i = 0; i < 60000; ++i) {
    labels += "::a" + std::to_string(i) + "::";
    choices += " and a";
  }
  for (const std::string& source : {labels, choices})
    EXPECT_TRUE(ran(source).starts_with("limit: its top level takes more than 50000000")) << ran(source).substr(0, 200);
}

// A step that takes too long regardless of its count: the clock restarts the engine and never fails the step.
TEST(WorkflowHostile, ClockRestartsTheEngineAndFailsNoStep) {
  EngineOptions quick = options();
  quick.time.cpu_ms = 10;
  quick.processes = 1;
  WorkflowEngine engine(quick);
  const ProcessKind large{1, 0, 10 * kStandardInstructions, 64U << 20, kStepCounting};  // allows 100 ms
  const auto answer = engine.step(program("function step() while true do end end"), request(), large);
  ASSERT_FALSE(answer) << text(*answer);
  EXPECT_EQ(answer.error().code, Code::unavailable);
  EXPECT_NE(answer.error().message.find("ms of CPU time, and was restarted"), std::string::npos)
      << answer.error().message;
  EXPECT_EQ(engine.started(), 1U) << "the start is not repeated immediately";
  EXPECT_EQ(text(engine.step(program("function step() return {1} end"), request()).value()), "[1]");
  EXPECT_EQ(engine.started(), 2U);
}

TEST(WorkflowHostile, StoppedEngineEndsItsSteps) {
  EngineOptions large = options();
  large.instructions = 10'000'000'000;
  WorkflowEngine engine(large);
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    engine.stop();
  });
  const auto answer = engine.step(program("function step() while true do end end"), request());
  stopper.join();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message, "workflow engine: it is being stopped");
}

// A limit is reached at the same line by every build on every machine.
TEST(WorkflowHostile, LimitsApplyAtTheSameLineEverywhere) {
  const char* const bodies[] = {
      "local t = {}\nfor i = 1, 1e6 do\nlocal a = ('x'):rep(i % 100)\nt[a] = i .. ''\nlocal n = utf8.len(a)\nend",
      "local t = {}\nfor i = 1, 1e6 do\nt[i * 1023] = i\nlocal n = #t\nlocal x = t[-i]\nend",
      "local function f(...)\nlocal n = select('#', ...)\nreturn ...\nend\nwhile true do\nf(table.unpack({}, 1, "
      "999))\nend",
      "while true do\npcall(error, {})\nlocal s = ('ab'):rep(9)\ns:find('b$')\ns:gsub('a', '%0')\nend",
      "local keep = {}\nfor i = 1, 3e5 do\nkeep[i] = {i, i}\nend\nlocal s = ('x'):rep(1e5)\nwhile true do\nlocal _ = s "
      ".. 1\nend",
  };
  for (const char* body : bodies) {
    for (const std::uint64_t limit : {1'000'000U, 1'234'567U, 5'000'000U}) {
      std::string first;
      for (EngineOptions each : all_options()) {
        each.instructions = limit;
        const std::string answer = ran("function step() " + std::string(body) + "\nend", request(), each);
        if (first.empty()) first = answer;
        EXPECT_EQ(answer, first) << each.program << "\n" << body;
        // If a garbage collection uses up the work, no memory is left to find the line.
        const bool by_memory = std::string_view(body).starts_with("local keep");
        EXPECT_TRUE(answer.starts_with(by_memory ? "limit" : "limit, line ")) << answer;
      }
    }
  }
}

std::set<std::string> functions_in(const std::string& text, const char* pattern) {
  const std::regex row(pattern);
  std::set<std::string> found;
  for (auto each = std::sregex_iterator(text.begin(), text.end(), row); each != std::sregex_iterator(); ++each) {
    const std::smatch& part = *each;
    const std::string name = part.size() > 4 && part[1].length() > 0 ? part.str(1) + '.' : "";
    found.insert(part.size() > 4 ? name + part.str(2) + ' ' + part.str(3) + ' ' + part.str(4)
                                 : part.str(1) + ' ' + part.str(2) + ' ' + (part.str(3) == "-" ? "0" : part.str(3)));
  }
  return found;
}

// Every function that a step can call has a cost, and the manual lists the costs.
TEST(WorkflowCosts, EachCallableFunctionHasItsRow) {
  const std::string walk = R"lua(
function step()
  local seen, names = {}, array {}
  local function walk(prefix, library)
    if seen[library] then return end
    seen[library] = true
    for name, value in pairs(library) do
      if type(value) == 'table' then walk(name == '_G' and '' or name .. '.', value) end
      if type(value) == 'function' and value ~= step then names[#names + 1] = prefix .. name end
    end
  end
  walk('', _G)
  return names
end)lua";
  const auto answer = WorkflowEngine(options()).step(program(walk), request());
  const auto state = get_state(answer);
  ASSERT_TRUE(state) << (answer ? text(*answer) : answer.error().message);
  std::set<std::string> reachable;
  for (const auto& name : value(*state)) reachable.insert(name.get<std::string>());
  EXPECT_GT(reachable.size(), 50U);

  const std::string manual = test::read_file(mj::test::source_path("docs/workflows/lua.md"));
  const std::string code = test::read_file(mj::test::source_path("executors/lua/workflowhost/library.cpp"));
  const auto described = functions_in(manual, R"re(\n\| `([a-z0-9_.]+)` \| (\d+) \| (\d+|-) \|)re");
  EXPECT_EQ(described, functions_in(code, R"re(\{"(\w*)", "(\w+)", (\d+), (\d+), \d+\})re"));
  std::set<std::string> names;
  for (const std::string& row : described) names.insert(row.substr(0, row.find(' ')));
  EXPECT_EQ(reachable, names);
}

TEST(WorkflowHostile, RequestsAreBounded) {
  StepRequest asked = request();
  asked.state = cbor(std::string(15U << 20, 'x'));
  WorkflowEngine engine(options());
  const auto answer = engine.step(program("function step() end"), asked);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::too_large);
  EXPECT_FALSE(WorkflowProgram::make(1, "a", "step", std::string(2U << 20, ' ')));
  EXPECT_FALSE(WorkflowProgram::make(1, "a", "", ""));
}

TEST(WorkflowHostile, NonCborStateIsAFailure) {
  StepRequest asked = request();
  asked.state = std::string("\xff");
  EXPECT_TRUE(ran("function step() end", asked).starts_with("value: state: CBOR, byte 1"));
  asked.state = std::string(
      "\xa2\x61z\x01\x61"
      "a\x02",
      7);
  EXPECT_EQ(ran("function step() end", asked), "value: state: CBOR, byte 6: keys are not in their order");
}

TEST(WorkflowHostile, NothingGrowsOverManySteps) {
  auto process = EngineProcess::start(options().program, 50'000'000, 64U << 20, 10000).value();
  const WorkflowProgram counts =
      program("function step(s) local t = {} for i = 1, 20 do t[i] = {('x'):rep(i)} end return {n = s.n + 1} end");
  std::string state = cbor({{"n", 0}});
  long early = 0;
  for (int i = 1; i <= 100000; ++i) {
    StepRequest asked = request();
    asked.state = state;
    const auto answer = process->step(counts, encode(asked).value(), StepTimeLimits());
    const auto next = get_state(answer);
    ASSERT_TRUE(next);
    state = *next;
    if (i == 5000) early = test::read_status_kib(process->pid(), "VmRSS");
  }
  EXPECT_EQ(value(state)["n"], 100000);
  EXPECT_GT(early, 0);
  const long late = test::read_status_kib(process->pid(), "VmRSS");
  EXPECT_GT(late, 0);
  EXPECT_LT(late, early + 1024);
}

TEST(WorkflowHostile, ManyProgramsAreUnloadedAndReloaded) {
  EngineOptions one = options();
  one.processes = 1;
  WorkflowEngine engine(one);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      const auto answer = engine.step(program("function step() return " + std::to_string(i) + " end"), request());
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(text(*answer), std::to_string(i));
    }
  }
  EXPECT_EQ(engine.started(), 1U);
}

}  // namespace
}  // namespace mycojobs::workflow
