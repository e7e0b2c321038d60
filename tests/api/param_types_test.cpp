// Every parameter of every method with values of all other types, also within lists and objects. The caller has made
// the mistake, so the reply is a result or an error of the caller, never -32603.
#include <functional>
#include <memory>
#include <vector>

#include "api/api_fixture.h"
#include "api/services.h"
#include "model/enums.h"

namespace mycojobs {
namespace {

class ParamTypes : public ApiTest {
 protected:
  static constexpr int kInternalError = -32603;

  void SetUp() override {
    services_ = std::make_unique<api::Services>(redis_, clock_, settings_);
    services_->stopping = true;  // waiting calls return at once
    rpc_ = std::make_unique<api::Rpc>(api::make_methods(*services_, ApiRole::coordinator), api::RpcLimits{});
  }

  json call(const std::string& method, const json& params) {
    const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
    api::RpcCaller caller;
    caller.actor = 1;
    caller.anonymous = true;
    ++calls_;
    return json::parse(rpc_->answer(body.dump(), caller));
  }
  void expect_answered(const std::string& method, const json& params) {
    const json reply = call(method, params);
    if (!reply.contains("error")) return;
    EXPECT_NE(reply["error"].value("code", 0), kInternalError) << method << ' ' << params.dump().substr(0, 300);
  }

  // Replaces each value in `whole` with each of the wrong values, one at a time.
  void replace_each(const json& whole, const json::json_pointer& at,
                    const std::function<void(const json& changed)>& with) {
    for (const json& wrong : wrong_values()) {
      json changed = whole;
      changed[at] = wrong;
      with(changed);
    }
    const json& value = whole[at];
    if (value.is_object()) {
      for (const auto& [name, each] : value.items()) replace_each(whole, at / name, with);
    } else if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i) replace_each(whole, at / i, with);
    }
  }

  static const std::vector<json>& wrong_values() {
    static const std::vector<json> values{json(), true, 0,   -1,   1.5,           UINT64_MAX,    INT64_MIN,
                                          "",     "x",  "1", "\n", json::array(), json::object()};
    return values;
  }
  // Returns wrong values, and lists and objects that contain a value of another type.
  static std::vector<json> wrong_parameters() {
    std::vector<json> all = wrong_values();
    for (const json& each : {json(), json(1), json("x"), json::array(), json::object()}) {
      all.push_back(json::array({each}));
      all.push_back({{"x", each}});
    }
    return all;
  }
  static json valid_value(const json& schema) {
    const json type = schema.is_object() ? schema.value("type", json("string")) : json("string");
    if (type == "integer" || type.is_array()) return 1;
    if (type == "boolean") return true;
    if (type == "array") return schema.value("minItems", 0) == 0 ? json::array() : json::array({1});
    if (type == "object") return json::object();
    return "x";
  }

  std::unique_ptr<api::Services> services_;
  std::unique_ptr<api::Rpc> rpc_;
  std::uint64_t calls_ = 0;
};

TEST_F(ParamTypes, NoWrongTypeIsAnInternalError) {
  const json document = call("rpc.discover", json::object()).at("result");
  for (const json& method : document.at("methods")) {
    const std::string name = method.at("name");
    json required = json::object();
    for (const json& param : method.at("params"))
      if (param.value("required", false)) required[param.at("name")] = valid_value(param.at("schema"));
    for (const json& param : method.at("params")) {
      for (const json& wrong : wrong_parameters()) {
        json params = required;
        params[param.at("name").get<std::string>()] = wrong;
        expect_answered(name, params);
      }
    }
  }
  EXPECT_GT(calls_, 5000U);
}

struct Document {
  const char *method, *params;
};
constexpr Document kDocuments[] = {
    {"workflow.apply", R"({"manifest": {"name": "a/shop@1", "description": "d",
       "schemas": {"a/Placed@1": {"type": "object", "required": ["id"], "additionalProperties": {"type": "integer"},
                     "properties": {"id": {"type": "integer", "minimum": 1, "enum": [1]}, "l": {"type": "array",
                     "items": {"type": "string"}, "maxItems": 3}}},
                   "a/Event@1": {"oneOf": [{"title": "Placed", "$ref": "a/Placed@1"}]}},
       "effects": [{"name": "a/pay@1", "script_type": "python", "script": "x", "params": {}, "receipt": {},
                    "policy": {"memory": "1 MiB"}, "timeout_s": 5, "retries": 1}],
       "workflows": [{"name": "a/order@1", "state": {}, "event": "a/Event@1", "key_schema": {"type": "integer"},
                      "effects_emitted": [], "impl": {"module": "a.lua", "entrypoint": "step"},
                      "limits": {"instructions": 1000000}}],
       "routing": {"subscriptions": [{"event": "a/Placed@1", "workflow": "a/order@1", "key_field": "$value.id"}]},
       "limits": {"memory_bytes": 1000000}},
     "code": {"a.lua": "function step() end"}})"},
    {"flow.create", R"({"definition": {"name": "f", "env_vars": {"A": "1"}, "inputs": {"n": {"type": "string",
       "default": "1"}}, "notify": [{"url": "https://a.test", "on": ["error"]}], "limits": {"running": 2},
       "jobs": {"a": {"type": "python", "script": "x", "timeout": 5, "policy": {"memory": "1 MiB"},
         "needs": [], "each": {"in": [1]}, "retries": 1}, "b": {"pause": "?", "needs": ["a"], "when": "a.ok"}},
       "schedule": {"cron": "* * * * *"}}, "inputs": {"n": "2"}, "env_vars": {"B": "2"}, "notify": ["x"]})"},
    {"flow.create", R"({"name": "f", "jobs": [1], "nodes": {"1": {"needs": [2]}}})"},
    {"flow.check", R"({"definition": {"name": "f", "jobs": {"a": {"type": "python", "script": "x"}}}})"},
    {"job.create", R"({"script": "x", "script_type": "python", "env_vars": {"A": "1"}, "dependends": [1],
       "prerequisites": ["file:/x"], "inputs": ["1 a"], "notify": [{"url": "https://a.test", "on": ["error"]}],
       "policy": {"memory": "1 MiB", "net": "none", "allow": ["a.test:443"], "env": {"A": "x"}}})"},
    {"jobs.create", R"({"jobs": [{"script": "x", "script_type": "python", "env_vars": {"A": "1"}, "dependends": [1],
       "policy": {"memory": "1 MiB"}, "notify": ["x"], "timeout": 5}]})"},
    {"message.create", R"({"message": "m", "message_type": "job", "flow": {"name": "f", "definition": "{}",
       "env_vars": {"A": "1"}}, "job": [{"id": 1, "script": "x", "script_type": "python", "env_vars": {"A": "1"}}]})"},
    {"workflow.send", R"({"event": "a/Placed@1", "value": {"id": 1}})"},
    {"context.create", R"({"id": 1, "admins": [1], "readers": [1], "notify": [{"url": "https://a.test"}]})"},
};

TEST_F(ParamTypes, NoWrongTypeInADocumentIsAnInternalError) {
  for (const Document& row : kDocuments) {
    const json params = json::parse(row.params);
    for (const auto& [name, value] : params.items())
      replace_each(params, json::json_pointer() / name,
                   [&](const json& changed) { expect_answered(row.method, changed); });
  }
  EXPECT_GT(calls_, 1000U);
}

TEST_F(ParamTypes, BinaryCodeIsRejectedByItsField) {
  const json manifest = json::parse(kDocuments[0].params).at("manifest");
  const json reply = call("workflow.apply", {{"manifest", manifest}, {"code", {{"a.lua", {{"source", "x"}}}}}});
  EXPECT_EQ(reply["error"].value("code", 0), -32602) << reply;
  EXPECT_EQ(reply["error"].value("message", ""), "code.a.lua: must be a text") << reply;
  EXPECT_EQ(reply["error"]["data"].value("field", ""), "code.a.lua") << reply;
}

}  // namespace
}  // namespace mycojobs
