// The router with a remote supervisor: an API server with a Redis of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "api/http/http_server.h"
#include "api_fixture.h"
#include "messaging/router.h"
#include "model/codec.h"
#include "store/job_fields.h"

namespace mycojobs {
namespace {

using test::eventually;

class RouterCalls : public ApiTest {
 protected:
  MemoryServer here_{clock_};
  std::unique_ptr<Store> store_ = here_.open().value(), there_ = redis_.open().value();
  LoopPool pool_{"test"};
  std::unique_ptr<Router> router_;

  void open() {
    token_ = make_token(0, true);
    settings_.role = ApiRole::supervisor;
    settings_.contexts = {1};
    start();
    const Fields runner{{"address", server_->url()}, {"secret", token_}};
    ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 50, runner}));
    RouterSettings settings;
    settings.context = 1;
    settings.concurrency = 4;
    settings.networks = settings_.networks;
    router_ = Router::start(here_, clock_, pool_, settings).value();
  }
  std::string push(Id id) {
    const std::string key = job_key(12, id), url = server_->url();
    here_.run_command(
        1, {"HSET", key, "id", std::to_string(id), "caller_id", "12", "context_id", "1", "script_type", "python",
            "script", "pass", "status", "dispatched", "supervisor_url", url, "timeout", "3600"});
    here_.push(1, router_queue(url), key);
    return key;
  }
  std::string field(const std::string& key, const std::string& name) {
    return std::string(here_.run_command(1, {"HGET", key, name}).text());
  }
  // A runner of the supervisor claims the received jobs and ends them.
  std::size_t run_there() {
    ClaimRequest request;
    request.context = 1;
    request.instance = "there";
    request.queues = {"queue:python"};
    request.max_jobs = 8;
    const auto claimed = there_->claim(request).value();
    for (const ClaimedJob& each : claimed.jobs) {
      JobEnd end;
      end.status = JobStatus::finished;
      end.detail = "ok";
      end.result = {{"n", "7"}};
      const Report all[] = {EndReport{each.ref, end}};
      EXPECT_TRUE(there_->report(1, all));
    }
    return claimed.jobs.size();
  }
};

TEST_F(RouterCalls, JobsAreFetchedInBatchesAndAllEnd) {
  open();
  std::vector<std::string> jobs;
  for (Id id = 1; id <= 6; ++id) jobs.push_back(push(id));
  std::size_t ran = 0;
  EXPECT_TRUE(eventually([&] {
    const std::size_t now = run_there();
    EXPECT_LE(now, 2U) << "no more than are free";
    ran += now;
    return std::all_of(jobs.begin(), jobs.end(), [&](const auto& each) { return field(each, "status") == "finished"; });
  }));
  EXPECT_EQ(ran, 6U);
  for (const std::string& each : jobs) EXPECT_EQ(field(each, "detail"), "ok");
}

// The other status details are reserved for this store, because only it can know their causes.
TEST_F(RouterCalls, SupervisorReportsOnlyTheEndOfItsOwnJob) {
  open();
  const std::string left_out = push(1);
  const auto ended_there = [&](const std::string& detail, const std::string& error) {
    EXPECT_TRUE(eventually([&] {
      ClaimRequest request{.context = 1, .instance = "there", .queues = {"queue:python"}};
      const auto claimed = there_->claim(request).value();
      if (claimed.jobs.empty()) return false;
      const ClaimRef& job = claimed.jobs.front().ref;
      JobEnd end;
      end.detail = detail;
      end.error = error;
      const Report all[] = {EndReport{job, end}};
      return there_->report(1, all).has_value();
    }));
  };
  ended_there("not_needed", "x");
  EXPECT_TRUE(eventually([&] { return field(left_out, "status") == "error"; }));
  EXPECT_EQ(field(left_out, "detail"), "lost");
  const std::string large = push(2);
  ended_there("exit", std::string(17U << 20, 'x'));
  EXPECT_TRUE(eventually([&] { return field(large, "status") == "error"; }));
  EXPECT_EQ(field(large, "detail"), "too_large");
  EXPECT_LT(field(large, "error").size(), 300U) << field(large, "error").substr(0, 300);
}

// The supervisor answers each request for the log with one more line.
TEST_F(RouterCalls, EndlessSupervisorLogDoesNotBlockShutdown) {
  std::atomic<int> asked{0};
  const auto answer = [&asked](const api::HttpRequest& from) {
    const json call = json::parse(from.body);
    const std::string method = call.at("method");
    json result{{"key", "job:5:1"}, {"ended", true}};
    if (method == "job.logs") {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto seq = call.at("params").at("after_seq").get<std::uint64_t>() + 1;
      result = {{"lines", {{{"seq", seq}, {"ts_ms", 1}, {"stream", "stdout"}, {"text", "more\n"}}}}};
      ++asked;
    }
    api::HttpReply reply;
    reply.body = json{{"jsonrpc", "2.0"}, {"id", 1}, {"result", result}}.dump();
    return reply;
  };
  auto there = api::HttpServer::start("127.0.0.1:0", ApiLimits(), {{"POST", "/", answer}}, [](const api::HttpRequest&) {
    return api::Admission{{}, api::ConnectionClass::token};
  });
  ASSERT_TRUE(there) << there.error().message;
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 51, {{"address", (*there)->url()}, {"secret", "s"}}}));
  open();
  here_.run_command(
      1, {"HSET", "job:12:1", "id", "1", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
          "pass", "status", "dispatched", "supervisor_url", (*there)->url(), "timeout", "3600"});
  here_.push(1, router_queue((*there)->url()), "job:12:1");
  ASSERT_TRUE(eventually([&] { return asked > 2; }));
  const auto began = std::chrono::steady_clock::now();
  router_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(field("job:12:1", "detail"), "queued") << "given back: another router follows it";
}

// The secret or the permitted networks are wrong for a while, also for the next router.
TEST_F(RouterCalls, RunningJobSurvivesRejectedCalls) {
  std::atomic<bool> denies{false}, has_ended{false};
  std::atomic<int> denied{0}, asked{0};
  const auto answer = [&](const api::HttpRequest& from) {
    api::HttpReply reply;
    if (denies) {
      ++denied;
      reply.status = 401;
      return reply;
    }
    const json call = json::parse(from.body);
    const std::string method = call.at("method");
    json result{{"key", "job:5:1"}, {"ended", has_ended.load()}};
    if (method == "job.status") ++asked;
    if (method == "job.logs") result = {{"lines", json::array()}};
    if (method == "job.result") result = {{"status", "finished"}, {"detail", "ok"}, {"result", json::object()}};
    reply.body = json{{"jsonrpc", "2.0"}, {"id", 1}, {"result", result}}.dump();
    return reply;
  };
  auto there = api::HttpServer::start("127.0.0.1:0", ApiLimits(), {{"POST", "/", answer}}, [](const api::HttpRequest&) {
    return api::Admission{{}, api::ConnectionClass::token};
  });
  ASSERT_TRUE(there) << there.error().message;
  ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", 51, {{"address", (*there)->url()}, {"secret", "s"}}}));
  open();
  here_.run_command(
      1, {"HSET", "job:12:1", "id", "1", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
          "pass", "status", "dispatched", "supervisor_url", (*there)->url(), "timeout", "3600"});
  here_.push(1, router_queue((*there)->url()), "job:12:1");
  ASSERT_TRUE(eventually([&] { return asked > 0; }));
  denies = true;
  ASSERT_TRUE(eventually([&] { return denied > 1; }));
  router_.reset();
  denied = 0;
  RouterSettings settings;
  settings.context = 1;
  settings.concurrency = 4;
  settings.networks = settings_.networks;
  router_ = Router::start(here_, clock_, pool_, settings).value();
  ASSERT_TRUE(eventually([&] { return denied > 1; }));
  EXPECT_EQ(field("job:12:1", "status"), "started");
  denies = false;
  has_ended = true;
  ASSERT_TRUE(eventually([&] { return field("job:12:1", "status") == "finished"; }));
  EXPECT_EQ(field("job:12:1", "detail"), "ok");
}

}  // namespace
}  // namespace mycojobs
