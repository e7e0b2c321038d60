// More rows of the table in rows_test.cpp: stale views, duplicate entries, recovery.
#include <gmock/gmock.h>

#include <algorithm>

#include "rows.h"

namespace mycojobs::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(FaultCases, RequeueFromAStaleViewIsRejected) {
  submit(1);
  const ClaimedJob first = claim_one();
  ASSERT_EQ(report(EndReport{first.ref, make_failure_end()}), "ok");
  ASSERT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "ok");
  const std::string before = dump_store();
  EXPECT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "conflict")
      << "another operator has requeued the job already";
  EXPECT_EQ(dump_store(), before);
  ASSERT_EQ(finish(claim_one()), "ok");
  EXPECT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "conflict");
}

// The facts of the view are outdated.
TEST_F(FaultCases, RepairFromAStaleViewWritesNothing) {
  submit(1);
  const ClaimedJob job = claim_one();
  const JobStoreState stale_state = get_job_state(1);
  const JobFix live{JobFix::Kind::set_claim, JobFix::JobIndex::none, {}, 0, {{"state", "live"}}};
  const Repair stale{stale_state.digest, stale_state.claim.queue, stale_state.claim.revisions.back(), {live}};
  ASSERT_EQ(report(EndReport{job.ref, make_failure_end()}), "ok");
  const std::string before = dump_store();
  const auto reply = store().repair(kContext, make_job_key(1), stale);
  ASSERT_TRUE(reply.has_value());
  EXPECT_FALSE(*reply) << "the job has changed since it was read";
  EXPECT_EQ(dump_store(), before);
  EXPECT_EQ(get_claim_state(1), "ended");
}

TEST_F(FaultCases, EntryInAWrongQueueRunsNothing) {
  submit(1);
  stage_.world.server().push(kContext, "queue:other", make_job_key(1));
  EXPECT_THAT(claim(64, {"queue:other"}), IsEmpty());
  EXPECT_EQ(get_claim_state(1), "queued");
  const ClaimedJob job = claim_one();
  EXPECT_EQ(job.queue, "queue:sim");
  stage_.world.server().push(kContext, "queue:other", make_job_key(1));
  EXPECT_THAT(claim(64, {"queue:other"}), IsEmpty());
  EXPECT_EQ(report(EndReport{job.ref, make_failure_end()}), "ok");
}

TEST_F(FaultCases, TwoEntriesAreOneAttempt) {
  submit(1);
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  EXPECT_EQ(claim(1).size(), 1U);
  EXPECT_THAT(claim(1), IsEmpty());
  EXPECT_EQ(get_job_state(1).claim.deliveries, 1U);
}

TEST_F(FaultCases, TwoEntriesOfAPriorityJobAreOneAttempt) {
  submit(1, [](Job& j) { j.priority = 5, j.dependends = {2}; });
  submit(2);
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  std::vector<ClaimedJob> first = claim();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_THAT(find_violations(store()), IsEmpty());
  ASSERT_EQ(finish(first[0]), "ok");
  EXPECT_EQ(claim().size(), 1U);
  EXPECT_THAT(claim(), IsEmpty());
}

// A parked job with a priority is removed from the priority set and from the list, even if an entry of the list was
// claimed.
TEST_F(FaultCases, ParkedJobIsInOneIndex) {
  submit(1, [](Job& j) { j.priority = -5, j.dependends = {2}; });
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  EXPECT_THAT(claim(), IsEmpty());
  EXPECT_EQ(get_claim_state(1), "waiting");
  EXPECT_FALSE(get_job_state(1).in_priority_index);
}

// The recovery steps of a job, in any order and repeated, requeue the job once.
TEST_F(FaultCases, RepeatedRecoveryInAnyOrderDeliversOnce) {
  std::vector<int> order{0, 1, 2, 3};
  Id id = 0;
  do {
    submit(++id);
    claim_one();
    advance_time(kLeaseMs + 1);
    const Lease lease = get_lease(id);
    const auto run_step = [&](int step) {
      if (step == 0) expire(lease);
      if (step == 1) {
        EXPECT_TRUE(store().expire_instance(kContext, 1, "one").has_value());
      }
      if (step == 2) tick();
      if (step == 3) {
        EXPECT_EQ(get_error_code(store().cancel(kContext, "job:12:999")), "not_found");
      }
    };
    for (const int step : order) run_step(step);
    for (const int step : order) run_step(step);
    EXPECT_EQ(get_claim_state(id), "queued");
    EXPECT_EQ(store().queue_length(kContext, "queue:sim").value(), 1U);
    EXPECT_THAT(list_fact_kinds(id), ElementsAre("scheduled", "claimed", "expired"));
    const ClaimedJob reclaimed = claim_one();
    EXPECT_EQ(reclaimed.deliveries, 2U);
    EXPECT_EQ(report(EndReport{reclaimed.ref, make_failure_end()}), "ok");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(FaultCases, TwoWritersNeverShareARevision) {
  auto other = stage_.world.server().open().value();
  for (Id id = 1; id <= 20; ++id) {
    Store& writer = id % 2 == 0 ? store() : *other;
    ASSERT_TRUE(writer.submit(Stage::job(id, "ok 1")).has_value());
  }
  const auto all = store().journal(kContext, "queue:sim", 0, 100).value();
  ASSERT_EQ(all.size(), 20U);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].revision, i + 1);
}

// A fact appended by another client is skipped; later revisions follow it.
TEST_F(FaultCases, ForeignFactStopsNothing) {
  submit(1);
  run_command({"XADD", "mj:journal:queue:sim", "7-3", "f", "nonsense", "j", "nobody"});
  const ClaimedJob job = claim_one();
  EXPECT_EQ(report(EndReport{job.ref, make_failure_end()}), "ok");
  EXPECT_THAT(get_job_state(1).claim.revisions, ElementsAre(1, 8, 9));
  EXPECT_FALSE(find_violations(store()).empty()) << "verify must report the foreign fact";
  run_command({"XDEL", "mj:journal:queue:sim", "7-3"});
}

TEST_F(FaultCases, RepeatedFailureIsOneRetry) {
  submit(1);
  const ClaimedJob first = claim_one();
  const Report failure = EndReport{first.ref, make_failure_end(), 100};
  ASSERT_EQ(report(failure), "ok");
  advance_time(100);
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_EQ(report(failure), "ok") << "a repeated report of the same failure is accepted";
  EXPECT_EQ(get_claim_state(1), "queued");
  EXPECT_EQ(store().queue_length(kContext, "queue:sim").value(), 1U);
  EXPECT_EQ(claim_one().attempt, 2U);
  EXPECT_EQ(report(failure), "stale_claim");
  EXPECT_THAT(list_fact_kinds(1), ElementsAre("scheduled", "claimed", "retry", "queued", "claimed"));
}

// A job cancelled between claim and run need not run; an end that the owner reports without knowing of the request is
// accepted.
TEST_F(FaultCases, CancelBetweenClaimAndRunIsReportedByTheOwner) {
  submit(1);
  submit(2);
  const auto jobs = claim();
  ASSERT_EQ(jobs.size(), 2U);
  for (const Id id : {1, 2}) ASSERT_EQ(get_error_code(store().cancel(kContext, make_job_key(id))), "ok");
  EXPECT_EQ(report(EndReport{jobs[0].ref, make_failure_end(), 100}), "ok");
  EXPECT_EQ(get_claim_state(1), "ended") << "a request to cancel forbids another attempt";
  ASSERT_EQ(report(Release{jobs[1].ref, "could not be started", false}), "ok");
  EXPECT_EQ(field(2, "detail"), "cancelled");
  EXPECT_EQ(report(EndReport{jobs[1].ref, make_success_end()}), "stale_claim") << "a completion after the cancel";
  EXPECT_EQ(field(2, "detail"), "cancelled");
  EXPECT_THAT(claim(), IsEmpty());
}

// A submitted job does not vanish with its record.
TEST_F(FaultCases, QueuedJobWithADeletedRecordIsNotForgotten) {
  submit(1);
  run_command({"DEL", make_job_key(1)});
  EXPECT_THAT(claim(), IsEmpty());
  advance_time(10000);
  tick();
  EXPECT_EQ(get_claim_state(1), "ended");
  EXPECT_EQ(store().dead_letters(kContext, 10).value().size(), 1U);
}

}  // namespace
}  // namespace mycojobs::sim
