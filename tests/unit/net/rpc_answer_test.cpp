// A JSON-RPC request between supervisors and its response.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "model/enums.h"
#include "net/json_rpc_client.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using RpcHandler = std::function<Result<json>(std::string_view, const json&)>;
Result<json> call_method(const std::string& request, const RpcHandler& handler, std::size_t max_bytes = 1000) {
  return parse_rpc_answer(answer_rpc(request, max_bytes, handler));
}
Result<json> echo(std::string_view method, const json& params) { return json{{"method", method}, {"params", params}}; }

TEST(RpcAnswer, ShowsTheErrorUnchanged) {
  const auto answer = call_method(encode_rpc_request("message.deliver", {{"a", 1}}), echo);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(*answer, (json{{"method", "message.deliver"}, {"params", {{"a", 1}}}}));
  const auto without_params = call_method(R"({"method":"x"})", echo);
  ASSERT_TRUE(without_params);
  EXPECT_EQ((*without_params)["params"], json::object());
}

TEST(RpcAnswer, HasTheIdOfItsRequest) {
  for (const char* id : {"7", "\"seven\"", "null"}) {
    const json answer =
        json::parse(answer_rpc(std::string(R"({"jsonrpc":"2.0","method":"x","id":)") + id + "}", 1000, echo));
    EXPECT_EQ(answer["id"], json::parse(id));
    EXPECT_EQ(answer["jsonrpc"], "2.0");
  }
}

TEST(RpcAnswer, DistinguishesErrorsByTheirCode) {
  for (const Code code : {Code::invalid, Code::not_found, Code::conflict, Code::denied, Code::unavailable,
                          Code::too_large, Code::unsupported, Code::stale_claim, Code::internal}) {
    const auto answer = call_method(encode_rpc_request("x", {}), [code](std::string_view, const json&) -> Result<json> {
      return fail(code, "what is wrong");
    });
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, code) << to_string(code);
    EXPECT_EQ(answer.error().message, "what is wrong");
  }
}

TEST(RpcAnswer, RejectsNonRequests) {
  const RpcHandler unreachable_handler = [](std::string_view, const json&) -> Result<json> {
    ADD_FAILURE() << "the method was called";
    return json();
  };
  for (const char* request : {"", "nonsense", "[]", "null", "7", "{}", R"({"method":7})", R"({"method":""})",
                              R"([{"method":"x"}])", "{\"method\":\"x\"", "\xff\xfe"}) {
    const auto answer = call_method(request, unreachable_handler);
    ASSERT_FALSE(answer) << request;
    EXPECT_EQ(answer.error().code, Code::invalid) << request;
  }
  const auto large = call_method(R"({"method":"x","params":")" + std::string(1000, 'x') + "\"}", unreachable_handler);
  ASSERT_FALSE(large);
}

TEST(RpcAnswer, NonTextErrorBecomesText) {
  const auto answer = call_method(encode_rpc_request("x", {}), [](std::string_view, const json&) -> Result<json> {
    return fail(Code::denied, "\xff!");
  });
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("!"));
}

TEST(RpcAnswer, InvalidAnswerIsARetriableInternalError) {
  for (const char* text : {"", "<html>", "[]", "7", "{}", R"({"id":1})", R"({"error":7})", R"({"error":{}})",
                           R"({"error":{"message":7,"data":{"word":"nonsense"}}})"}) {
    const auto result = parse_rpc_answer(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, Code::internal) << text;
  }
}

TEST(RpcAnswer, AddsTheRemedy) {
  const auto result =
      parse_rpc_answer(R"({"error":{"message":"no","data":{"word":"denied","remedy":"mycojobs context grant"}}})");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::denied);
  EXPECT_EQ(result.error().message, "no; mycojobs context grant");
}

}  // namespace
}  // namespace mycojobs
