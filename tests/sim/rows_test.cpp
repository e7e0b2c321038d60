// The fault cases of the dispatch: a small test for each case that no other test covers.
//
// Test of each case (C: tests/contract over both stores, P: CrashPoints, R: Sim.RandomSeedsHoldTheInvariants,
// here: below):
// clang-format off
//   wake-up before the intent                      C Claim.JobRunsWhenItsMissingRecordAppears, R pushes before the record
//   a restart finds visible work                   P every scenario, "a restart of the server, and grant"; R
//   scheduled twice, same content                  C Submit.SameIdWithTheSameContentIsTheSameJob; P replies of submit lost
//   scheduled twice, other content                 C Submit.SameId..., Dispatch.IdempotencyKeyRefersToTheFirstJob
//   only an ended lease offers the job             C Lease.*; P "expire"
//   an end fences work and claims                  C Claim.EndedJobIsNeverRunAgain; here LifecycleWrite...
//   claim before it is due                         C Dispatch.DelayedJobIsDueAtItsTime; P "delayed job"
//   takeover before expiry                         C Lease.LiveLeaseDoesNotExpire; here LeaseIsNotTakenOver...; Sim.ShorterLease...
//   heartbeat of another claim                     here LifecycleWriteNeedsTheLiveClaim
//   the expired owner reports                      C Lease.NoReportIsAcceptedAfterTheEnd; here LifecycleWrite...
//   completed twice                                C Reporting.RepeatedEnd...; here RepeatedCompletion...
//   completed, its wake-up lost                    here CompletionNeedsNoWakeUp; P "dependends of three" killed after report
//   applied before it is completed                 here DependentDoesNotRunBefore...
//   stale completion                               C Lease.StaleTokenCannotComplete; P "stopped for longer than its lease"
//   a claim reopens a finished attempt             C Claim.ForgedRecordCannotReopenAnEndedJob; R pushes twice
//   a retry across a restart                       P "failure with a retry"; here RetrySurvivesARestart
//   a stale failure schedules a retry              here StaleFailureSchedulesNoRetry
//   the notifier fails                             here FailedHint...; R servers that lose subscriptions
//   scheduling from a stale view                   here RequeueFromAStaleViewIsRejected, RepairFromAStaleView...
//   wrong queue                                    here EntryInAWrongQueueRunsNothing
//   two workers, one attempt                       C Claim.ManyClaimersGetEachJobOnce; here TwoEntriesAreOneAttempt
//   ended after it was read                        here RepairFromAStaleViewWritesNothing
//   a bad lifecycle write                          here LifecycleWriteNeedsTheLiveClaim
//   order of recovery                              here RepeatedRecovery...; P with another agent
//   recovery twice                                 here RepeatedRecovery...; P second crash during the recovery
//   a stale revision writes nothing                here RepairFromAStaleView...; C Lease.RenewedLeaseDoesNotExpire
//   two appends at one revision                    here TwoWritersNeverShareARevision
//   a foreign fact in a journal                    here ForeignFactStopsNothing; unit tests of verify
//   killed after the completion                    P every scenario, "killed after" its report
//   killed after the failure                       P "failure with a retry", "failure to the last"
//   a retry doubled                                here RepeatedFailureIsOneRetry; P replies of reports lost
//   cancel between claim and run; a completion after it here CancelBetween...; P "cancel while live"
//   the lease is judged at the end                 here LeaseIsCheckedWhenTheEndArrives
//   worker killed mid-job                          P "expire", every scenario; R
//   reply lost                                     P every scenario; R
//   stopped past the lease                         P "an agent that is stopped for longer than its lease"; R
//   skewed clocks                                  R; here LeaseIsNotTakenOver...
//   poison                                         P "dead letter by a crash loop"; R
// clang-format on
#include <gmock/gmock.h>

#include "rows.h"

namespace mycojobs::sim {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Any error in the claim prevents all writes.
TEST_F(FaultCases, LifecycleWriteNeedsTheLiveClaim) {
  submit(1);
  const ClaimedJob live = claim_one();
  ClaimRef other_token = live.ref, other_id = live.ref;
  other_token.token = std::string(64, '0');
  other_id.claim_id = "another";
  const auto expect_all_refused = [&](const ClaimRef& claim, const char* defect) {
    const std::string before = dump_store();
    const std::vector<Report> writes{LogAppend{claim, {{1, 1, LogStream::out, "line"}}},
                                     DetailUpdate{claim, "running"},
                                     EndReport{claim, make_failure_end(), 100},
                                     EndReport{claim, make_success_end()},
                                     Release{claim, "released"},
                                     Release{claim, "released", false}};
    for (const Report& write : writes) EXPECT_EQ(report(write), "stale_claim") << defect << ' ' << write.index();
    const std::vector<ClaimRef> claims{claim};
    EXPECT_THAT(store().renew(kContext, claims, kLeaseMs).value(), ElementsAre(Renewal::stale)) << defect;
    EXPECT_EQ(dump_store(), before) << defect;
  };
  expect_all_refused(other_token, "another token");
  expect_all_refused(other_id, "another claim");
  advance_time(kLeaseMs + 1);
  expect_all_refused(live.ref, "a lease that has ended");
  ASSERT_TRUE(expire(get_lease(1)));
  expect_all_refused(live.ref, "an expired claim");
  const ClaimedJob next = claim_one();
  EXPECT_GT(next.epoch, live.epoch);
  expect_all_refused(live.ref, "a claim that was taken over");
  ASSERT_EQ(report(EndReport{next.ref, make_failure_end()}), "ok");
  expect_all_refused(live.ref, "an ended job");
}

// The current lease counts, to the millisecond, not the lease at the time of the claim.
TEST_F(FaultCases, LeaseIsCheckedWhenTheEndArrives) {
  for (const Id id : {1, 2, 3}) submit(id);
  auto jobs = claim();
  ASSERT_EQ(jobs.size(), 3U);
  advance_time(kLeaseMs / 2);
  const std::vector<ClaimRef> claims{jobs[2].ref};
  ASSERT_THAT(store().renew(kContext, claims, kLeaseMs).value(), ElementsAre(Renewal::renewed));
  advance_time(kLeaseMs / 2);
  EXPECT_EQ(now(), get_lease(1).until_ms);
  EXPECT_EQ(report(EndReport{jobs[0].ref, make_failure_end()}), "ok") << "in the last millisecond of the lease";
  advance_time(1);
  EXPECT_EQ(report(EndReport{jobs[1].ref, make_failure_end()}), "stale_claim")
      << "one millisecond after the end of the lease";
  EXPECT_EQ(report(EndReport{jobs[2].ref, make_failure_end()}), "ok") << "the lease was renewed before it ended";
}

// The server's time alone does not suffice; see also Sim.ShorterLease...
TEST_F(FaultCases, LeaseIsNotTakenOverBeforeTheServerExpiresIt) {
  submit(1);
  claim_one();
  advance_time(kLeaseMs);
  EXPECT_FALSE(expire(get_lease(1)));
  EXPECT_EQ(get_claim_state(1), "live");
}

// The caller has observed the lease without renewal for a whole lease time; a longer remaining time is caused by the
// clock.
TEST_F(FaultCases, LeaseIsTakenOverAfterTheClockWentBack) {
  submit(1);
  claim_one();
  stage_.world.server_clock().shift_ms = -600000;
  advance_time(kLeaseMs);
  EXPECT_TRUE(expire(get_lease(1)));
  EXPECT_EQ(get_claim_state(1), "queued");
}

// A renewal must be visible to observers, even while the lease ends later than a lease time from now.
TEST_F(FaultCases, RenewalIsSeenAfterTheClockWentBack) {
  submit(1);
  const ClaimedJob job = claim_one();
  const std::uint64_t before = get_lease(1).until_ms;
  stage_.world.server_clock().shift_ms = -60000;
  const std::vector<ClaimRef> claims{job.ref};
  ASSERT_THAT(store().renew(kContext, claims, kLeaseMs).value(), ElementsAre(Renewal::renewed));
  EXPECT_GT(get_lease(1).until_ms, before);
}

TEST_F(FaultCases, RepeatedCompletionIsWrittenOnce) {
  submit(1);
  const ClaimedJob job = claim_one();
  ASSERT_EQ(report(EndReport{job.ref, make_failure_end()}), "ok");
  const std::string before = dump_store();
  advance_time(5000);
  EXPECT_EQ(report(EndReport{job.ref, make_failure_end()}), "ok");
  EXPECT_EQ(finish(job), "conflict");
  EXPECT_EQ(report(EndReport{job.ref, make_failure_end(), 0}), "ok") << "an ended job is not retried";
  EXPECT_EQ(dump_store(), before);
}

// Dependent jobs move in the same step as the end of their dependency, without a notification.
TEST_F(FaultCases, CompletionNeedsNoWakeUp) {
  submit(1);
  submit(2, [](Job& j) { j.dependends = {1}; });
  const ClaimedJob job = claim_one();
  EXPECT_THAT(claim(), IsEmpty());
  ASSERT_EQ(finish(job), "ok");
  EXPECT_EQ(claim_one().ref.job_key, make_job_key(2));
}

TEST_F(FaultCases, DependentDoesNotRunBeforeItsDependencyEnds) {
  submit(2, [](Job& j) { j.dependends = {1}; });
  EXPECT_THAT(claim(), IsEmpty());
  submit(1);
  const ClaimedJob first = claim_one();
  EXPECT_EQ(first.ref.job_key, make_job_key(1));
  run_command({"HSET", make_job_key(1), "status", "finished"});  // the record alone does not end the job
  tick();
  EXPECT_THAT(claim(), IsEmpty());
  ASSERT_EQ(report(EndReport{first.ref, make_failure_end(), 100}), "ok");
  EXPECT_THAT(claim(), IsEmpty()) << "an attempt of the dependency has failed, but a retry follows";
  EXPECT_EQ(get_claim_state(2), "waiting");
}

TEST_F(FaultCases, RetrySurvivesARestart) {
  submit(1);
  ASSERT_EQ(report(EndReport{claim_one().ref, make_failure_end(), 5000}), "ok");
  const auto due = get_job_state(1).due_ms;
  stage_.world.restart_server(1000);
  advance_time(2000);
  EXPECT_EQ(tick().queued, 0U);
  EXPECT_EQ(get_job_state(1).due_ms, due);
  advance_time(3000);
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_EQ(claim_one().attempt, 2U);
}

TEST_F(FaultCases, StaleFailureSchedulesNoRetry) {
  submit(1);
  const ClaimedJob first = claim_one();
  advance_time(kLeaseMs + 1);
  ASSERT_TRUE(expire(get_lease(1)));
  EXPECT_EQ(report(EndReport{first.ref, make_failure_end(), 0}), "stale_claim");
  EXPECT_EQ(get_claim_state(1), "queued");
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.attempt, 1U);
  EXPECT_EQ(second.deliveries, 2U);
  EXPECT_EQ(report(EndReport{first.ref, make_failure_end(), 0}), "stale_claim");
  EXPECT_EQ(get_claim_state(1), "live");
}

// The owner is notified by the next heartbeat.
TEST_F(FaultCases, FailedHintDoesNotStopACancel) {
  submit(1);
  const ClaimedJob job = claim_one();
  run_command({"SET", "runner:1", "somebody else's"});
  EXPECT_EQ(get_error_code(store().cancel(kContext, make_job_key(1))), "ok");
  const std::vector<ClaimRef> claims{job.ref};
  EXPECT_THAT(store().renew(kContext, claims, kLeaseMs).value(), ElementsAre(Renewal::cancel));
}

}  // namespace
}  // namespace mycojobs::sim
