#include "worker/runs/object_broker.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "support/redis/memory_server.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Id kAdmin = 1, kReader = 2, kActorWithoutRole = 3;

class BrokerTest : public testing::Test {
 protected:
  BrokerTest() {
    Job job;
    job.caller_id = job.context_id = 1;
    job.script = "x";
    job.script_type = "osis";
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(store_->submit(job));
    ClaimRequest request{.context = 1, .runner = 1, .instance = "a1", .queues = {"queue:osis"}, .max_jobs = 4};
    const auto reply = store_->claim(request);
    for (const ClaimedJob& each : reply->jobs) claims_.push_back(each.ref);
    EXPECT_EQ(claims_.size(), 4U);
    EXPECT_TRUE(store_->save(1, "context:1", {{"id", "1"}, {"admins", "[1]"}, {"readers", "[2]"}}));
    start({});
  }
  void start(ObjectBrokerLimits limits) {
    broker_ = std::make_unique<ObjectBroker>(
        server_,
        [this](RunNumber run, std::string reply) {
          std::lock_guard lock(mutex_);
          replies_.emplace_back(run, json::parse(reply));
          reply_arrived_.notify_all();
        },
        limits);
  }
  // Run n holds claim n.
  void send_call(RunNumber run, int id, const std::string& method, json params, Id caller = kAdmin) {
    broker_->submit({run, 1, caller, claims_.at(run - 1),
                     json{{"id", id}, {"method", method}, {"params", std::move(params)}}.dump()});
  }
  json wait_for_reply(RunNumber run, int id) {
    std::unique_lock lock(mutex_);
    json found;
    const auto has_reply = [&] {
      for (const auto& [reply_run, reply] : replies_) {
        if (reply_run == run && reply.at("id") == id) found = reply;
      }
      return !found.is_null();
    };
    EXPECT_TRUE(reply_arrived_.wait_for(lock, std::chrono::minutes(1), has_reply)) << "no reply to call " << id;
    return found;
  }
  std::size_t count_replies(RunNumber run) {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(replies_.begin(), replies_.end(), [&](const auto& each) { return each.first == run; }));
  }
  json call(RunNumber run, const std::string& method, json params, Id caller = kAdmin) {
    send_call(run, ++last_call_id_, method, std::move(params), caller);
    return wait_for_reply(run, last_call_id_);
  }
  static std::string get_code(const json& reply) {
    return reply.contains("error") ? reply["error"]["code"].get<std::string>() : "ok";
  }
  static std::string get_message(const json& reply) { return reply.at("error").at("message").get<std::string>(); }

  SystemClock clock_;
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = *server_.open();
  std::vector<ClaimRef> claims_;
  std::mutex mutex_;
  std::condition_variable reply_arrived_;
  std::vector<std::pair<RunNumber, json>> replies_;
  int last_call_id_ = 100;
  std::unique_ptr<ObjectBroker> broker_;
};

TEST_F(BrokerTest, ServesEveryMethod) {
  EXPECT_EQ(call(1, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}, {"text", {"title"}}})["result"],
            json::object());
  const json put = call(1, "osis.put", {{"kind", "todo"}, {"object", {{"n", 1}, {"title", "Buy bread"}}}})["result"];
  EXPECT_EQ(put["version"], 1);
  const std::string id = put["id"];
  EXPECT_THAT(id, testing::MatchesRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
  const json object = call(1, "osis.get", {{"kind", "todo"}, {"id", id}})["result"];
  EXPECT_EQ(object["object"]["title"], "Buy bread");
  EXPECT_EQ(object["object"]["id"], id);
  EXPECT_EQ(object["version"], 1);
  EXPECT_EQ(object["created_ms"], put["created_ms"]);
  EXPECT_EQ(call(1, "osis.find", {{"kind", "todo"}, {"field", "n"}, {"value", 1}})["result"]["objects"].size(), 1U);
  EXPECT_EQ(call(1, "osis.find", {{"kind", "todo"}, {"field", "n"}, {"min", 2}})["result"]["objects"].size(), 0U);
  EXPECT_EQ(call(1, "osis.search", {{"kind", "todo"}, {"text", "BREAD"}})["result"]["objects"][0]["id"], id);
  EXPECT_EQ(call(1, "osis.list", {{"kind", "todo"}})["result"]["objects"].size(), 1U);
  EXPECT_EQ(call(1, "osis.count", {{"kind", "todo"}})["result"]["count"], 1);
  EXPECT_EQ(call(1, "osis.kinds", json::object())["result"]["kinds"][0]["kind"], "todo");
  EXPECT_TRUE(call(1, "osis.kinds", {{"namespace", "shop"}})["result"]["kinds"].empty());
  const json rejected = call(1, "osis.transaction",
                             {{"operations",
                               {{{"op", "put"}, {"kind", "todo"}, {"object", {{"id", "b"}}}, {"version", 0}},
                                {{"op", "check"}, {"kind", "todo"}, {"id", id}, {"version", 1}},
                                {{"op", "delete"}, {"kind", "todo"}, {"id", id}}}}});
  EXPECT_EQ(rejected["error"]["code"], "invalid") << "a transaction may name an object only once";
  const json done = call(1, "osis.transaction",
                         {{"operations",
                           {{{"op", "put"}, {"kind", "todo"}, {"object", {{"id", "b"}}}, {"version", 0}},
                            {{"op", "delete"}, {"kind", "todo"}, {"id", id}, {"version", 1}}}}});
  EXPECT_EQ(done["result"]["results"].size(), 2U);
  EXPECT_EQ(get_code(call(1, "osis.get", {{"kind", "todo"}, {"id", id}})), "not_found");
  EXPECT_EQ(get_code(call(1, "osis.delete", {{"kind", "todo"}, {"id", "b"}, {"version", 7}})), "conflict");
  EXPECT_EQ(call(1, "osis.delete", {{"kind", "todo"}, {"id", "b"}})["result"]["version"], 1);
}

TEST_F(BrokerTest, InvalidCallsNameTheField) {
  const std::vector<std::pair<json, std::string>> invalid_calls = {
      {{{"method", "osis.drop"}}, "method: \"osis.drop\" is not known; the values are osis.declare, osis.put"},
      {{{"method", 7}}, "method: "},
      {{{"method", "osis.get"}, {"params", "x"}}, "params: is not an object"},
      {{{"method", "osis.get"}, {"params", {{"kind", "todo"}}}}, "id: is missing"},
      {{{"method", "osis.get"}, {"params", {{"id", "a"}}}}, "kind: is missing"},
      {{{"method", "osis.get"}, {"params", {{"kind", "To do"}, {"id", "a"}}}}, "kind: \"To do\" is not a valid name"},
      {{{"method", "osis.get"}, {"params", {{"kind", "todo"}, {"id", 5}}}}, "id: is not text"},
      {{{"method", "osis.get"}, {"params", {{"kind", "todo"}, {"id", "a"}, {"idd", 5}}}}, "\"idd\": unknown parameter"},
      {{{"method", "osis.put"}, {"params", {{"kind", "todo"}, {"object", 5}}}}, "object: is not an object"},
      {{{"method", "osis.put"}, {"params", {{"kind", "todo"}, {"object", {{"id", ""}}}}}},
       "object.id: \"\" is not a valid id"},
      {{{"method", "osis.put"}, {"params", {{"kind", "todo"}, {"object", {{"a", 1}}}, {"version", 1.5}}}},
       "version: is not a whole number"},
      {{{"method", "osis.list"}, {"params", {{"kind", "todo"}, {"limit", 1001}}}}, "limit: 1001 is not from 1 to 1000"},
      {{{"method", "osis.find"}, {"params", {{"kind", "todo"}, {"field", "n"}}}}, "value: is missing"},
      {{{"method", "osis.find"}, {"params", {{"kind", "todo"}, {"field", "n"}, {"value", json::array({1})}}}},
       "value: is not text, a number or a boolean"},
      {{{"method", "osis.find"}, {"params", {{"kind", "todo"}, {"field", "n"}, {"value", 1}, {"max", 1}}}},
       "give a value, or a range"},
      {{{"method", "osis.find"}, {"params", {{"kind", "todo"}, {"field", "n"}, {"value", 1}}}},
       "field: no \"n\" of default/todo is declared"},
      {{{"method", "osis.declare"}, {"params", {{"kind", "todo"}}}}, "index, text: both are empty"},
      {{{"method", "osis.declare"}, {"params", {{"kind", "todo"}, {"index", {"a..b"}}}}},
       "index: \"a..b\" is not a valid field"},
      {{{"method", "osis.transaction"}, {"params", {{"operations", {{{"op", "drop"}}}}}}},
       "operations[0].op: is not put, delete or check"},
      {{{"method", "osis.transaction"}, {"params", {{"operations", {{{"op", "check"}, {"kind", "a"}, {"id", "b"}}}}}}},
       "operations[0].version: is missing"},
  };
  for (const auto& [request, expected] : invalid_calls) {
    json invalid_call = request;
    invalid_call["id"] = ++last_call_id_;
    broker_->submit({1, 1, kAdmin, claims_[0], invalid_call.dump()});
    const json reply = wait_for_reply(1, last_call_id_);
    EXPECT_EQ(get_code(reply), "invalid") << invalid_call;
    if (get_code(reply) == "ok") continue;
    EXPECT_THAT(get_message(reply), HasSubstr(expected));
  }
}

TEST_F(BrokerTest, InvalidCallGetsAReplyWithoutAnId) {
  for (const std::string text : {"", "[]", "{", "{\"id\":{}}", "\xff", "{\"method\":\"osis.kinds\"}"}) {
    std::size_t before = 0;
    {
      std::lock_guard lock(mutex_);
      before = replies_.size();
    }
    broker_->submit({1, 1, kAdmin, claims_[0], text});
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(reply_arrived_.wait_for(lock, std::chrono::minutes(1), [&] { return replies_.size() > before; }));
    EXPECT_TRUE(replies_.back().second["id"].is_null());
    EXPECT_EQ(get_code(replies_.back().second), "invalid");
  }
}

TEST_F(BrokerTest, RolesOfTheContextDecide) {
  ASSERT_EQ(get_code(call(1, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}})), "ok");
  EXPECT_EQ(get_code(call(2, "osis.get", {{"kind", "todo"}, {"id", "a"}}, kReader)), "ok");
  const json denied = call(2, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}}, kReader);
  EXPECT_EQ(get_code(denied), "denied");
  EXPECT_THAT(get_message(denied), HasSubstr("actor 2 may not administer objects in context 1"));
  EXPECT_THAT(get_message(denied), HasSubstr("mycojobs context grant 1 --admin 2"));
  const auto notes = store_->refusals(1, 10).value();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(std::pair(notes[0].actor, notes[0].action), std::pair(kReader, std::string("administer")));
  EXPECT_EQ(get_code(call(3, "osis.get", {{"kind", "todo"}, {"id", "a"}}, kActorWithoutRole)), "denied");
  EXPECT_EQ(get_code(call(2, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}}, kReader)), "denied");
  ASSERT_EQ(get_code(call(1, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}})), "ok");
  EXPECT_EQ(get_code(call(2, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}}, kReader)), "ok")
      << "the same declaration exists already";
  server_.erase(1, "context:1");
  const json reply_without_context = call(1, "osis.get", {{"kind", "todo"}, {"id", "a"}});
  EXPECT_EQ(get_code(reply_without_context), "denied");
  EXPECT_THAT(get_message(reply_without_context), HasSubstr("which has no record"));
}

// The 16 large calls of run 1 together exceed the CPU burst of the run, and 1 ns per second hardly refills it. The
// first call compiles the scripts in the imitation of Redis, so that the calls of the other runs stay within their
// limits.
TEST_F(BrokerTest, RunAboveItsCpuLimitDoesNotDelayOtherRuns) {
  EXPECT_EQ(get_code(call(4, "osis.kinds", json::object())), "ok");
  ObjectBrokerLimits limits;
  limits.cpu_ns_per_s = 1;
  limits.cpu_burst_ns = 5'000'000;
  start(limits);
  std::string numbers = "1";
  for (int i = 0; i < 50'000; ++i) numbers += ",1";
  for (int id = 1; id <= 16; ++id) {
    const std::string text = R"({"id":)" + std::to_string(id) +
                             R"(,"method":"osis.put","params":{"kind":"todo","object":{"a":[)" + numbers + "]}}}";
    broker_->submit({1, 1, kAdmin, claims_[0], text});
  }
  for (RunNumber run = 2; run <= 4; ++run) EXPECT_EQ(get_code(call(run, "osis.kinds", json::object())), "ok");
  EXPECT_LT(count_replies(1), 16U);
  broker_->end_run(1);
  broker_.reset();
  EXPECT_LT(count_replies(1), 16U);
}

TEST_F(BrokerTest, RunWithoutACpuLimitIsServed) {
  ObjectBrokerLimits limits;
  limits.cpu_ns_per_s = limits.cpu_burst_ns = 0;
  start(limits);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get_code(call(1, "osis.kinds", json::object())), "ok");
}

TEST_F(BrokerTest, SecondWriterOfAnObjectWaitsForTheEndOfTheFirstRun) {
  const json put = {{"kind", "todo"}, {"object", {{"id", "a"}}}};
  ASSERT_EQ(get_code(call(1, "osis.put", put)), "ok");
  send_call(2, 1, "osis.put", put);
  send_call(2, 2, "osis.get", {{"kind", "todo"}, {"id", "a"}});
  send_call(3, 1, "osis.put", put);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get_code(call(4, "osis.get", {{"kind", "todo"}, {"id", "a"}})), "ok");
  EXPECT_EQ(get_code(call(1, "osis.put", put)), "ok");
  EXPECT_EQ(count_replies(2) + count_replies(3), 0U);
  broker_->end_run(1);
  const json first = wait_for_reply(2, 1);
  EXPECT_EQ(first["result"]["version"], 3);
  EXPECT_EQ(wait_for_reply(2, 2)["result"]["version"], 3);
  EXPECT_EQ(count_replies(3), 0U);
  broker_->end_run(2);
  EXPECT_EQ(wait_for_reply(3, 1)["result"]["version"], 4);
}

TEST_F(BrokerTest, EndedRunGetsNoReply) {
  const json put = {{"kind", "todo"}, {"object", {{"id", "a"}}}};
  ASSERT_EQ(get_code(call(1, "osis.put", put)), "ok");
  send_call(2, 1, "osis.put", put);
  send_call(3, 1, "osis.put", put);
  broker_->end_run(2);
  broker_->end_run(1);
  EXPECT_EQ(wait_for_reply(3, 1)["result"]["version"], 2);
  EXPECT_EQ(count_replies(2), 0U);
  broker_->end_run(77);  // a run that never sent a call
}

TEST_F(BrokerTest, CallOfARunWithALostClaimIsRejected) {
  ASSERT_EQ(get_code(call(1, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}})), "ok");
  const std::vector<Report> lost{Release{claims_[0], "lost"}};
  ASSERT_TRUE(store_->report(1, lost)->at(0));
  const json reply = call(1, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}});
  EXPECT_EQ(get_code(reply), "unavailable");
  EXPECT_THAT(get_message(reply), HasSubstr("has been overtaken"));
}

TEST_F(BrokerTest, CallsWaitDuringAStoreOutageAndRunOnce) {
  ASSERT_EQ(get_code(call(1, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}})), "ok");
  std::atomic<int> faults = 0;
  server_.set_faults([&](const ServerCall& call) {
    if (faults >= 3) return Fault::none;
    if (std::string_view(call) != "object_write") return Fault::none;
    return ++faults % 2 == 1 ? Fault::after : Fault::before;  // Fault::after loses the reply but not the write
  });
  const json reply = call(1, "osis.put", {{"kind", "todo"}, {"object", {{"id", "a"}}}});
  EXPECT_EQ(reply["result"]["version"], 2);
  EXPECT_EQ(faults, 3);
  std::atomic<int> refused = 0;
  server_.set_faults([&](const ServerCall&) { return ++refused, Fault::before; });
  send_call(1, 7, "osis.get", {{"kind", "todo"}, {"id", "a"}});
  send_call(2, 7, "osis.get", {{"kind", "todo"}, {"id", "a"}});
  broker_->end_run(1);
  // After two more attempts, every attempt was made without the ended run.
  for (const int before = refused; refused < before + 3;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server_.set_faults(nullptr);
  EXPECT_EQ(get_code(wait_for_reply(2, 7)), "ok");
  EXPECT_EQ(count_replies(1), 2U);
}

TEST_F(BrokerTest, WaitingCallsAreBounded) {
  start({.max_calls_per_run = 3, .max_calls = 5});
  server_.set_faults([](const ServerCall&) { return Fault::before; });
  for (int i = 1; i <= 4; ++i) send_call(1, i, "osis.kinds", json::object());
  EXPECT_EQ(get_code(wait_for_reply(1, 4)), "unavailable");
  EXPECT_THAT(get_message(wait_for_reply(1, 4)), HasSubstr("too many calls"));
  for (int i = 1; i <= 3; ++i) send_call(2, i, "osis.kinds", json::object());
  EXPECT_EQ(get_code(wait_for_reply(2, 3)), "unavailable");
  server_.set_faults(nullptr);
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(get_code(wait_for_reply(1, i)), "ok");
  EXPECT_EQ(get_code(call(1, "osis.kinds", json::object())), "ok");
}

TEST_F(BrokerTest, DeclarationIndexesExistingObjectsConcurrently) {
  for (int block = 0; block < 5; ++block) {
    json ops = json::array();
    for (int i = 0; i < 100; ++i) ops.push_back({{"op", "put"}, {"kind", "todo"}, {"object", {{"n", i}}}});
    ASSERT_EQ(get_code(call(1, "osis.transaction", {{"operations", ops}})), "ok");
  }
  EXPECT_EQ(get_code(call(1, "osis.declare", {{"kind", "todo"}, {"index", {"n"}}})), "ok");
  EXPECT_EQ(call(2, "osis.find", {{"kind", "todo"}, {"field", "n"}, {"value", 7}})["result"]["objects"].size(), 5U);
  const json page = call(2, "osis.find", {{"kind", "todo"}, {"field", "n"}, {"min", 50}, {"limit", 200}})["result"];
  EXPECT_EQ(page["objects"].size(), 200U);
  const json last_page =
      call(2, "osis.find", {{"kind", "todo"}, {"field", "n"}, {"min", 50}, {"after", page["after"]}})["result"];
  EXPECT_EQ(last_page["objects"].size(), 50U);
  EXPECT_FALSE(last_page.contains("after"));
}

TEST_F(BrokerTest, ManyConcurrentRunsKeepTheStoreConsistent) {
  std::vector<std::thread> runs;
  for (RunNumber run = 1; run <= 4; ++run) {
    runs.emplace_back([this, run] {
      for (int i = 1; i <= 25; ++i) {
        send_call(run, i, "osis.put", {{"kind", "todo"}, {"object", {{"id", "shared"}, {"n", i}}}});
        EXPECT_EQ(get_code(wait_for_reply(run, i)), "ok");
      }
      broker_->end_run(run);
    });
  }
  for (std::thread& each : runs) each.join();
  const auto objects = *server_.open_objects();
  EXPECT_EQ(objects->get(1, {"default", "todo"}, "shared")->version, 100U);
  EXPECT_TRUE(objects->verify(1, 10)->problems.empty());
}

TEST_F(BrokerTest, ThreadsOfIdleContextsEnd) {
  const auto count_threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
  };
  const std::size_t threads_before = count_threads();
  for (Id context = 1; context <= 60; ++context) {
    const RunNumber run = 1000 + context;
    broker_->submit({run, context, kAdmin, claims_.front(), R"({"id":1,"method":"osis.kinds","params":{}})"});
    wait_for_reply(run, 1);
    broker_->end_run(run);
  }
  EXPECT_LE(count_threads(), threads_before + 24);
  EXPECT_EQ(get_code(call(1, "osis.kinds", json::object())), "ok");
}

}  // namespace
}  // namespace mycojobs::test
