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

// Returns the encoding of a byte string that has this size.
std::string cbor_of_size(std::size_t size) { return cbor(raw(std::string(size - 5, 'x'))); }

TEST(WorkflowStep, RequestHasOneEncoding) {
  StepRequest request{cbor(1), {"a/E@1", cbor({{"x", 2}}), cbor("k")}, std::nullopt};
  const auto bytes = encode(request);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(to_hex(*bytes),
            "a463637478f6656576656e74a3636b657942616b6576616c756544a1617802"
            "66736368656d6165612f4540316573746174654101"
            "6776657273696f6e01");
  const json event{{"schema", "a/E@1"}, {"value", raw(request.event.value)}, {"key", raw(*request.event.key)}};
  EXPECT_EQ(*bytes, cbor({{"version", 1}, {"state", raw(*request.state)}, {"event", event}, {"ctx", nullptr}}))
      << "the encoding is not that of text/cbor.h";
  request.state.reset(), request.event.key.reset(), request.ctx = cbor("c");
  const json keyless{{"schema", "a/E@1"}, {"value", raw(request.event.value)}};
  EXPECT_EQ(encode(request).value(),
            cbor({{"version", 1}, {"state", nullptr}, {"event", keyless}, {"ctx", raw(*request.ctx)}}));
}

TEST(WorkflowStep, RequestIsBounded) {
  StepRequest request{std::string(kMaxStepRequestBytes, 'x'), {"a/E@1", cbor(1), std::nullopt}, std::nullopt};
  EXPECT_EQ(encode(request).error().code, Code::too_large);
  request.state->resize(kMaxStepRequestBytes - 100);
  EXPECT_TRUE(encode(request));
  request.event.schema = "\xff";
  EXPECT_EQ(encode(request).error().message, "event.schema is not UTF-8");
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

// Returns the error of an answer with this value at this place.
std::string get_rejection(json answer, const char* pointer, const json& value) {
  answer[json::json_pointer(pointer)] = value;
  const auto read = decode_step_answer(cbor(answer));
  return read ? std::string("accepted") : read.error().message;
}

TEST(WorkflowStep, InvalidFieldIsNamed) {
  const json good{{"state", nullptr},
                  {"domain_events", json::array({{{"schema", "a/E@1"}, {"value", raw("\x01")}}})},
                  {"effects", json::array({{{"kind", "a/f@1"}, {"params", raw("\x01")}, {"index", 0}}})}};
  ASSERT_TRUE(decode_step_answer(cbor(good)));
  EXPECT_EQ(get_rejection(good, "/state", "text"), "state is not a byte string");
  EXPECT_EQ(get_rejection(good, "/ann", nullptr), "ann is not a byte string");
  EXPECT_EQ(get_rejection(good, "/effects", nullptr), "effects is not a list");
  EXPECT_EQ(get_rejection(good, "/effects/0", 1), "effects[0] is not a map");
  EXPECT_EQ(get_rejection(good, "/effects/0/kind", 1), "effects[0].kind is not a text");
  EXPECT_EQ(get_rejection(good, "/effects/0/index", -1), "effects[0].index is not a whole number from 0");
  EXPECT_EQ(get_rejection(good, "/effects/0/issuer_ref", 1), "effects[0].issuer_ref is not a text");
  EXPECT_EQ(get_rejection(good, "/effects/0/more", 1), "effects[0].more is an unknown field");
  EXPECT_EQ(get_rejection(good, "/domain_events/0/value", 1), "domain_events[0].value is not a byte string");
  EXPECT_EQ(get_rejection(good, "/domain_events/0/more", 1), "domain_events[0].more is an unknown field");
  EXPECT_EQ(get_rejection(good, "/extra", 1), "extra is an unknown field");
  EXPECT_EQ(decode_step_answer(cbor(json::object())).error().message, "state is missing");
  EXPECT_EQ(decode_step_answer(cbor(1)).error().message, "it is not a map");
  EXPECT_FALSE(decode_step_answer(""));
}

TEST(WorkflowStep, ValuesAreDeterministicCbor) {
  const json good{{"state", raw("\x01")},
                  {"ann", raw("\x01")},
                  {"domain_events", json::array({{{"schema", "a/E@1"}, {"value", raw("\x01")}}})},
                  {"effects", json::array({{{"kind", "a/f@1"}, {"params", raw("\x01")}, {"index", 0}}})}};
  ASSERT_TRUE(decode_step_answer(cbor(good)));
  for (const auto& [pointer, path] : {std::pair("/state", "state"), std::pair("/ann", "ann"),
                                      std::pair("/domain_events/0/value", "domain_events[0].value"),
                                      std::pair("/effects/0/params", "effects[0].params")}) {
    for (const char* invalid : {"", "\xff", "\x18\x01", "\x01\x01"})
      EXPECT_THAT(get_rejection(good, pointer, raw(invalid)), testing::StartsWith(std::string(path) + ": CBOR, byte"));
  }
}

TEST(WorkflowStep, ErrorIsChecked) {
  const json good{{"error", {{"kind", "limit"}, {"message", "m"}, {"line", 3}}}};
  EXPECT_EQ(std::get<StepError>(decode_step_answer(cbor(good)).value()), (StepError{"limit", "m", 3}));
  EXPECT_EQ(get_rejection(good, "/error", 1), "error is not a map");
  EXPECT_EQ(get_rejection(good, "/error/more", 1), "error.more is an unknown field");
  EXPECT_EQ(get_rejection(good, "/state", nullptr), "state is an unknown field");
  for (const char* kind : {"engine", "contract", "", "odd"})
    EXPECT_EQ(get_rejection(good, "/error/kind", kind), "error.kind is not a known kind of failure");
  EXPECT_EQ(get_rejection(good, "/error/line", "3"), "error.line is not a whole number from 0");
  EXPECT_EQ(get_rejection(good, "/error/message", std::string(kMaxStepMessageBytes, 'm')), "accepted");
  EXPECT_EQ(get_rejection(good, "/error/message", std::string(kMaxStepMessageBytes + 1, 'm')),
            "error.message has 1025 bytes; at most 1024");
  json far = good;
  far["error"]["line"] = std::uint64_t{1} << 40;
  EXPECT_EQ(std::get<StepError>(decode_step_answer(cbor(far)).value()).line, UINT32_MAX);
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
  answer["state"] = raw(cbor_of_size(kMaxStateBytes));
  ASSERT_TRUE(decode_step_answer(cbor(answer))) << decode_step_answer(cbor(answer)).error().message;
  answer["state"] = raw(cbor_of_size(kMaxStateBytes + 1));
  EXPECT_EQ(decode_step_answer(cbor(answer)).error().message,
            "the step gave 10485761 bytes of state; at most 10485760");
  answer["state"] = raw(cbor_of_size(kMaxStepBytes));
  answer["ann"] = raw(cbor_of_size(kMaxStepBytes));
  EXPECT_THAT(decode_step_answer(cbor(answer)).error().message, testing::EndsWith("beside its state; at most 1048576"));
}

}  // namespace
}  // namespace mycojobs
