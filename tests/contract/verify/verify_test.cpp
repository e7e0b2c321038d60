// The checker of invariants with correct stores, idle and busy. Violations: verify_planted_test.cpp.
#include "inspect/verify/job_verify.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "contract/verify_scenario.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class Verify : public VerifyContract {
 protected:
  void SetUp() override {
    VerifyContract::SetUp();
    create_scenario();
  }
};

TEST_P(Verify, StoreWithEveryKindOfFactIsClean) {
  std::set<std::string> kinds;
  const auto facts = store_->journal(1, "queue:python", 0, 10000).value();
  for (const Fact& fact : facts) kinds.insert(fact.kind);
  kinds.insert("queued");  // added below
  EXPECT_EQ(kinds,
            (std::set<std::string>{"scheduled", "parked", "queued", "claimed", "heartbeat", "released", "expired",
                                   "retry", "completed", "failed", "cancelled", "dead_lettered", "requeued"}));
  std::set<std::string> phases;
  const auto report =
      verify(*store_, 1, [&](std::string_view phase, std::uint64_t, std::uint64_t) { phases.emplace(phase); });
  ASSERT_TRUE(report.has_value());
  for (const Finding& each : report->findings) ADD_FAILURE() << each.rule << ": " << each.text;
  EXPECT_EQ(report->jobs, 20U);
  EXPECT_EQ(report->queues, 1U);
  EXPECT_GT(report->facts, 40U);
  EXPECT_THAT(phases, testing::IsSupersetOf({"journals", "keys", "queues", "jobs"}));
  EXPECT_THAT(run_rebuild(true), IsEmpty());
  EXPECT_THAT(run_rebuild(), IsEmpty());
  ASSERT_EQ(outcome(end(claimed_[7].ref, finished())), "ok");  // job 8 is released
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}

TEST_P(Verify, ChangesNothing) {
  const auto before = snapshot();
  run_verify();
  EXPECT_EQ(snapshot(), before);
}

TEST_P(Verify, NotesPermittedClientChanges) {
  run_command({"HSET", key(3), "status", "dispatched"});
  EXPECT_EQ(violated_rules(), std::set<std::string>{"record-overwritten"});
  backend_->push(1, "queue:python", key(2));
  backend_->push(1, "queue:python", key(1));
  backend_->push(1, "queue:v", key(1));
  run_command({"HSET", "job:12:40", "status", "dispatched", "script_type", "python"});
  backend_->push(1, "queue:python", "job:12:41");
  backend_->push(1, "queue:python", "nonsense");
  run_command({"XADD", "mj:log:" + key(3), "1-0", "text", "mine"});
  run_command({"DEL", key(6)});
  run_command({"DEL", key(18)});
  backend_->put_text(1, key(18), "mine");
  const auto report = run_verify();
  std::multiset<std::string> found;
  for (const Finding& each : report.findings) {
    EXPECT_FALSE(each.violation) << each.text;
    found.insert(each.rule);
  }
  EXPECT_EQ(found,
            (std::multiset<std::string>{"record-overwritten", "queue-entry-duplicate", "queue-entry-duplicate",
                                        "queue-entry-duplicate", "record-not-queued", "queue-entry-stray",
                                        "queue-entry-stray", "log-incomplete", "record-deleted", "record-type"}));
}

TEST_P(Verify, KeysOfOtherSystemsAreNoViolation) {
  run_command({"HSET", "queue:python:meta", "owner", "other"});
  run_command({"SET", "queue:Reports", "1"});
  EXPECT_TRUE(run_verify().findings.empty());
  const auto queues = store_->queues(1).value();
  for (const QueueInfo& each : queues) EXPECT_NE(each.queue, "queue:python:meta");
}

TEST_P(Verify, QueueKeyOfAnotherTypeIsNamed) {
  backend_->put_text(1, "queue:sal", "foo");
  const auto report = run_verify();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].rule, "queue-type");
  EXPECT_EQ(report.findings[0].subject, "queue:sal");
  EXPECT_TRUE(report.findings[0].violation);
  EXPECT_THAT(report.findings[0].text, HasSubstr("queue:sal is a string where a list belongs"));
  std::map<std::string, std::string> types;
  const auto queues = store_->queues(1).value();
  for (const QueueInfo& each : queues) types[each.queue] = each.wrong_type;
  EXPECT_EQ(types["queue:sal"], "string");
  EXPECT_EQ(types["queue:python"], "");
  const auto length = store_->queue_length(1, "queue:sal");
  ASSERT_FALSE(length.has_value());
  EXPECT_THAT(length.error().message, HasSubstr("queue:sal: redis: WRONGTYPE"));
}

TEST_P(Verify, NotesCyclicDependencies) {
  for (const Id id : {50U, 51U, 52U}) {
    run_command({"HSET", key(id), "id", std::to_string(id), "caller_id", "12", "context_id", "1", "script", "pass",
                 "script_type", "python", "status", "dispatched", "dependends",
                 "[" + std::to_string(id == 52 ? 50 : id + 1) + "]"});
    backend_->push(1, "queue:python", key(id));
  }
  ASSERT_FALSE(claim(64).empty());
  const auto report = run_verify();
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].rule, "dependency-cycle");
  EXPECT_FALSE(report.findings[0].violation);
  EXPECT_THAT(report.findings[0].text,
              HasSubstr("job:12:50 waits for job:12:51 waits for job:12:52 waits for job:12:50"));
}

TEST_P(Verify, RetiredJobsAreNoViolation) {
  TickRequest request;
  request.retention_count = 1;
  ASSERT_TRUE(eventually([&] { return store_->tick(1, request).value().retired == 0; }));
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_THAT(run_rebuild(), IsEmpty());
}

// The remaining dependencies are known. The retired dependency cannot be restored and does not matter, because that job
// will never end again.
TEST_P(Verify, JobWithARetiredDependencyWaitsForTheOthers) {
  Job patient = job(60);
  patient.dependends = {2, 4};
  ASSERT_TRUE(store_->submit(patient).has_value());
  claim(64);
  ASSERT_EQ(outcome(end(claimed_[2].ref, finished())), "ok");
  TickRequest time;
  time.retention = Retention::same_for_all(1);
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(store_->tick(1, time).has_value());
    return !store_->load(1, key(2)).has_value();
  }));
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
  EXPECT_THAT(run_rebuild(), IsEmpty());
  const std::vector<std::string> keys{key(60)};
  EXPECT_THAT(store_->job_states(1, keys, true).value().at(0).awaited_jobs, testing::ElementsAre(key(4)));
}

// The retired job has neither facts nor a claim that could show its change of state.
TEST_P(Verify, JobRetiredDuringTheCheckIsNoViolation) {
  Job other = job(50);
  other.script_type = "v";
  ASSERT_TRUE(store_->submit(other).has_value());
  bool moved = false;
  const auto report = verify(*store_, 1, [&](std::string_view phase, std::uint64_t queues_read, std::uint64_t) {
    if (phase != "queues" || queues_read != 1 || std::exchange(moved, true)) return;
    ClaimRequest some = request(3);
    some.queues = {"queue:v", "queue:python"};
    const auto claimed = store_->claim(some);
    ASSERT_TRUE(claimed.has_value());
    for (const ClaimedJob& each : claimed->jobs) EXPECT_EQ(outcome(end(each.ref, finished())), "ok");
    TickRequest time;
    time.retention = Retention::same_for_all(1);
    EXPECT_TRUE(eventually([&] {
      EXPECT_TRUE(store_->tick(1, time).has_value());
      return std::none_of(claimed->jobs.begin(), claimed->jobs.end(),
                          [&](const ClaimedJob& each) { return store_->load(1, each.ref.job_key).has_value(); });
    }));
  });
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(moved);
  for (const Finding& each : report->findings) ADD_FAILURE() << each.rule << ": " << each.text;
}

// One round of work in a store: jobs are submitted, wait, run, fail, are released, end and are retired.
void work(Store& store, const ClaimRequest& request, const std::function<Job(Id)>& make, Id first) {
  for (Id i = 0; i < 8; ++i) {
    Job one = make(first + i);
    if (i % 4 == 1) one.concurrency_key = "disk";
    if (i % 4 == 2) one.dependends = {one.id - 1};
    if (i % 4 == 3) one.priority = static_cast<std::int32_t>(i);
    EXPECT_TRUE(store.submit(one).has_value());
  }
  const auto claimed = store.claim(request);
  ASSERT_TRUE(claimed.has_value());
  std::vector<Report> reports;
  for (std::size_t i = 0; i < claimed->jobs.size(); ++i) {
    JobEnd end;
    end.status = i % 4 == 1 ? JobStatus::error : JobStatus::finished;
    end.detail = i % 4 == 1 ? "exit" : "ok";
    if (i % 4 == 0) {
      reports.emplace_back(Release{claimed->jobs[i].ref, "drain"});
    } else {
      reports.emplace_back(
          EndReport{claimed->jobs[i].ref, end, i % 8 == 1 ? std::optional<std::uint64_t>(0) : std::nullopt});
    }
  }
  EXPECT_TRUE(store.report(1, reports).has_value());
  TickRequest time;
  time.retention_count = 20;
  EXPECT_TRUE(store.tick(1, time).has_value());
}

TEST_P(Verify, JobsMovedDuringTheCheckAreNoViolation) {
  std::atomic<bool> over = false;
  std::atomic<int> rounds = 0;
  std::thread moving([&] {
    const auto store = backend_->stores().open().value();
    for (; !over; ++rounds)
      work(
          *store, request(8), [](Id id) { return job(id); }, static_cast<Id>(1000 + rounds * 8));
  });
  for (int checks_done = 0; checks_done < 10 || rounds < 100; ++checks_done) {
    const auto report = run_verify();
    for (const Finding& each : report.findings) ADD_FAILURE() << each.rule << ": " << each.text;
  }
  over = true;
  moving.join();
  EXPECT_EQ(violated_rules(), std::set<std::string>{});
}

TEST(VerifyRules, EachHaveAMeaning) {
  std::set<std::string_view> names;
  for (const VerifyRule& rule : verify_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_FALSE(rule.meaning.empty());
  }
}

MJ_BOTH_STORES(Verify);

}  // namespace
}  // namespace mycojobs
