// Values passed to a step are returned unchanged; unsupported values are rejected with their path.
#include "workflow/engine_fixture.h"

namespace mycojobs::workflow {
namespace {

using nlohmann::json;

std::string returned(const json& value) {
  StepRequest asked = request();
  asked.event.value = cbor(value);
  WorkflowEngine engine(options());
  const auto answer = engine.step(program("function step(_, event) return {v = event.value} end"), asked);
  if (const auto state = get_state(answer)) return *state;
  return answer ? text(*answer) : answer.error().message;
}

TEST(WorkflowValues, RoundTrip) {
  const json values[] = {nullptr,
                         true,
                         0,
                         -1,
                         9223372036854775807,
                         json(-9223372036854775807 - 1),
                         1.0,
                         0.1,
                         -0.0,
                         1e300,
                         "",
                         "t\u00e4xt",
                         json::binary({}),
                         json::binary({0, 255, 7}),
                         json::array(),
                         json::object(),
                         {1, 2.0, "three", nullptr, {{"a", json::array({json::object(), json::array()})}}},
                         {{"b", 1}, {"a", 2}, {"aa", 3}, {"", 4}},
                         json::array({nullptr, nullptr})};
  for (const json& each : values) EXPECT_EQ(returned(each), cbor({{"v", each}})) << each.dump();
}

TEST(WorkflowValues, NanIsCanonical) {
  WorkflowEngine engine(options());
  const auto answer =
      engine.step(program("function step() return {0/0, -(0/0), math.huge, -math.huge} end"), request());
  EXPECT_EQ(get_state(answer), std::string("\x84\xf9\x7e\x00\xf9\x7e\x00\xf9\x7c\x00\xf9\xfc\x00", 13));
}

TEST(WorkflowValues, IntegerOutsideLuasRangeIsRejected) {
  EXPECT_EQ(returned(18446744073709551615U), "value: event: an integer over 2^63 - 1, which Lua has not");
}

TEST(WorkflowValues, EmptyTablesAreMapsUnlessTheyAreArrays) {
  EXPECT_EQ(make_state("return {a = {}, b = array {}, c = array(), d = {1}}"), R"({"a":{},"b":[],"c":[],"d":[1]})");
}

TEST(WorkflowValues, EmptiedArrayStaysAnArray) {
  StepRequest asked = request();
  asked.state = cbor({{"items", {1}}});
  EXPECT_EQ(ran("function step(s) table.remove(s.items) return s end", asked), R"({"items":[]})");
}

TEST(WorkflowValues, NullIsNotNil) {
  StepRequest asked = request();
  asked.state = cbor({{"a", nullptr}});
  EXPECT_EQ(ran("function step(s) return {null = s.a == null, nothing = s.b == nil, text = tostring(s.a)} end", asked),
            R"({"nothing":true,"null":true,"text":"null"})");
}

TEST(WorkflowValues, BytesHaveTheirOwnType) {
  EXPECT_EQ(
      make_state(
          "local b = bytes('\\xff\\0') return {#b, b == bytes('\\xff\\0'), b == bytes('x'), b:string() == '\\xff\\0'}"),
      "[2,true,false,true]");
}

TEST(WorkflowValues, MissingStateIsNilAndNilEndsTheInstance) {
  EXPECT_EQ(ran("function step(s) assert(s == nil) return nil end"), "gone");
  EXPECT_EQ(ran("function step(s) return null end"), "gone");
  EXPECT_EQ(ran("function step() end"), "gone");
}

TEST(WorkflowValues, EventKeyAndCtxAreArguments) {
  StepRequest asked = request();
  asked.event.key = cbor("o-1");
  asked.ctx = cbor({{"now_ns", 1760000000000000000}, {"entropy", json::binary(std::vector<std::uint8_t>(32, 1))}});
  EXPECT_EQ(ran("function step(_, e, c) return {e.schema, e.key, c.now_ns, #c.entropy} end", asked),
            R"(["test/Event@1","o-1",1760000000000000000,32])");
}

TEST(WorkflowValues, EventsEffectsAndAnnotationsAreReturned) {
  EXPECT_EQ(ran("function step() return {}, {{schema = 'a@1', value = {1}}}, "
                "{{kind = 'x@1', params = {}}, {kind = 'y@1', params = array {}}}, {note = 'n'} end"),
            R"({} event a@1[1] effect 0x@1{} effect 1y@1[] ann {"note":"n"})");
}

TEST(WorkflowValues, EffectHasItsRefAndAKeyIsAValue) {
  EXPECT_EQ(ran("function step() return {}, {}, {{kind = 'x@1', params = 1, ref = 'pay'}, {kind = 'x@1', params = 2}} "
                "end"),
            "{} effect 0x@11 as pay effect 1x@12");
  StepRequest asked = request();
  for (const json& key : {json(7), json(std::string(200, 'k')), json("\xc3\xa9"), json(-1000)}) {
    asked.event.key = cbor(key);
    EXPECT_EQ(ran("function step(_, e) return {e.key} end", asked), json::array({key}).dump());
  }
}

struct Wrong {
  const char* body;
  const char* answer;
};
TEST(WorkflowValues, UnsupportedValueIsRejectedWithItsPath) {
  const Wrong rows[] = {
      {"return {a = {b = print == nil and 1 or step}}", nullptr},
      {"return {a = {step}}", "value: state.a[1]: a function cannot be kept"},
      {"return {a = '\\xff'}", "value: state.a: a string that is not UTF-8: make it bytes(...)"},
      {"return {1, nil, 3}", "value: state: is no array: its keys are not 1 to 2"},
      {"return {1, a = 2}", "value: state: has integers and strings as keys: a map has strings alone"},
      {"return {[1.5] = 2}", "value: state: a key is a float; integers and strings have an order"},
      {"return {[true] = 2}", "value: state: a key is a boolean; integers and strings have an order"},
      {"local a = {} a.a = a return a", nullptr},
      {"return {}, {1}", "value: events[1]: is no table with schema and value"},
      {"return {}, {{schema = 'a'}}", "value: events[1].value: is missing"},
      {"return {}, {{value = 1}}", "value: events[1].schema: is no name"},
      {"return {}, {}, {{kind = 'a', params = 1, more = 2}}", "value: effects[1]: has kind and params, no \"more\""},
      {"return {}, {}, {{kind = 'a', params = 1, ref = 2}}", "value: effects[1].ref: is no text"},
      {"return {}, {}, {{kind = 'a', params = 1, ref = '\\xff'}}", "value: effects[1].ref: is no text"},
      {"return {}, {{schema = 'a', value = 1, ref = 'x'}}", "value: events[1]: has schema and value, no \"ref\""},
      {"return {}, {a = 1}", "value: events: is no array: its keys are not 1 to 1"},
      {"return {}, 'x'", "value: events: is no array"},
  };
  for (const Wrong& row : rows) {
    const std::string output = make_state(row.body);
    if (row.answer != nullptr) {
      EXPECT_EQ(output, row.answer) << row.body;
    } else {
      EXPECT_TRUE(output.starts_with("script") || output.starts_with("value: state.")) << row.body << ": " << output;
    }
  }
}

TEST(WorkflowValues, MetatablesCannotForgeState) {
  EXPECT_EQ(make_state("return setmetatable({a = 1}, {__index = {b = 2}, __pairs = error, __len = error})"),
            R"({"a":1})");
}

TEST(WorkflowFailures, NameTheirLine) {
  EXPECT_EQ(ran("function step()\n  local x\n  return x.y\nend"),
            "script, line 3: order.lua:3: attempt to index a nil value (local 'x')");
  EXPECT_EQ(ran("function step() error({message = 'no stock'}) end"), "script, line 1: no stock");
  EXPECT_EQ(ran("function step() error({}) end"), "script, line 1: the error is a table");
  EXPECT_EQ(ran("x = = 1"), "load, line 1: order.lua:1: unexpected symbol near '='");
  EXPECT_EQ(ran("x = 1"), "load: it defines no function step(state, event, ctx)");
  EXPECT_EQ(ran("\nerror('top')"), "load, line 2: order.lua:2: top");
  EXPECT_EQ(ran("\x1bLua"), "load: it is bytecode: give its source");
}

}  // namespace
}  // namespace mycojobs::workflow
