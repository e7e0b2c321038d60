// The router: which jobs of flows it sends to other supervisors, and which jobs wait. The test carries no messages to
// the supervisors, so they never answer. The router runs on its own thread; everything else is idle.
#include "messaging/router.h"

#include <gmock/gmock.h>

#include "base/clock.h"
#include "base/ed25519.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/job_verify.h"
#include "messaging/remote_job.h"
#include "messaging/router_scheduler.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "store/flow_store.h"
#include "store/job_fields.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using test::eventually;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char *kSlow = "http://slow:1", *kFine = "http://other:1";

class RouterTest : public testing::Test {
 protected:
  void SetUp() override {
    know(50, kSlow);
    know(51, kFine);
  }
  void TearDown() override {
    router_.reset();
    const auto report = verify(*store_, 1, {}).value();
    for (const Finding& each : report.findings) ADD_FAILURE() << each.rule << ": " << each.text;
    const auto flows = verify_flows(*flows_, *store_, 1).value();
    for (const Finding& each : flows) {
      if (each.rule != "flow-definition") ADD_FAILURE() << each.rule << ": " << each.text;
    }
  }

  void know(Id runner, const std::string& address) {
    const std::string id = std::to_string(runner);
    const Fields fields{{"pubkey", SigningKey::make().public_key()}, {"address", address}, {"topic", "runner" + id}};
    ASSERT_TRUE(store_->create_record(1, {"runner:", "runner", runner, fields}));
  }
  void start() {
    RouterSettings settings;
    settings.context = 1;
    settings.key = std::make_shared<const SigningKey>(SigningKey::make());
    router_ = Router::start(server_, clock_, pool_, settings).value();
  }
  Job remote(Id id, const std::string& url) {
    Job job;
    job.id = id;
    job.caller_id = 12;
    job.context_id = 1;
    job.script_type = "python";
    job.script = "pass";
    job.timeout = 3600;
    job.unknown.emplace_back("supervisor_url", url);
    return job;
  }
  // Creates a flow with `count` queued nodes at that address. Returns their jobs.
  std::vector<std::string> queue(const std::string& url, std::uint32_t count) {
    const FlowIds place = flows_->create({1, 12, count, "", ""}).value();
    Flow flow;
    flow.id = place.flow;
    flow.caller_id = 12;
    flow.context_id = 1;
    flow.name = "pipeline";
    flow.definition_hash = "abc";
    std::vector<Job> jobs;
    std::vector<std::string> keys;
    FlowCommit first;
    first.context = 1;
    first.flow = place.flow;
    first.facts.push_back({0, 0, "went_on", 0, ""});
    for (Id id = place.first_job; id < place.first_job + count; ++id) {
      jobs.push_back(remote(id, url));
      flow.jobs.push_back(id);
      keys.push_back(redis_key(jobs.back()));
      first.dispatches.push_back({keys.back(), {}});
    }
    EXPECT_TRUE(flows_->put_jobs(1, place.flow, jobs));
    EXPECT_TRUE(flows_->put_flow(flow, "{}"));
    EXPECT_TRUE(flows_->commit(first));
    return keys;
  }
  // Creates the job as another client would.
  std::string push(Id id, const std::string& url, const std::string& queue) {
    const Job job = remote(id, url);
    Fields fields = planned_fields(job).value();
    fields.insert(fields.end(), {{"id", std::to_string(id)}, {"status", "dispatched"}});
    EXPECT_TRUE(store_->save(1, redis_key(job), fields));
    server_.push(1, queue, redis_key(job));
    return redis_key(job);
  }
  std::string field(const std::string& key, const std::string& name) {
    return std::string(server_.run_command(1, {"HGET", key, name}).text());
  }
  std::vector<std::string> away(const std::vector<std::string>& jobs) {
    std::vector<std::string> out;
    for (const std::string& each : jobs) {
      if (field(each, "status") == "started") out.push_back(each);
    }
    return out;
  }
  bool is_unavailable_now(const std::string& job) { return !away({job}).empty(); }
  // Removes the record of the message that carries the job once it exists, so that the job ends as lost.
  void lose(const std::string& job) {
    ASSERT_TRUE(eventually([&] {
      const Reply out = server_.run_command(1, {"ZRANGE", "mj:outbox", "0", "-1"});
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::string_view entry = out.at(i).text();  // such as "send message:12:1"
        const std::string mark = "mj:message:" + std::string(entry.substr(entry.find(' ') + 1));
        if (field(mark, "jobs") != job) continue;
        server_.erase(1, mark);
        return true;
      }
      return false;
    }));
  }
  static std::vector<std::string> some(const std::vector<std::string>& of, std::size_t from, std::size_t count) {
    return {of.begin() + static_cast<std::ptrdiff_t>(from), of.begin() + static_cast<std::ptrdiff_t>(from + count)};
  }

  SystemClock clock_;
  LoopPool pool_{"test"};
  MemoryServer server_{clock_};
  std::unique_ptr<Store> store_ = server_.open().value();
  std::unique_ptr<FlowStore> flows_ = server_.open_flows().value();
  std::unique_ptr<Router> router_;
};

// Regression test: a supervisor that never answered occupied all places, and jobs for others waited for it.
TEST_F(RouterTest, SilentSupervisorLeavesPlacesForOthers) {
  const auto slow = queue(kSlow, 40);
  start();
  ASSERT_TRUE(eventually([&] { return away(slow).size() == 8; }));
  const auto other = queue(kFine, 1);
  ASSERT_TRUE(eventually([&] { return is_unavailable_now(other[0]); }));
  EXPECT_EQ(away(slow), some(slow, 0, 8)) << "the first jobs";
  EXPECT_EQ(field(slow[8], "detail"), "queued");
  EXPECT_EQ(field(slow[8], "epoch"), "") << "the job is not claimed";
}

TEST_F(RouterTest, RunnerAndAddressAreOneSupervisor) {
  auto slow = queue("runner:50", 8);
  start();
  ASSERT_TRUE(eventually([&] { return away(slow).size() == 8; }));
  const auto more = queue(kSlow, 8), other = queue("runner:51", 1);
  ASSERT_TRUE(eventually([&] { return is_unavailable_now(other[0]); }));
  EXPECT_THAT(away(more), IsEmpty());
}

TEST_F(RouterTest, WaitingJobGetsAPlaceInItsTurn) {
  const auto slow = queue(kSlow, 12);
  start();
  ASSERT_TRUE(eventually([&] { return away(slow).size() == 8; }));
  ASSERT_TRUE(store_->cancel(1, slow[8]));
  EXPECT_EQ(field(slow[8], "detail"), "cancelled") << "a waiting job is cancelled immediately";
  lose(slow[0]);
  lose(slow[1]);
  ASSERT_TRUE(eventually([&] { return is_unavailable_now(slow[9]) && is_unavailable_now(slow[10]); }));
  EXPECT_EQ(field(slow[0], "detail"), "lost");
  EXPECT_EQ(field(slow[11], "detail"), "queued");
}

// The jobs are in the shared queue, where a client may put them.
TEST_F(RouterTest, ClaimsWithoutAPlaceAreReturnedInOrder) {
  std::vector<std::string> slow;
  for (Id id = 101; id <= 120; ++id) slow.push_back(push(id, kSlow, kRouterQueueKey));
  start();
  ASSERT_TRUE(eventually([&] { return away(slow).size() == 8 && field(slow[8], "detail") == "queued"; }));
  const auto other = queue(kFine, 1);
  ASSERT_TRUE(eventually([&] { return is_unavailable_now(other[0]); }));
  for (std::size_t i = 8; i < slow.size(); ++i) {
    ASSERT_TRUE(eventually([&] { return field(slow[i], "status") == "dispatched"; }));
    EXPECT_THAT(field(slow[i], "deliveries"), testing::AnyOf("", "0")) << "no job of the flow has started";
  }
  for (std::size_t i = 0; i < 2; ++i) {
    lose(slow[i]);
    EXPECT_TRUE(eventually([&] { return away(slow) == some(slow, i + 1, 8); })) << "exactly the next job";
  }
}

TEST_F(RouterTest, JobsForUnknownHostsAreRejected) {
  const auto slow = queue(kSlow, 20), unknown = queue("http://nobody:1", 20), odd = queue("http:///", 3);
  start();
  for (const auto* all : {&unknown, &odd}) {
    for (const std::string& each : *all)
      ASSERT_TRUE(eventually([&] { return field(each, "detail") == "setup_error"; })) << field(each, "detail");
  }
  EXPECT_EQ(away(slow).size(), 8U);
}

// The new host may have no free place: a job returned to a queue that is polled at once would be claimed endlessly.
TEST_F(RouterTest, JobWithAnAddressChangedInTheQueueIsRejected) {
  const auto slow = queue(kSlow, 20);
  const std::string jobs[] = {queue(kFine, 1)[0], queue("runner:51", 1)[0]};
  for (const std::string& each : jobs) server_.run_command(1, {"HSET", each, "supervisor_url", kSlow});
  start();
  for (const std::string& each : jobs) {
    ASSERT_TRUE(eventually([&] { return field(each, "detail") == "setup_error"; })) << field(each, "detail");
    EXPECT_THAT(field(each, "error"), testing::HasSubstr("supervisor_url"));
  }
}

// After the death of a router, a queue damaged by another client must not block the jobs of other queues.
TEST_F(RouterTest, LeaseThatCannotExpireDelaysNoOther) {
  const std::string stuck = queue(kSlow, 1)[0], other = queue(kFine, 1)[0];
  for (const char* url : {kSlow, kFine}) {
    ClaimRequest request{.context = 1, .runner = 1, .instance = "dead", .queues = {router_queue(url)}};
    request.lease_ms = 1;
    ASSERT_EQ(store_->claim(request)->jobs.size(), 1U);
  }
  server_.run_command(1, {"SET", router_queue(kSlow), "nonsense"});
  start();
  EXPECT_TRUE(eventually([&] { return is_unavailable_now(other) && field(other, "deliveries") == "2"; }));
  EXPECT_EQ(field(stuck, "deliveries"), "1");
  server_.erase(1, router_queue(kSlow));
  EXPECT_TRUE(eventually([&] { return is_unavailable_now(stuck) && field(stuck, "deliveries") == "2"; }));
}

TEST(RouterQueue, BelongsToAHost) {
  EXPECT_EQ(router_queue("http://There:9652/a?b"), "mj:queue:router:there:9652");
  EXPECT_EQ(router_queue("https://ann:pw@there"), "mj:queue:router:there");
  EXPECT_EQ(router_queue("mycelium://4ab::1"), "mj:queue:router:4ab::1");
  EXPECT_EQ(router_queue("https://[2001:db8::1]:443/"), "mj:queue:router:[2001:db8::1]:443");
  for (const std::string& odd : {std::string(), std::string("http://"), std::string("http://a b"),
                                 "http://" + std::string(256, 'a'), std::string("http://a\nb")})
    EXPECT_EQ(router_queue(odd), kRouterQueueKey) << odd;
}

TEST(RouterPlaces, ReservationsAreLimitedToFreePlaces) {
  RouterSlots places(16);
  const auto fill = [&](const std::string& host) {
    std::uint32_t taken = 0;
    for (; places.available_slots(host) > 0; ++taken) places.acquire_slot(host);
    return taken;
  };
  EXPECT_EQ(fill("a"), 8U);
  EXPECT_EQ(fill("b"), 4U);
  EXPECT_EQ(fill("c"), 2U);
  EXPECT_EQ(fill("d"), 1U);
  EXPECT_EQ(fill("e"), 1U);
  EXPECT_EQ(fill("f"), 0U);
  for (int i = 0; i < 6; ++i) places.release_slot("a");
  EXPECT_EQ(fill("a"), 2U) << "2 and 4 slots are free";
}

// Each job of a call has a place, also if the jobs come from several queues.
TEST(RouterPlaces, CapacityCoversOneCallsJobs) {
  for (std::uint32_t all = 1; all < 20; ++all) {
    RouterSlots places(all);
    for (const std::uint32_t of_others : {0U, 1U, 2U, 3U}) {
      RouterSlots now = places;
      const std::uint32_t max = std::min(now.available_slots("a"), now.available_slots("b"));
      for (std::uint32_t i = 0; i < max; ++i) {
        const char* host = i < of_others ? "b" : "a";
        ASSERT_GT(now.available_slots(host), 0U) << all << ' ' << of_others << ' ' << i;
        now.acquire_slot(host);
      }
    }
  }
}

TEST(RouterQueues, HostsAreServedInTurn) {
  RouterSlots places(16);
  RouterQueues queues;
  queues.update_queues({{"qa", "a"}, {"qb", "b"}, {"qc", "c"}}, {});
  const auto first = queues.next_claims(places);
  EXPECT_THAT(first.queues, ElementsAre("qa", "qb", "qc", kRouterQueueKey));
  EXPECT_EQ(first.max_jobs, 8U);
  queues.record_claims(first, {"qa", "qa"});
  for (int i = 0; i < 8; ++i) places.acquire_slot("a");
  const auto second = queues.next_claims(places);
  EXPECT_THAT(second.queues, ElementsAre("qb", "qc", kRouterQueueKey)) << "queue qa has as many jobs as slots are free";
  EXPECT_EQ(second.max_jobs, 4U);
  queues.record_claims(second, {"qb", kRouterQueueKey});
  EXPECT_EQ(queues.next_claims(places).queues.front(), "qc");
}

TEST(RouterQueues, UnknownHostsAreServedLast) {
  std::vector<std::string> names{"queue:python", "mj:queue:runner9", kRouterQueueKey, "mj:queue:router:a:1"};
  for (int i = 0; i < 100; ++i) names.push_back("mj:queue:router:nobody" + std::to_string(i));
  RouterQueues queues;
  queues.update_queues({{"mj:queue:router:a:1", "a:1"}}, names);
  std::set<std::string> seen;
  for (int i = 0; i < 10; ++i) {
    const auto ask = queues.next_claims(RouterSlots(16));
    EXPECT_EQ(ask.queues.front(), "mj:queue:router:a:1");
    EXPECT_LT(ask.queues.size(), 20U);
    seen.insert(ask.queues.begin(), ask.queues.end());
  }
  EXPECT_EQ(seen.size(), 102U);
}

TEST(RouterQueues, PausedQueueResumesWithCapacity) {
  RouterSlots places(4);
  RouterQueues queues;
  places.acquire_slot("a");
  places.acquire_slot("a");
  queues.skip_shared_queue("a");
  EXPECT_FALSE(queues.can_claim_shared_queue(places));
  EXPECT_THAT(queues.next_claims(places).queues, IsEmpty());
  places.release_slot("a");
  EXPECT_TRUE(queues.can_claim_shared_queue(places));
  EXPECT_THAT(queues.next_claims(places).queues, ElementsAre(kRouterQueueKey));
}

TEST(SentJob, HasInputsOfItsFlowWithoutTheNames) {
  Job job;
  job.flow_id = 9;
  job.name = "a";
  job.env_vars = {{"A", "b"}};
  job.unknown = {{kFlowDataField, R"({"flow": "secret project", "inputs": {"region": "eu"}})"}};
  EXPECT_EQ(make_sent_job(job).env_vars, (TextMap{{"A", "b"}, {"MYCOJOBS_INPUT_REGION", "eu"}}));
}

}  // namespace
}  // namespace mycojobs
