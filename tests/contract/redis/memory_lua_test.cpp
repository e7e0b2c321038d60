// Lua in the imitation of Redis: values, errors and limits equal those of a real server.
#include <gmock/gmock.h>

#include "contract/redis_pair.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

struct Snippet {
  const char* script;
  std::vector<std::string> arguments;
};

// Each snippet sees the keys text, hash and list as the previous snippets left them.
const std::vector<Snippet> kSnippets = {
    {"return 1", {}},
    {"return -7.9", {}},
    {"return 9007199254740993", {}},
    {"return 'text'", {}},
    {"return true", {}},
    {"return false", {}},
    {"return nil", {}},
    {"return", {}},
    {"return {}", {}},
    {"return {1, 'two', {3, {4}}, false, 5}", {}},
    {"return {1, nil, 3}", {}},
    {"return {ok = 'FINE'}", {}},
    {"return {err = 'MJTYPE odd'}", {}},
    {"return {{ok = 'FINE'}, {err = 'ERR inner'}}", {}},
    {"return {name = 'x'}", {}},
    {"return print", {}},
    {"return type", {}},
    {"return ARGV", {"a", "", "c"}},
    {"return #ARGV[1]", {std::string("a\0b", 3)}},
    {"return KEYS", {}},
    {"return #KEYS", {}},
    {"return redis.call('SET', 'text', 'x')", {}},
    {"return redis.call('SET', 'text', 'y', 'NX')", {}},
    {"return redis.call('SET', 'text', 'y', 'NX') == false", {}},
    {"return redis.call('TYPE', 'text').ok", {}},
    {"return redis.call('TYPE', 'text')", {}},
    {"return redis.call('GET', 'none')", {}},
    {"return type(redis.call('GET', 'none'))", {}},
    {"return type(redis.call('LLEN', 'none'))", {}},
    {"return redis.call('HSET', 'hash', 'a', 1, 'b', 2.5, 'c', 1e20, 'd', 0.25, 'e', 1234567890123456)", {}},
    {"return redis.call('HMGET', 'hash', 'a', 'b', 'c', 'd', 'e', 'f')", {}},
    {"return redis.call('HMGET', 'hash', 'f')[1]", {}},
    {"return redis.call('hset', 'hash', 'f', ARGV[1])", {"v"}},
    {"return redis.call('GET', 'hash')", {}},
    {"return redis.pcall('GET', 'hash')", {}},
    {"return redis.pcall('GET', 'hash').err", {}},
    {"\n\nlocal x = redis.call('GET', 'hash')\nreturn 1", {}},
    {"local function f() return redis.call('GET', 'hash') end\n\nreturn f() .. 'x'", {}},
    {"local ok, why = pcall(redis.call, 'GET', 'hash') return {tostring(ok), type(why), why.err}", {}},
    {"local ok, why = pcall(function() return redis.call('GET', 'hash') end) return why.err", {}},
    {"error(redis.pcall('GET', 'hash'))", {}},
    {"error('told')", {}},
    {"error({err = 'MJ told'})", {}},
    {"local x = nil + 1", {}},
    {"local x = nil\nreturn x.y", {}},
    {"return redis.call()", {}},
    {"return redis.call('GET')", {}},
    {"return redis.call('NOSUCH', 'x')", {}},
    {"return redis.call('EVAL', 'return 1', 0)", {}},
    {"return redis.call('GET', {})", {}},
    {"return redis.call('GET', nil)", {}},
    {"return redis.pcall('GET', true)", {}},
    {"return redis.error_reply('MJTYPE it is')", {}},
    {"return redis.error_reply('-MJTYPE it is')", {}},
    {"return redis.error_reply('single')", {}},
    {"return redis.error_reply('two\\nlines')", {}},
    {"return redis.error_reply(1)", {}},
    {"return redis.status_reply('DONE')", {}},
    {"return redis.status_reply()", {}},
    {"return redis.sha1hex('')", {}},
    {"return redis.sha1hex('abc')", {}},
    {"return redis.sha1hex(12)", {}},
    {"return redis.sha1hex(string.rep('x', 55))", {}},
    {"return redis.sha1hex(string.rep('x', 56))", {}},
    {"return redis.sha1hex(string.rep('\\0', 1000))", {}},
    {"x = 1", {}},
    {"return x", {}},
    {"return undefined_thing", {}},
    {"local function f() y = 2 end f()", {}},
    {"string.odd = 1", {}},
    {"redis.call = nil", {}},
    {"math = nil", {}},
    {"return redis.no_such_thing", {}},
    {"return redis.no_such_thing()", {}},
    {"return string.format('%.0f', 2^53) .. #table.concat({1, 2}, ',') .. math.floor(2.7)", {}},
    {"return {tonumber('0x10'), tonumber('1e2'), tonumber('nan') ~= nil and 1 or 0, tonumber('')}", {}},
    {"return {string.match('job:1:2', '^job:(%d+):(%d+)$')}", {}},
    {"return {unpack({1, 2, 3})}", {}},
    {"local t = {} for i = 1, 7000 do t[i] = i end return #{unpack(t)}", {}},
    {"local t = {} for i = 1, 9000 do t[i] = i end return #{unpack(t)}", {}},
    {"for i = 1, 3 do redis.call('RPUSH', 'list', i) end return redis.call('LRANGE', 'list', 0, -1)", {}},
    {"return redis.call('LINDEX', 'list', -1) + 1", {}},
    {"return select('#', redis.call('PING'), 2)", {}},
    {"return this is no Lua", {}},
    {"return loadstring('return 1 + 1')()", {}},
    {"return {pcall(loadstring('z = 1'))}", {}},
    {"return redis.call('ZADD', 'zset', 1.5, 'a', '2', 'b')", {}},
    {"return redis.call('ZSCORE', 'zset', 'a') * 2 .. ''", {}},
    {"redis.call('SET', 'written', 1) error('after a write')", {}},
    {"return redis.call('GET', 'written')", {}},
};

TEST(MemoryLua, ScriptsAnswerAsInRedis) {
  RedisPair pair;
  std::vector<PairCommand> commands;
  for (const Snippet& snippet : kSnippets) {
    PairCommand sent{{"EVAL", snippet.script, "0"}};
    sent.words.insert(sent.words.end(), snippet.arguments.begin(), snippet.arguments.end());
    commands.push_back(std::move(sent));
  }
  pair.compare(commands, "first");
  pair.compare(commands, "again, compiled");
  pair.compare({"EVAL", "return {KEYS[1], KEYS[2], ARGV[1], #ARGV}", "2", "k1", "k2", "a1"});
  pair.compare({"EVAL", "return 1", "2", "k1"});
  pair.compare({"EVAL", "return 1", "-1"});
  pair.compare({"EVAL", "return 1", "x"});
}

TEST(MemoryLua, HostIsOutOfReach) {
  RedisPair pair;
  for (const std::string name : {"os", "io", "dofile", "loadfile", "require", "debug", "package", "_G", "rawset"}) {
    EXPECT_THAT(pair.run_imitation({"EVAL", "return " + name, "0"}), HasSubstr("nonexistent global variable")) << name;
  }
  EXPECT_EQ(pair.run_imitation({"EVAL", "return math.random", "0"}), "nil") << "math.random does not exist";
}

TEST(MemoryLua, EndlessRecursionIsAnErrorForOneScript) {
  RedisPair pair;
  EXPECT_THAT(pair.run_imitation({"EVAL", "local t = {} t[1] = t return t", "0"}), HasSubstr("stack limit"));
  EXPECT_THAT(pair.run_imitation({"EVAL", "local function f() return 1 + f() end return f()", "0"}),
              HasSubstr("overflow"));
  EXPECT_EQ(pair.run_imitation({"EVAL", "return 1", "0"}), "1");
}

}  // namespace
}  // namespace mycojobs
