// The Lua side of osis, connected to an agent of the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lua_driver.h"
#include "lua_servers.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LuaRunResult run_osis(const std::string& script, FakeObjects& objects) {
  return run_lua(LuaJob{
      .script = script, .executor = "osis", .agent = [&](const std::string& call) { return objects.answer(call); }});
}
LuaRunResult run_osis(const std::string& script) {
  FakeObjects objects;
  return run_osis(script, objects);
}

// Returns the calls that the agent receives, in order. The agent answers all calls with the same reply.
std::vector<json> record_calls(const std::string& script, const std::string& rest_of_reply,
                               LuaRunResult* result = nullptr) {
  std::vector<json> calls;
  const LuaRunResult run_result =
      run_lua(LuaJob{.script = script, .executor = "osis", .agent = [&](const std::string& call) {
                       calls.push_back(json::parse(call));
                       return "{\"id\":" + calls.back().at("id").dump() + "," + rest_of_reply + "}";
                     }});
  if (result != nullptr) *result = run_result;
  return calls;
}

TEST(LuaOsis, ObjectsAreStoredReadAndDeleted) {
  const LuaRunResult result = run_osis(R"(
local todo = osis.kind('todo', {index = {'state'}})
local first = todo:put{title = 'é', list = json.array{}, nested = {a = {1, 2}}}
assert(first.id and first.version == 1 and first.created_ms and first.title == 'é')
local again = todo:get(first.id)
assert(again.title == 'é' and json.encode(again.list) == '[]' and again.nested.a[2] == 2)
again.title = 'new'
assert(todo:put(again).version == 2)
assert(todo:count() == 1 and todo:delete(first.id) and not todo:delete(first.id) and todo:get(first.id) == nil)
)");
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(LuaOsis, ConflictsAreTablesWithACode) {
  const LuaRunResult result = run_osis(R"(
local todo = osis.kind('todo')
local mine = todo:put{id = 'a', n = 1}
todo:put{id = 'a', n = 2}
local fine, err = pcall(todo.put, todo, mine)
assert(not fine and err.code == 'conflict' and err.type == 'OsisError', err.code)
print(err)
fine, err = pcall(todo.put, todo, {id = 'a'}, {version = 0})
assert(err.code == 'conflict')
todo:put(mine, {version = 7})
)");
  EXPECT_EQ(result.out, "osis.put: a has version 2\n");
  EXPECT_EQ(result.end.error, "OsisError: osis.put: a has version 2 (line 10)");
}

TEST(LuaOsis, LoopsReadAllPages) {
  FakeObjects objects;
  const LuaRunResult result = run_osis(R"(
local numbers = osis.kind('numbers')
for i = 1, 25 do numbers:put{id = ('%03d'):format(i), n = i, even = i % 2 == 0} end
local function count(loop) local n = 0 for _ in loop do n = n + 1 end return n end
print(count(numbers:list()), count(numbers:list{page = 4}), count(numbers:list{limit = 7, page = 3}),
      count(numbers:find('even', true, {page = 2})), count(numbers:find{field = 'n', min = 5, max = 9, page = 2}),
      count(numbers:search('"n":25')), count(numbers:find('n', 99)))
for each in numbers:list{after = '020', limit = 1} do print(each.id, each.n) end
)",
                                       objects);
  EXPECT_EQ(result.out, "25\t25\t7\t12\t5\t1\t0\n021\t21\n") << result.err;
}

TEST(LuaOsis, TransactionIsOneAtomicCall) {
  FakeObjects objects;
  const LuaRunResult result = run_osis(R"(
local a, b = osis.kind('a'), osis.kind('b', {namespace = 'other'})
a:put{id = 'x', n = 1}
local done = osis.transaction(function(t)
  t:check(a, 'x', 1):put(a, {id = 'y'}):put(b, {id = 'z'}, {version = 0})
  t:delete(a, 'x', {version = 1})
end)
assert(#done == 4 and done[2].id == 'y' and a:get('x') == nil and b:get('z'))
local fine, err = pcall(osis.transaction, function(t) t:put(a, {id = 'new'}) t:check(a, 'y', 9) end)
assert(not fine and err.code == 'conflict' and a:get('new') == nil)
fine, err = pcall(osis.transaction, function(t) t:put(a, {id = 'new'}) error('stop', 0) end)
assert(err == 'stop' and a:get('new') == nil)
local kept
assert(#osis.transaction(function(t) kept = t end) == 0)
fine, err = pcall(kept.put, kept, a, {})
assert(err.code == 'invalid' and tostring(err):find('it has ended'))
)",
                                       objects);
  EXPECT_EQ(result.end.error, "") << result.err;
}

TEST(LuaOsis, AgentReceivesCompleteParameters) {
  const auto calls = record_calls(R"(
local users = osis.kind('users', {namespace = 'shop', index = {'email'}, text = 'bio'})
users:put({email = 'a', version = 3, created_ms = 1, id = 'i'})
users:find{field = 'age', min = 18}()
)",
                                  R"("result":{"objects":[]})");
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0], json::parse(R"({"id":1,"method":"osis.declare","params":
      {"namespace":"shop","kind":"users","index":["email"],"text":["bio"]}})"));
  EXPECT_EQ(calls[1], json::parse(R"({"id":2,"method":"osis.put","params":
      {"namespace":"shop","kind":"users","object":{"email":"a","id":"i"},"version":3}})"));
  EXPECT_EQ(calls[2], json::parse(R"({"id":3,"method":"osis.find","params":
      {"namespace":"shop","kind":"users","field":"age","min":18,"limit":100}})"));
}

TEST(LuaOsis, RefusalsContainAReason) {
  LuaRunResult result;
  record_calls("osis.kind('x'):put{}",
               R"("error":{"code":"denied","message":"caller 12 may not write: context grant 7"})", &result);
  EXPECT_EQ(result.end.error, "OsisError: osis.put: caller 12 may not write: context grant 7 (line 1)");
  const std::pair<const char*, const char*> rows[] = {
      {"osis.kind()", "osis.kind: argument 1 must be text, not nothing"},
      {"osis.kind('x', {indices = {}})", "unknown option indices"},
      {"osis.kind('x'):put{1, 2}", "an object has fields, and is not a list"},
      {"osis.kind('x'):put{f = print}", "a value of type function is not JSON"},
      {"osis.kind('x').count('id')", "osis: call it with a colon"},
      {"osis.kind('x'):find('email')", "argument 2 is the value to find"},
      {"osis.kind('x'):put({}, {version = 1.5})", "1.5 is not a whole number"},
      {"osis.transaction()", "argument 1 must be a function"},
      {"osis.kind('x'):put{f = ('x'):rep(3 << 20)}", "2 MiB are the most"},
      {"run('ls')", "attempt to call a nil value (global 'run')"},
  };
  for (const auto& [script, problem] : rows) EXPECT_THAT(run_osis(script).end.error, HasSubstr(problem)) << script;
}

// An invalid reply of the agent must not end the host.
TEST(LuaOsis, WrongAnswersAreErrors) {
  for (const char* reply :
       {"{\"id\":99,\"result\":{}}", "{\"id\":1}", "[]", "1", "nothing", "", "{\"id\":1,\"result\":5}"}) {
    const LuaRunResult result =
        run_lua(LuaJob{.script = "osis.kind('x'):get('a')", .executor = "osis", .agent = [&](const std::string&) {
                         return std::string(reply);
                       }});
    EXPECT_EQ(result.end.detail, "exception") << reply << result.err;
    EXPECT_THAT(result.end.error, HasSubstr("osis.get")) << reply;
  }
}

}  // namespace
}  // namespace mycojobs::test
