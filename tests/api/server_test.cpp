// The complete server on the in-memory imitation of Redis: all methods with valid and invalid parameters, permissions,
// and authentication.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "api/events/events.h"
#include "api/rpc/result_schemas.h"
#include "api/services.h"
#include "api_fixture.h"
#include "base/ed25519.h"
#include "service/request_params.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

// ---- all methods ----

json wrong_value(std::string_view type) {
  const bool lists = type == "list" || type == "ids" || type == "texts" || type == "jobs";
  return lists || type == "text" || type == "any" ? json::object() : json::array();
}

TEST_F(ApiTest, EveryMethodRejectsBadParameters) {
  for (const ApiRole role : {ApiRole::coordinator, ApiRole::supervisor}) {
    settings_.role = role;
    start_anonymous();
    api::Services services(redis_, clock_, settings_);
    std::set<std::string> names;
    for (const api::Method& method : api::make_methods(services, role)) {
      const std::string name(method.name);
      EXPECT_TRUE(names.insert(name).second) << name << " stands twice in the table";
      EXPECT_FALSE(method.help.empty()) << name;
      EXPECT_TRUE(api::is_result_type(method.result.substr(0, method.result.find(": ")))) << name << method.result;
      json fault = error(name, {{"no_such_thing", 1}});
      EXPECT_EQ(fault.value("code", 0), -32602) << name;
      EXPECT_EQ(fault["data"].value("field", ""), "no_such_thing") << name;
      for (const service::Param& param : method.params) {
        EXPECT_FALSE(param.help.empty() && param.required) << name << " " << param.name;
        if (param.type != "any") {
          fault = error(name, {{std::string(param.name), wrong_value(param.type)}});
          EXPECT_EQ(fault.value("code", 0), -32602) << name << " " << param.name;
          EXPECT_EQ(fault["data"].value("field", ""), param.name) << name;
        }
        if (param.required) {
          fault = error(name, json::object());
          EXPECT_EQ(fault.value("code", 0), -32602) << name;
        }
      }
    }
    server_.reset();
  }
}

TEST_F(ApiTest, MethodTableMatchesTheSpecification) {
  const std::map<ApiRole, std::vector<std::string>> wanted{
      {ApiRole::coordinator,
       {"actor.list",        "actor.update",     "actor.delete",     "context.list",    "context.update",
        "context.delete",    "context.refusals", "runner.update",    "runner.delete",   "message.delete",
        "job.delete",        "flow.delete",      "actor.create",     "actor.get",       "context.create",
        "context.get",       "runner.create",    "runner.get",       "runner.list",     "job.create",
        "job.get",           "job.list",         "job.run",          "job.start",       "job.status",
        "job.result",        "job.logs",         "job.approve",      "job.reject",      "job.cancel",
        "job.retry",         "job.explain",      "jobs.create",      "jobs.list",       "flow.create",
        "flow.get",          "flow.list",        "flow.start",       "flow.dag",        "flow.explain",
        "flow.timeline",     "flow.cancel",      "flow.pause",       "flow.resume",     "flow.approve",
        "flow.reject",       "flow.signal",      "flow.retry",       "flow.replay",     "flow.result",
        "message.create",    "message.get",      "message.cancel",   "message.list",    "message.send",
        "queue.list",        "queue.pause",      "queue.resume",     "system.ping",     "system.info",
        "system.version",    "jobs.wait",        "flows.wait",       "workflow.apply",  "workflow.send",
        "workflow.logs",     "workflow.list",    "workflow.cells",   "workflow.show",   "workflow.timeline",
        "workflow.explain",  "workflow.facts",   "workflow.approve", "workflow.reject", "workflow.remove",
        "workflow.cancel",   "jobs.page",        "job.history",      "approval.list",   "flow.check",
        "context.rights",    "context.overview", "context.verify",   "flows.page",      "context.doctor",
        "session.challenge", "session.begin",    "session.end",      "queue.dead",      "queue.requeue",
        "queue.drop",        "job.restart",      "artifact.list",    "artifact.get",    "artifact.put"}},
      {ApiRole::supervisor,
       {"job.run", "job.start", "job.status", "job.result", "job.logs", "job.cancel", "jobs.create", "jobs.list",
        "register_runner", "list_runners", "system.ping", "system.info", "system.version"}}};
  for (const auto& [role, names] : wanted) {
    settings_.role = role;
    api::Services services(redis_, clock_, settings_);
    std::set<std::string> there;
    for (const api::Method& method : api::make_methods(services, role)) there.insert(std::string(method.name));
    EXPECT_EQ(there, std::set<std::string>(names.begin(), names.end()));
  }
}

TEST_F(ApiTest, EveryRequestHasAMethod) {
  api::Services services(redis_, clock_, settings_);
  std::multiset<std::string_view> methods, rows;
  for (const api::Method& method : api::make_methods(services, ApiRole::coordinator)) methods.insert(method.name);
  for (const service::Request& request : service::requests()) rows.insert(request.name);
  EXPECT_EQ(methods, rows);
}

// Returns the parameters of a method as docs/rpc.md lists them: "id, context_id?".
std::string listed_params(const api::Method& method) {
  std::string params;
  for (const service::Param& each : method.params)
    params += (params.empty() ? "" : ", ") + std::string(each.name) + (each.required ? "" : "?");
  return params;
}

TEST_F(ApiTest, ManualHasARowForEveryMethod) {
  std::ostringstream text;
  text << std::ifstream(mj::test::source_path("docs/rpc.md")).rdbuf();
  const std::string manual = text.str();
  std::string job_params;  // of job.create; the rows of other methods refer to them
  for (const ApiRole role : {ApiRole::coordinator, ApiRole::supervisor}) {
    api::Services services(redis_, clock_, settings_);
    const auto& methods = api::make_methods(services, role);
    for (const api::Method& method : methods) {
      if (method.name == "job.create") job_params = listed_params(method);
    }
    ASSERT_FALSE(job_params.empty());
    for (const api::Method& method : methods) {
      std::string params = listed_params(method);
      if (method.name != "job.create" && params.starts_with(job_params))
        params.replace(0, job_params.size(), "as `job.create`");
      const std::string row = "| `" + std::string(method.name) + "` | " + params + " | " + std::string(method.help) +
                              " | " + std::string(method.result) + " |\n";
      EXPECT_NE(manual.find(row), std::string::npos) << "missing, or in other words: " << row;
      for (const service::Param& each : method.params) EXPECT_TRUE(service::is_param_type(each.type)) << each.type;
    }
  }
}

// ---- records ----

TEST_F(ApiTest, RecordsAreListedChangedAndDeleted) {
  settings_.contexts = {1};
  start_anonymous();
  const std::string key = SigningKey::make().public_key();
  ok("actor.create", {{"id", 12}});
  EXPECT_EQ(ok("actor.update", {{"id", 12}, {"pubkey", key}}).value("pubkey", ""), key);
  EXPECT_EQ(ok("actor.list", json::object()).at(0).value("pubkey", ""), key);
  EXPECT_EQ(to_string("actor.update", {{"id", 12}}), "invalid") << "no change is given";
  ok("context.create", {{"id", 1}, {"admins", {12}}});
  EXPECT_EQ(to_string("actor.delete", {{"id", 12}}), "conflict");
  EXPECT_EQ(ok("context.update", {{"id", 1}, {"admins", {1}}, {"readers", {13}}}).at("readers"), json({13}));
  EXPECT_EQ(ok("context.list", json::object()).at(0).at("admins"), json({1}));
  EXPECT_EQ(ok("actor.delete", {{"id", 12}}).value("key", ""), "actor:12");
  EXPECT_EQ(to_string("actor.get", {{"id", 12}}), "not_found");

  ok("runner.create", {{"id", 20}, {"secret", "s3cret"}});
  const json runner = ok("runner.update", {{"id", 20}, {"topic", "here"}, {"local", true}});
  EXPECT_EQ(runner.value("topic", ""), "here");
  EXPECT_FALSE(runner.contains("secret")) << runner;
  EXPECT_EQ(ok("runner.delete", {{"id", 20}}).value("key", ""), "runner:20");
  ok("message.create", {{"message", "hello"}, {"message_type", "chat"}});
  EXPECT_EQ(ok("message.delete", {{"id", 1}}).value("key", ""), "message:1:1");
  const Id job = new_job();
  EXPECT_EQ(to_string("context.delete", {{"id", 1}}), "conflict") << "the job lives";
  EXPECT_EQ(ok("job.delete", {{"id", job}}).value("key", ""), "job:1:1");
  const json flow{
      {"id", ok("flow.create", {{"definition", json::parse(R"({"name":"n","jobs":{"h":{"pause":"?"}}})")}}).at("id")}};
  ok("flow.start", flow);
  EXPECT_EQ(to_string("flow.delete", flow), "conflict");
  EXPECT_EQ(to_string("context.delete", {{"id", 1}}), "conflict") << "the flow lives";
  ok("flow.cancel", flow);
  EXPECT_EQ(ok("flow.delete", flow).value("key", ""), "flow:1");
  EXPECT_EQ(ok("context.delete", {{"id", 1}}).value("key", ""), "context:1");
  EXPECT_EQ(to_string("context.delete", {{"id", 1}}), "not_found");
  EXPECT_EQ(ok("context.list", json::object()), json::array());
}

TEST_F(ApiTest, RecordsAreCreatedOnceAndReadBack) {
  start_anonymous();
  const std::string first = SigningKey::make().public_key(), second = SigningKey::make().public_key();
  EXPECT_EQ(ok("actor.create", {{"pubkey", first}}).value("id", 0), 1);
  const json twelve{{"id", 12}, {"pubkey", second}, {"address", {"unix:/x"}}};
  EXPECT_EQ(ok("actor.create", twelve).value("id", 0), 12);
  EXPECT_EQ(ok("actor.create", twelve).value("pubkey", ""), second);
  EXPECT_EQ(to_string("actor.create", {{"id", 12}, {"pubkey", first}}), "conflict");
  EXPECT_EQ(error("actor.create", {{"pubkey", "abc"}})["data"].value("field", ""), "pubkey");
  EXPECT_EQ(error("actor.create", {{"address", {"abc"}}})["data"].value("field", ""), "address");
  EXPECT_EQ(ok("actor.get", {{"id", 12}}).value("pubkey", ""), second);
  EXPECT_EQ(to_string("actor.get", {{"id", 99}}), "not_found");
  EXPECT_EQ(ok("context.create", {{"id", 1}, {"admins", {12}}, {"readers", {13}}}).value("id", 0), 1);
  EXPECT_EQ(ok("context.create", {{"admins", {12}}}).value("id", 0), 2);
  EXPECT_EQ(ok("context.get", {{"id", 1}}).at("readers"), json({13}));
  const json runner = ok("runner.create", {{"id", 20}, {"address", "http://127.0.0.1:3030"}, {"secret", "s3cret"}});
  EXPECT_FALSE(runner.contains("secret")) << runner;
  EXPECT_EQ(ok("runner.get", {{"id", 20}}).dump().find("s3cret"), std::string::npos);
  EXPECT_EQ(ok("runner.list", json::object()).dump().find("s3cret"), std::string::npos);
  EXPECT_EQ(ok("runner.list", json::object()).size(), 1U);
  const json message = ok("message.create", {{"message", "hello"}, {"message_type", "chat"}});
  EXPECT_EQ(message.value("id", 0), 1);
  EXPECT_EQ(ok("message.get", {{"id", 1}}).value("message", ""), "hello");
  EXPECT_EQ(ok("message.list", json::object()).size(), 1U);
  EXPECT_EQ(to_string("message.create", {{"message_type", "smoke"}}), "invalid");
}

// ---- jobs ----

TEST_F(ApiTest, CreatedJobIsQueuedOnlyWhenStarted) {
  start_anonymous();
  const Id id =
      new_job({{"payload", "print(1)"}, {"script", nullptr}, {"executor", "python"}, {"script_type", nullptr}});
  const json job = ok("job.get", {{"id", id}});
  EXPECT_EQ(job.value("script", ""), "print(1)");
  EXPECT_EQ(job.value("script_type", ""), "python");
  auto store = *redis_.open();
  EXPECT_EQ(*store->queue_length(1, "queue:python"), 0U);
  EXPECT_EQ(ok("job.start", {{"id", id}}).value("detail", ""), "queued");
  EXPECT_EQ(*store->queue_length(1, "queue:python"), 1U);
  ok("job.start", {{"id", id}});
  EXPECT_EQ(*store->queue_length(1, "queue:python"), 1U);
  EXPECT_EQ(ok("job.start", {{"script", "x"}, {"script_type", "python"}}).value("id", 0U), id + 1);
  EXPECT_EQ(*store->queue_length(1, "queue:python"), 2U);
  EXPECT_EQ(ok("job.status", {{"id", "1:" + std::to_string(id)}}).value("status", ""), "dispatched");
  EXPECT_EQ(ok("job.list", {{"limit", 1}}).size(), 1U);
  EXPECT_EQ(ok("jobs.list", json::object()).size(), 2U);
  EXPECT_FALSE(ok("job.explain", {{"id", id}}).value("reason", "").empty());
  EXPECT_EQ(ok("job.cancel", {{"id", id}}).value("detail", ""), "cancelled");
  EXPECT_TRUE(ok("job.result", {{"id", id}}).value("ended", false));
  EXPECT_TRUE(ok("job.run", {{"id", id}}).value("ended", false)) << "it has ended: nothing to wait for";
  EXPECT_EQ(to_string("job.retry", {{"id", id}}), "conflict");
  EXPECT_TRUE(ok("job.logs", {{"id", id}}).at("lines").empty());
  const json waited = ok("job.run", {{"script", "x"}, {"script_type", "python"}, {"wait_ms", 30}});
  EXPECT_FALSE(waited.value("ended", true));
}

TEST_F(ApiTest, ResultListsDroppedArtifacts) {
  start_anonymous();
  const Id id = new_job();
  const json list =
      json::parse(R"([{"name": "big", "reason": "bytes", "limit": 100, "setting": "job.max_artifact_bytes"}])");
  EXPECT_FALSE(ok("job.result", {{"id", id}}).contains("artifacts_dropped"));
  ASSERT_TRUE((*redis_.open())->save(1, job_key(1, id), {{"artifacts_dropped", list.dump()}}));
  EXPECT_EQ(ok("job.result", {{"id", id}}).at("artifacts_dropped"), list);
  EXPECT_EQ(ok("job.get", {{"id", id}}).at("artifacts_dropped"), list);
}

TEST_F(ApiTest, OneCallWaitsForManyJobs) {
  start_anonymous();
  const Id first = new_job(), second = new_job();
  const json both{"1:" + std::to_string(first), std::to_string(second)};
  EXPECT_TRUE(ok("jobs.wait", {{"jobs", both}, {"wait_ms", 30}}).empty()) << "none has ended";
  std::thread later([this, second] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    HttpClient other;
    const json body{{"jsonrpc", "2.0"}, {"method", "job.cancel"}, {"params", {{"id", second}}}};
    EXPECT_TRUE(other.post({server_->url(), body.dump(), token_}));
  });
  const json ended = ok("jobs.wait", {{"jobs", both}, {"wait_ms", 60000}});
  later.join();
  ASSERT_EQ(ended.size(), 1U) << ended;
  EXPECT_EQ(ended[0].value("id", 0U), second);
  EXPECT_EQ(ended[0].value("detail", ""), "cancelled");
  const auto field = [this](const json& jobs) {
    return error("jobs.wait", {{"jobs", jobs}}).at("data").value("field", "");
  };
  EXPECT_EQ(field({"1", "1:99"}), "jobs[1]");
  EXPECT_EQ(field({"1", 2}), "jobs[1]");
  EXPECT_EQ(field({"nonsense"}), "jobs[0]");
  EXPECT_EQ(field(json::array()), "jobs");
  EXPECT_EQ(field(json(std::vector<std::string>(1001, "1"))), "jobs");
}

TEST_F(ApiTest, OneCallWaitsForManyFlows) {
  start_anonymous();
  const json definition = json::parse(R"({"name":"n","jobs":{"h":{"pause":"?"}}})");
  const Id first = ok("flow.create", {{"definition", definition}}).value("id", 0U);
  const Id second = ok("flow.create", {{"definition", definition}}).value("id", 0U);
  ok("flow.start", {{"id", second}});
  const json both{first, second};
  EXPECT_TRUE(ok("flows.wait", {{"flows", both}, {"wait_ms", 30}}).empty()) << "none has ended";
  ok("flow.cancel", {{"id", second}});
  const json ended = ok("flows.wait", {{"flows", both}, {"wait_ms", 60000}});
  ASSERT_EQ(ended.size(), 1U) << ended;
  EXPECT_EQ(ended[0].value("id", 0U), second);
  const auto field = [this](const json& flows) {
    return error("flows.wait", {{"flows", flows}}).at("data").value("field", "");
  };
  EXPECT_EQ(field({first, 99}), "flows[1]");
  EXPECT_EQ(field({"x"}), "flows[0]");
  EXPECT_EQ(field({0}), "flows[0]");
  EXPECT_EQ(field(json::array()), "flows");
}

TEST_F(ApiTest, InvalidJobNamesItsField) {
  start_anonymous();
  const auto field = [&](json params) {
    params.update({{"script", "x"}, {"script_type", "python"}}, false);
    return error("job.create", params).at("data").value("field", "");
  };
  EXPECT_EQ(field({{"timeout", 0}}), "timeout");
  EXPECT_EQ(field({{"timeout", -1}}), "timeout");
  EXPECT_EQ(field({{"retries", 256}}), "retries");
  EXPECT_EQ(field({{"env_vars", {{"A=B", "x"}}}}), "env_vars");
  EXPECT_EQ(field({{"args", {std::string("a\0", 2)}}}), "args");
  EXPECT_EQ(field({{"stdin", {{"base64", "?"}}}}), "stdin");
  EXPECT_EQ(field({{"stdin", 7}}), "stdin");
  EXPECT_EQ(field({{"files", {{"../x", "y"}}}}), "files");
  EXPECT_EQ(
      to_string("job.create", {{"script", "x"}, {"script_type", "v"}, {"stdin", std::string((1 << 20) + 1, 'x')}}),
      "too_large");
  EXPECT_EQ(field({{"dependends", {"x"}}}), "dependends[0]");
  EXPECT_EQ(error("job.create", {{"script", "x"}}).at("data").value("field", ""), "script_type");
  EXPECT_EQ(to_string("job.create", {{"script", "x"}, {"payload", "x"}, {"script_type", "v"}}), "invalid");
  EXPECT_EQ(to_string("job.get", {{"id", "nonsense"}}), "invalid");
  EXPECT_EQ(to_string("job.start", json::object()), "invalid");
  const json many = error("jobs.create", {{"jobs", {{{"script", "x"}, {"script_type", "v"}}, {{"script", 7}}}}});
  EXPECT_EQ(many.at("data").value("field", ""), "jobs[1]") << many;
  const json unlimited{{"script", "x"}, {"script_type", "v"}, {"concurrency_key", "k"}, {"concurrency_limit", 0}};
  EXPECT_EQ(field(unlimited), "concurrency_limit");
  EXPECT_EQ(to_string("jobs.create", {{"jobs", {unlimited}}}), "invalid") << "the rules of job.create";
  EXPECT_TRUE(ok("job.list", json::object()).empty()) << "one was wrong: none is written";
}

TEST_F(ApiTest, FilesOfARequestAreDescribedInItsAnswer) {
  start_anonymous();
  const json created = ok("job.create", {{"script", "x"},
                                         {"script_type", "python"},
                                         {"args", {"-v"}},
                                         {"stdin", R"({"bytes": 1})"},
                                         {"files", {{"b", {{"base64", "/w=="}}}}}});
  EXPECT_EQ(created.at("args"), (json{"-v"}));
  EXPECT_EQ(created.at("stdin").at("bytes"), 12) << "a text is never a description";
  EXPECT_EQ(created.at("files").at("b").at("bytes"), 1);
  EXPECT_EQ(to_string("message.create", {{"message", "m"},
                                         {"message_type", "job"},
                                         {"job", {{{"script", "x"}, {"script_type", "v"}, {"stdin", "x"}}}}}),
            "invalid");
}

TEST_F(ApiTest, EveryCallThatCreatesJobsChecksTheCeiling) {
  auto ceilings = std::make_shared<Ceilings>();
  ceilings->standard.memory_bytes = 128U << 20;
  settings_.ceilings = std::move(ceilings);
  start_anonymous();
  const auto job = [](const char* memory) {
    return json{{"script", "x"}, {"script_type", "python"}, {"policy", {{"memory", memory}}}};
  };
  const json greedy = job("129 MiB"), modest = job("128 MiB");
  const std::string words = "policy.memory: 129 MiB is more than the ceiling of 128 MiB for context 1";
  for (const char* method : {"job.create", "job.start", "job.run"}) {
    const json refused = error(method, greedy);
    EXPECT_TRUE(refused.value("message", "").starts_with(words)) << method << refused;
    EXPECT_EQ(refused.at("data").value("field", ""), "policy.memory") << method;
  }
  for (const bool start : {false, true}) {
    const json refused = error("jobs.create", {{"jobs", {modest, greedy}}, {"start", start}});
    EXPECT_TRUE(refused.value("message", "").starts_with("jobs[1]: " + words)) << refused;
  }
  const json node{{"script", "x"}, {"type", "python"}, {"policy", {{"memory", "129 MiB"}}}};
  const json flow = error("flow.create", {{"definition", {{"name", "f"}, {"jobs", {{"a", node}}}}}});
  EXPECT_TRUE(flow.value("message", "").starts_with("definition: jobs.a: " + words)) << flow;
  EXPECT_TRUE(ok("job.list", json::object()).empty()) << "nothing is written";
  EXPECT_EQ(ok("job.start", modest).value("detail", ""), "queued");
}

TEST_F(ApiTest, SeveralJobsAreCreatedAndOnlyIfAskedForQueued) {
  start_anonymous();
  const json job{{"script", "x"}, {"script_type", "python"}};
  const json created = ok("jobs.create", {{"jobs", {job, job}}});
  ASSERT_EQ(created.size(), 2U);
  EXPECT_EQ(created[1].value("detail", ""), "created");
  const json queued = ok("jobs.create", {{"jobs", {job, job}}, {"start", true}});
  ASSERT_EQ(queued.size(), 2U);
  EXPECT_EQ(queued[1].value("detail", ""), "queued");
  EXPECT_EQ(ok("job.status", {{"id", queued[0]["id"]}}).value("detail", ""), "queued");
  EXPECT_EQ(to_string("jobs.create", {{"jobs", {job}}, {"start", "yes"}}), "invalid");
}

TEST_F(ApiTest, IdempotencyKeyCreatesOneJob) {
  start_anonymous();
  const json params{{"script", "x"}, {"script_type", "python"}, {"idempotency_key", "k"}};
  const Id id = ok("job.create", params).value("id", 0U);
  EXPECT_EQ(ok("job.create", params).value("id", 0U), id);
  json other = params;
  other["script"] = "y";
  EXPECT_EQ(to_string("job.create", other), "conflict");
  const json start{{"script", "x"}, {"script_type", "python"}, {"idempotency_key", "s"}};
  EXPECT_EQ(ok("job.start", start).at("id"), ok("job.start", start).at("id"));
  ok("job.cancel", {{"id", id}});
  const json restart{{"id", id}, {"idempotency_key", "r"}};
  const json again = ok("job.restart", restart).at("id");
  EXPECT_EQ(ok("job.restart", restart).at("id"), again);
  EXPECT_NE(ok("job.restart", {{"id", id}}).at("id"), again);
  EXPECT_EQ(ok("job.get", {{"id", again}}).value("restart_of", ""), "job:1:" + std::to_string(id));
}

// ---- flows ----

TEST_F(ApiTest, FlowOfJobsIsCreatedStartedAndShown) {
  start_anonymous();
  const Id a = new_job({{"name", "a"}}), b = new_job({{"name", "b"}, {"depends", {a}}});
  const json flow = ok("flow.create", {{"jobs", {a, b}}, {"name", "two"}});
  const json by_id{{"id", flow.at("id")}};
  EXPECT_EQ(ok("flow.get", by_id).value("name", ""), "two");
  EXPECT_TRUE(ok("flow.get", {{"id", flow.at("id")}, {"definition", true}}).at("definition").is_object());
  EXPECT_EQ(ok("flow.start", by_id).value("status", ""), "started");
  const json dag = ok("flow.dag", by_id);
  ASSERT_EQ(dag.at("nodes").size(), 2U) << dag;
  EXPECT_EQ(dag["nodes"][0].value("id", 0U), a);
  EXPECT_EQ(dag["nodes"][1].at("depends"), json({a}));
  EXPECT_EQ(dag["nodes"][1].value("node_status", ""), "pending");
  EXPECT_EQ(dag.at("edges"), json::parse("[{\"from\":" + std::to_string(a) + ",\"to\":" + std::to_string(b) + "}]"));
  EXPECT_FALSE(ok("flow.explain", by_id).empty());
  EXPECT_FALSE(ok("flow.timeline", by_id).empty());
  EXPECT_EQ(ok("flow.list", json::object()).size(), 1U);
  ok("flow.pause", by_id);
  ok("flow.resume", by_id);
  ok("flow.cancel", {{"id", flow.at("id")}, {"key", "c1"}});
  ok("flow.cancel", {{"id", flow.at("id")}, {"key", "c1"}});
  EXPECT_EQ(ok("flow.result", by_id).value("status", ""), "error");
  EXPECT_EQ(to_string("flow.pause", by_id), "conflict");
  EXPECT_EQ(to_string("flow.retry", by_id), "conflict");
  EXPECT_NE(ok("flow.replay", by_id).at("id"), flow.at("id"));
  EXPECT_EQ(to_string("flow.start", {{"id", 999}}), "not_found");
}

TEST_F(ApiTest, FlowOfADefinitionWaitsForApproval) {
  start_anonymous();
  const json definition = json::parse(R"({"name":"ship","jobs":{
    "ok":{"approval":{"approvers":[12]}},"go":{"needs":["ok"],"log":"shipped"}}})");
  const json flow = ok("flow.create", {{"definition", definition}});
  ok("flow.start", {{"id", flow.at("id")}});
  EXPECT_EQ(to_string("flow.approve", {{"id", flow.at("id")}, {"name", "ok"}, {"actor_id", 13}}), "denied");
  ok("flow.approve", {{"id", flow.at("id")}, {"name", "ok"}, {"actor_id", 12}, {"comment", "ship it"}});
  EXPECT_EQ(ok("flow.result", {{"id", flow.at("id")}}).value("status", ""), "finished");
}

TEST_F(ApiTest, InvalidFlowReportsItsErrors) {
  start_anonymous();
  EXPECT_EQ(to_string("flow.create", json::object()), "invalid");
  EXPECT_EQ(to_string("flow.create", {{"jobs", json::array()}}), "invalid");
  EXPECT_EQ(to_string("flow.create", {{"jobs", {99}}}), "not_found");
  EXPECT_EQ(to_string("flow.create", {{"jobs", {"x"}}}), "invalid");
  const json bad = error("flow.create", {{"definition", {{"name", "x"}, {"jobs", {{"a", {{"needs", {"b"}}}}}}}}});
  EXPECT_EQ(bad.at("data").value("word", ""), "invalid");
  EXPECT_NE(bad.value("message", "").find("jobs.a"), std::string::npos) << bad;
}

TEST_F(ApiTest, InterruptedBatchReportsHowManyJobsAreStored) {
  start_anonymous();
  std::atomic<int> steps{0};
  redis_.set_faults(
      [&](const ServerCall& call) { return call.name == "submit" && ++steps > 1 ? Fault::before : Fault::none; });
  const json jobs(400, json{{"script", "x"}, {"script_type", "python"}});
  const std::string refused = error("jobs.create", {{"jobs", jobs}}).dump();
  redis_.set_faults(nullptr);
  const std::string written = std::to_string(redis_.run_command(1, {"ZCARD", "mj:jobs"}).number());
  EXPECT_NE(refused.find("; " + written + " jobs before it are written"), std::string::npos) << written << refused;
}

// The store answers, but refuses writes, for example when its memory is full.
TEST_F(ApiTest, HealthReportsThatTheStoreRejectsWrites) {
  start_anonymous();
  const std::string ask = "GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n";
  redis_.set_faults([](const ServerCall& call) { return call.name == "HSET" ? Fault::before : Fault::none; });
  EXPECT_EQ(status(ask), 503);
  redis_.set_faults([](const ServerCall&) { return Fault::none; });
  EXPECT_TRUE(test::eventually([&] { return status(ask) == 200; }));
}

TEST_F(ApiTest, ProbesAnswerWithoutTokenOrStoreAccess) {
  std::atomic<bool> alive{true}, draining{false};
  settings_.health = {[&] { return alive.load(); }, [&] { return std::string(draining ? "draining" : ""); }};
  start();
  redis_.set_faults([](const ServerCall&) { return Fault::before; });
  const std::string live = "GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n";
  const std::string ready = "GET /readyz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n";
  EXPECT_EQ(status(live), 200);
  EXPECT_EQ(status(ready), 200);
  draining = true;
  EXPECT_EQ(status(ready), 503);
  EXPECT_EQ(status(live), 200) << "who drains lives";
  HttpClient client;
  HttpPost ask;
  ask.url = server_->url() + "/readyz";
  const auto answer = client.get(ask);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(json::parse(answer->body).value("reason", ""), "draining");
  alive = false;
  EXPECT_EQ(status(live), 503);
  EXPECT_EQ(status("GET /readyz HTTP/1.1\\r\\nHost: localhost\\r\\nOrigin: http://x\\r\\n\\r\\n"), 403);
}

TEST_F(ApiTest, HealthServerHasOnlyTheProbes) {
  auto server = api::start_health_server("127.0.0.1:0", {});
  ASSERT_TRUE(server) << server.error().message;
  HttpPost ask;
  for (const auto& [path, status] : {std::pair{"/healthz", 200}, {"/readyz", 200}, {"/rpc", 404}, {"/", 404}}) {
    ask.url = (*server)->url() + path;
    const auto answer = http_.get(ask);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, status) << path;
  }
  EXPECT_EQ(http_.post(ask)->status, 404);
  EXPECT_FALSE(api::start_health_server("nowhere", {}));
}

TEST_F(ApiTest, MetricsAreServedWhereConfiguredAndNotToPages) {
  std::atomic<int> pages{0}, hosts{0};
  auto server = api::start_health_server(
      "127.0.0.1:0", {}, [] { return std::string("mycojobs_ready 1\n"); },
      [&](const std::string& why) { ++(why == "page" ? pages : hosts); });
  ASSERT_TRUE(server) << server.error().message;
  HttpPost ask;
  ask.url = (*server)->url() + "/metrics";
  const auto answer = http_.get(ask);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "mycojobs_ready 1\n");
  for (const char* header : {"Host: rebound.example", "Origin: http://127.0.0.1", "Sec-Fetch-Site: same-origin"}) {
    ask.headers = {header};
    EXPECT_EQ(http_.get(ask)->status, 403) << header;
  }
  EXPECT_EQ(hosts, 1);
  EXPECT_EQ(pages, 2);
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  for (const std::string host :
       {"localhost:1", "LocalHost", "127.0.0.1:80", "127.8.9.1", "[::1]:7", &std::as_const(name[0])}) {
    ask.headers = {"Host: " + host};
    EXPECT_EQ(http_.get(ask)->status, 200) << host;
  }
  for (const std::string host : {"127.", "127.0.0.999", "127.1", "127.0.0.1.", "[::2]", "localhost.example"}) {
    ask.headers = {"Host: " + host};
    const auto refused = http_.get(ask);
    EXPECT_EQ(refused->status, 403) << host;
    EXPECT_EQ(refused->body.find("token"), std::string::npos) << "there is none at this address";
  }
  ask.headers = {"Host: rebound.example"};
  ask.url = (*server)->url() + "/healthz";
  EXPECT_EQ(http_.get(ask)->status, 200) << "load balancers ask by any name";
}

TEST_F(ApiTest, CallsAndRefusalsAreCounted) {
  settings_.metrics = Metrics::make();
  start_anonymous();
  ok("job.list", json::object());
  EXPECT_EQ(to_string("job.get", {{"id", 99}}), "not_found");
  EXPECT_EQ(to_string("job.git", json::object()), "method_not_found");
  EXPECT_EQ(to_string("job.get", {{"id", "x"}}), "invalid");
  HttpPost ask;
  ask.url = server_->url() + "/rpc";
  ask.headers = {"Origin: http://x"};
  EXPECT_EQ(http_.post(ask)->status, 403);
  const std::string text = settings_.metrics->render();
  EXPECT_NE(text.find("mycojobs_rpc_calls_total{method=\"job.list\",result=\"ok\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("mycojobs_rpc_calls_total{method=\"job.get\",result=\"not_found\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("mycojobs_rpc_calls_total{method=\"unknown\",result=\"method_not_found\"} 1\n"),
            std::string::npos);
  EXPECT_NE(text.find("mycojobs_rpc_calls_total{method=\"job.get\",result=\"invalid\"} 1\n"), std::string::npos);
  EXPECT_EQ(text.find("job.git"), std::string::npos) << "what anybody may type is no label";
  EXPECT_NE(text.find("mycojobs_http_requests_rejected_total{reason=\"page\"} 1\n"), std::string::npos);
}

TEST_F(ApiTest, TraceFromHeaderOrParameterReachesTheRecord) {
  start_anonymous();
  const std::string ours = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const std::string theirs = "00-11112f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
  const auto made = [&](const std::string& header, const std::string& method, json params) {
    HttpPost post{server_->url(), "", ""};
    post.body = json{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", std::move(params)}}.dump();
    if (!header.empty()) post.headers = {"traceparent: " + header};
    const json reply = json::parse(http_.post(post)->body);
    return reply.value("result", json::object()).value("traceparent", reply.contains("error") ? "refused" : "none");
  };
  const json job{{"script", "print(1)"}, {"script_type", "python"}};
  json own = job, wrong = job;
  own["traceparent"] = theirs;
  wrong["traceparent"] = "00-x";
  EXPECT_EQ(made(ours, "job.create", job), ours);
  EXPECT_EQ(made(ours, "job.create", own), theirs) << "what is said of the job counts";
  EXPECT_EQ(made("00-x", "job.create", job), "none") << "a header that is none is passed over";
  EXPECT_EQ(made("", "job.create", wrong), "refused");
  const json flow{{"definition", {{"name", "x"}, {"jobs", {{"a", {{"log", "x"}}}}}}}};
  json wrong_flow = flow;
  wrong_flow["traceparent"] = "00-x";
  EXPECT_EQ(made(ours, "flow.create", flow), ours);
  EXPECT_EQ(made(ours, "flow.create", wrong_flow), "refused");
}

// ---- authentication and permissions ----

TEST_F(ApiTest, MissingTokenIsRejectedExceptByDevOnLoopback) {
  start();
  EXPECT_EQ(to_string("system.ping", json::object()), "denied");
  token_ = "mj_wrong";
  EXPECT_EQ(to_string("system.ping", json::object()), "denied");
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 200);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 401);
  settings_.listen = "0.0.0.0:0";
  const auto open = api::ApiServer::start(redis_, clock_, settings_);
  ASSERT_FALSE(open) << "reachable from other hosts, and no token";
  EXPECT_NE(open.error().message.find("mycojobs key token"), std::string::npos) << open.error().message;
  make_token(1);
  const auto plain = api::ApiServer::start(redis_, clock_, settings_);
  ASSERT_FALSE(plain) << "reachable from other hosts, and no TLS";
  EXPECT_NE(plain.error().message.find("api.tls.cert"), std::string::npos) << plain.error().message;
  settings_.allows_plain_http = true;
  EXPECT_TRUE(api::ApiServer::start(redis_, clock_, settings_));
}

TEST_F(ApiTest, OtherOriginsAreRejected) {
  start_anonymous();
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 200);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: 127.0.0.1:1\\r\\n\\r\\n"), 200);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n"), 403);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: 127.0.0.1.evil.example\\r\\n\\r\\n"), 403);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\n\\r\\n"), 400);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.0\\r\\n\\r\\n"), 403);
  for (const char* empty : {"Authorization:", "Authorization: ", "authorization:\t"}) {
    const std::string ask = std::string("Host: evil.example\\r\\n") + empty + "\\r\\n\\r\\n";
    EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\n" + ask), 403) << "names nobody: " << empty;
  }
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: localhost\\r\\nOrigin: null\\r\\n\\r\\n"), 403);
  EXPECT_EQ(status("GET /openrpc.json HTTP/1.1\\r\\nHost: localhost\\r\\nSec-Fetch-Site: cross-site\\r\\n\\r\\n"), 403);
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nOrigin: http://localhost:8\\r\\n\\r\\n"), 403);
}

// ---- events ----

TEST_F(ApiTest, FlowEventsResumeFromTheLastId) {
  start_anonymous();
  const json definition =
      json::parse(R"({"name":"n","jobs":{"hold":{"pause":"?"},"said":{"needs":["hold"],"log":"x"}}})");
  const json flow = ok("flow.create", {{"definition", definition}});
  const std::string url = server_->url() + "/events?context=1&flow=" + std::to_string(flow.value("id", 0));
  test::Process live(folder_, {"curl", "-sN", url});
  test::Process whole(folder_, {"curl", "-sN", server_->url() + "/events?context=1"});
  ASSERT_TRUE(test::eventually([&] { return live.out().find("event: flow") != std::string::npos; })) << live.out();
  ASSERT_TRUE(test::eventually([&] { return whole.out().find(": heartbeat") != std::string::npos; })) << whole.out();
  ok("flow.start", {{"id", flow.at("id")}});
  ok("flow.resume", {{"id", flow.at("id")}, {"node", "hold"}});
  for (test::Process* stream : {&live, &whole}) {
    EXPECT_TRUE(test::eventually([&] { return stream->out().find("\"finished\"") != std::string::npos; }))
        << stream->out();
    EXPECT_NE(stream->out().find("\"node\":\"hold\""), std::string::npos) << stream->out();
    EXPECT_NE(stream->out().find("\"node\":\"said\""), std::string::npos) << stream->out();
  }
  const auto facts = [](const std::string& text) {
    std::vector<std::string> ids;
    std::istringstream lines(text);
    for (std::string line, event; std::getline(lines, line);) {
      if (line.starts_with("event: ")) event = line.substr(7);
      if (line.starts_with("id: ") && event == "fact") ids.push_back(line.substr(4));
    }
    return ids;
  };
  const auto all = facts(live.out());
  ASSERT_GT(all.size(), 3U) << live.out();
  test::Process again(folder_, {"curl", "-sN", "-H", "Last-Event-ID: " + all[1], url});
  ASSERT_TRUE(test::eventually([&] { return again.out().find("event: flow") != std::string::npos; }));
  EXPECT_EQ(facts(again.out()), std::vector<std::string>(all.begin() + 2, all.end()));
  // A client that disconnected before its first event resumes at the start of its stream.
  const std::string begun = whole.out().substr(whole.out().find("id: ") + 4);
  test::Process later(folder_, {"curl", "-sN", "-H", "Last-Event-ID: " + begun.substr(0, begun.find('\n')),
                                server_->url() + "/events?context=1"});
  EXPECT_TRUE(test::eventually([&] { return later.out().find("\"node\":\"said\"") != std::string::npos; }))
      << later.out();
  EXPECT_EQ(status("GET /events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 400);
  EXPECT_EQ(status("GET /events?context=1&flow=99 HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 404);
  EXPECT_EQ(status("GET /events?context=x HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 400);
  server_->stop();
  EXPECT_TRUE(test::eventually([&] { return !live.is_running(); }));
}

TEST_F(ApiTest, JobEventsContainStateAndLog) {
  const std::string reader = make_token(13), stranger = make_token(15);
  token_ = make_token(0, true);
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13}}});
  const Id id = new_job();
  ok("job.start", {{"id", id}});
  const std::string url = server_->url() + "/events?context=1&job=1:" + std::to_string(id);
  const auto listen = [&](const std::string& token, const std::string& last) {
    return std::make_unique<test::Process>(
        folder_, std::vector<std::string>{"curl", "-sN", "-H", "Authorization: Bearer " + token, "-H",
                                          "Last-Event-ID: " + last, url});
  };
  const auto live = listen(reader, "");
  ASSERT_TRUE(test::eventually([&] { return live->out().find("\"queued\"") != std::string::npos; })) << live->out();
  auto store = *redis_.open();
  ClaimRequest request{.context = 1, .runner = 20, .instance = "i", .queues = {"queue:python"}};
  const auto claimed = store->claim(request);
  ASSERT_TRUE(claimed && claimed->jobs.size() == 1);
  const ClaimRef claim = claimed->jobs.front().ref;
  JobEnd end;
  end.status = JobStatus::finished;
  end.detail = "ok";
  const Report reports[] = {LogAppend{claim, {{1, 1, LogStream::out, "first\n"}, {2, 2, LogStream::err, "second\n"}}},
                            EndReport{claim, end}};
  ASSERT_TRUE(store->report(1, reports));
  const json since = ok("job.logs", {{"id", id}, {"since_ms", 2}, {"limit", 1}});
  ASSERT_EQ(since.at("lines").size(), 1U) << "a page without selected lines is not returned: " << since;
  EXPECT_EQ(since["lines"][0].value("text", ""), "second\n");
  ASSERT_TRUE(test::eventually([&] { return live->out().find("\"finished\"") != std::string::npos; })) << live->out();
  const std::string shown = live->out();
  EXPECT_LT(shown.find("first"), shown.find("second"));
  EXPECT_LT(shown.find("second"), shown.find("\"finished\"")) << "the end comes behind the log";
  ASSERT_TRUE(test::eventually([&] { return live->out().find(": heartbeat") != std::string::npos; }));
  const auto again = listen(reader, "1");
  ASSERT_TRUE(test::eventually([&] { return again->out().find("\"finished\"") != std::string::npos; }));
  EXPECT_EQ(again->out().find("first"), std::string::npos) << again->out();
  EXPECT_NE(again->out().find("second"), std::string::npos) << again->out();
  // Missing permissions and missing records have the same responses as in job.get.
  const auto code = [&](const std::string& token, const std::string& query) {
    return test::run(folder_, {"curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H",
                               "Authorization: Bearer " + token, server_->url() + "/events?context=1&" + query})
        .out;
  };
  EXPECT_EQ(code(stranger, "job=1:" + std::to_string(id)), "403");
  EXPECT_EQ(code(stranger, "job=1:777"), "403");
  EXPECT_EQ(code(reader, "job=1:777"), "404");
  EXPECT_EQ(code(reader, "job=nonsense"), "400");
  EXPECT_EQ(code(reader, "job=1:1&flow=1"), "400");
  // An actor that is removed from the lists receives no more events.
  ASSERT_TRUE(store->save(1, "context:1", {{"readers", "[]"}}));
  EXPECT_TRUE(test::eventually([&] { return !live->is_running(); }));
  EXPECT_NE(live->out().find("event: gone"), std::string::npos);
  server_->stop();
}

// While a stream is open, the permissions and the entry of its token are checked again.
TEST_F(ApiTest, FlowEventsEndWhenReadPermissionIsRevoked) {
  const std::string reader = make_token(13), other = make_token(14);
  token_ = make_token(0, true);
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13, 14}}});
  const json definition = json::parse(R"({"name":"n","jobs":{"hold":{"pause":"?"}}})");
  const json flow{{"id", ok("flow.create", {{"definition", definition}}).at("id")}};
  const auto listen = [&](const std::string& token, const std::string& query) {
    return std::make_unique<test::Process>(
        folder_, std::vector<std::string>{"curl", "-sN", "-H", "Authorization: Bearer " + token,
                                          server_->url() + "/events?context=1" + query});
  };
  const auto all = listen(reader, ""), one = listen(reader, "&flow=" + flow.at("id").dump()),
             others = listen(other, ""), operators = listen(token_, "");
  for (test::Process* each : {all.get(), one.get(), others.get(), operators.get()})
    ASSERT_TRUE(test::eventually([&] { return each->out().find(": heartbeat") != std::string::npos; })) << each->out();
  ok("context.update", {{"id", 1}, {"readers", {14}}});
  std::string rows, line;
  std::ifstream file(settings_.tokens_file);
  while (std::getline(file, line)) rows += line.find(" 14") == std::string::npos ? line + '\n' : "";
  std::ofstream(settings_.tokens_file) << rows;
  for (test::Process* each : {all.get(), one.get(), others.get()})
    EXPECT_TRUE(test::eventually([&] { return !each->is_running(); })) << each->out();
  ok("flow.start", flow);
  EXPECT_TRUE(test::eventually([&] { return operators->out().find("\"hold\"") != std::string::npos; }));
  for (test::Process* each : {all.get(), one.get(), others.get()})
    EXPECT_EQ(each->out().find("\"hold\""), std::string::npos) << each->out();
  EXPECT_NE(all->out().find("event: gone"), std::string::npos);
  EXPECT_NE(one->out().find("event: gone"), std::string::npos);
  server_->stop();
}

TEST_F(ApiTest, ActorHasAShareOfTheEventStreams) {
  const std::string reader = make_token(13), other = make_token(14);
  token_ = make_token(0, true);
  settings_.limits.max_event_streams = 4;
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13, 14}}});
  std::vector<std::unique_ptr<test::Process>> streams;
  const auto listen = [&](const std::string& token) -> test::Process& {
    const std::vector<std::string> command{"curl", "-sN", "-H", "Authorization: Bearer " + token,
                                           server_->url() + "/events?context=1"};
    return *streams.emplace_back(std::make_unique<test::Process>(folder_, command));
  };
  const auto says = [](test::Process& stream, const std::string& word) {
    return test::eventually([&] { return stream.out().find(word) != std::string::npos; });
  };
  ASSERT_TRUE(says(listen(reader), ": heartbeat"));
  EXPECT_TRUE(says(listen(reader), "event: refused"));
  ASSERT_TRUE(says(listen(other), ": heartbeat"));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(says(listen(token_), ": heartbeat")) << "operators have places of their own";
  EXPECT_TRUE(says(listen(token_), "event: refused"));
  server_->stop();
}

// Four actors with their whole shares have all streams.
TEST_F(ApiTest, ActorWithMostEventStreamsIsEvictedFirst) {
  std::vector<std::string> tokens;
  for (const Id actor : {13U, 14U, 15U, 16U, 17U}) tokens.push_back(make_token(actor));
  token_ = make_token(0, true);
  settings_.limits.max_event_streams = 8;
  start();
  ok("context.create", {{"id", 1}, {"admins", {1}}, {"readers", {13, 14, 15, 16, 17}}});
  std::vector<std::unique_ptr<test::Process>> streams;
  const auto listen = [&](const std::string& token) -> test::Process& {
    const std::vector<std::string> command{"curl", "-sN", "-H", "Authorization: Bearer " + token,
                                           server_->url() + "/events?context=1"};
    return *streams.emplace_back(std::make_unique<test::Process>(folder_, command));
  };
  const auto says = [](test::Process& stream, const std::string& word) {
    return test::eventually([&] { return stream.out().find(word) != std::string::npos; });
  };
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(says(listen(tokens[static_cast<std::size_t>(i / 2)]), ": heartbeat"));
  EXPECT_TRUE(says(listen(tokens[4]), ": heartbeat"));
  const auto running = [&] {
    return std::count_if(streams.begin(), streams.end(), [](const auto& each) { return each->is_running(); });
  };
  EXPECT_TRUE(test::eventually([&] { return running() == 8; })) << "one has ended";
  EXPECT_TRUE(says(listen(tokens[4]), "event: refused")) << "no actor has more than it would have";
  server_->stop();
}

// Events without a server: a client that this test imitates.
class EventStreamPlaces : public ApiTest {
 protected:
  struct Client final : api::EventSink {
    std::function<bool(std::string_view)> on_text;
    bool send(std::string_view text) override { return on_text(text); }
    bool is_open() const override { return true; }
  };
  const api::RpcCaller operator_{0, false, true};
  Client client_;

  static api::HttpRequest asks() {
    api::HttpRequest from;
    from.query["context"] = "1";
    return from;
  }
};

TEST_F(EventStreamPlaces, FailedStreamReleasesItsPlace) {
  settings_.limits.max_event_streams = 2;
  api::Services services(redis_, clock_, settings_);
  api::EventHub events(services, redis_);
  client_.on_text = [](std::string_view) -> bool { throw std::runtime_error("no memory"); };
  for (int i = 0; i < 5; ++i)
    EXPECT_THROW(events.make_stream_reply(asks(), operator_).stream(client_), std::runtime_error);
  std::string first;
  client_.on_text = [&](std::string_view text) {
    first = text;
    return false;
  };
  events.make_stream_reply(asks(), operator_).stream(client_);
  EXPECT_EQ(first, "retry: 1000\n\n");
}

// While an event is sent, the store is queried for the client's permission. If the stream held a store connection
// itself, this query would wait for that connection.
TEST_F(EventStreamPlaces, NothingIsSentWhileAStoreConnectionIsHeld) {
  settings_.limits.max_calls = 1;
  api::Services services(redis_, clock_, settings_);
  api::EventHub events(services, redis_);
  const api::RpcCaller caller{7, true};
  int sent = 0;
  client_.on_text = [&](std::string_view) {
    EXPECT_TRUE(services.backends.acquire(7).has_value());
    return ++sent < 2;
  };
  events.make_stream_reply(asks(), caller).stream(client_);
  EXPECT_EQ(sent, 2);
}

TEST_F(ApiTest, ActorWithFewestCallsIsServedNext) {
  api::BackendPool backends(redis_, 3, 3);
  std::vector<Result<api::BackendPool::Lease>> held;
  for (int i = 0; i < 3; ++i) held.push_back(backends.acquire(7));
  std::mutex mutex;
  std::vector<Id> order;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> waiting;
  const auto wait_as = [&](Id actor) {
    waiting.emplace_back([&, actor] {
      const auto lease = backends.acquire(actor);
      {
        const std::lock_guard lock(mutex);
        order.push_back(lease ? actor : 0);
      }
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  };
  for (int i = 0; i < 20; ++i) wait_as(7);
  EXPECT_TRUE(test::eventually([&] { return backends.waiting_count() == 20; }));
  wait_as(8);
  EXPECT_TRUE(test::eventually([&] { return backends.waiting_count() == 21; }));
  held.back()->release();
  EXPECT_TRUE(test::eventually([&] {
    const std::lock_guard lock(mutex);
    return !order.empty();
  }));
  is_over = true;
  for (std::thread& each : waiting) each.join();
  EXPECT_EQ(order.at(0), 8U);
  EXPECT_EQ(std::count(order.begin(), order.end(), 0U), 0) << "all had their turn";
}

// The connection of a waiting call may be closed in favour of another connection. The call's thread must then stop
// waiting.
TEST_F(ApiTest, WaitEndsWithItsConnection) {
  api::Services services(redis_, clock_, settings_);
  const auto methods = api::make_methods(services, ApiRole::coordinator);
  api::RpcCaller caller{0, true};
  ASSERT_TRUE(
      (*redis_.open())
          ->save(1, "job:1:1",
                 {{"id", "1"}, {"caller_id", "1"}, {"context_id", "1"}, {"script", "x"}, {"script_type", "python"}}));
  int asked = 0;
  caller.report_wait = [&](bool waits) { return !waits || ++asked < 3; };
  for (const auto& [name, params] : {std::pair("jobs.wait", json{{"jobs", {"1:1"}}, {"wait_ms", 3'600'000}}),
                                     std::pair("job.run", json{{"id", 1}, {"wait_ms", 3'600'000}})}) {
    asked = 0;
    const std::string_view wanted = name;
    const auto method =
        std::find_if(methods.begin(), methods.end(), [&](const auto& each) { return each.name == wanted; });
    ASSERT_NE(method, methods.end());
    const auto answer = method->run(params, caller);
    ASSERT_FALSE(answer) << *answer;
    EXPECT_EQ(answer.error().code, Code::unavailable) << name << ": " << answer.error().message;
    EXPECT_EQ(asked, 3) << name;
  }
}

TEST_F(ApiTest, ActorHasAShareOfTheConcurrentCalls) {
  api::BackendPool backends(redis_, 3, 2);
  const auto first = backends.acquire(7);
  auto second = backends.acquire(7);
  ASSERT_TRUE(first && second);
  std::atomic<bool> has_third{false};
  std::thread waiting([&] { has_third = backends.acquire(7).has_value(); });
  EXPECT_TRUE(backends.acquire(8)) << "there is one that actor 7 does not get";
  EXPECT_FALSE(has_third);
  second->release();
  waiting.join();
  EXPECT_TRUE(has_third);
}

// An internal failure of a health check must not be stored as the latest result.
TEST_F(ApiTest, HealthIsCheckedAgainAfterAnInternalFailure) {
  start_anonymous();
  redis_.set_faults([](const ServerCall&) -> Fault { throw std::runtime_error("no memory"); });
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 503);
  redis_.set_faults(nullptr);
  EXPECT_TRUE(test::eventually([&] { return status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n") == 200; }));
}

TEST_F(ApiTest, HealthRejectsABody) {
  make_token(13);
  start();
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"), 200);
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 3\\r\\n\\r\\n"), 400);
}

}  // namespace
}  // namespace mycojobs
