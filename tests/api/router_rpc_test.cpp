// The router and a supervisor that it calls: a server of the API, with a Redis of its own.
#include <gtest/gtest.h>

#include "api_fixture.h"
#include "coordinator/router.h"
#include "domain/codec.h"
#include "store/job_fields.h"

namespace mycojobs {
namespace {

using test::eventually;

class RouterCalls : public ApiTest {
 protected:
  MemoryServer here_{clock_};
  std::unique_ptr<Store> store_ = here_.open().value(), there_ = redis_.open().value();
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
    router_ = Router::start(here_, clock_, settings).value();
  }
  std::string push(Id id) {
    const std::string key = job_key(12, id), url = server_->url();
    here_.plain(1, {"HSET", key, "id", std::to_string(id), "caller_id", "12", "context_id", "1", "script_type",
                    "python", "script", "pass", "status", "dispatched", "supervisor_url", url, "timeout", "3600"});
    here_.push(1, router_queue(url), key);
    return key;
  }
  std::string field(const std::string& key, const std::string& name) {
    return std::string(here_.plain(1, {"HGET", key, name}).text());
  }
  // A runner there takes what has come, and ends it.
  std::size_t run_there() {
    ClaimRequest request;
    request.context = 1;
    request.instance = "there";
    request.queues = {"queue:python"};
    request.max_jobs = 8;
    const auto claimed = there_->claim(request).value();
    for (const Claimed& each : claimed.jobs) {
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

TEST_F(RouterCalls, ItsJobsComeAFewAtATimeAndAllEnd) {
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

}  // namespace
}  // namespace mycojobs
