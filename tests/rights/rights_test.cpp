// Every action for every role through every entry point, compared with a table that is derived from the rules, not from
// the code:
//
//   admins do everything · submitters create, and steer and read their own records · executors claim, and read the jobs
//   that they run · readers read · the creator of a record reads it, and steers it while permitted to create · a gate
//   is answered by the actors it names, by admins, and, if it names none, by actors who may steer the flow · an
//   operator does everything
//
// Each cell is tested through the entry point itself: JSON-RPC of coordinator and supervisor over HTTP, the program
// with --actor, a message on a runner's topic, a script's calls for objects, and an agent's claim. Entry points that
// lack an action have no row for it.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "api/auth/tokens.h"
#include "api/server.h"
#include "base/clock.h"
#include "cli/commands/command_table.h"
#include "e2e/client.h"
#include "messaging/envelope.h"
#include "messaging/message_loop.h"
#include "messaging/message_receiver.h"
#include "model/codec.h"
#include "model/enums.h"
#include "net/http_client.h"
#include "net/json_rpc_client.h"
#include "security/signatures.h"
#include "service/message_service.h"
#include "store/redis/redis_stores.h"
#include "worker/intake/topic_intake.h"
#include "worker/runs/object_task.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

enum class Does { create, read, read_run, read_all, steer, answer, answer_named, work, administer, operate };

struct Row {
  Does does;
  const char* what;
  std::string_view may;  // letters of kRoles
};
constexpr std::array kTable{
    Row{Does::create, "create", "asmo"},
    Row{Does::read, "read what the maker made", "armfo"},
    Row{Does::read_run, "read a job that the executor runs", "aermfo"},
    Row{Does::read_all, "read what nobody made", "aro"},
    Row{Does::steer, "steer what the maker made", "amo"},
    Row{Does::answer, "answer a gate that names nobody", "amo"},
    // an operator must act as one of the named actors
    Row{Does::answer_named, "answer a gate that names the reader and the stranger", "arx"},
    Row{Does::work, "work", "aeo"},
    Row{Does::administer, "administer", "ao"},
    Row{Does::operate, "make and delete contexts and actors", "o"},
};

struct Role {
  char letter;
  const char* name;
  Id actor;
};
constexpr Role kMaker{'m', "maker", 17}, kFormer{'f', "maker who may not create any more", 18},
    kNobody{'n', "nobody", 0}, kOperator{'o', "operator", 1};
constexpr Id kExecutor = 14, kReader = 13, kStranger = 15;
constexpr std::array kRoles{Role{'a', "admin", 12},
                            Role{'s', "submitter", 16},
                            Role{'e', "executor", kExecutor},
                            Role{'r', "reader", kReader},
                            kMaker,
                            kFormer,
                            Role{'x', "stranger", kStranger},
                            kNobody,
                            kOperator};

// Returns the creator of the records on which the role is tested.
Id get_maker(const Role& role) { return role.letter == 'f' ? kFormer.actor : kMaker.actor; }

// The outcome of each attempt: "ok", "denied", or an unexpected error.
struct AttemptResult {
  std::string what, outcome;
};
using Attempt = std::function<std::vector<AttemptResult>(const Role&)>;

const json kGate{{"name", "n"}, {"jobs", {{"ok", {{"approval", json::object()}}}}}};
const json kNamedGate{{"name", "n"}, {"jobs", {{"ok", {{"approval", {{"approvers", {kReader, kStranger}}}}}}}}};
const json kJob{{"script", "x"}, {"script_type", "python"}};

json merge(json object, const json& more) {
  object.update(more);
  return object;
}

class RightsTable : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  SystemClock clock_;
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<api::ApiServer> server_, supervisor_;
  HttpClient http_;
  std::map<char, std::string> tokens_;
  std::set<std::string> tried_;  // methods
  Id runner_ = 20, next_id_ = 1000;

  void SetUp() override {
    RedisStoreConfig config;
    config.default_url = redis_.url();
    stores_ = make_redis_stores(std::move(config));
    store_ = std::move(*stores_->open());
    Context context;
    context.id = 1;
    context.admins = {12};
    context.submitters = {16, kMaker.actor};
    context.executors = {kExecutor};
    context.readers = {kReader};
    ASSERT_TRUE(store_->save(1, "context:1", encode(context)));
    Runner runner;
    runner.id = runner_;
    runner.actor_id = kExecutor;
    ASSERT_TRUE(store_->save(1, "runner:20", encode(runner)));
    serve();
  }
  void serve() {
    ApiSettings settings;
    settings.listen = "127.0.0.1:0";
    settings.tokens_file = folder_ / "tokens";
    settings.state_dir = folder_ / "state";
    settings.networks = *Networks::parse({"loopback"});
    for (const Role& role : kRoles) {
      const bool is_operator = role.letter == 'o';
      if (role.letter != 'n')
        tokens_[role.letter] =
            *api::add_token(settings.tokens_file, {is_operator ? 0 : role.actor, false, is_operator}, "");
    }
    auto coordinator = api::ApiServer::start(*stores_, clock_, settings);
    ASSERT_TRUE(coordinator) << coordinator.error().message;
    server_ = std::move(*coordinator);
    settings.role = ApiRole::supervisor;
    auto supervisor = api::ApiServer::start(*stores_, clock_, settings);
    ASSERT_TRUE(supervisor) << supervisor.error().message;
    supervisor_ = std::move(*supervisor);
  }

  // Tests each role with each row of the table that this entry point has.
  void expect_table(const std::map<Does, Attempt>& way) {
    for (const Row& row : kTable) {
      const auto found = way.find(row.does);
      if (found == way.end()) continue;
      for (const Role& role : kRoles) {
        const bool may = row.may.find(role.letter) != std::string_view::npos;
        for (const AttemptResult& tried : found->second(role))
          EXPECT_EQ(tried.outcome, may ? "ok" : "denied")
              << role.name << ", actor " << role.actor << ": " << row.what << ", by " << tried.what;
      }
    }
  }

  // ---- records that an operator creates for an actor ----

  json call(const api::ApiServer& server, const std::string& token, const std::string& method, const json& params) {
    const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
    const auto answer = http_.post({server.url(), body.dump(), token});
    if (!answer) return {{"error", {{"data", {{"word", answer.error().message}}}}}};
    if (answer->status == 401) return {{"error", {{"data", {{"word", "denied"}}}}}};
    return json::parse(answer->body, nullptr, false);
  }
  json create_record(const std::string& method, const json& params) {
    const json reply = call(*server_, tokens_.at('o'), method, params);
    EXPECT_TRUE(reply.contains("result")) << method << params << reply;
    return reply.value("result", json::object());
  }
  Id new_job(Id creator) { return create_record("job.create", merge(kJob, {{"caller_id", creator}})).value("id", 0U); }
  Id queued_job(Id creator) {
    return create_record("job.start", merge(kJob, {{"caller_id", creator}})).value("id", 0U);
  }
  Id running_job(Id creator) {
    const Id id = queued_job(creator);
    EXPECT_TRUE(store_->save(1, job_key(creator, id), {{"runner_id", std::to_string(runner_)}}));
    return id;
  }
  Id new_flow(Id creator, const json& definition = kGate) {
    return create_record("flow.create", {{"definition", definition}, {"caller_id", creator}}).value("id", 0U);
  }
  Id waiting_flow(Id creator, const json& definition = kGate) {
    const Id id = new_flow(creator, definition);
    create_record("flow.start", {{"id", id}});
    return id;
  }
  Id new_message(Id creator) {
    return create_record("message.create", {{"message", "m"}, {"message_type", "chat"}, {"caller_id", creator}})
        .value("id", 0U);
  }

  // ---- outcomes ----

  AttemptResult rpc(const api::ApiServer& server, const Role& role, const std::string& method, const json& params) {
    tried_.insert(method);
    const json reply = call(server, role.letter == 'n' ? "" : tokens_.at(role.letter), method, params);
    if (reply.contains("result")) return {method, "ok"};
    return {method, reply.value("error", json::object()).value("data", json::object()).value("word", reply.dump())};
  }
  // For records whose state may not permit the action: all outcomes except "denied" count as "ok".
  AttemptResult rpc_reaches(const api::ApiServer& server, const Role& role, const std::string& method,
                            const json& params) {
    AttemptResult tried = rpc(server, role, method, params);
    const bool known = tried.outcome == "conflict" || tried.outcome == "not_found" || tried.outcome == "invalid";
    if (known) tried.outcome = "ok";
    return tried;
  }
  // Each method of the server is in a row, or in `elsewhere` because another test covers it.
  void expect_all_methods_tried(const api::ApiServer& server, const std::set<std::string>& elsewhere) {
    const json methods = call(server, tokens_.at('o'), "rpc.discover", json::object())["result"]["methods"];
    EXPECT_GT(methods.size(), 10U);
    for (const json& each : methods) {
      const std::string name = each.at("name");
      EXPECT_TRUE(tried_.contains(name) || elsewhere.contains(name)) << name << ": the method has no row in the table";
    }
  }
  // Runs the program as an operator would; --actor selects the actor.
  AttemptResult command(const Role& role, std::vector<std::string> words, const char* flag = "--actor") {
    const std::string what = words[0] + ' ' + words[1] + (words[1] == "schedule" ? ' ' + words[2] : "");
    tried_.insert(what);
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    if (role.letter != 'o') words.insert(words.end(), {flag, std::to_string(role.actor)});
    const ProcessResult result = run(folder_, words);
    if (result.code == 0) return {what, "ok"};
    const bool is_no_actor = role.letter == 'n' && result.err.find("0 is not an id") != std::string::npos;
    return {what, result.code == 77 || is_no_actor ? "denied" : std::to_string(result.code) + ' ' + result.err};
  }
};

// Treats the exit codes 1, 65 and 66 as "ok": the action is impossible now, or the record does not exist.
std::vector<AttemptResult> reaching(std::vector<AttemptResult> all) {
  for (AttemptResult& each : all) {
    if (each.outcome.starts_with("1 ") || each.outcome.starts_with("65 ") || each.outcome.starts_with("66 "))
      each.outcome = "ok";
  }
  return all;
}

std::string text(Id id) { return std::to_string(id); }

// Lists contain only readable records (tests/api/rights_test.cpp). The other methods are about the server, the caller
// or the request itself. A session needs a key (tests/api/sessions_test.cpp).
const std::set<std::string> kOfAnybody{
    "job.list",       "jobs.list",    "flow.list",         "message.list",  "context.list", "jobs.page",
    "approval.list",  "flows.page",   "context.rights",    "flow.check",    "system.info",  "system.ping",
    "system.version", "rpc.discover", "session.challenge", "session.begin", "session.end"};

class JsonRpcRights : public RightsTable {
 protected:
  void expect_creating_and_reading();
  void expect_steering_and_more();
};

void JsonRpcRights::expect_creating_and_reading() {
  const auto ask = [this](const Role& role, const std::string& method, const json& params) {
    return rpc(*server_, role, method, params);
  };
  expect_table({
      {Does::create,
       [&](const Role& role) {
         return std::vector{ask(role, "job.create", kJob),
                            ask(role, "job.start", kJob),
                            rpc_reaches(*server_, role, "job.run", merge(kJob, {{"wait_ms", 1}})),
                            ask(role, "jobs.create", {{"jobs", {kJob}}}),
                            ask(role, "flow.create", {{"definition", kGate}}),
                            ask(role, "artifact.put", {{"bytes", 1}, {"sha256", std::string(64, 'a')}}),
                            ask(role, "message.create", {{"message", "m"}, {"message_type", "chat"}})};
       }},
      {Does::read,
       [&](const Role& role) {
         const Id creator = get_maker(role), id = new_job(creator);
         const json job{{"id", id}, {"caller_id", creator}}, flow{{"id", new_flow(creator)}};
         std::vector<AttemptResult> tried;
         for (const char* method :
              {"job.get", "job.logs", "job.status", "job.explain", "job.result", "job.history", "artifact.list"})
           tried.push_back(rpc_reaches(*server_, role, method, job));
         tried.push_back(rpc_reaches(*server_, role, "artifact.get", merge(job, {{"name", "a"}})));
         for (const char* method : {"flow.get", "flow.dag", "flow.explain", "flow.timeline", "flow.result"})
           tried.push_back(rpc_reaches(*server_, role, method, flow));
         tried.push_back(ask(role, "message.get", {{"id", new_message(creator)}, {"caller_id", creator}}));
         tried.push_back(ask(role, "jobs.wait", {{"jobs", {text(creator) + ":" + text(id)}}, {"wait_ms", 0}}));
         tried.push_back(ask(role, "flows.wait", {{"flows", {flow["id"]}}, {"wait_ms", 0}}));
         return tried;
       }},
      {Does::read_run,
       [&](const Role& role) {
         const json job{{"id", running_job(get_maker(role))}, {"caller_id", get_maker(role)}};
         return std::vector{ask(role, "job.get", job), ask(role, "job.status", job), ask(role, "job.logs", job)};
       }},
      {Does::read_all,
       [&](const Role& role) {
         return std::vector{
             ask(role, "queue.list", json::object()),       ask(role, "runner.list", json::object()),
             ask(role, "runner.get", {{"id", 20}}),         ask(role, "context.get", {{"id", 1}}),
             ask(role, "actor.list", json::object()),       rpc_reaches(*server_, role, "actor.get", {{"id", 99}}),
             ask(role, "context.overview", json::object()), ask(role, "queue.dead", json::object())};
       }},
  });
}

void JsonRpcRights::expect_steering_and_more() {
  const auto ask = [this](const Role& role, const std::string& method, const json& params) {
    return rpc(*server_, role, method, params);
  };
  const auto gated_job = [this](Id creator) {
    return json{{"id", create_record("job.start",
                                     merge(kJob, {{"caller_id", creator}, {"prerequisites", {"approval:ok"}}}))["id"]},
                {"caller_id", creator},
                {"name", "ok"}};
  };
  expect_table({
      {Does::steer,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         const json flow{{"id", waiting_flow(creator)}}, job{{"id", queued_job(creator)}, {"caller_id", creator}};
         std::vector<AttemptResult> tried{
             ask(role, "job.start", {{"id", text(creator) + ":" + text(new_job(creator))}}),
             ask(role, "job.cancel", job),
             rpc_reaches(*server_, role, "job.retry", job),
             rpc_reaches(*server_, role, "job.restart", {{"id", text(creator) + ":" + text(queued_job(creator))}}),
             ask(role, "flow.start", {{"id", new_flow(creator)}}),
             ask(role, "flow.pause", flow),
             ask(role, "flow.resume", flow),
             rpc_reaches(*server_, role, "flow.signal", merge(flow, {{"name", "go"}})),
             rpc_reaches(*server_, role, "flow.retry", flow),
             ask(role, "flow.cancel", flow),
             ask(role, "message.cancel", {{"id", new_message(creator)}, {"caller_id", creator}}),
             ask(role, "flow.replay", flow)};
         return tried;
       }},
      {Does::answer,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         return std::vector{ask(role, "flow.approve", {{"id", waiting_flow(creator)}, {"name", "ok"}}),
                            ask(role, "flow.reject", {{"id", waiting_flow(creator)}, {"name", "ok"}}),
                            ask(role, "job.approve", gated_job(creator)), ask(role, "job.reject", gated_job(creator))};
       }},
      {Does::answer_named,
       [&](const Role& role) {
         const Id approved = waiting_flow(get_maker(role), kNamedGate),
                  other = waiting_flow(get_maker(role), kNamedGate);
         return std::vector{ask(role, "flow.approve", {{"id", approved}, {"name", "ok"}}),
                            ask(role, "flow.reject", {{"id", other}, {"name", "ok"}})};
       }},
      {Does::administer,
       [&](const Role& role) {
         const Id creator = get_maker(role), flow = waiting_flow(creator);
         create_record("flow.cancel", {{"id", flow}});
         return std::vector{ask(role, "context.update", {{"id", 1}, {"notify", json::array()}}),
                            ask(role, "runner.create", {{"local", true}}),
                            ask(role, "runner.update", {{"id", 20}, {"topic", "t"}}),
                            rpc_reaches(*server_, role, "runner.delete", {{"id", 77}}),
                            ask(role, "queue.pause", {{"queue", "v"}}),
                            ask(role, "queue.resume", {{"queue", "v"}}),
                            rpc_reaches(*server_, role, "queue.requeue", {{"letter", "1700000000000-0"}}),
                            rpc_reaches(*server_, role, "queue.drop", {{"letter", "1700000000000-0"}}),
                            ask(role, "job.delete", {{"id", new_job(creator)}, {"caller_id", creator}}),
                            ask(role, "message.delete", {{"id", new_message(creator)}, {"caller_id", creator}}),
                            ask(role, "flow.delete", {{"id", flow}}),
                            ask(role, "context.refusals", {{"id", 1}}),
                            ask(role, "context.verify", json::object()),
                            ask(role, "context.doctor", json::object())};
       }},
      {Does::operate,
       [&](const Role& role) {
         std::vector<AttemptResult> tried{
             ask(role, "actor.create", {{"id", 99}}), ask(role, "actor.delete", {{"id", 99}}),
             ask(role, "context.create", {{"id", 2}}), ask(role, "context.delete", {{"id", 2}})};
         tried.push_back(rpc_reaches(*server_, role, "actor.update", {{"id", 98}, {"address", {"unix:/x"}}}));
         return tried;
       }},
  });
}

// Tested with all roles in tests/service/workflows_test.cpp, because commands and methods call the same functions.
constexpr std::array kOfWorkflows{"apply",   "send",          "list",          "cells",   "show",   "timeline",
                                  "explain", "facts",         "tail",          "approve", "reject", "remove",
                                  "export",  "verify-replay", "verify_replay", "logs",    "cancel"};

TEST_F(JsonRpcRights, EveryMethodByEveryRole) {
  expect_creating_and_reading();
  expect_steering_and_more();
  std::set<std::string> elsewhere(kOfAnybody.begin(), kOfAnybody.end());
  elsewhere.insert("message.send");  // has the same checks as message.create (service/message_service.cpp)
  for (const char* each : kOfWorkflows) elsewhere.insert("workflow." + std::string(each));
  expect_all_methods_tried(*server_, elsewhere);
}

TEST_F(RightsTable, SupervisorsHttp) {
  const auto ask = [this](const Role& role, const std::string& method, const json& params) {
    return rpc(*supervisor_, role, method, params);
  };
  const auto of = [](Id creator, Id id) { return json{{"id", id}, {"caller_id", creator}}; };
  expect_table({
      {Does::create,
       [&](const Role& role) {
         return std::vector{ask(role, "job.start", kJob), ask(role, "jobs.create", {{"jobs", {kJob}}}),
                            rpc_reaches(*supervisor_, role, "job.run", merge(kJob, {{"wait_ms", 1}}))};
       }},
      {Does::read,
       [&](const Role& role) {
         const Id creator = get_maker(role), job = new_job(creator);
         return std::vector{ask(role, "job.status", of(creator, job)), ask(role, "job.logs", of(creator, job)),
                            rpc_reaches(*supervisor_, role, "job.result", of(creator, job))};
       }},
      {Does::read_run,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         return std::vector{ask(role, "job.status", of(creator, running_job(creator)))};
       }},
      {Does::steer,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         return std::vector{ask(role, "job.cancel", of(creator, queued_job(creator)))};
       }},
      {Does::administer,
       [&](const Role& role) {
         return std::vector{ask(role, "register_runner", {{"local", true}})};
       }},
  });
}

class CommandRights : public RightsTable {
 protected:
  std::string file_ = folder_.write("flow.json", kGate.dump()), key_ = folder_ / "sender.key";

  void expect_creating_and_reading();
  void expect_steering_and_answering();
  void expect_administering();
  std::string make_message_id(Id creator) { return text(creator) + ":" + text(new_message(creator)); }
  std::string gated_job(Id creator) {
    const json job = merge(kJob, {{"caller_id", creator}, {"prerequisites", {"approval:ok"}}});
    return text(creator) + ":" + text(create_record("job.start", job).value("id", 0U));
  }
  std::string create_schedule(Id creator) {
    const std::string name = "s" + text(++next_id_);
    const ProcessResult result =
        run(folder_, {program_path(), "flow", "schedule", "add", name, file_, "--cron", "@daily", "--caller",
                      text(creator), "--redis", redis_.url(), "--state-dir", folder_ / "client"});
    EXPECT_EQ(result.code, 0) << result.err;
    return name;
  }
};

void CommandRights::expect_creating_and_reading() {
  const auto own = [this](const Role& role, std::vector<std::string> words) { return command(role, std::move(words)); };
  expect_table({
      {Does::create,
       [&](const Role& role) {
         if (role.letter == 'o') return std::vector{own(role, {"job", "submit", file_, "--type", "python"})};
         return std::vector{command(
             role, {"flow", "schedule", "add", std::string("s") + role.letter, file_, "--cron", "@daily"}, "--caller")};
       }},
      {Does::read,
       [&](const Role& role) {
         const std::string message = make_message_id(get_maker(role));
         // The message is not signed. A caller who may read the message gets that answer.
         return reaching({own(role, {"message", "show", message}),
                          own(role, {"message", "verify", message, "--key", std::string(64, 'a')})});
       }},
      {Does::read_all,
       [&](const Role& role) {
         return reaching(
             {own(role, {"runner", "show", "20"}), own(role, {"actor", "list"}), own(role, {"actor", "show", "99"})});
       }},
  });
}

void CommandRights::expect_steering_and_answering() {
  const auto own = [this](const Role& role, std::vector<std::string> words) { return command(role, std::move(words)); };
  expect_table({
      {Does::steer,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         const std::string flow = text(waiting_flow(creator));
         return reaching({own(role, {"job", "restart", text(creator) + ":" + text(queued_job(creator))}),
                          own(role, {"flow", "pause", flow}), own(role, {"flow", "resume", flow}),
                          own(role, {"flow", "signal", flow, "go"}), own(role, {"flow", "retry", flow}),
                          own(role, {"flow", "replay", flow}), own(role, {"flow", "cancel", flow}),
                          own(role, {"message", "cancel", make_message_id(creator)}),
                          own(role, {"message", "sign", make_message_id(creator), "--key", key_})});
       }},
      {Does::answer,
       [&](const Role& role) {
         const Id creator = get_maker(role);
         return std::vector{own(role, {"flow", "approve", text(waiting_flow(creator)), "ok"}),
                            own(role, {"flow", "reject", text(waiting_flow(creator)), "ok"}),
                            own(role, {"job", "approve", gated_job(creator), "ok"}),
                            own(role, {"job", "reject", gated_job(creator), "ok"})};
       }},
      {Does::answer_named,
       [&](const Role& role) {
         return std::vector{own(role, {"flow", "approve", text(waiting_flow(get_maker(role), kNamedGate)), "ok"})};
       }},
  });
  expect_table({{Does::steer, [&](const Role& role) {
                   if (role.letter == 'f')
                     return std::vector<AttemptResult>{};  // this role could not have created a schedule
                   const std::string schedule = create_schedule(get_maker(role));
                   return std::vector{own(role, {"flow", "schedule", "pause", schedule}),
                                      own(role, {"flow", "schedule", "resume", schedule})};
                 }}});
}

void CommandRights::expect_administering() {
  const auto own = [this](const Role& role, std::vector<std::string> words) { return command(role, std::move(words)); };
  expect_table({
      {Does::administer,
       [&](const Role& role) {
         const Id creator = get_maker(role), flow = waiting_flow(creator);
         create_record("flow.cancel", {{"id", flow}});
         return reaching({own(role, {"runner", "create", "--topic", "t"}),
                          own(role, {"runner", "update", "20", "--topic", "t"}), own(role, {"runner", "delete", "77"}),
                          own(role, {"job", "delete", text(creator) + ":" + text(new_job(creator))}),
                          own(role, {"message", "delete", make_message_id(creator)}),
                          own(role, {"flow", "delete", text(flow)}),
                          own(role, {"flow", "schedule", "remove", create_schedule(kMaker.actor)}),
                          own(role, {"context", "refusals", "1"})});
       }},
      {Does::operate,
       [&](const Role& role) {
         return reaching({own(role, {"actor", "create", "--id", "99"}), own(role, {"actor", "delete", "99"}),
                          own(role, {"actor", "update", "98", "--address", "unix:/x"}),
                          own(role, {"context", "delete", "2"})});
       }},
  });
}

TEST_F(CommandRights, EveryCommandWithActorByEveryRole) {
  ASSERT_EQ(run(folder_, {program_path(), "key", "new", key_}).code, 0);
  expect_creating_and_reading();
  expect_steering_and_answering();
  expect_administering();
  // Lists contain only readable records; `key token` writes a file of the host.
  std::set<std::string> others{"message list", "message follow", "context list", "key token"};
  for (const char* each : kOfWorkflows) others.insert("workflow " + std::string(each));
  for (const Command& each : commands()) {
    const bool asks =
        std::any_of(each.flags.begin(), each.flags.end(), [](const auto& flag) { return flag.name == "actor"; });
    const std::string name(each.name);
    EXPECT_TRUE(!asks || tried_.contains(name) || others.contains(name))
        << name << ": the command has no row in the table";
  }
}

// A client with access to Redis writes the record. The agent of the topic checks the permissions of its sender.
TEST_F(RightsTable, MessagesOnATopic) {
  TopicIntake intake(runner_, [](Id) { return "runner20"; });
  expect_table({{Does::create, [&](const Role& role) {
                   if (role.letter == 'o') return std::vector<AttemptResult>{};  // an operator sends no messages
                   Message message;
                   message.id = ++next_id_;
                   message.caller_id = role.actor;
                   message.context_id = 1;
                   Job job = decode<Job>({{"script", "x"}, {"script_type", "python"}}).record;
                   job.id = message.id;
                   message.job = {job};
                   const std::string key = redis_key(message);
                   EXPECT_TRUE(store_->send_to_topic(1, "runner20", key, encode(message)));
                   EXPECT_TRUE(intake.process(*store_, {1}, {key}));
                   const auto record = store_->load(1, key);
                   const std::string status(record ? field_of(*record, "status") : "");
                   const bool create_record = store_->load(1, job_key(role.actor, job.id)).has_value();
                   EXPECT_EQ(create_record, status == "acknowledged") << key << ' ' << status;
                   return std::vector{AttemptResult{"a message on runner20", create_record ? "ok" : "denied"}};
                 }}});
}

// Every publisher can name any message on any topic.
TEST_F(RightsTable, PublishedKeySendsNoMessageOfAnother) {
  TopicIntake intake(runner_, [](Id) { return "runner20"; });
  const service::RequestContext creator{1, 12, EntryPoint::command, true};
  Message message;
  Job job = decode<Job>({{"script", "x"}, {"script_type", "python"}}).record;
  message.target_context = 7;
  message.job = {job};
  const auto create_record = service::send_message(creator, *store_, std::nullopt, message);
  ASSERT_TRUE(create_record) << create_record.error().message;
  const std::string key = redis_key(*create_record);
  EXPECT_TRUE(intake.process(*store_, {1}, {key}));
  const auto record = store_->load(1, key);
  ASSERT_TRUE(record);
  EXPECT_EQ(field_of(*record, "status"), "dispatched") << "the job is neither claimed nor refused";
  EXPECT_EQ(field_of(*record, "error"), "");
  EXPECT_FALSE(store_->load(1, job_key(12, create_record->job.at(0).id)).has_value());
}

// Messages signed by the role's actor, from another coordinator over the network and from the context's own msg_out.
TEST_F(RightsTable, SignedMessages) {
  const auto own = std::make_shared<const SigningKey>(SigningKey::make());
  const SigningKey peer = SigningKey::make();
  auto flows = std::move(*stores_->open_flows());
  PublicKeyCache known;
  MessageReceiver receiver(*store_, known, own->public_key(), {});
  const MessageSettings settings{1, own, true, 0, {}};
  MessageLoop rounds(*store_, *flows, clock_, settings);
  const auto signed_by = [&](const Role& role, Message message, bool is_known) {
    const SigningKey key = SigningKey::make();
    if (is_known)
      redis_.cli(0, {"HSET", "actor:" + text(role.actor), "id", text(role.actor), "pubkey", key.public_key(), "address",
                     R"(["http://there:1"])"});
    message.id = ++next_id_;
    message.caller_id = is_known ? role.actor : 99;
    message.target_context = 1;
    message.created_at = static_cast<std::uint32_t>(clock_.unix_ms() / 1000);
    Job job = decode<Job>({{"script", "x"}, {"script_type", "python"}}).record;
    job.id = message.id;
    message.job = {job};
    EXPECT_TRUE(sign(message, key));
    return message;
  };
  const auto count_jobs = [&](Id actor) { return store_->keys(1, "job:" + text(actor) + ':', 10000).value().size(); };
  const auto send_from_other_host = [&](const Role& role) {
    Message message;
    message.context_id = 7;
    message.target_address = "http://here:1";
    message.target_key = own->public_key();
    message = signed_by(role, std::move(message), role.letter != 'n');
    const json envelope =
        seal({EnvelopeKind::message, 1, message.created_at, ""}, {{"message", to_json(message)}}, peer).value();
    const std::string request = encode_rpc_request("message.deliver", {{"envelope", envelope}});
    auto answer = parse_rpc_answer(receiver.handle_request(request));
    // An unknown key is looked up once per second.
    EXPECT_TRUE(eventually([&] {
      if (answer || answer.error().code != Code::unavailable) return true;
      answer = parse_rpc_answer(receiver.handle_request(request));
      return false;
    }));
    const std::string outcome = answer ? "ok" : std::string(to_string(answer.error().code));
    const auto before = count_jobs(role.actor);
    EXPECT_TRUE(rounds.run_round(16));
    EXPECT_EQ(count_jobs(role.actor), before + (outcome == "ok" ? 1 : 0)) << role.name;
    return AttemptResult{"a message from elsewhere", outcome};
  };
  const auto send_from_this_host = [&](const Role& role) {
    const Message message = signed_by(role, {}, true);
    EXPECT_TRUE(store_->save(1, redis_key(message), encode(message)));
    EXPECT_TRUE(store_->push_to_msg_out(1, redis_key(message)));
    const auto before = count_jobs(role.actor);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(rounds.run_round(16));  // first out of msg_out, then in
    const bool create_record = count_jobs(role.actor) == before + 1;
    const auto record = store_->load(1, redis_key(message));
    const bool refused = record && field_of(*record, "error").find(" may not create ") != std::string::npos;
    return AttemptResult{"a message on msg_out", create_record ? "ok" : refused ? "denied" : "neither"};
  };
  expect_table({{Does::create, [&](const Role& role) {
                   if (role.letter == 'o') return std::vector<AttemptResult>{};  // an operator signs no messages
                   std::vector<AttemptResult> tried{send_from_other_host(role)};
                   if (role.letter != 'n') tried.push_back(send_from_this_host(role));
                   return tried;
                 }}});
}

TEST_F(RightsTable, ObjectsOfScripts) {
  auto objects = std::move(*stores_->open_objects());
  Id asked = 0;
  // A call by a script in a job of this actor.
  const auto call_as = [&](Id actor, const std::string& method, const json& params) {
    const ClaimRequest request{.context = 1, .runner = 20, .instance = "i", .queues = {"queue:osis"}};
    Job job;
    job.id = ++next_id_;
    job.caller_id = actor == 0 ? 99 : actor;
    job.context_id = 1;
    job.script = "x";
    job.script_type = "osis";
    EXPECT_TRUE(store_->submit(job));
    const auto claims = store_->claim(request);
    EXPECT_TRUE(claims && claims->jobs.size() == 1);
    ObjectTask task("t" + text(++asked), json{{"id", 1}, {"method", method}, {"params", params}}.dump());
    auto state = ObjectTask::State::in_progress;
    for (int i = 0; i < 100 && state != ObjectTask::State::done; ++i)
      state = task.step(*store_, *objects, {1, actor, claims->jobs.at(0).ref});
    (void)objects->release(claims->jobs.at(0).ref);
    const json answer = json::parse(task.answer());
    return answer.contains("result") ? std::string("ok") : answer["error"].value("code", answer.dump());
  };
  ASSERT_EQ(call_as(12, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}}), "ok");
  ASSERT_EQ(call_as(12, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}, {"n", 1}}}}), "ok");
  // Objects have no creator, so a role that may read only its own records reads no objects.
  const auto reads = [&](const Role& role) {
    std::vector<AttemptResult> tried;
    if (role.letter == 'o' || role.letter == 'm' || role.letter == 'f') return tried;
    tried.push_back({"osis.get", call_as(role.actor, "osis.get", {{"kind", "todo"}, {"id", "a"}})});
    tried.push_back({"osis.list", call_as(role.actor, "osis.list", {{"kind", "todo"}})});
    return tried;
  };
  const auto writes = [&](const Role& role) {
    std::vector<AttemptResult> tried;
    if (role.letter == 'o') return tried;  // an operator runs no scripts under its own name
    tried.push_back({"osis.put", call_as(role.actor, "osis.put", {{"kind", "todo"}, {"object", {{"id", "b"}}}})});
    tried.push_back(
        {"osis.declare", call_as(role.actor, "osis.declare", {{"kind", "new"}, {"index", {text(++asked)}}})});
    return tried;
  };
  expect_table({{Does::read, reads}, {Does::administer, writes}});
  for (const Role& role : {kMaker, kFormer})
    EXPECT_EQ(call_as(role.actor, "osis.get", {{"kind", "todo"}, {"id", "a"}}), "denied") << role.name;
}

TEST_F(RightsTable, ClaimsOfAgents) {
  expect_table({{Does::work, [&](const Role& role) {
                   queued_job(kMaker.actor);
                   ClaimRequest request{.context = 1, .runner = 20, .instance = "i", .queues = {"queue:python"}};
                   request.actor = role.actor;
                   if (role.letter == 'o') request.actor.reset();
                   const auto reply = store_->claim(request);
                   if (reply)
                     return std::vector{AttemptResult{"a claim", reply->jobs.size() == 1 ? "ok" : "took nothing"}};
                   return std::vector{AttemptResult{"a claim", std::string(to_string(reply.error().code))}};
                 }}});
}

TEST_F(RightsTable, AgentRunsJobsAsItsActor) {
  const auto runs = [&](const Role& role, int runner) {
    Process agent = start_agent(
        folder_, redis_, runner,
        {"--runner-actor", text(role.actor), "--grace", "1s", "--state-dir", folder_ / ("agent" + text(role.actor))});
    EXPECT_TRUE(wait_until_registered(redis_, runner)) << agent.err();
    PlainJob job;
    job.caller = static_cast<int>(kMaker.actor);
    job.id = static_cast<int>(++next_id_);
    submit(redis_, job);
    EXPECT_TRUE(eventually([&] {
      return has_ended(redis_, job) || agent.err().find("may not run jobs") != std::string::npos ||
             agent.err().find("has no actor") != std::string::npos;
    })) << agent.err();
    const bool ran = has_ended(redis_, job);
    redis_.cli(1, {"DEL", "queue:python"});
    agent.signal(SIGTERM);
    agent.wait();
    return ran;
  };
  EXPECT_TRUE(runs({'e', "executor", kExecutor}, 21));
  EXPECT_FALSE(runs(kMaker, 22));
  EXPECT_FALSE(runs({'x', "stranger", kStranger}, 23));
  EXPECT_FALSE(runs(kNobody, 24));
}

TEST_F(RightsTable, OperatorAnswersAGateThatNamesOthers) {
  const auto as = [&](Id actor) {
    const json id{{"id", waiting_flow(kMaker.actor, kNamedGate)}, {"name", "ok"}, {"actor_id", actor}};
    return rpc(*server_, kOperator, "flow.approve", id).outcome;
  };
  EXPECT_EQ(as(kReader), "ok");
  EXPECT_EQ(as(kExecutor), "denied");
}

// Without a record, the context is open to clients of its own Redis, because their access to Redis is the permission.
// It is closed to all other clients, including admins of other contexts.
TEST_F(RightsTable, ContextWithoutARecordIsClosed) {
  ASSERT_EQ(redis_.cli(1, {"DEL", "context:1"}), "1");
  auto objects = std::move(*stores_->open_objects());
  TopicIntake intake(20, [](Id) { return "runner20"; });
  for (const Role& role : kRoles) {
    const std::string wanted = role.letter == 'o' ? "ok" : "denied";
    for (const api::ApiServer* server : {server_.get(), supervisor_.get()})
      EXPECT_EQ(rpc(*server, role, "job.start", kJob).outcome, wanted) << role.name;
    EXPECT_EQ(rpc(*server_, role, "job.list", json::object()).outcome, wanted) << role.name;
    if (role.letter == 'o' || role.letter == 'n') continue;
    ObjectTask task("t", R"({"id":1,"method":"osis.list","params":{"kind":"todo"}})");
    EXPECT_EQ(task.step(*store_, *objects, {1, role.actor, {}}), ObjectTask::State::done);
    EXPECT_NE(task.answer().find("\"denied\""), std::string::npos) << task.answer();
    EXPECT_EQ(command(role, {"flow", "pause", text(waiting_flow(kMaker.actor))}).outcome, "ok") << role.name;
    Message message;
    message.id = ++next_id_;
    message.caller_id = role.actor;
    message.job = {decode<Job>({{"id", "1"}, {"script", "x"}, {"script_type", "v"}}).record};
    EXPECT_TRUE(store_->send_to_topic(1, "runner20", redis_key(message), encode(message)));
    EXPECT_TRUE(intake.process(*store_, {1}, {}));
    EXPECT_TRUE(store_->load(1, job_key(role.actor, 1))) << role.name;
  }
}

// Entry points without a row must not offer the action accidentally: no server has a method to claim work, and the
// supervisor cannot answer gates.
TEST_F(RightsTable, NoServerGivesWorkToItsCaller) {
  const Role& all = kOperator;
  for (const char* method : {"job.claim", "queue.claim", "job.report", "job.finish", "job.update"}) {
    EXPECT_NE(rpc(*server_, all, method, json::object()).outcome, "ok") << method;
    EXPECT_NE(rpc(*supervisor_, all, method, json::object()).outcome, "ok") << method;
  }
  for (const char* method : {"flow.approve", "job.approve", "context.update", "job.delete", "queue.pause"})
    EXPECT_NE(rpc(*supervisor_, all, method, {{"id", 1}, {"name", "ok"}, {"queue", "v"}}).outcome, "ok") << method;
}

}  // namespace
}  // namespace mycojobs::test
