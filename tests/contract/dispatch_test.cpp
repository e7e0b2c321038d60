// Options of a submission: retries, delays, dependencies, priorities, limits.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "inspect/verify/rebuild.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Dispatch : public StoreContract {
 protected:
  std::string detail(Id id) { return field("job:12:" + std::to_string(id), "detail"); }
  std::string status(Id id) { return field("job:12:" + std::to_string(id), "status"); }
  static JobEnd failed(std::string detail = "exception") {
    JobEnd end;
    end.detail = std::move(detail);
    end.error = "ValueError: no";
    return end;
  }
  void submit_with(Id id, const std::function<void(Job&)>& change) {
    Job submission = job(id);
    change(submission);
    const auto stored = store_->submit(submission);
    ASSERT_TRUE(stored.has_value()) << stored.error().message;
  }
  void push_plain(Id id, std::vector<std::string> more) {
    const std::string key = "job:12:" + std::to_string(id);
    Fields fields{{"id", std::to_string(id)}, {"caller_id", "12"},       {"context_id", "1"},
                  {"script", "pass"},         {"script_type", "python"}, {"status", "dispatched"}};
    for (std::size_t i = 0; i + 1 < more.size(); i += 2) fields.emplace_back(more[i], more[i + 1]);
    ASSERT_TRUE(store_->save(1, key, fields).has_value());
    backend_->push(1, "queue:python", key);
  }
  std::vector<std::string> claim_keys(std::uint32_t max = 64) {
    std::vector<std::string> out;
    for (const ClaimedJob& each : claim(max)) out.push_back(each.ref.job_key), claimed_[each.ref.job_key] = each;
    return out;
  }
  void finish(Id id) { ASSERT_EQ(outcome(end(claimed_.at("job:12:" + std::to_string(id)).ref, finished())), "ok"); }
  TickReply tick(TickRequest request = {}) {
    auto reply = store_->tick(1, request);
    EXPECT_TRUE(reply.has_value()) << reply.error().message;
    return reply.value_or(TickReply{});
  }
  // Makes an ended job look as if it had ended earlier. Does nothing if the job was deleted.
  void set_end_time(const std::string& job, std::uint64_t ms_ago) {
    if (backend_->run_command(1, {"EXISTS", job}).number() == 0) return;
    const std::string time = std::to_string(store_->now_ms().value() - ms_ago);
    backend_->run_command(1, {"ZADD", "mj:ended", time, job});
    backend_->run_command(1, {"HSET", "mj:claim:" + job, "ended_ms", time});
  }
  std::vector<std::string> get_fact_kinds(Id id) {
    std::vector<std::string> kinds;
    const auto facts = store_->journal(1, "queue:python", 0, 10000);
    EXPECT_TRUE(facts.has_value());
    for (const Fact& fact : facts.value()) {
      if (fact.job_key == "job:12:" + std::to_string(id)) kinds.push_back(fact.kind);
    }
    return kinds;
  }
  JobStoreState place(Id id) {
    const std::vector<std::string> keys{"job:12:" + std::to_string(id)};
    auto reply = store_->job_states(1, keys, true);
    EXPECT_TRUE(reply.has_value()) << reply.error().message;
    return reply.value().at(0);
  }
  std::map<std::string, ClaimedJob> claimed_;
};

TEST_P(Dispatch, FactsAreReadByTheirRevisions) {
  for (const char* number : {"1-0", "2-0", "5-0"})
    backend_->run_command(1, {"XADD", "mj:journal:queue:python", number, "f", "queued", "j", "job:1:1", "at", number});
  const auto read_revisions = [&](const std::vector<std::uint64_t>& wanted) {
    std::vector<std::uint64_t> found;
    const auto facts = store_->journal_at(1, "queue:python", wanted).value();
    for (const Fact& fact : facts) found.push_back(fact.revision);
    return found;
  };
  EXPECT_EQ(read_revisions({5, 3, 1}), (std::vector<std::uint64_t>{5, 1})) << "in the order of the request";
  EXPECT_EQ(read_revisions({}), std::vector<std::uint64_t>{});
  std::vector<std::uint64_t> many(1000);
  std::iota(many.begin(), many.end(), 1);
  EXPECT_EQ(read_revisions(many), (std::vector<std::uint64_t>{1, 2, 5}));
  EXPECT_EQ(store_->journal_at(1, "queue:none", many).value().size(), 0U);
  const auto facts = store_->journal_at(1, "queue:python", std::vector<std::uint64_t>{2}).value();
  ASSERT_EQ(facts.size(), 1U);
  EXPECT_EQ(facts[0].kind, "queued");
  EXPECT_EQ(facts[0].job_key, "job:1:1");
}

TEST_P(Dispatch, JournalRecordsTheLifeOfAJob) {
  submit(1);
  claim_keys();
  finish(1);
  EXPECT_THAT(get_fact_kinds(1), ElementsAre("scheduled", "claimed", "completed"));
  const auto facts = store_->journal(1, "queue:python", 0, 10).value();
  EXPECT_EQ(facts.at(0).revision, 1U);
  EXPECT_EQ(facts.at(2).revision, 3U);
  EXPECT_THAT(place(1).claim.revisions, ElementsAre(1, 2, 3));
  EXPECT_EQ(place(1).claim.state, "ended");
  EXPECT_TRUE(place(1).in_ended_index);
  EXPECT_TRUE(place(1).log_ended);
}

TEST_P(Dispatch, FailedAttemptIsFollowedByAnother) {
  submit(1);
  claim_keys();
  const ClaimedJob first = claimed_.at("job:12:1");
  const Report failure = EndReport{first.ref, failed(), 0};
  EXPECT_EQ(outcome(report(failure)), "ok");
  EXPECT_EQ(outcome(report(failure)), "ok") << "repeated after a lost reply";
  EXPECT_EQ(outcome(end(first.ref, finished())), "conflict");
  EXPECT_EQ(status(1), "dispatched");
  EXPECT_EQ(detail(1), "retry_wait");
  EXPECT_EQ(field("job:12:1", "error"), "ValueError: no");
  EXPECT_TRUE(place(1).due_ms.has_value());
  EXPECT_TRUE(eventually([&] { return tick().queued == 1; }));
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.attempt, 2U);
  EXPECT_EQ(second.deliveries, 1U);
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_EQ(outcome(report(failure)), "stale_claim");
  EXPECT_EQ(outcome(end(second.ref, finished())), "ok");
  EXPECT_THAT(get_fact_kinds(1), ElementsAre("scheduled", "claimed", "retry", "queued", "claimed", "completed"));
  EXPECT_EQ(field("job:12:1", "error"), "");
}

TEST_P(Dispatch, WaitingRetryIsNotClaimable) {
  submit(1);
  claim_keys();
  EXPECT_EQ(outcome(report(EndReport{claimed_.at("job:12:1").ref, failed(), 3600000})), "ok");
  const TickReply reply = tick();
  EXPECT_EQ(reply.queued, 0U);
  EXPECT_GT(reply.next_due_ms, 3000000U);
  EXPECT_THAT(claim_keys(), IsEmpty());
}

TEST_P(Dispatch, CancelEndsAJobInEveryState) {
  submit(1);                                                             // queued
  submit_with(2, [](Job& j) { j.run_at_ms = 4102444800000; });           // delayed
  submit_with(3, [](Job& j) { j.dependends = {99}; });                   // waiting
  submit_with(4, [](Job& j) { j.prerequisites = {"approval:legal"}; });  // prerequisites
  submit_with(5, [](Job& j) { j.concurrency_key = "db"; });              // live
  submit_with(6, [](Job& j) { j.concurrency_key = "db"; });              // held
  submit_with(7, [](Job& j) { j.priority = 5; });                        // by priority
  submit(8);                                                             // between attempts
  ASSERT_TRUE(store_->set_queue_paused(1, "queue:python", false).has_value());
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:7", "job:12:1", "job:12:5", "job:12:8"));
  EXPECT_EQ(outcome(report(EndReport{claimed_.at("job:12:8").ref, failed(), 3600000})), "ok");
  submit_with(9, [](Job& j) { j.priority = 5; });
  submit(10);
  push_plain(11, {});
  const std::map<Id, std::string> states{{2, "delayed"}, {3, "waiting"}, {4, "prerequisites"}, {6, "held"},
                                         {8, "delayed"}, {9, "queued"},  {10, "queued"},       {11, ""}};
  for (const auto& [id, state] : states) {
    EXPECT_EQ(place(id).claim.state, state) << id;
    EXPECT_EQ(outcome(store_->cancel(1, "job:12:" + std::to_string(id))), "ok");
    EXPECT_EQ(outcome(store_->cancel(1, "job:12:" + std::to_string(id))), "ok") << "a repeated cancel succeeds";
    EXPECT_EQ(detail(id), "cancelled") << id;
    const JobStoreState after = place(id);
    EXPECT_EQ(after.claim.state, "ended");
    EXPECT_FALSE(after.due_ms || after.check_ms || after.is_held || after.in_priority_index ||
                 !after.awaited_jobs.empty())
        << id;
  }
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:5")), "ok");
  EXPECT_EQ(status(5), "started") << "the owner reports the end";
  EXPECT_EQ(store_->renew(1, std::vector{claimed_.at("job:12:5").ref}, 60000).value().at(0), Renewal::cancel);
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
}

TEST_P(Dispatch, DependentsRunInOrderOfDependency) {
  push_plain(3, {"dependends", "[1,2]"});
  push_plain(2, {"dependends", "[1]"});
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(status(3), "waiting_for_prerequisites");
  EXPECT_EQ(detail(3), "dependencies");
  EXPECT_THAT(place(3).awaited_jobs, ElementsAre("job:12:1", "job:12:2"));
  push_plain(1, {});
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  finish(1);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2"));
  EXPECT_THAT(claim_keys(), IsEmpty());
  finish(2);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:3"));
  finish(3);
  EXPECT_THAT(get_fact_kinds(3), ElementsAre("parked", "queued", "claimed", "completed"));
}

TEST_P(Dispatch, FailureFailsItsDependents) {
  push_plain(3, {"dependends", "[2]"});
  push_plain(2, {"dependends", "[1]"});
  push_plain(1, {});
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  EXPECT_EQ(outcome(end(claimed_.at("job:12:1").ref, failed())), "ok");
  EXPECT_EQ(detail(2), "dependency_failed");
  EXPECT_EQ(detail(3), "dependency_failed");
  EXPECT_THAT(field("job:12:3", "error"), HasSubstr("job:12:2"));
  push_plain(4, {"dependends", "[3]"});
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(detail(4), "dependency_failed");
}

TEST_P(Dispatch, ManyDependentsAreReleasedInSteps) {
  for (Id id = 2; id <= 251; ++id) submit_with(id, [](Job& j) { j.dependends = {1}; });
  submit(1);
  std::vector<std::string> first = claim_keys();
  EXPECT_THAT(first, ElementsAre("job:12:1"));
  finish(1);
  std::size_t released = 0;
  for (int round = 0; round < 10 && released < 250; ++round) {
    tick();
    for (auto some = claim_keys(); !some.empty(); some = claim_keys()) released += some.size();
  }
  EXPECT_EQ(released, 250U);
  EXPECT_FALSE(tick().has_more);
}

TEST_P(Dispatch, JobIsKeptUntilAllDependentsKnowItsEnd) {
  for (Id id = 2; id <= 151; ++id) submit_with(id, [](Job& j) { j.dependends = {1}; });
  submit(1);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  finish(1);
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "conflict");
  std::size_t released = 0;
  for (int round = 0; round < 10 && released < 150; ++round) {
    tick();
    for (auto some = claim_keys(); !some.empty(); some = claim_keys()) released += some.size();
  }
  EXPECT_EQ(released, 150U);
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "ok");
}

// A script blocks all other clients, so the length of the lists counts toward the limit of a call.
TEST_P(Dispatch, JobsWithVeryManyDependenciesAreReadInOneCall) {
  std::vector<Id> many(10000);
  std::iota(many.begin(), many.end(), 10);
  for (const Id id : {1U, 2U, 3U}) submit_with(id, [&](Job& j) { j.dependends = many; });
  const auto list_states = [&] {
    return std::vector{place(1).claim.state, place(2).claim.state, place(3).claim.state};
  };
  EXPECT_TRUE(store_->claim(request(64)).value().has_more);
  EXPECT_THAT(list_states(), ElementsAre("waiting", "queued", "queued"));
  EXPECT_TRUE(store_->claim(request(64)).value().has_more);
  EXPECT_TRUE(store_->claim(request(64)).value().has_more);
  EXPECT_THAT(list_states(), ElementsAre("waiting", "waiting", "waiting"));
  submit(10);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:10"));
  EXPECT_EQ(outcome(end(claimed_.at("job:12:10").ref, failed())), "ok");
  EXPECT_EQ(std::ranges::count(list_states(), "ended"), 1);
  EXPECT_EQ(tick().woken_dependents, 1U);
  EXPECT_EQ(tick().woken_dependents, 1U);
  EXPECT_THAT(list_states(), ElementsAre("ended", "ended", "ended"));
}

TEST_P(Dispatch, JobIsParkedUntilItsPrerequisitesAreMet) {
  submit_with(1, [](Job& j) { j.prerequisites = {"wait:1s", "redis:ready"}; });
  submit_with(2, [](Job& j) { j.prerequisites = {"file:/nowhere"}; });
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(status(1), "waiting_for_prerequisites");
  EXPECT_EQ(detail(1), "prerequisite");
  const auto due = store_->due_prerequisites(1, 10, 60000, CheckerRole::agent).value();
  ASSERT_EQ(due.size(), 2U);
  EXPECT_EQ(due[0].job_key, "job:12:1");
  EXPECT_THAT(due[0].conditions, ElementsAre("wait:1s", "redis:ready"));
  EXPECT_THAT(store_->due_prerequisites(1, 10, 60000, CheckerRole::agent).value(), IsEmpty())
      << "a check is leased to one checker at a time";
  ASSERT_TRUE(store_->complete_prerequisites(1, "job:12:1", "").has_value());
  ASSERT_TRUE(store_->complete_prerequisites(1, "job:12:1", "").has_value());
  ASSERT_TRUE(store_->complete_prerequisites(1, "job:12:2", "file:/nowhere is not allowed").has_value());
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  EXPECT_EQ(detail(2), "prerequisite");
  EXPECT_EQ(status(2), "error");
}

TEST_P(Dispatch, DelayedJobIsDueAtItsTime) {
  const std::uint64_t now = store_->now_ms().value();
  submit_with(1, [&](Job& j) { j.run_at_ms = now + 50; });
  push_plain(2, {"run_at_ms", std::to_string(now + 3600000)});
  EXPECT_EQ(detail(1), "delayed");
  std::vector<std::string> claimed;
  EXPECT_TRUE(eventually([&] {
    tick();
    claimed = claim_keys();
    return !claimed.empty();
  }));
  EXPECT_THAT(claimed, ElementsAre("job:12:1"));
  EXPECT_GE(store_->now_ms().value(), now + 50);
  EXPECT_EQ(detail(2), "delayed");
  EXPECT_EQ(place(2).due_ms.value_or(0), now + 3600000);
}

TEST_P(Dispatch, HigherPrioritiesAreTakenFirst) {
  submit(1);
  submit_with(2, [](Job& j) { j.priority = -1; });
  submit_with(3, [](Job& j) { j.priority = 1; });
  submit_with(4, [](Job& j) { j.priority = 100; });
  submit(5);
  EXPECT_EQ(store_->queues(1).value().at(0).prioritised, 3U);
  EXPECT_THAT(claim_keys(1), ElementsAre("job:12:4"));
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:3", "job:12:1", "job:12:5", "job:12:2"));
}

// Otherwise the priority entry would remain when another client has pushed a second entry of the job.
TEST_P(Dispatch, ParkedJobLeavesItsPriorityIndex) {
  submit_with(1, [](Job& j) { j.priority = -1; });
  submit_with(2, [](Job& j) { j.priority = -1; });
  const std::uint64_t later = store_->now_ms().value() + 3600000;
  ASSERT_TRUE(store_->save(1, "job:12:1", {{"run_at_ms", std::to_string(later)}}).has_value());
  ASSERT_TRUE(store_->save(1, "job:12:2", {{"dependends", "[9]"}}).has_value());
  for (const char* key : {"job:12:1", "job:12:2"}) backend_->push(1, "queue:python", key);
  submit(3);
  EXPECT_THAT(claim_keys(1), ElementsAre("job:12:3"));
  EXPECT_EQ(place(1).due_ms, later);
  EXPECT_EQ(place(2).claim.state, "waiting");
  EXPECT_FALSE(place(1).in_priority_index);
  EXPECT_FALSE(place(2).in_priority_index);
}

TEST_P(Dispatch, ReleasedJobIsNextOfItsPriority) {
  submit_with(1, [](Job& j) { j.priority = 3; });
  submit_with(2, [](Job& j) { j.priority = 3; });
  EXPECT_THAT(claim_keys(1), ElementsAre("job:12:1"));
  EXPECT_EQ(outcome(report(Release{claimed_.at("job:12:1").ref, "drain"})), "ok");
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:2"));
}

TEST_P(Dispatch, PausedQueueIsNotClaimed) {
  submit(1);
  ASSERT_TRUE(store_->set_queue_paused(1, "queue:python", true).has_value());
  const auto reply = store_->claim(request()).value();
  EXPECT_THAT(reply.jobs, IsEmpty());
  EXPECT_THAT(reply.paused, ElementsAre("queue:python"));
  EXPECT_TRUE(store_->queues(1).value().at(0).paused);
  ASSERT_TRUE(store_->set_queue_paused(1, "queue:python", false).has_value());
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
}

TEST_P(Dispatch, ConcurrencyKeyLimitsRunningJobs) {
  for (Id id = 1; id <= 4; ++id) {
    submit_with(id, [](Job& j) { j.concurrency_key = "db", j.concurrency_limit = 2; });
  }
  submit(5);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:2", "job:12:5"));
  EXPECT_EQ(detail(3), "held");
  EXPECT_TRUE(place(3).is_held);
  EXPECT_TRUE(place(1).occupies_slot);
  finish(1);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:3"));
  EXPECT_EQ(outcome(report(Release{claimed_.at("job:12:2").ref, "drain"})), "ok");
  EXPECT_THAT(claim_keys(1).size(), 1U);
  EXPECT_THAT(claim_keys(), IsEmpty());
}

TEST_P(Dispatch, FreedSlotGoesToTheHeldJobBeforeQueuedJobs) {
  for (const Id id : {1U, 2U}) submit_with(id, [](Job& j) { j.concurrency_key = "db"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  submit(3);
  submit(4);
  finish(1);
  EXPECT_THAT(claim_keys(1), ElementsAre("job:12:2"));
}

TEST_P(Dispatch, HeldJobThatIsParkedAgainKeepsItsPlace) {
  const auto set_concurrency_key = [](Job& j) { j.concurrency_key = "db"; };
  for (const Id id : {1U, 2U, 3U}) submit_with(id, set_concurrency_key);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  finish(1);
  EXPECT_EQ(place(2).claim.state, "queued") << "a freed slot requeues the held job";
  submit_with(9, [&](Job& j) { set_concurrency_key(j), j.script_type = "v"; });
  ClaimRequest other = request();
  other.queues = {"queue:v"};
  const auto faster = store_->claim(other).value();
  ASSERT_EQ(faster.jobs.size(), 1U);
  EXPECT_THAT(claim_keys(), IsEmpty()) << "another job has taken the slot";
  EXPECT_EQ(place(2).claim.state, "held");
  EXPECT_EQ(outcome(end(faster.jobs[0].ref, finished())), "ok");
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2"));
  EXPECT_EQ(outcome(report(EndReport{claimed_.at("job:12:2").ref, failed(), 0})), "ok");
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:3"));
  EXPECT_TRUE(eventually([&] { return tick().queued == 1; }));
  submit_with(4, set_concurrency_key);
  EXPECT_THAT(claim_keys(), IsEmpty());
  finish(3);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2")) << "a retry is held again, before job 4";
}

TEST_P(Dispatch, HeldJobWaitsForItsOldKeyThenForItsNewKey) {
  for (const Id id : {1U, 2U}) submit_with(id, [](Job& j) { j.concurrency_key = "db"; });
  submit_with(3, [](Job& j) { j.concurrency_key = "tape"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:3"));
  ASSERT_TRUE(store_->save(1, "job:12:2", {{"concurrency_key", "tape"}}).has_value());
  EXPECT_THAT(place(2).held_by_keys, ElementsAre("db"));
  finish(3);
  tick();
  EXPECT_THAT(claim_keys(), IsEmpty()) << "a slot of tape is free, but db holds it";
  EXPECT_FALSE(place(2).has_free_slot);
  submit_with(4, [](Job& j) { j.concurrency_key = "tape"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:4"));
  finish(1);
  EXPECT_THAT(claim_keys(), IsEmpty()) << "released by db, the job waits for tape";
  EXPECT_THAT(place(2).held_by_keys, ElementsAre("tape"));
  finish(4);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2"));
}

TEST_P(Dispatch, HeldJobWithAnOverwrittenRecordBlocksNothing) {
  for (const Id id : {1U, 2U}) submit_with(id, [](Job& j) { j.concurrency_key = "db"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  backend_->erase(1, "job:12:2");
  backend_->put_text(1, "job:12:2", "oops");
  tick();
  EXPECT_EQ(place(2).claim.state, "held");
  finish(1);
  tick();
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(last_dead_reason(), "wrong_type");
}

TEST_P(Dispatch, HeldJobDoesNotWaitForAnUnservedQueue) {
  const auto set_concurrency_key = [](Job& j) { j.concurrency_key = "db"; };
  submit_with(1, set_concurrency_key);
  submit_with(2, [&](Job& j) { set_concurrency_key(j), j.script_type = "v"; });
  submit_with(3, set_concurrency_key);
  ClaimRequest both = request(10);
  both.queues = {"queue:python", "queue:v"};
  const auto first = store_->claim(both).value();
  ASSERT_EQ(first.jobs.size(), 1U);
  EXPECT_EQ(outcome(end(first.jobs[0].ref, finished())), "ok");
  bool v_is_next = place(2).claim.state == "queued";
  EXPECT_NE(v_is_next, place(3).claim.state == "queued") << "one held job was requeued";
  EXPECT_TRUE(eventually([&] {
    tick();
    return claim_keys() == std::vector<std::string>{"job:12:3"};
  }));
}

TEST_P(Dispatch, IdempotencyKeyRefersToTheFirstJob) {
  Job submission = job(0);
  submission.idempotency_key = "invoice 7";
  const Job first = store_->submit(submission).value();
  EXPECT_EQ(store_->submit(submission).value().id, first.id);
  submission.script = "other()";
  const auto other = store_->submit(submission);
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Code::conflict);
  EXPECT_THAT(other.error().message, HasSubstr("idempotency_key"));
  submission.caller_id = 13;
  EXPECT_TRUE(store_->submit(submission).has_value()) << "the key applies to one caller";
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 2U);
}

TEST_P(Dispatch, JobEndsAfterItsQueueTimeout) {
  submit_with(1, [](Job& j) { j.queue_timeout_ms = 1; });
  submit_with(2, [](Job& j) { j.queue_timeout_ms = 3600000; });
  EXPECT_TRUE(eventually([&] { return tick().timed_out == 1; }));
  EXPECT_EQ(detail(1), "timeout");
  EXPECT_THAT(field("job:12:1", "error"), HasSubstr("queue_timeout_ms"));
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2"));
}

TEST_P(Dispatch, PlainJobsEndByQueueTimeout) {
  for (const std::string type : {"python", "unserved"}) {
    const std::string key = "job:12:" + std::to_string(type.size());
    backend_->run_command(1, {"HSET", key, "id", key.substr(7), "caller_id", "12", "context_id", "1", "script_type",
                              type, "script", "print(1)", "queue_timeout_ms", "1"});
    backend_->push(1, "queue:" + type, key);
    EXPECT_TRUE(eventually([&] { return tick().timed_out == 1; })) << type;
    EXPECT_EQ(field(key, "detail"), "timeout");
  }
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(last_anomaly(), "");
}

TEST_P(Dispatch, PlainJobsInTimeRunAndLeaveNoLimit) {
  backend_->run_command(1, {"HSET", "job:12:1", "id", "1", "caller_id", "12", "context_id", "1", "script_type",
                            "python", "script", "print(1)", "queue_timeout_ms", "3600000"});
  backend_->push(1, "queue:python", "job:12:1");
  tick();
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:queue-deadlines"}).number(), 1U);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:queue-deadlines"}).number(), 0U);
}

TEST_P(Dispatch, RecordsOfInvalidIdsGetAnEnd) {
  for (const std::string key : {"job:12:0", "job:12:007", "job:12:4294967296", "job:0:1"}) {
    backend_->run_command(1, {"HSET", key, "id", "1", "status", "dispatched"});
    backend_->push(1, "queue:python", key);
    EXPECT_THAT(claim_keys(), IsEmpty());
    EXPECT_EQ(field(key, "status"), "error") << key;
    EXPECT_EQ(field(key, "detail"), "dead_letter");
    EXPECT_THAT(field(key, "error"), HasSubstr(key));
  }
}

TEST_P(Dispatch, JobReturnedBeforeItsStartWaitsForItsFirstRun) {
  submit_with(1, [](Job& j) { j.queue_timeout_ms = 50; });
  submit_with(2, [](Job& j) { j.queue_timeout_ms = 50; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:2"));
  EXPECT_EQ(outcome(report(Release{claimed_.at("job:12:1").ref, "no slot", false})), "ok");
  EXPECT_EQ(outcome(report(Release{claimed_.at("job:12:2").ref, "its launcher is gone", true})), "ok");
  EXPECT_TRUE(eventually([&] { return tick().timed_out == 1; }));
  EXPECT_EQ(detail(1), "timeout");
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2")) << "a job that has run has no queue timeout";
}

TEST_P(Dispatch, JobReleasedWithoutARunIsNextAfterItsPause) {
  submit(1);
  submit(2);
  submit(3);
  for (int i = 0; i < 11; ++i) {
    EXPECT_THAT(claim_keys(1), ElementsAre("job:12:1")) << "released " << i << " times";
    EXPECT_EQ(outcome(report(Release{claimed_.at("job:12:1").ref, "no slot", false})), "ok");
  }
  EXPECT_EQ(detail(1), "delayed");
  EXPECT_TRUE(eventually([&] { return tick().queued == 1; }));
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:2", "job:12:3"));
}

TEST_P(Dispatch, RetentionRemovesAllKeysOfAnEndedJob) {
  Job submission = job(1);
  submission.idempotency_key = "once";
  ASSERT_TRUE(store_->submit(submission).has_value());
  submit(2);
  claim_keys();
  EXPECT_EQ(outcome(report(LogAppend{claimed_.at("job:12:1").ref, {{1, 1, LogStream::out, "hi"}}})), "ok");
  finish(1);
  TickRequest request;
  request.retention = Retention::same_for_all(0);
  EXPECT_EQ(tick(request).retired, 0U) << "0 means no limit";
  request.retention = Retention::same_for_all(1);
  EXPECT_TRUE(eventually([&] { return tick(request).retired == 1; }));
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), ElementsAre("job:12:2"));
  EXPECT_THAT(store_->keys(1, "mj:log:", 10).value(), IsEmpty());
  EXPECT_THAT(get_fact_kinds(1), IsEmpty());
  EXPECT_THAT(get_fact_kinds(2), ElementsAre("scheduled", "claimed"));
  EXPECT_GT(store_->queues(1).value().at(0).horizon_ms, 0U);
  EXPECT_TRUE(store_->submit(submission).has_value()) << "its idempotency key is free again";
}

TEST_P(Dispatch, RetentionDependsOnTheOutcomeAndTheFlow) {
  submit(1);
  submit(2);
  claim_keys();
  finish(1);
  finish(2);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:2", "flow", "1 77"});
  submit(3);
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:3")), "ok");
  backend_->erase(1, "queue:python");
  TickRequest request;
  request.retention = {Retention::kDayMs, 3 * Retention::kDayMs, 5 * Retention::kDayMs};
  const auto list_jobs_after_days = [&](std::uint64_t days) {
    for (const char* job : {"job:12:1", "job:12:2", "job:12:3"}) set_end_time(job, days * Retention::kDayMs);
    for (int i = 0; i < 3; ++i) tick(request);
    return store_->keys(1, "job:", 10).value();
  };
  EXPECT_THAT(list_jobs_after_days(0), ElementsAre("job:12:1", "job:12:2", "job:12:3"));
  EXPECT_THAT(list_jobs_after_days(2), ElementsAre("job:12:2", "job:12:3"));
  EXPECT_THAT(list_jobs_after_days(4), ElementsAre("job:12:2"));
  EXPECT_TRUE(place(2).in_ended_index) << "it is checked again";
  EXPECT_THAT(list_jobs_after_days(6), IsEmpty());
}

TEST_P(Dispatch, RetentionByCountDeletesJobsThatAreKeptLongerFirst) {
  submit(1);
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:1")), "ok");
  backend_->erase(1, "queue:python");
  set_end_time("job:12:1", 2 * Retention::kDayMs);
  tick();
  for (const Id id : {2, 3}) {
    submit(id);
    claim_keys();
    finish(id);
  }
  TickRequest request;
  request.retention_count = 2;
  EXPECT_EQ(tick(request).retired, 1U);
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), ElementsAre("job:12:2", "job:12:3"));
  request.retention_count = 1;
  EXPECT_EQ(tick(request).retired, 1U);
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), ElementsAre("job:12:3"));
}

TEST_P(Dispatch, RetentionRemovesCancelledJobsWithoutAQueue) {
  ASSERT_TRUE(store_->create_job(job(1)));
  push_plain(2, {});
  push_plain(3, {});
  for (const char* key : {"job:12:1", "job:12:2"}) EXPECT_EQ(outcome(store_->cancel(1, key)), "ok");
  TickRequest request;
  request.retention_count = 1;
  submit(4);
  EXPECT_EQ(outcome(store_->cancel(1, "job:12:4")), "ok");
  EXPECT_EQ(tick(request).retired, 1U);
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), ElementsAre("job:12:2", "job:12:3", "job:12:4"));
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:2")), "conflict") << "the entry is retained";
  backend_->erase(1, "queue:python");
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:2")), "ok");
}

TEST_P(Dispatch, DeletedJobThatNeverRanFreesItsIdempotencyKey) {
  Job submission = job(0);
  submission.idempotency_key = "once";
  for (const bool cancelled : {false, true}) {
    const auto created = store_->create_job(submission);
    ASSERT_TRUE(created) << created.error().message;
    const std::string key = "job:12:" + std::to_string(created->id);
    if (cancelled) {
      EXPECT_EQ(outcome(store_->cancel(1, key)), "ok");
    }
    EXPECT_EQ(outcome(store_->delete_record(1, key)), "ok");
    EXPECT_EQ(backend_->run_command(1, {"HLEN", "mj:idempotency:12"}).number(), 0U);
  }
  const auto first = store_->submit(submission);
  ASSERT_TRUE(first) << first.error().message;
  push_plain(900, {"idempotency_key", "once"});
  backend_->erase(1, "queue:python");
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:900")), "ok");
  EXPECT_EQ(backend_->run_command(1, {"HLEN", "mj:idempotency:12"}).number(), 1U) << "the key names another job";
}

TEST_P(Dispatch, RetentionLeavesALiveJobWithAStrayEntry) {
  submit(1);
  claim_keys();
  TickRequest by_time, by_count;
  by_time.retention = Retention::same_for_all(1);
  by_count.retention_count = 1;
  for (const TickRequest& request : {by_time, by_count}) {
    backend_->run_command(1, {"ZADD", "mj:ended", "5", "job:12:1", "6", "job:12:2"});
    EXPECT_EQ(tick(request).retired, 0U);
    EXPECT_FALSE(place(1).in_ended_index);
    EXPECT_EQ(detail(1), "claimed");
  }
  finish(1);
}

TEST_P(Dispatch, KeptJobIsNotCountedAsAnotherEnd) {
  submit(1);
  claim_keys();
  finish(1);
  constexpr std::uint64_t kHourMs = 3600000;
  const std::string before = std::to_string(store_->now_ms().value() - 2 * kHourMs);
  backend_->run_command(1, {"ZADD", "mj:ended", before, "job:12:1"});
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "ended_ms", before, "noticed", "1"});
  backend_->run_command(1, {"ZADD", "mj:notices", "9000000000000", "a notice"});
  const auto count_ends = [&] { return store_->tally(1, kHourMs, 1).value().ended_per_slot.at(0); };
  EXPECT_EQ(count_ends(), 0U);
  TickRequest request;
  request.retention = Retention::same_for_all(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(tick(request).retired, 0U);
  EXPECT_TRUE(place(1).in_ended_index);
  EXPECT_EQ(count_ends(), 0U);
  EXPECT_EQ(store_->tally(1, kHourMs, 1).value().ended, 1U);
  backend_->erase(1, "mj:notices");
  EXPECT_TRUE(eventually([&] { return tick(request).retired == 1; }));
  EXPECT_THAT(store_->keys(1, "job:", 10).value(), IsEmpty());
}

// The job's entry is far from both ends of the list, and the list is not searched completely.
TEST_P(Dispatch, JobThatTimedOutInALongQueueRunsAgainOnce) {
  const auto fill = [&](int from) {
    std::vector<std::string> words{"LPUSH", "queue:python"};
    for (int i = from; i < from + 1100; ++i) words.push_back("no key " + std::to_string(i));
    backend_->run_command(1, words);
  };
  fill(0);
  submit_with(1, [](Job& j) { j.queue_timeout_ms = 1; });
  fill(2000);
  EXPECT_TRUE(eventually([&] { return tick().timed_out == 1; }));
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 2202U);
  std::vector<std::string> all;
  while (store_->queue_length(1, "queue:python").value() > 0) {
    for (const std::string& key : claim_keys()) all.push_back(key);
    if (all.size() == 1 && place(1).claim.state == "live") finish(1);
  }
  EXPECT_THAT(all, ElementsAre("job:12:1"));
  EXPECT_EQ(last_anomaly(), "");
}

TEST_P(Dispatch, QueueTimeoutOfADelayedJobBeginsWhenItIsDue) {
  const std::uint64_t due = store_->now_ms().value() + 3600000;
  submit_with(1, [&](Job& j) { j.queue_timeout_ms = 1, j.run_at_ms = due; });
  EXPECT_EQ(place(1).wait_until_ms, due + 1);
  push_plain(2, {"queue_timeout_ms", "1", "queued_ms", "1", "run_at_ms", std::to_string(due)});
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(detail(2), "delayed");
  EXPECT_EQ(place(2).wait_until_ms, due + 1);
  EXPECT_EQ(tick().timed_out, 0U);
}

TEST_P(Dispatch, CancelledWaitingJobIsInNoIndex) {
  submit(1);
  submit_with(2, [](Job& j) { j.dependends = {1}, j.queue_timeout_ms = 3600000; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:dependents:job:12:1", "mj:queue-deadlines"}).number(), 2U);
  ASSERT_TRUE(store_->cancel(1, "job:12:2").has_value());
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:dependents:job:12:1", "mj:queue-deadlines"}).number(), 0U);
}

// A job that waited for itself would never run. It is handed out, and its agent rejects the record.
TEST_P(Dispatch, SelfDependentJobIsDispatched) {
  push_plain(1, {"dependends", "[1]"});
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
}

TEST_P(Dispatch, JobThatTimedOutInAShortQueueHasOneEntryAgain) {
  submit_with(1, [](Job& j) { j.queue_timeout_ms = 1; });
  EXPECT_TRUE(eventually([&] { return tick().timed_out == 1; }));
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 1U);
}

TEST_P(Dispatch, EndReplacesResultsThatThePlainRecordHad) {
  push_plain(1, {"result", R"({"old":"1"})", "result_json", R"(["old"])", "receipt", "old"});
  claim_keys();
  EXPECT_EQ(outcome(end(claimed_.at("job:12:1").ref, failed())), "ok");
  for (const char* name : {"result", "result_json", "receipt"}) EXPECT_EQ(field("job:12:1", name), "") << name;
}

TEST_P(Dispatch, RepeatedJobIsNoLongerADeadLetter) {
  submit(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcome(report(Release{claim_one().ref, "killed"})), "ok");
  EXPECT_THAT(claim_keys(), IsEmpty());
  ASSERT_EQ(store_->dead_letters(1, 10).value().size(), 1U);
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
  EXPECT_THAT(store_->dead_letters(1, 10).value(), IsEmpty());
}

// No step of the protocol creates such a claim, but another client or a repair may.
TEST_P(Dispatch, CancelRequestOnAQueuedJobEndsIt) {
  submit(1);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "cancel", "1"});
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(detail(1), "cancelled");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
}

TEST_P(Dispatch, CancelledRunThatFailsIsNotRetried) {
  submit(1);
  claim_keys();
  ASSERT_TRUE(store_->cancel(1, "job:12:1").has_value());
  EXPECT_EQ(outcome(report(EndReport{claimed_.at("job:12:1").ref, failed(), 0})), "ok");
  EXPECT_EQ(status(1), "error");
  EXPECT_EQ(place(1).claim.state, "ended");
}

TEST_P(Dispatch, JobWithASlotIsNoLongerHeld) {
  for (const Id id : {1U, 2U}) submit_with(id, [](Job& j) { j.concurrency_key = "db"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  EXPECT_EQ(backend_->run_command(1, {"HEXISTS", "mj:claim:job:12:2", "turn"}).number(), 1U);
  finish(1);
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:2"));
  EXPECT_EQ(backend_->run_command(1, {"HEXISTS", "mj:claim:job:12:2", "turn"}).number(), 0U);
  EXPECT_EQ(backend_->run_command(1, {"HEXISTS", "mj:claim:job:12:2", "held"}).number(), 0U);
}

TEST_P(Dispatch, HeldJobRunsWhenItsLimitGrows) {
  for (const Id id : {1U, 2U, 3U}) submit_with(id, [](Job& j) { j.concurrency_key = "db", j.concurrency_limit = 2; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1", "job:12:2"));
  tick();
  EXPECT_THAT(claim_keys(), IsEmpty());
  backend_->run_command(1, {"HSET", "job:12:3", "concurrency_limit", "3"});
  tick();
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:3"));
}

// Earlier builds kept held jobs in a list, the next one at its right end, and no turn in their claims.
TEST_P(Dispatch, HeldJobsInTheListOfAnEarlierBuildRunInTheirOrder) {
  for (Id id = 1; id <= 5; ++id) submit_with(id, [](Job& j) { j.concurrency_key = "db"; });
  EXPECT_THAT(claim_keys(), ElementsAre("job:12:1"));
  backend_->run_command(1, {"DEL", "mj:held:db"});
  for (Id id = 2; id <= 5; ++id) {
    const std::string key = "job:12:" + std::to_string(id);
    backend_->run_command(1, {"HDEL", "mj:claim:" + key, "turn"});
    backend_->run_command(1, {"LPUSH", "mj:held:db", key});
  }
  TickRequest small;
  small.max_entries = 3;
  EXPECT_TRUE(tick(small).has_more) << "one step moves only a part of the list";
  EXPECT_FALSE(tick(small).has_more);
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:held:db", "mj:anomalies"}).number(), 0U);
  EXPECT_THAT(claim_keys(), IsEmpty()) << "the jobs are held again";
  for (Id id = 1; id <= 4; ++id) {
    finish(id);
    EXPECT_THAT(claim_keys(), ElementsAre("job:12:" + std::to_string(id + 1)));
  }
}

TEST_P(Dispatch, ForeignListInPlaceOfHeldJobsIsKept) {
  backend_->run_command(1, {"SADD", "mj:held-concurrency-keys", "db"});
  backend_->run_command(1, {"LPUSH", "mj:held:db", "oops"});
  tick();
  EXPECT_EQ(backend_->run_command(1, {"LLEN", "mj:held:db"}).number(), 1U);
  EXPECT_THAT(last_anomaly(), HasSubstr("mj:held:db is a list where a zset belongs"));
}

TEST_P(Dispatch, RepeatedAnomalyIsStoredOnce) {
  for (int i = 0; i < 3; ++i) {
    backend_->run_command(1, {"SADD", "mj:held-concurrency-keys", "db"});
    backend_->run_command(1, {"SET", "mj:held:db", "oops"});
    tick();
  }
  EXPECT_EQ(backend_->run_command(1, {"XLEN", "mj:anomalies"}).number(), 1U);
}

TEST_P(Dispatch, StaleWaitLimitEndsNoRun) {
  submit(1);
  claim_keys();
  backend_->run_command(1, {"ZADD", "mj:queue-deadlines", "1", "job:12:1"});
  EXPECT_EQ(tick().timed_out, 0U);
  EXPECT_EQ(place(1).claim.state, "live");
  EXPECT_EQ(backend_->run_command(1, {"EXISTS", "mj:queue-deadlines"}).number(), 0U);
  finish(1);
}

TEST_P(Dispatch, RetentionWaitsForTheAnswerToAMessage) {
  submit(1);
  claim_keys();
  finish(1);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "awaited", "message:12:1"});
  for (const char* answer : {"wanted", "due"}) {
    backend_->run_command(1, {"HSET", "mj:message:message:12:1", "answer", answer});
    EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "conflict") << answer;
  }
  backend_->run_command(1, {"HSET", "mj:message:message:12:1", "answer", "given"});
  EXPECT_EQ(outcome(store_->delete_record(1, "job:12:1")), "ok");
}

TEST_P(Dispatch, ApprovalIsNotMatchedByALongerName) {
  submit_with(1, [](Job& j) { j.prerequisites = {"approval:release"}; });
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_FALSE(store_->answer_prerequisite(1, "job:12:1", {"rel", true, 3, ""}));
  EXPECT_EQ(status(1), "waiting_for_prerequisites");
  EXPECT_FALSE(store_->answer_prerequisite(1, "job:12:1", {"rel", false, 3, ""}));
  EXPECT_EQ(status(1), "waiting_for_prerequisites");
  EXPECT_TRUE(store_->answer_prerequisite(1, "job:12:1", {"release", true, 3, ""}));
}

TEST_P(Dispatch, AgentsLeavePrerequisitesToACoordinator) {
  submit_with(1, [](Job& j) { j.prerequisites = {"file:/nowhere"}; });
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(store_->due_prerequisites(1, 10, 0, CheckerRole::agent).value().size(), 1U);
  EXPECT_EQ(store_->due_prerequisites(1, 10, 0, CheckerRole::coordinator).value().size(), 1U);
  EXPECT_THAT(store_->due_prerequisites(1, 10, 0, CheckerRole::agent).value(), IsEmpty());
  EXPECT_EQ(store_->due_prerequisites(1, 10, 0, CheckerRole::coordinator).value().size(), 1U);
}

TEST_P(Dispatch, JournalContinuesAfterRetiredFacts) {
  submit(1);
  claim_keys();
  finish(1);
  TickRequest request;
  request.retention = Retention::same_for_all(1);
  EXPECT_TRUE(eventually([&] { return tick(request).retired == 1; }));
  submit(2);
  const auto facts = store_->journal(1, "queue:python", 0, 10).value();
  ASSERT_EQ(facts.size(), 1U);
  EXPECT_EQ(facts[0].revision, 4U);
}

TEST_P(Dispatch, RetentionByCountKeepsTheLatest) {
  for (Id id = 1; id <= 5; ++id) submit(id);
  claim_keys();
  for (Id id = 1; id <= 5; ++id) finish(id);
  TickRequest request;
  request.retention = Retention::same_for_all(0);
  request.retention_count = 2;
  EXPECT_EQ(tick(request).retired, 3U);
  EXPECT_EQ(store_->keys(1, "job:", 10).value().size(), 2U);
}

TEST_P(Dispatch, OperatorRetriesAFailedJob) {
  submit(1);
  submit(2);
  submit(3);
  claim_keys();
  EXPECT_EQ(outcome(end(claimed_.at("job:12:1").ref, failed())), "ok");
  finish(2);
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:2")), "conflict") << "it has finished";
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:3")), "conflict") << "it runs";
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:9")), "not_found");
  const auto has_claim_field = [&](const std::string& name) {
    return backend_->run_command(1, {"HEXISTS", "mj:claim:job:12:1", name}).number() == 1;
  };
  const std::vector<std::string> lease_fields{"until_ms", "began", "lease_ms"};
  for (const std::string& name : lease_fields) EXPECT_TRUE(has_claim_field(name)) << name << " describes the last run";
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "ok");
  for (const std::string& name : lease_fields) EXPECT_FALSE(has_claim_field(name)) << name;
  EXPECT_EQ(outcome(end(claimed_.at("job:12:1").ref, failed())), "stale_claim");
  const ClaimedJob again = claim_one();
  EXPECT_EQ(again.ref.job_key, "job:12:1");
  EXPECT_EQ(again.attempt, 2U);
  EXPECT_EQ(outcome(report(LogAppend{again.ref, {{1, 1, LogStream::out, "again"}}})), "ok");
  EXPECT_FALSE(store_->logs(1, "job:12:1", 0, 100, 0).value().ended);
  EXPECT_EQ(outcome(end(again.ref, finished())), "ok");
  EXPECT_TRUE(store_->logs(1, "job:12:1", 0, 100, 0).value().ended);
  EXPECT_THAT(get_fact_kinds(1), ElementsAre("scheduled", "claimed", "failed", "requeued", "claimed", "completed"));
}

TEST_P(Dispatch, CancelledJobNeverReturns) {
  submit(1);
  ASSERT_TRUE(store_->cancel(1, "job:12:1").has_value());
  EXPECT_EQ(outcome(store_->requeue(1, "job:12:1")), "conflict");
  EXPECT_THAT(claim_keys(), IsEmpty());
}

TEST_P(Dispatch, DeadLetterIsRequeuedOrDropped) {
  submit(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(outcome(report(Release{claim_one().ref, "killed"})), "ok");
  EXPECT_THAT(claim_keys(), IsEmpty());
  EXPECT_EQ(detail(1), "dead_letter");
  const auto letters = store_->dead_letters(1, 10).value();
  ASSERT_EQ(letters.size(), 1U);
  EXPECT_EQ(letters[0].reason, "crash_loop");
  EXPECT_EQ(outcome(store_->resolve_dead_letter(1, letters[0].id, true)), "ok");
  EXPECT_THAT(store_->dead_letters(1, 10).value(), IsEmpty());
  EXPECT_EQ(outcome(store_->resolve_dead_letter(1, letters[0].id, true)), "not_found");
  EXPECT_EQ(outcome(store_->resolve_dead_letter(1, "x", true)), "invalid");
  const ClaimedJob again = claim_one();
  EXPECT_EQ(again.deliveries, 1U);
  EXPECT_EQ(outcome(end(again.ref, finished())), "ok");
  backend_->push(1, "queue:python", "nonsense");
  EXPECT_THAT(claim_keys(), IsEmpty());
  const auto more = store_->dead_letters(1, 10).value();
  ASSERT_EQ(more.size(), 1U);
  EXPECT_EQ(outcome(store_->resolve_dead_letter(1, more[0].id, true)), "conflict");
  EXPECT_EQ(outcome(store_->resolve_dead_letter(1, more[0].id, false)), "ok");
}

TEST_P(Dispatch, PurgeCancelsTheJobsOfAQueue) {
  submit(1);
  submit_with(2, [](Job& j) { j.priority = 9; });
  push_plain(3, {});
  backend_->push(1, "queue:python", "nonsense");
  EXPECT_EQ(store_->purge_queue(1, "queue:python", 2).value(), 2U);
  EXPECT_EQ(store_->purge_queue(1, "queue:python", 10).value(), 2U);
  EXPECT_EQ(store_->purge_queue(1, "queue:python", 10).value(), 0U);
  for (Id id : {1, 2, 3}) EXPECT_EQ(detail(id), "cancelled") << id;
  EXPECT_THAT(claim_keys(), IsEmpty());
}

TEST_P(Dispatch, StoppedInstanceReturnsItsJobsAtOnce) {
  submit(1);
  submit(2);
  ClaimRequest claim = request(1);
  claim.instance = "old";
  ASSERT_EQ(store_->claim(claim).value().jobs.size(), 1U);
  claim.instance = "new";
  ASSERT_EQ(store_->claim(claim).value().jobs.size(), 1U);
  EXPECT_THAT(store_->expire_instance(1, 21, "old").value(), IsEmpty()) << "the instance belongs to another runner";
  EXPECT_THAT(store_->expire_instance(1, 20, "").value(), IsEmpty());
  EXPECT_THAT(store_->expire_instance(1, 20, "old").value(), ElementsAre("job:12:1"));
  const ClaimedJob again = claim_one();
  EXPECT_EQ(again.ref.job_key, "job:12:1");
  EXPECT_EQ(again.deliveries, 2U);
}

TEST_P(Dispatch, ClaimWhoseEndIsSavedOutlivesItsInstance) {
  submit(1);
  ClaimRequest claim = request(1);
  claim.instance = "old";
  const ClaimRef saved = store_->claim(claim).value().jobs.at(0).ref;
  const Report update = DetailUpdate{saved, "artifact_store", "the storage is away", true};
  ASSERT_TRUE(store_->report(1, {&update, 1}).value().at(0));
  EXPECT_EQ(detail(1), "artifact_store");
  EXPECT_THAT(store_->expire_instance(1, 20, "old").value(), IsEmpty());
  EXPECT_EQ(store_->renew(1, {&saved, 1}, 30000).value().at(0), Renewal::renewed);
}

TEST_P(Dispatch, NewClaimHasNoSavedEnd) {
  submit(1);
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "end_saved", "1", "mark_reason", "away", "mark_since", "1"});
  ClaimRequest claim = request(1);
  claim.instance = "old";
  ASSERT_THAT(store_->claim(claim).value().jobs, testing::SizeIs(1));
  EXPECT_THAT(store_->expire_instance(1, 20, "old").value(), testing::SizeIs(1));
}

TEST_P(Dispatch, ContextWithNamedExecutorsServesOnlyThem) {
  submit(1);
  ClaimRequest claim = request(1);
  const auto claim_as = [&](std::optional<Id> actor) {
    claim.actor = actor;
    const auto claimed = store_->claim(claim);
    return claimed ? std::to_string(claimed->jobs.size()) : claimed.error().message;
  };
  ASSERT_TRUE(store_->save(1, "context:1", {{"id", "1"}, {"admins", "[12]"}, {"executors", "[114,14]"}}));
  const std::string runner = "runner:" + std::to_string(claim.runner);
  backend_->run_command(1, {"HSET", runner, "id", std::to_string(claim.runner)});
  EXPECT_THAT(claim_as(0), testing::HasSubstr("runner_actor"));
  EXPECT_THAT(claim_as(4), testing::HasSubstr("context grant 1 --executor 4"))
      << "the id 4 is only a part of the granted ids";
  EXPECT_THAT(claim_as(11), testing::HasSubstr("may not run jobs in context 1"));
  EXPECT_EQ(store_->claim(claim).error().code, Code::denied);
  EXPECT_NE(field(runner, "refused_ms"), "")
      << "an agent without permission to write refusals notes the time in its runner record";
  const auto notes = store_->refusals(1, 10).value();
  ASSERT_EQ(notes.size(), 3U) << "each actor once a minute: 0, 4 and 11";
  EXPECT_EQ(notes[0].actor, 11U);
  EXPECT_EQ(notes[0].action, "run");
  EXPECT_EQ(notes[0].access_list, "executors");
  EXPECT_EQ(claim_as(14), "1");
  submit(2);
  EXPECT_EQ(claim_as(12), "1") << "an admin";
  submit(3);
  EXPECT_EQ(claim_as(std::nullopt), "1") << "the operator's own";
  submit(4);
  ASSERT_TRUE(store_->save(1, "context:1", {{"executors", "[]"}}));
  EXPECT_EQ(claim_as(0), "1") << "without a named agent, any agent may claim it";
}

TEST_P(Dispatch, MarkAddsDetailsToARun) {
  submit(1);
  claim_keys();
  EXPECT_EQ(outcome(report(DetailUpdate{claimed_.at("job:12:1").ref, "unkillable"})), "ok");
  EXPECT_EQ(detail(1), "unkillable");
  EXPECT_EQ(status(1), "started");
  finish(1);
  EXPECT_EQ(outcome(report(DetailUpdate{claimed_.at("job:12:1").ref, "unkillable"})), "stale_claim");
}

TEST_P(Dispatch, SecondEntryOfAJobIsAnAnomaly) {
  submit_with(1, [](Job& j) { j.run_at_ms = 4102444800000; });
  submit(2);
  backend_->push(1, "queue:python", "job:12:1");
  backend_->push(1, "queue:other", "job:12:2");
  ClaimRequest claim = request(10);
  claim.queues = {"queue:other", "queue:python"};
  const auto claimed = store_->claim(claim).value();
  ASSERT_EQ(claimed.jobs.size(), 1U);
  EXPECT_EQ(claimed.jobs[0].queue, "queue:python");
  EXPECT_EQ(claimed.skipped_entries, 2U);
  EXPECT_EQ(detail(1), "delayed");
}

TEST_P(Dispatch, RepairFindsNothingInASoundStore) {
  submit(1);
  submit_with(2, [](Job& j) { j.dependends = {1}; });
  submit_with(3, [](Job& j) { j.concurrency_key = "db"; });
  submit_with(4, [](Job& j) { j.concurrency_key = "db"; });
  submit_with(5, [](Job& j) { j.run_at_ms = 4102444800000; });
  submit_with(6, [](Job& j) { j.priority = 2; });
  push_plain(7, {});
  submit_with(8, [](Job& j) { j.prerequisites = {"approval:x"}; });
  claim_keys(2);
  const auto found = rebuild(*store_, 1, true, {});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->jobs, 8U);
  EXPECT_THAT(found->differences, IsEmpty());
  const JobStoreState now = place(1);
  const Repair nothing{now.digest, now.claim.queue, 0, {}};
  EXPECT_TRUE(store_->repair(1, now.job_key, nothing).value()) << "the job has not changed since it was read";
}

// A repair is based on earlier data. If the job has changed state since, the whole repair is refused.
TEST_P(Dispatch, RepairLeavesAChangedJobUnchanged) {
  submit(1);
  const JobStoreState before = place(1);
  const JobFix record{JobFix::Kind::set_record, JobFix::JobIndex::none, {}, 0, {{"status", "error"}}};
  const Repair repair{before.digest,
                      before.claim.queue,
                      0,
                      {{JobFix::Kind::remove_from_index, JobFix::JobIndex::queue, before.claim.queue}, record}};
  claim_keys(1);
  EXPECT_FALSE(store_->repair(1, before.job_key, repair).value());
  EXPECT_EQ(field("job:12:1", "status"), "started");
  const JobStoreState now = place(1);
  EXPECT_TRUE(store_->repair(1, now.job_key, {now.digest, now.claim.queue, 0, {record}}).value());
  EXPECT_EQ(field("job:12:1", "status"), "error");
}

TEST_P(Dispatch, RepairedLeaseIsNotShortened) {
  submit(1);
  claim(1, 600000);
  const std::uint64_t until_ms = store_->leases(1).value().at(0).until_ms;
  backend_->run_command(1, {"HSET", "mj:claim:job:12:1", "lease_ms", "1000"});
  const JobStoreState now = place(1);
  EXPECT_TRUE(store_->repair(1, now.job_key, {now.digest, now.claim.queue, 0, {{JobFix::Kind::set_lease}}}).value());
  EXPECT_EQ(store_->leases(1).value().at(0).until_ms, until_ms);
}

MJ_BOTH_STORES(Dispatch);

}  // namespace
}  // namespace mycojobs
