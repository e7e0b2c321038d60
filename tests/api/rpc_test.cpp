// JSON-RPC 2.0 according to its specification, including the examples of its section 7.
#include "api/rpc/json_rpc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace mycojobs::api {
namespace {

using nlohmann::json;

class Protocol : public ::testing::Test {
 protected:
  int runs_ = 0;
  RpcCaller last_;
  Rpc rpc_{methods(), {4096, 5, 500000, 1000}};

  std::vector<Method> methods() {
    return {
        {{"add",
          "add two numbers",
          {{"a", "integer", "one", true}, {"b", "integer", "other", true}},
          "integer: the sum"},
         [this](const json& params, const RpcCaller& caller) -> Result<json> {
           ++runs_;
           last_ = caller;
           return params.at("a").get<int>() + params.at("b").get<int>();
         }},
        {{"large", "answer 600 bytes", {}, "text: 600 bytes"},
         [this](const json&, const RpcCaller&) -> Result<json> {
           ++runs_;
           return std::string(600, 'x');
         }},
        {{"nothing", "answer null", {}, "any: null"},
         [](const json&, const RpcCaller&) -> Result<json> { return json(); }},
        {{"deny", "refuse", {{"timeout", "integer", ""}}, "any: never"},
         [](const json&, const RpcCaller&) -> Result<json> { return fail(Code::denied, "timeout: not for you"); }},
        {{"other_database", "refuse", {}, "any: never"},
         [](const json&, const RpcCaller&) -> Result<json> {
           return fail(Code::denied, "job: context 5: its database belongs to context 3 (database 0 of Redis at host)");
         }},
        {{"throw", "a bug", {}, "any: never"},
         [](const json&, const RpcCaller&) -> Result<json> { throw std::runtime_error("secret"); }},
        {{"types",
          "one parameter of each type",
          {{"id", "id", ""},
           {"text", "text", ""},
           {"integer", "integer", ""},
           {"count", "count", ""},
           {"seconds", "seconds", ""},
           {"boolean", "boolean", ""},
           {"list", "list", ""},
           {"object", "object", ""},
           {"key", "key", ""},
           {"any", "any", ""}},
          "object: what came"},
         [](const json& params, const RpcCaller&) -> Result<json> { return params; }},
    };
  }
  std::string raw(const std::string& body) const { return rpc_.answer(body, RpcCaller{12, false, false}); }
  json ask(const std::string& body) const { return json::parse(raw(body)); }
  json call(const std::string& method, const std::string& params) const {
    return ask(R"({"jsonrpc":"2.0","id":1,"method":")" + method + R"(","params":)" + params + "}");
  }
  static int code(const json& reply) { return reply.at("error").at("code").get<int>(); }
};

TEST_F(Protocol, RequestIsAnsweredWithItsId) {
  EXPECT_EQ(call("add", R"({"a":2,"b":3})"), json::parse(R"({"jsonrpc":"2.0","id":1,"result":5})"));
  EXPECT_EQ(last_.actor, 12U);
  for (const char* id : {"7", "\"seven\"", "null", "-1", "1.5", "\"\""}) {
    const json reply = ask(std::string(R"({"jsonrpc":"2.0","method":"nothing","id":)") + id + "}");
    EXPECT_EQ(reply.at("id"), json::parse(id));
    EXPECT_TRUE(reply.contains("result") && reply["result"].is_null()) << reply;
  }
}

TEST_F(Protocol, ParametersHaveThreeForms) {
  for (const char* shape :
       {R"({"a":2,"b":3})", R"([{"a":2,"b":3}])", R"({"params":{"a":2,"b":3}})", R"([{"params":{"a":2,"b":3}}])"}) {
    EXPECT_EQ(call("add", shape).value("result", 0), 5) << shape;
  }
  EXPECT_EQ(ask(R"({"jsonrpc":"2.0","id":1,"method":"nothing"})").count("result"), 1U);
  EXPECT_EQ(ask(R"({"jsonrpc":"2.0","id":1,"method":"nothing","params":[]})").count("result"), 1U);
  EXPECT_EQ(code(call("add", "[2,3]")), -32602);
  EXPECT_EQ(code(call("add", R"([{"a":2},{"b":3}])")), -32602);
}

TEST_F(Protocol, NotificationRunsWithoutAnAnswer) {
  EXPECT_EQ(raw(R"({"jsonrpc":"2.0","method":"add","params":{"a":1,"b":1}})"), "");
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(raw(R"({"jsonrpc":"2.0","method":"no such"})"), "");
  EXPECT_EQ(raw(R"({"jsonrpc":"2.0","method":"add","params":{"a":"x"}})"), "");
  EXPECT_EQ(raw(R"([{"jsonrpc":"2.0","method":"nothing"},{"jsonrpc":"2.0","method":"nothing"}])"), "");
}

TEST_F(Protocol, NonRequestIsInvalid) {
  for (const char* body :
       {"[]", "1", "\"x\"", "null", "{}", R"({"jsonrpc":"2.0"})", R"({"jsonrpc":"2.0","method":1,"params":"bar"})",
        R"({"jsonrpc":"1.0","id":null,"method":"nothing"})", R"({"id":null,"method":"nothing"})",
        R"({"jsonrpc":2.0,"id":null,"method":"nothing"})", R"({"jsonrpc":"2.0","id":true,"method":"nothing"})",
        R"({"jsonrpc":"2.0","id":{},"method":"nothing"})", R"({"jsonrpc":"2.0","id":[1],"method":"nothing"})",
        R"({"jsonrpc":"2.0","id":null,"method":"nothing","params":null})",
        R"({"jsonrpc":"2.0","id":null,"method":"nothing","params":7})"}) {
    const json reply = ask(body);
    EXPECT_EQ(code(reply), -32600) << body;
    EXPECT_TRUE(reply.at("id").is_null()) << body;
    EXPECT_EQ(reply["error"]["data"].value("word", ""), "invalid_request") << body;
  }
}

TEST_F(Protocol, NonJsonIsAParseError) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string(R"({"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz])"),
        std::string("{} {}"), std::string("\xff\xfe"), std::string(R"({"jsonrpc":"2.0","jsonrpc":"2.0"})"),
        std::string(100, '['), std::string("[1e999]")}) {
    EXPECT_EQ(code(ask(body)), -32700) << body;
  }
}

// A parsed request can hold such an integer only as a rounded double.
TEST_F(Protocol, IntegersBeyond64BitsAreRejected) {
  const json reply = ask(R"({"jsonrpc":"2.0","id":5,"method":"echo","params":{"v":18446744073709551616}})");
  EXPECT_EQ(code(reply), -32602);
  EXPECT_EQ(reply.at("id"), 5);
  EXPECT_EQ(reply["error"].value("message", ""), "the integer 18446744073709551616 does not fit 64 bits");
  EXPECT_EQ(reply["error"]["data"].value("remedy", ""), "put it in quotes, as text");
}

TEST_F(Protocol, BatchIsAnsweredInOneList) {
  const json replies = ask(R"([
    {"jsonrpc":"2.0","id":"1","method":"add","params":{"a":1,"b":2}},
    {"jsonrpc":"2.0","method":"nothing"},
    1,
    {"foo":"boo"},
    {"jsonrpc":"2.0","id":"5","method":"foo.get"}])");
  ASSERT_EQ(replies.size(), 4U);
  EXPECT_EQ(replies[0].value("result", 0), 3);
  EXPECT_EQ(code(replies[1]), -32600);
  EXPECT_EQ(code(replies[2]), -32600);
  EXPECT_EQ(code(replies[3]), -32601);
  EXPECT_EQ(ask("[1,2,3]").size(), 3U);
  EXPECT_EQ(code(ask("[1,2,3,4,5,6]")), -32600);  // over the limit: a single error
}

// A small request must not take memory without bound.
TEST_F(Protocol, AnswersOfABatchAreBoundedTogether) {
  const json replies = ask(R"([
    {"jsonrpc":"2.0","id":1,"method":"large"},
    {"jsonrpc":"2.0","id":2,"method":"large"},
    {"jsonrpc":"2.0","id":3,"method":"large"},
    {"jsonrpc":"2.0","method":"large"},
    {"jsonrpc":"2.0","id":5,"method":"large"}])");
  ASSERT_EQ(replies.size(), 4U);
  EXPECT_EQ(replies[0].at("result"), std::string(600, 'x'));
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(code(replies[i]), -32005) << replies[i];
  EXPECT_NE(replies[1]["error"].value("message", "").find("the call was made"), std::string::npos) << replies[1];
  EXPECT_NE(replies[2]["error"].value("message", "").find("was not made"), std::string::npos) << replies[2];
  EXPECT_EQ(replies[3].at("id"), 5);
  EXPECT_EQ(runs_, 3) << "the first two, and the one that wants no answer";
  const json one = ask(R"([{"jsonrpc":"2.0","id":1,"method":"nothing"}])");
  EXPECT_EQ(one.size(), 1U);
}

TEST_F(Protocol, LimitsAreReportedWithTheirRemedy) {
  const json reply = ask('"' + std::string(5000, 'x') + '"');
  EXPECT_EQ(code(reply), -32005);
  EXPECT_NE(reply["error"]["message"].get<std::string>().find("4096"), std::string::npos) << reply;
}

TEST_F(Protocol, ErrorOfADatabaseDoesNotNameAnotherContext) {
  const json refused = call("other_database", "{}").at("error");
  EXPECT_EQ(refused.at("code"), -32003);
  EXPECT_EQ(refused.at("message"), "the database of this context cannot be used: see the log of the server");
  EXPECT_EQ(refused.at("data").at("remedy"), "see the log of the server");
  EXPECT_EQ(refused.dump().find("context 3"), std::string::npos);
}

TEST_F(Protocol, ErrorsContainCodeFieldAndRemedy) {
  const json denied = call("deny", "{}").at("error");
  EXPECT_EQ(denied.at("code"), -32003);
  EXPECT_EQ(denied.at("data").at("word"), "denied");
  EXPECT_EQ(denied.at("data").at("field"), "timeout");
  EXPECT_FALSE(denied.at("data").at("remedy").get<std::string>().empty());
  const json unknown = call("no.such", "{}").at("error");
  EXPECT_EQ(unknown.at("code"), -32601);
  EXPECT_EQ(unknown.at("data").at("word"), "method_not_found");
}

TEST_F(Protocol, InternalErrorEndsOneCallWithoutDetails) {
  const json reply = call("throw", "{}");
  EXPECT_EQ(code(reply), -32603);
  EXPECT_EQ(reply.dump().find("secret"), std::string::npos);
}

TEST_F(Protocol, ParametersAreCheckedBeforeTheMethodRuns) {
  struct Row {
    const char *method, *params, *field;
  };
  for (const Row& row :
       {Row{"add", R"({"a":1})", "b"}, Row{"add", R"({"a":1,"b":null})", "b"},
        Row{"add", R"({"a":1,"b":2,"c":3})", "c"}, Row{"add", R"({"a":"1","b":2})", "a"},
        Row{"add", R"({"a":1.5,"b":2})", "a"}, Row{"types", R"({"id":0})", "id"}, Row{"types", R"({"id":-1})", "id"},
        Row{"types", R"({"id":4294967296})", "id"}, Row{"types", R"({"id":"1"})", "id"},
        Row{"types", R"({"text":1})", "text"}, Row{"types", R"({"boolean":"true"})", "boolean"},
        Row{"types", R"({"count":-1})", "count"}, Row{"types", R"({"seconds":-1})", "seconds"},
        Row{"types", R"({"list":{}})", "list"}, Row{"types", R"({"object":[]})", "object"},
        Row{"types", R"({"key":0})", "key"}, Row{"types", R"({"key":[]})", "key"}}) {
    const json reply = call(row.method, row.params);
    ASSERT_TRUE(reply.contains("error")) << row.params;
    EXPECT_EQ(code(reply), -32602) << row.params;
    EXPECT_EQ(reply["error"]["data"].value("field", ""), row.field) << row.params;
  }
  EXPECT_EQ(runs_, 0);
  EXPECT_TRUE(call("types", R"({"id":4294967295,"key":"12:1","any":[1],"text":null,"integer":-1,"count":0})")
                  .contains("result"));
}

TEST_F(Protocol, DiscoverDescribesEveryMethod) {
  const json document = call("rpc.discover", "{}").at("result");
  EXPECT_EQ(document, rpc_.open_rpc());
  EXPECT_EQ(document.at("methods").size(), rpc_.methods().size() + 1);
  for (const Method& method : rpc_.methods()) {
    const auto& all = document.at("methods");
    const auto found = std::find_if(all.begin(), all.end(), [&](const json& m) { return m.at("name") == method.name; });
    ASSERT_NE(found, all.end()) << method.name;
    ASSERT_EQ(found->at("params").size(), method.params.size()) << method.name;
  }
}

TEST_F(Protocol, ErrorCodesOutsideTheSpecificationAreUnique) {
  EXPECT_EQ(rpc_code(Code::invalid), -32602);
  EXPECT_EQ(rpc_code(Code::not_found), -32001);
  EXPECT_EQ(rpc_code(Code::conflict), -32002);
  EXPECT_EQ(rpc_code(Code::denied), -32003);
  EXPECT_EQ(rpc_code(Code::unavailable), -32004);
  EXPECT_EQ(rpc_code(Code::too_large), -32005);
  EXPECT_EQ(rpc_code(Code::unsupported), -32006);
  EXPECT_EQ(rpc_code(Code::stale_claim), -32007);
  EXPECT_EQ(rpc_code(Code::io), -32603);
  EXPECT_EQ(rpc_code(Code::internal), -32603);
}

}  // namespace
}  // namespace mycojobs::api
