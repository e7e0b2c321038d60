// The notifier of a coordinator, with the in-memory imitation of Redis and a webhook server of the test.
#include "coordinator/notifier.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/http/http_server.h"
#include "base/clock.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using test::eventually;

class NotifierTest : public ::testing::Test {
 protected:
  NotifierTest() {
    const auto answer = [this](const api::HttpRequest&, const std::string& path) {
      const std::lock_guard lock(mutex_);
      ++calls_[path];
      const bool fails = failures_[path] > 0;
      if (fails) --failures_[path];
      return api::HttpReply{fails ? 503 : 200, "text/plain", "", {}, {}};
    };
    std::vector<api::HttpRoute> routes;
    for (const std::string path : {"/a", "/b"})
      routes.push_back({"POST", path, [answer, path](const api::HttpRequest& from) { return answer(from, path); }});
    auto server = api::HttpServer::start("127.0.0.1:0", {}, std::move(routes), [](const api::HttpRequest&) {
      return api::Admission{{}, api::ConnectionClass::token};
    });
    EXPECT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  std::string url(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(server_->port()) + path;
  }
  int calls(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return calls_[path];
  }
  void fail_next(const std::string& path, int count) {
    const std::lock_guard lock(mutex_);
    failures_[path] = count;
  }
  std::unique_ptr<Notifier> notifier(const std::vector<std::string>& webhooks) {
    NotifierSettings settings;
    settings.context = 1;
    settings.webhooks = *WebhookAllowList::parse(webhooks);
    return Notifier::start(redis_, clock_, pool_, settings).value();
  }
  // Ends a job with these webhooks in its record.
  void end_a_job(const std::string& notify) {
    Job job;
    job.caller_id = 12;
    job.context_id = 1;
    job.script = "pass";
    job.script_type = "python";
    job.notify = notify;
    ASSERT_TRUE(store_->submit(job));
    ClaimRequest request;
    request.context = 1;
    request.instance = "runner";
    request.queues = {"queue:python"};
    request.max_jobs = 1;
    const auto claimed = store_->claim(request).value();
    ASSERT_EQ(claimed.jobs.size(), 1U);
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    const Report reports[] = {EndReport{claimed.jobs.front().ref, end}};
    ASSERT_TRUE(store_->report(1, reports).value().at(0));
  }
  // Returns the notice with its number of attempts, or "" if there is none.
  std::string notice() {
    const Reply entries = redis_.run_command(1, {"ZRANGE", "mj:notices", "0", "0"});
    return entries.size() == 0 ? "" : std::string(entries.at(0).text());
  }
  bool is_settled() { return redis_.run_command(1, {"ZCARD", "mj:notices"}).number() == 0; }

  SystemClock clock_;
  LoopPool pool_{"test"};
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = redis_.open().value();
  std::mutex mutex_;
  std::map<std::string, int> calls_, failures_;
  std::unique_ptr<api::HttpServer> server_;
};

TEST_F(NotifierTest, RetryCallsOnlyTheTargetsThatFailed) {
  fail_next("/a", 1);
  end_a_job("[\"" + url("/a") + "\", \"" + url("/b") + "\"]");
  const auto notifier = this->notifier({"http://127.0.0.1:*"});
  ASSERT_TRUE(eventually([&] { return is_settled(); }));
  EXPECT_EQ(calls("/a"), 2);
  EXPECT_EQ(calls("/b"), 1);
}

// Regression test: while a coordinator without the setting was the leader, the notice was dropped at once.
TEST_F(NotifierTest, NoticeSurvivesDisallowingSettings) {
  end_a_job("[\"" + url("/a") + "\", \"" + url("/b") + "\"]");
  const std::string untried = notice();
  {
    const auto notifier = this->notifier({url("/b")});
    ASSERT_TRUE(eventually([&] { return notice() != untried; }));
  }
  ASSERT_FALSE(is_settled());
  EXPECT_EQ(calls("/a"), 0);
  const auto notifier = this->notifier({"http://127.0.0.1:*"});
  ASSERT_TRUE(eventually([&] { return is_settled(); }));
  EXPECT_EQ(calls("/a"), 1);
  EXPECT_EQ(calls("/b"), 1);
  EXPECT_TRUE(store_->anomalies(1, 10).value().empty());
}

}  // namespace
}  // namespace mycojobs
