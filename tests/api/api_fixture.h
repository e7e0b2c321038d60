// A complete server on the in-memory imitation of Redis, and a client.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "api/auth/tokens.h"
#include "api/server.h"
#include "base/clock.h"
#include "base/log.h"  // LogFormat::json must be declared before the name `json` below, because of -Wshadow
#include "net/http_client.h"
#include "security/profiles.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {

using nlohmann::json;
using test::TempDir;

class ApiTest : public ::testing::Test {
 protected:
  TempDir folder_;
  SystemClock clock_;
  MemoryServer redis_{clock_};
  ApiSettings settings_;
  std::unique_ptr<api::ApiServer> server_;
  HttpClient http_;
  std::string token_;
  json document_;

  void start() {
    document_ = json();
    settings_.listen = "127.0.0.1:0";
    settings_.limits.heartbeat_interval_ms = 200;
    settings_.networks = *Networks::parse({"loopback"});
    auto server = api::ApiServer::start(redis_, clock_, settings_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  void start_anonymous() {
    settings_.allows_anonymous = true;
    start();
  }
  std::string make_token(Id actor, bool is_operator = false) {
    settings_.tokens_file = folder_ / "tokens";
    return *api::add_token(settings_.tokens_file, {actor, false, is_operator}, "");
  }
  json raw(const std::string& method, const json& params) {
    const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
    auto answer = http_.post({server_->url(), body.dump(), token_});
    if (!answer) return {{"transport", answer.error().message}};
    return json::parse(answer->body, nullptr, false);
  }
  json ok(const std::string& method, const json& params) {
    const json reply = raw(method, params);
    EXPECT_TRUE(reply.contains("result")) << method << " " << params << "\n" << reply;
    if (reply.contains("result")) expect_as_described(method, reply["result"]);
    return reply.value("result", json());
  }
  // Checks a result against the OpenRPC document: its type, its required members and their types.
  void expect_as_described(const std::string& method, const json& result) {
    if (document_.is_null()) document_ = raw("rpc.discover", json::object()).value("result", json::object());
    for (const json& each : document_.value("methods", json::array())) {
      if (each.at("name") == method) expect_fits(method, result, each.at("result").at("schema"));
    }
  }
  void expect_fits(const std::string& where, const json& value, const json& schema) {
    if (!schema.is_object()) return;  // `true` permits any value
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      const std::string name = ref->get<std::string>().substr(std::string("#/components/schemas/").size());
      return expect_fits(where, value, document_.at("components").at("schemas").at(name));
    }
    const std::string type = schema.value("type", "");
    const bool fits = type == "object"    ? value.is_object()
                      : type == "array"   ? value.is_array()
                      : type == "string"  ? value.is_string()
                      : type == "integer" ? value.is_number_integer()
                      : type == "boolean" ? value.is_boolean()
                                          : true;
    EXPECT_TRUE(fits) << where << " is no " << type << ": " << value;
    if (!fits) return;
    for (const json& name : schema.value("required", json::array()))
      EXPECT_TRUE(value.contains(name.get<std::string>())) << where << " has no " << name << ": " << value;
    const json properties = schema.value("properties", json::object());
    for (const auto& [name, each] : properties.items())
      if (value.contains(name)) expect_fits(where + '.' + name, value.at(name), each);
    if (type == "array" && schema.contains("items"))
      for (const json& each : value) expect_fits(where + "[]", each, schema.at("items"));
  }
  json error(const std::string& method, const json& params) {
    const json reply = raw(method, params);
    EXPECT_TRUE(reply.contains("error")) << method << " " << params << "\n" << reply;
    const json found = reply.value("error", json::object());
    EXPECT_TRUE(found.contains("data") && found["data"].contains("word") && found["data"].contains("remedy")) << reply;
    return found;
  }
  std::string to_string(const std::string& method, const json& params) {
    return error(method, params).value("data", json::object()).value("word", "");
  }
  Id new_job(const json& extra_fields = json::object()) {
    json params{{"script", "print(1)"}, {"script_type", "python"}};
    params.update(extra_fields);
    return ok("job.create", params).value("id", 0U);
  }
  int status(const std::string& request) {
    const test::ProcessResult command_result =
        test::run(folder_, {"bash", "-c",
                            "exec 3<>/dev/tcp/127.0.0.1/" + std::to_string(server_->port()) + "; printf '" + request +
                                "' >&3; head -1 <&3"});
    return command_result.out.size() > 12 ? std::stoi(command_result.out.substr(9, 3)) : 0;
  }
};

}  // namespace mycojobs
