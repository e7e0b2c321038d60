#include "base/parse.h"
#include "executors/lua/workflowhost/step_codec.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "text/cbor.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string cbor(const json& value) { return encode_cbor(value).value(); }
json raw(std::string_view bytes) { return json::binary({bytes.begin(), bytes.end()}); }

TEST(WorkflowStep, RequestHasOneEncoding) {
  const StepRequest request{cbor(1), {"a/E@1", cbor({{"x", 2}}), cbor("k")}, std::nullopt};
  const auto bytes = encode(request);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(to_hex(*bytes),
            "a463637478f6656576656e74a3636b657942616b6576616c756544a1617802"
            "66736368656d6165612f4540316573746174654101"
            "6776657273696f6e01");
  EXPECT_EQ(decode_step_request(*bytes).value(), request);
}

TEST(WorkflowStep, AnswerRoundTrips) {
  const StepOutput output{cbor({{"n", 1}}),
                          {{"a/E@1", cbor(3), std::nullopt}},
                          {{"a/f@1", cbor(4), 0, ""}, {"a/f@1", cbor(4), 1, "second"}},
                          cbor("note")};
  EXPECT_EQ(std::get<StepOutput>(decode_step_answer(encode(StepAnswer(output)).value()).value()), output);
  const StepOutput deleted{};
  EXPECT_EQ(std::get<StepOutput>(decode_step_answer(encode(StepAnswer(deleted)).value()).value()), deleted);
  const StepError error{"script", "boom", 7};
  EXPECT_EQ(std::get<StepError>(decode_step_answer(encode(StepAnswer(error)).value()).value()), error);
}

TEST(WorkflowStep, InvalidFieldIsNamed) {
  const json event{{"schema", "a/E@1"}, {"value", raw("\x01")}};
  const json good{{"version", 1}, {"state", nullptr}, {"ctx", nullptr}, {"event", event}};
  ASSERT_TRUE(decode_step_request(cbor(good)));
  const auto get_rejection = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    const auto read = decode_step_request(cbor(changed));
    return read ? std::string("taken") : read.error().message;
  };
  EXPECT_EQ(get_rejection("/version", 2), "version is not 1");
  EXPECT_EQ(get_rejection("/state", "text"), "state is not a byte string");
  EXPECT_EQ(get_rejection("/event/value", 1), "event.value is not a byte string");
  EXPECT_EQ(get_rejection("/event/more", 1), "event.more is an unknown field");
  EXPECT_EQ(get_rejection("/extra", 1), "extra is an unknown field");
  EXPECT_EQ(decode_step_request(cbor(1)).error().message, "it is not a map");
  EXPECT_FALSE(decode_step_request(""));
}

TEST(WorkflowStep, AnswerIsBounded) {
  const json effect{{"kind", "a/f@1"}, {"params", raw("\x01")}, {"index", 0}};
  json answer{{"state", nullptr}, {"domain_events", json::array()}, {"effects", json::array({effect})}};
  ASSERT_TRUE(decode_step_answer(cbor(answer)));
  answer["effects"][0]["index"] = 1;
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message, "effects[0].index is not its place in the list");
  for (std::uint64_t i = 0; i <= kMaxStepEffects; ++i)
    answer["effects"][i] = json{{"kind", "a/f@1"}, {"params", raw("\x01")}, {"index", i}};
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message, "the step gave 65 effects; at most 64");
  answer["effects"] = json::array();
  answer["domain_events"] = json::array();
  for (std::size_t i = 0; i <= kMaxStepEvents; ++i)
    answer["domain_events"].push_back({{"schema", "a/E@1"}, {"value", raw("\x01")}});
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message, "the step gave 257 events; at most 256");
  answer["domain_events"] = json::array({{{"schema", "a/E@1"}, {"value", raw("\x01")}, {"key", raw("\x01")}}});
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message, "domain_events[0].key is an unknown field");
  answer["domain_events"] = json::array();
  answer["state"] = raw(std::string(kMaxStateBytes, 'x'));
  ASSERT_TRUE(decode_step_answer(cbor(answer))) << decode_step_answer(cbor(answer)).error().message;
  answer["state"] = raw(std::string(kMaxStateBytes + 1, 'x'));
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message,
            "the step gave 10485761 bytes of state; at most 10485760");
  answer["state"] = raw(std::string(kMaxStepBytes, 'x'));
  answer["ann"] = raw(std::string(kMaxStepBytes, 'x'));
  EXPECT_THAT(decode_step_answer(cbor(answer)).error().message, testing::EndsWith("beside its state; at most 1048576"));
}

}  // namespace
}  // namespace mycojobs
