// More rows of the table in rows_test.cpp: stale views, duplicate entries, recovery.
#include <gmock/gmock.h>

#include <algorithm>

#include "rows.h"

namespace mycojobs::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(Rows, RequeueFromAStaleViewIsRejected) {
  submit(1);
  const ClaimedJob first = claim_one();
  ASSERT_EQ(report(EndReport{first.ref, failed()}), "ok");
  ASSERT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "ok");
  const std::string before = picture();
  EXPECT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "conflict")
      << "another operator has seen it fail, too";
  EXPECT_EQ(picture(), before);
  ASSERT_EQ(finish(claim_one()), "ok");
  EXPECT_EQ(get_error_code(store().requeue(kContext, make_job_key(1))), "conflict");
}

// The facts of the view are outdated.
TEST_F(Rows, RepairFromAStaleViewWritesNothing) {
  submit(1);
  const ClaimedJob job = claim_one();
  const JobStoreState seen = place(1);
  const JobFix live{JobFix::Kind::set_claim, JobFix::JobIndex::none, {}, 0, {{"state", "live"}}};
  const Repair stale{seen.digest, seen.claim.queue, seen.claim.revisions.back(), {live}};
  ASSERT_EQ(report(EndReport{job.ref, failed()}), "ok");
  const std::string before = picture();
  const auto reply = store().repair(kContext, make_job_key(1), stale);
  ASSERT_TRUE(reply.has_value());
  EXPECT_FALSE(*reply) << "it has moved";
  EXPECT_EQ(picture(), before);
  EXPECT_EQ(state(1), "ended");
}

TEST_F(Rows, EntryInAWrongQueueRunsNothing) {
  submit(1);
  stage_.world.server().push(kContext, "queue:other", make_job_key(1));
  EXPECT_THAT(claim(64, {"queue:other"}), IsEmpty());
  EXPECT_EQ(state(1), "queued");
  const ClaimedJob job = claim_one();
  EXPECT_EQ(job.queue, "queue:sim");
  stage_.world.server().push(kContext, "queue:other", make_job_key(1));
  EXPECT_THAT(claim(64, {"queue:other"}), IsEmpty());
  EXPECT_EQ(report(EndReport{job.ref, failed()}), "ok");
}

TEST_F(Rows, TwoEntriesAreOneAttempt) {
  submit(1);
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  EXPECT_EQ(claim(1).size(), 1U);
  EXPECT_THAT(claim(1), IsEmpty());
  EXPECT_EQ(place(1).claim.deliveries, 1U);
}

TEST_F(Rows, TwoEntriesOfAPriorityJobAreOneAttempt) {
  submit(1, [](Job& j) { j.priority = 5, j.dependends = {2}; });
  submit(2);
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  std::vector<ClaimedJob> first = claim();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_THAT(violations(store()), IsEmpty());
  ASSERT_EQ(finish(first[0]), "ok");
  EXPECT_EQ(claim().size(), 1U);
  EXPECT_THAT(claim(), IsEmpty());
}

// A parked job with a priority is removed from the priority set and from the list, even if an entry of the list was
// claimed.
TEST_F(Rows, ParkedJobIsInOneIndex) {
  submit(1, [](Job& j) { j.priority = -5, j.dependends = {2}; });
  stage_.world.server().push(kContext, "queue:sim", make_job_key(1));
  EXPECT_THAT(claim(), IsEmpty());
  EXPECT_EQ(state(1), "waiting");
  EXPECT_FALSE(place(1).in_priority_index);
}

// The recovery steps of a job, in any order and repeated, requeue the job once.
TEST_F(Rows, RepeatedRecoveryInAnyOrderDeliversOnce) {
  std::vector<int> order{0, 1, 2, 3};
  Id id = 0;
  do {
    submit(++id);
    claim_one();
    pass(kLease + 1);
    const Lease lease = get_lease(id);
    const auto step = [&](int which) {
      if (which == 0) expire(lease);
      if (which == 1) {
        EXPECT_TRUE(store().expire_instance(kContext, 1, "one").has_value());
      }
      if (which == 2) tick();
      if (which == 3) {
        EXPECT_EQ(get_error_code(store().cancel(kContext, "job:12:999")), "not_found");
      }
    };
    for (const int which : order) step(which);
    for (const int which : order) step(which);
    EXPECT_EQ(state(id), "queued");
    EXPECT_EQ(store().queue_length(kContext, "queue:sim").value(), 1U);
    EXPECT_THAT(facts(id), ElementsAre("scheduled", "claimed", "expired"));
    const ClaimedJob again = claim_one();
    EXPECT_EQ(again.deliveries, 2U);
    EXPECT_EQ(report(EndReport{again.ref, failed()}), "ok");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(Rows, TwoWritersNeverShareARevision) {
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
TEST_F(Rows, ForeignFactStopsNothing) {
  submit(1);
  run_command({"XADD", "mj:journal:queue:sim", "7-3", "f", "nonsense", "j", "nobody"});
  const ClaimedJob job = claim_one();
  EXPECT_EQ(report(EndReport{job.ref, failed()}), "ok");
  EXPECT_THAT(place(1).claim.revisions, ElementsAre(1, 8, 9));
  EXPECT_FALSE(violations(store()).empty()) << "and verify names it";
  run_command({"XDEL", "mj:journal:queue:sim", "7-3"});
}

TEST_F(Rows, RepeatedFailureIsOneRetry) {
  submit(1);
  const ClaimedJob first = claim_one();
  const Report failure = EndReport{first.ref, failed(), 100};
  ASSERT_EQ(report(failure), "ok");
  pass(100);
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_EQ(report(failure), "ok") << "its reply was lost; it is the same failure";
  EXPECT_EQ(state(1), "queued");
  EXPECT_EQ(store().queue_length(kContext, "queue:sim").value(), 1U);
  EXPECT_EQ(claim_one().attempt, 2U);
  EXPECT_EQ(report(failure), "stale_claim");
  EXPECT_THAT(facts(1), ElementsAre("scheduled", "claimed", "retry", "queued", "claimed"));
}

// A job cancelled between claim and run need not run; an end that the owner reports without knowing of the request is
// accepted.
TEST_F(Rows, CancelBetweenClaimAndRunIsReportedByTheOwner) {
  submit(1);
  submit(2);
  const auto jobs = claim();
  ASSERT_EQ(jobs.size(), 2U);
  for (const Id id : {1, 2}) ASSERT_EQ(get_error_code(store().cancel(kContext, make_job_key(id))), "ok");
  EXPECT_EQ(report(EndReport{jobs[0].ref, failed(), 100}), "ok");
  EXPECT_EQ(state(1), "ended") << "a request to cancel forbids another attempt";
  ASSERT_EQ(report(Release{jobs[1].ref, "could not be started", false}), "ok");
  EXPECT_EQ(field(2, "detail"), "cancelled");
  EXPECT_EQ(report(EndReport{jobs[1].ref, finished()}), "stale_claim") << "a completion after the cancel";
  EXPECT_EQ(field(2, "detail"), "cancelled");
  EXPECT_THAT(claim(), IsEmpty());
}

// A submitted job does not vanish with its record.
TEST_F(Rows, QueuedJobWithADeletedRecordIsNotForgotten) {
  submit(1);
  run_command({"DEL", make_job_key(1)});
  EXPECT_THAT(claim(), IsEmpty());
  pass(10000);
  tick();
  EXPECT_EQ(state(1), "ended");
  EXPECT_EQ(store().dead_letters(kContext, 10).value().size(), 1U);
}

}  // namespace
}  // namespace mycojobs::sim
