// Steps that try to observe properties of the machine. Each runs several times: in separate processes, with another
// environment and locale, on another processor, without optimization, as a first step and after others. All runs must
// return the same bytes or the same refusal; the table gives the expected result.
#include <locale.h>

#include <clocale>
#include <set>

#include "workflow/engine_fixture.h"

namespace mycojobs::workflow {
namespace {

struct Attempt {
  const char* body;
  const char* answer;  // nullptr: any answer, but the same in every run
};

const Attempt kSame[] = {
    // Order of keys.
    {"local o = {} for k in pairs({z = 1, a = 2, [3] = 3, [-1] = 4, m = 5, [1] = 6}) do o[#o + 1] = k end return o",
     R"j([-1,1,3,"a","m","z"])j"},
    {"local t, o = {}, {} for i = 1, 200 do t['k' .. (i * 7919) % 1000] = i end for k in pairs(t) do o[#o + 1] = k end "
     "return o",
     nullptr},
    {"local t, o = {b = 1, a = 2, c = 3}, {} local k, v = next(t) while k do o[#o + 1] = k .. v k, v = next(t, k) end "
     "return o",
     R"j(["a2","b1","c3"])j"},
    {"local t, o = {a = 1, b = 2, c = 3}, {} for k in pairs(t) do t[k] = nil t.x = 1 o[#o + 1] = k end return {o, t.x}",
     R"j([["a","b","c"],1])j"},
    {"return next({}) == nil", "true"},
    {"return {pcall(next, {[{}] = 1})}", R"j([false,"next: a key is a table; integers and strings have an order"])j"},
    {"return {pcall(pairs, {[print == nil] = 1})}", nullptr},
    // Addresses in texts, as keys, and in comparisons.
    {"return tostring({})", R"j("table: (no address)")j"},
    {"return tostring(step) .. tostring(tostring)", R"j("function: (no address)function: (no address)")j"},
    {"return tostring(bytes('x'))", R"j("bytes: (no address)")j"},
    {"return string.format('%s %s', {}, step)", R"j("table: (no address) function: (no address)")j"},
    {"return {pcall(string.format, '%p', {})}",
     R"j([false,"string.format: %p is refused: an address is the machine's affair"])j"},
    {"return {pcall(function() return {} < {} end)}",
     R"j([false,"order.lua:1: attempt to compare two table values"])j"},
    // Length of a table with holes: depends on when the table grew, and thus on hashes of texts and addresses.
    {"local o = {} for n = 1, 60 do local t = {} for i = 1, n do t['k' .. i] = i t['k' .. (i - 3)] = nil if i % 4 ~= 0 "
     "then t[i] = i end end o[n] = #t end return table.concat(o, ' ')",
     nullptr},
    {"local o = {} for n = 1, 60 do local t = {} for i = 1, n do t['k' .. i * n] = i end for i = 1, n do t['k' .. i * "
     "n] = nil t[i * 2] = i t[1] = 1 end o[n] = #t end return table.concat(o, ' ')",
     nullptr},
    {"local o = {} for n = 1, 60 do local t, k = {}, {} for i = 1, n do k[i] = i % 2 == 0 and {} or function() return "
     "i end t[k[i]] = i end for i = 1, n do t[k[i]] = nil t[i * 2] = i t[1] = 1 end o[n] = #t end return "
     "table.concat(o, ' ')",
     nullptr},
    {"local o, f = {}, {tostring, pcall, string.rep, math.floor, ipairs, pairs, next, type, rawget, rawset, select, "
     "error, assert, table.sort, utf8.char, ipairs({})} for n = 1, 16 do local t = {} for i = 1, n do t[f[i]] = i end "
     "for i = 1, n do t[f[i]] = nil t[i * 2] = i t[1] = 1 end o[n] = #t end return table.concat(o, ' ')",
     nullptr},
    // Hashes of texts.
    {"local t = {} for i = 1, 5000 do t['x' .. i] = i end local k = next(t) return k", R"j("x1")j"},
    // Floats.
    {"return {tostring(0.1), tostring(1/3), tostring(1e15), tostring(2^53), tostring(1e100), tostring(-0.0), 1e5 .. "
     "''}",
     R"j(["0.1","0.3333333333333333","1000000000000000.0","9007199254740992.0","1e+100","-0.0","100000.0"])j"},
    {"return {tostring(0/0), tostring(-(0/0)), tostring(math.huge), tostring(-math.huge)}",
     R"j(["nan","nan","inf","-inf"])j"},
    {"return {string.format('%.14g %g %f %.3f %e %a', 0.1, 0/0, -(0/0), 2.0005, 1e10, 0.5), "
     "string.format('%.14g', 1/3), string.format('%5.1f|%-8d|%x', 3.14159, 42, 255)}",
     R"j(["0.1 nan nan 2.001 1.000000e+10 0x1p-1","0.33333333333333","  3.1|42      |ff"])j"},
    {"return {string.format('%q', 1/3), string.format('%q', 'a\\n\\0'), string.format('%i', 3.0)}", nullptr},
    {"return {2^0.5, 10^15, 2^-1, (-8)^3, 0^0, 2^1024, (-2)^0.5 ~= (-2)^0.5, 0^-1, (-math.huge)^3, 1.1^10}", nullptr},
    // Arguments for which the C library rounds the last bit differently on a processor without FMA.
    {"return {0.2 ^ (1018 / 8 - 250), 0.2 ^ (2863 / 8 - 250), 0.3 ^ (463 / 8 - 250), math.exp(1849 / 640), "
     "math.exp(2138 / 640), math.exp(2320 / 640)}",
     nullptr},
    {"return {10^22 == 1e22, 3^20 == 3486784401.0, 2^0.5 == math.sqrt(2), 10^-3 == 0.001, 0.5^2 == 0.25}",
     "[true,true,true,true,true]"},
    {"return {math.exp(1) == 2.718281828459045, math.log(10) == 2.302585092994046, math.log(8, 2), math.log(1000, 10), "
     "math.exp(-1000), math.exp(1000) == math.huge, math.log(0) == -math.huge}",
     "[true,true,3.0,3.0,0.0,true,true]"},
    {"return {7 // 2, -7 // 2, 7 % -3, 5.5 % 2, -5.5 // 2, 1e308 * 10, math.fmod(-5, 3), 3 | 4, 1 << 63, "
     "math.tointeger(3.0)}",
     nullptr},
    {"return {tonumber('0x1p4'), tonumber('1,5') == nil, tonumber(' 10 '), tonumber('1e1'), tonumber('z', 36)}",
     "[16.0,true,10,10.0,35]"},
    {"return {math.maxinteger + 1 == math.mininteger, math.ult(1, -1), math.type(1), math.type(1.0), 1 == 1.0}",
     nullptr},
    // Locale.
    {"return {('\\xe4'):upper() == '\\xe4', ('\\xe4'):find('%a') == nil, ('I'):lower(), 'a' < 'B', '\\xc3\\xa4' < 'z', "
     "string.format('%.1f', 1.5)}",
     R"j([true,true,"i",false,false,"1.5"])j"},
    // Sorting.
    {"local t = {} for i = 1, 300 do t[i] = {i % 7, i} end table.sort(t, function(a, b) return a[1] < b[1] end) local "
     "o = "
     "{} for i, e in ipairs(t) do o[i] = e[2] end return o",
     nullptr},
    {"local t = {} for i = 1, 300 do t[i] = (i * 7919) % 301 end table.sort(t, function(a, b) return true end) return "
     "t",
     nullptr},
    {"local t = {5, 3, 9, 1} table.sort(t) return t", "[1,3,5,9]"},
    {"local t = {5, 3, 9, 1} table.sort(t, function(a, b) return a > b end) return t", "[9,5,3,1]"},
    // Garbage collection: weak tables and finalizers do not exist.
    {"return {pcall(setmetatable, {}, {__gc = step})}",
     R"j([false,"__gc is refused: when the collector runs is not to be seen"])j"},
    {"return {pcall(setmetatable, {}, {__mode = 'k'})}",
     R"j([false,"__mode is refused: when the collector runs is not to be seen"])j"},
    {"local m = {} local t = setmetatable({}, m) m.__mode = 'kv' for i = 1, 1000 do t[i] = {} end for i = 1, 200000 do "
     "local _ = {} end local n = 0 for _ in pairs(t) do n = n + 1 end return n",
     "1000"},
    {"local m, ran = {__gc = nil}, 0 m.__gc = nil local t = setmetatable({}, m) m.__gc = function() ran = ran + 1 end "
     "t = "
     "nil for i = 1, 200000 do local _ = {} end return ran",
     "0"},
    // Metatables.
    {"return getmetatable('').__index == nil and getmetatable('')", R"j("string")j"},
    {"return {pcall(setmetatable, array {}, {})}", R"j([false,"cannot change a protected metatable"])j"},
    {"return {pcall(setmetatable, string, {})}", R"j([false,"cannot change a protected metatable"])j"},
    // State that one step leaves in the process is invisible to the next.
    {"leaked = (leaked or 0) + 1 string.leaked = (rawget(string, 'leaked') or 0) + 1 return {leaked, string.leaked}",
     "[1,1]"},
    // Patterns.
    {"return {('key=val, k2=v2'):gsub('(%w+)=(%w+)', '%2=%1')}", R"j(["val=key, v2=k2",2])j"},
    {"local o = {} for k, v in ('a=1,b=2'):gmatch('(%w)=(%w)') do o[#o + 1] = k .. v end return o", R"j(["a1","b2"])j"},
    {"return {('THE (quick) fox'):find('%((%a+)%)'), ('f(a(b)c)d'):match('%b()'), ('THE fox'):match('%f[%a]%a+$'), "
     "('  x '):match('^%s*(.-)%s*$'), ('abc'):match('()b()'), ('a.b'):find('.', 1, true), ('aa'):match('(a)%1')}",
     nullptr},
    {"return {('abc'):gsub('', '-'), ('abc'):gsub('%w', {a = 1, b = true and 'B'}), ('abc'):gsub('.', function(c) "
     "return c == 'b' and 'X' end), ('hello'):gsub('l+', '[%0]'), ('x'):rep(3, ',')}",
     R"j(["-a-b-c-","1Bc","aXc","he[ll]o","x,x,x"])j"},
    {"return {('a-b'):match('[%a-]+'), (']'):match('[]]'), ('^'):match('[%^]'), ('b'):match('[^a]'), "
     "('5'):match('[0-9]'), "
     "('abc'):match('a*?b') == nil, ('aXb'):match('%u'), ('é'):match('[\\xc3]') ~= nil}",
     nullptr},
    {"return {pcall(string.find, 'a', '[a')}", R"j([false,"malformed pattern (missing ']')"])j"},
    {"return {pcall(string.find, 'a', '%')}", R"j([false,"malformed pattern (ends with '%')"])j"},
    {"return {pcall(string.gsub, 'a', 'a', '%2')}", nullptr},
    {"local o = {} for p, c in utf8.codes('aä€') do o[#o + 1] = p .. ':' .. c end return o",
     R"j(["1:97","2:228","4:8364"])j"},
    {"return {select('#', table.unpack({1, nil, 3}, 1, 3)), table.concat({1, 2.5, 'x'}, '-'), "
     "#table.move({1, 2, 3}, 1, 3, 2), table.pack(1, 2).n}",
     R"j([3,"1-2.5-x",4,2])j"},
    {"return {xpcall(function() error('x', 0) end, function(m) return m .. '!' end)}", R"j([false,"x!"])j"},
    {"return {pcall(pcall)}", nullptr},
    // Names and metamethods do not reveal addresses. Metamethods that would reveal an order or the collector do not
    // run.
    {"return tostring(setmetatable({}, {__name = 'X'}))", R"j("X: (no address)")j"},
    {"return string.format('%s %10s', setmetatable({}, {__name = 'X'}), setmetatable({}, {__tostring = function() "
     "return "
     "'t' end}))",
     R"j("X: (no address)          t")j"},
    {"return {pcall(tostring, setmetatable({}, {__tostring = function() return {} end}))}",
     R"j([false,"'__tostring' must return a string"])j"},
    {"return {pcall(error, {}), pcall(error, step)}", nullptr},
    {"local t = setmetatable({b = 1, a = 2}, {__pairs = function() return next, {z = 1}, nil end}) local o = {} for k "
     "in "
     "pairs(t) do o[#o + 1] = k end return o",
     R"j(["a","b"])j"},
    {"local m = {__lt = function(a, b) return a.n < b.n end, __le = function() return true end, __eq = function() "
     "return "
     "true end, __concat = function() return 'c' end, __len = function() return 7 end, __call = function(_, x) return "
     "x "
     "end, __unm = function() return 'u' end} local a, b = setmetatable({n = 1}, m), setmetatable({n = 2}, m) return "
     "{a "
     "< b, a <= b, a == b, a .. b, #a, a(3), -a}",
     R"j([true,true,true,"c",7,3,"u"])j"},
    {"local o = {} do local a <close> = setmetatable({}, {__close = function() o[#o + 1] = 'a' end}) local b <close> = "
     "setmetatable({}, {__close = function() o[#o + 1] = 'b' end}) end return o",
     R"j(["b","a"])j"},
    // Long texts (over 40 bytes) are compared by content as keys, too.
    {"local t, o = {}, {} for i = 1, 50 do t[('long key '):rep(8) .. i * 37 % 50] = i end for k in pairs(t) do o[#o + "
     "1] = "
     "k:sub(-2) end return table.concat(o)",
     nullptr},
    {"local a, b = ('x'):rep(100), ('x'):rep(50) .. ('x'):rep(50) local t = {[a] = 1} return {t[b], a == b, "
     "rawequal(a, b), "
     "#a}",
     "[1,true,true,100]"},
    // Texts as numbers, numbers as texts.
    {"return {'10' + 1, '0x10' + 0, '3' * '4', 10 .. 20, -'2', '1e1' + 0, 7 // '2'}",
     R"j([11,16,12,"1020",-2,10.0,3])j"},
    {"return {math.maxinteger + 0.0 == 2^63, math.maxinteger < 2^63, math.mininteger == -2^63, 2^53 == 2^53 + 1, 1 < "
     "1.5, "
     "'a' < 'b'}",
     "[true,true,true,true,true,true]"},
    {"return {tostring(2^63), tostring(1e15), tostring(1e16), tostring(123456789012345678), tostring(5e-324), "
     "tostring(1.7976931348623157e308)}",
     R"j(["9.223372036854776e+18","1000000000000000.0","10000000000000000.0","123456789012345678","5e-324","1.7976931348623157e+308"])j"},
    {"return {string.format('%.20f', 0.1), string.format('%.3g', 123456), string.format('%d', 3.0), "
     "string.format('%5.2s|', "
     "'abc'), string.format('%+d % d %05d', 3, 3, 3), string.format('%c%c', 76, 117)}",
     R"j(["0.10000000000000000555","1.23e+05","3","   ab|","+3  3 00003","Lu"])j"},
    {"return {pcall(string.format, '%d', 3.5)}",
     R"j([false,"bad argument #2 to 'string.format' (number has no integer representation)"])j"},
    {"return {math.floor(-0.5), math.ceil(-0.5), math.floor(2^62), math.tointeger('8') == nil, "
     "math.abs(math.mininteger), "
     "-7 // 2.0, 7 % -math.huge, math.fmod(-7, 2)}",
     nullptr},
    {"return {pcall(function() return 1 // 0 end)}", R"j([false,"order.lua:1: attempt to divide by zero"])j"},
    {"return {1 // 0.0, -1 // 0.0, tostring(0.0 / 0 ), 1 % math.huge, 3 & 5, 3 ~ 5, ~0, 1 << 64, 1 >> -1}", nullptr},
    {"return {pcall(function() return 2^53 | 1 end), pcall(function() return 1.5 | 1 end)}", nullptr},
    {"return {0.1 + 0.2 == 0.3, 0.1 + 0.2, 1e308 + 1e308 == math.huge, 100 * 1.1, 3.0 == 3, (2^0.5)^2 == 2}",
     "[false,0.30000000000000004,true,110.00000000000001,true,false]"},
    // Rounding: sums are evaluated in order and rounded to nearest, independently of the registers of the processor.
    {"local s = 0.0 for i = 1, 1000 do s = s + 1 / i end return {s, s * 3 - s - s - s}", "[7.485470860550343,0.0]"},
    {"return {select(-1, 1, 2, 3), select('#'), table.pack(pcall(select, 0)).n, next({}, nil) == nil}", "[3,0,2,true]"},
    {"return {tostring(nil), tostring(true), type(null), tostring(null), #bytes('ab'), bytes('ab') == bytes('ab')}",
     nullptr},
    // Error texts contain no address, path or stack trace.
    {"return {select(2, pcall(function() local t = {} t.x.y = 1 end)), select(2, pcall(function() return #step end)), "
     "select(2, pcall(function() return ({}) .. 'x' end)), select(2, pcall(function() undefined_function() end))}",
     nullptr},
    {"return {xpcall(function() error({code = 7}) end, function(e) return e.code end)}", "[false,7]"},
    {"local function deep(n) if n == 0 then error('end') end return deep(n - 1) end return {pcall(deep, 50)}",
     R"j([false,"order.lua:1: end"])j"},
    {"return _VERSION", R"j("Lua 5.4")j"},
};

// Absent functions; each call returns an error that names the function.
const char* const kRefused[] = {
    "os.time()",
    "os.clock()",
    "os.getenv('HOME')",
    "os.setlocale('de_DE')",
    "os.tmpname()",
    "io.read()",
    "io.open('/etc/passwd')",
    "require('os')",
    "package.path",
    "debug.getinfo(1)",
    "load('return 1')",
    "loadstring('x')",
    "loadfile('x')",
    "dofile('/etc/passwd')",
    "collectgarbage('count')",
    "math.random()",
    "math.randomseed(1)",
    "math.sin(1)",
    "string.dump(step)",
    "string.pack('d', 1)",
    "('x'):dump()",
    "coroutine.create(step)",
    "print('x')",
    "warn('@on')",
    "math.atan(1)",
    "math.cos(1)",
    "os.date()",
    "os.rename('a', 'b')",
    "io.popen('id')",
    "io.stdout",
    "debug.sethook()",
    "debug.getregistry()",
    "debug.setmetatable(1, {})",
    "string.unpack('d', 'x')",
    "string.packsize('d')",
    "coroutine.wrap(step)",
    "coroutine.running()",
    "package.loadlib('x', 'y')",
    "collectgarbage('step')",
    "_G.os.time()",
    "_ENV.io.read()",
};

std::set<std::string> run_in_all_engines(const std::string& source) {
  std::set<std::string> output;
  EngineOptions one = options();
  one.processes = 1;
  one.instructions = 5'000'000;
  for (const auto& each : all_options()) {
    one.program = each.program;
    output.insert(ran(source, request(), one));
    ::setenv("LC_ALL", "de_DE.UTF-8", 1);  // set in the calling process from the second engine on
    std::setlocale(LC_ALL, "de_DE.UTF-8");
  }
  std::setlocale(LC_ALL, "C");
  ::unsetenv("LC_ALL");
  one.program = options().program;
  // In the same process: after other programs, and repeated.
  WorkflowEngine engine(one);
  for (const char* other : {"t = {} for i = 1, 5000 do t[{}] = 'k' .. i end function step() return {} end",
                            "function step() local t = {} for i = 1, 1e4 do t[i] = 'x' .. i end end"}) {
    EXPECT_TRUE(engine.step(program(other), request()));
    for (int i = 0; i < 2; ++i) {
      const auto answer = engine.step(program(source), request());
      output.insert(answer ? text(*answer) : answer.error().message);
    }
  }
  EXPECT_EQ(engine.started(), 1U);
  return output;
}

TEST(WorkflowDeterminism, AttemptsProduceTheSameBytesEverywhere) {
  for (const Attempt& row : kSame) {
    const auto output = run_in_all_engines(std::string("function step(state, event, ctx) ") + row.body + " end");
    ASSERT_EQ(output.size(), 1U) << row.body << "\n" << *output.begin() << "\n" << *output.rbegin();
    if (row.answer != nullptr) {
      EXPECT_EQ(*output.begin(), row.answer) << row.body;
    } else {
      EXPECT_FALSE(output.begin()->starts_with("error")) << row.body << *output.begin();
      EXPECT_FALSE(output.begin()->starts_with("load")) << row.body << *output.begin();
    }
  }
}

TEST(WorkflowDeterminism, HostDependentFunctionsAreRejectedByName) {
  for (const char* expression : kRefused) {
    const std::string output = make_state(std::string("return ") + expression);
    EXPECT_TRUE(output.starts_with("script, line 1: order.lua:1: ")) << output;
    EXPECT_NE(output.find(" is refused: "), output.npos) << expression << ": " << output;
  }
}

// The point where memory or work is exhausted is part of the answer, so it must not depend on the process.
TEST(WorkflowDeterminism, LimitsApplyAtTheSamePlace) {
  const std::string source =
      "function step() local n, t = 0, {} for i = 1, math.huge do t['k' .. i] = {i} n = i if i % 1000 == 0 then mark = "
      "i "
      "end end end";
  EXPECT_EQ(run_in_all_engines(source).size(), 1U);
  // The largest number of rounds that fits must be the same in all engines.
  const auto fits = [](EngineOptions small, int rounds) {
    small.memory_bytes = 2U << 20;
    const std::string tried =
        "function step() local t = {} for i = 1, " + std::to_string(rounds) + " do t['k' .. i] = {i} end return {} end";
    return ran(tried, request(), small) == "{}";
  };
  std::set<int> max;
  for (const auto& engine : all_options()) {
    int low = 1, high = 100000;
    while (high - low > 1) (fits(engine, (low + high) / 2) ? low : high) = (low + high) / 2;
    max.insert(low);
  }
  EXPECT_EQ(max.size(), 1U);
  EXPECT_GT(*max.begin(), 1000);
}

// Tables and numbers must give the results that were recorded on another machine.
TEST(WorkflowDeterminism, AnswersMatchOtherMachines) {
  EXPECT_EQ(
      make_state("local o = {} for n = 1, 60 do local t = {} for i = 1, n do t['k' .. i * n] = i end for i = 1, n "
                 "do t['k' .. i * n] = nil t[i * 2] = i t[1] = 1 end o[n] = #t end return table.concat(o, ' ')"),
      "\"2 2 4 8 8 8 8 16 18 16 16 16 8 16 16 32 34 36 38 32 32 32 32 32 8 32 32 32 16 32 32 64 66 68 70 72 74 76 64 "
      "64 64 64 64 64 64 64 64 64 32 32 64 64 64 64 32 32 32 64 64 32\"");
  EXPECT_EQ(make_state("return {1.1^10, 2^0.3, 10^-5.5, math.exp(0.1), math.log(3), 7^-7, 1.0000001^1e7}"),
            "[2.5937424601000023,1.2311444133449163,3.162277660168379e-06,1.1051709180756477,1.0986122886681098,"
            "1.2142656789020123e-06,2.7182816941320818]");
}

}  // namespace
}  // namespace mycojobs::workflow
