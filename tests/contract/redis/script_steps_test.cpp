// No script scans the whole store: counts the steps of each call in a store with two million ids and a million queue
// entries, on the imitation of Redis (support/redis/memory_redis.h defines a step).
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "flows/flow_progress.h"
#include "service/flow_service.h"
#include "support/hand_clock.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

constexpr std::size_t kIds = 2000000, kEntries = 1000000;
// Maximum for one call, including calls for 100 jobs or 1000 ids, and lists that read 1000 jobs.
constexpr std::uint64_t kMaxSteps = 10000;

Job make_job(Id caller, Id id) {
  Job job;
  job.id = id;
  job.caller_id = caller;
  job.context_id = 1;
  job.script = "pass";
  job.script_type = "python";
  return job;
}

class ScriptSteps : public testing::Test {
 protected:
  // Adds records with ids that clients have chosen.
  static void add_ids(memory::Database& database, const std::string& prefix, std::size_t count) {
    for (std::size_t id = 1; id <= count; ++id)
      database.emplace(prefix + std::to_string(id), memory::Hash{{"id", "1"}});
  }
  void add_entries(std::size_t count) {
    auto snapshot = redis_.snapshot();
    auto& queue = std::get<memory::List>(snapshot.databases[1].at("queue:python"));
    for (std::size_t i = 0; i < count; ++i) queue.push_front("job:13:" + std::to_string(i + 1));
    redis_.restore(std::move(snapshot));
  }
  void submit(
      Id id, const std::function<void(Job&)>& change = [](Job&) {}) {
    Job job = make_job(12, id);
    change(job);
    const auto submission = store_->submit(job);
    ASSERT_TRUE(submission) << submission.error().message;
  }
  std::vector<ClaimRef> claim(const std::string& queue, std::uint32_t max) {
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {queue};
    request.max_jobs = max;
    std::vector<ClaimRef> refs;
    const ClaimReply reply = store_->claim(request).value();
    for (const ClaimedJob& each : reply.jobs) refs.push_back(each.ref);
    return refs;
  }
  void end(const ClaimRef& ref, const std::string& detail) {
    JobEnd how;
    how.status = detail == "ok" ? JobStatus::finished : JobStatus::error;
    how.detail = detail;
    const std::array<Report, 1> report{EndReport{ref, how}};
    const auto answers = store_->report(1, report);
    ASSERT_TRUE(answers) << answers.error().message;
    ASSERT_TRUE(answers->at(0)) << answers->at(0).error().message;
  }
  void expect_bounded() {
    for (const auto& [name, steps] : redis_.max_steps()) EXPECT_LE(steps, kMaxSteps) << name;
  }

  test::ManualClock clock_;
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = redis_.open().value();
  std::unique_ptr<FlowStore> flows_ = redis_.open_flows().value();
};

TEST_F(ScriptSteps, AreBoundedForAnyStoreSize) {
  const auto limit_by_db = [](Job& job) { job.concurrency_key = "db"; };
  submit(1);
  submit(2);
  submit(3, limit_by_db);
  for (Id id = 4; id <= 6; ++id) submit(id, limit_by_db);
  const auto first = claim("queue:python", 6);
  ASSERT_EQ(first.size(), 3U) << "three jobs are held by the limit";
  submit(7, [](Job& job) { job.queue_timeout_ms = 1; });
  add_entries(kEntries / 2);
  submit(100);
  submit(101, [](Job& job) { job.queue_timeout_ms = 1; });
  add_entries(kEntries / 2);
  auto snapshot = redis_.snapshot();
  memory::Database& database = snapshot.databases[1];
  add_ids(database, "job:1:", kIds);
  add_ids(database, "flow:", kIds / 20);
  auto& of_key = std::get<memory::Zset>(database.at("mj:held:db"));
  for (std::size_t i = 1; i <= kIds / 20; ++i) of_key.put("job:14:" + std::to_string(i), 9e15);
  redis_.restore(std::move(snapshot));

  // Assignment of ids.
  const auto submission = store_->submit(make_job(1, 0));
  ASSERT_TRUE(submission) << submission.error().message;
  EXPECT_EQ(submission->id, kIds + 1) << "no ids are left out";
  const std::vector<Job> many(100, make_job(1, 0));
  EXPECT_EQ(store_->submit_batch(many, false)->jobs.back().id, kIds + 101);
  redis_.erase(1, "mj:next:1");
  EXPECT_EQ(store_->create_record(1, {"job:1:", "1", 0, {}})->key, "job:1:" + std::to_string(kIds + 102));
  redis_.erase(1, "mj:next:1");
  const Id reserved = store_->reserve_jobs(1, 1, 1000).value();
  EXPECT_GT(reserved, kIds + 102);
  EXPECT_LE(reserved, kIds + 1102);

  // Jobs in all places.
  end(first[0], "exception");
  EXPECT_TRUE(store_->requeue(1, "job:12:1"));
  end(first[2], "ok");  // queues the next held job
  for (const char* key : {"job:12:5", "job:12:6", "job:12:100"}) EXPECT_TRUE(store_->cancel(1, key)) << key;
  clock_.advance(2);
  ASSERT_TRUE(store_->tick(1, {}));
  for (const char* key : {"job:12:7", "job:12:101"}) EXPECT_TRUE(store_->requeue(1, key)) << key;
  ASSERT_EQ(claim("queue:python", 1).size(), 1U);
  TickRequest retention;
  retention.retention_count = 1;
  ASSERT_TRUE(store_->tick(1, retention));
  EXPECT_TRUE(store_->jobs(1, {}));
  EXPECT_TRUE(store_->purge_queue(1, "queue:python", 100));
  expect_bounded();
}

// A flow of 100 nodes in a store with as many ids.
TEST_F(ScriptSteps, OfAFlowAreBoundedForAnyStoreSize) {
  auto snapshot = redis_.snapshot();
  add_ids(snapshot.databases[1], "job:12:", kIds);
  add_ids(snapshot.databases[1], "flow:", kIds / 20);
  redis_.restore(std::move(snapshot));
  nlohmann::json jobs = nlohmann::json::object();
  for (int i = 0; i < 99; ++i) jobs["n" + std::to_string(i)] = {{"script", "x"}, {"type", "lua"}};
  jobs["last"] = {{"script", "x"}, {"type", "lua"}, {"needs", {"n0"}}};
  RunCache runs;
  const service::RequestContext by{1, 12, EntryPoint::command, true};
  const service::FlowStores stores{*store_, *flows_, runs};
  const auto flow = service::create_flow(by, stores, {{"name", "wide"}, {"jobs", jobs}}, nullptr, {});
  ASSERT_TRUE(flow) << flow.error().message;
  EXPECT_EQ(flow->id, kIds / 20 + 1);
  ASSERT_TRUE(service::start_flow(by, stores, {flow->id, "manual"}));
  ProgressRequest round;
  round.context = 1;
  round.flow = flow->id;
  for (int done = 0; done < 100;) {
    const auto refs = claim("queue:lua", 64);
    ASSERT_FALSE(refs.empty());
    for (const ClaimRef& ref : refs) end(ref, "ok");
    done += static_cast<int>(refs.size());
    ASSERT_TRUE(advance_run(*flows_, runs, round));
  }
  EXPECT_EQ(service::read_flow(by, *store_, flow->id)->status, FlowStatus::finished);
  EXPECT_TRUE(service::delete_flow(by, stores, flow->id));
  expect_bounded();
}

}  // namespace
}  // namespace mycojobs
