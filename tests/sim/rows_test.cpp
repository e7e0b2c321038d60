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
TEST_F(Rows, LifecycleWriteNeedsTheLiveClaim) {
  submit(1);
  const ClaimedJob live = claim_one();
  ClaimRef other_token = live.ref, other_id = live.ref;
  other_token.token = std::string(64, '0');
  other_id.claim_id = "another";
  const auto all_refused = [&](const ClaimRef& claim, const char* wrong) {
    const std::string before = picture();
    const std::vector<Report> writes{LogAppend{claim, {{1, 1, LogStream::out, "line"}}},
                                     DetailUpdate{claim, "running"},
                                     EndReport{claim, failed(), 100},
                                     EndReport{claim, finished()},
                                     Release{claim, "released"},
                                     Release{claim, "released", false}};
    for (const Report& write : writes) EXPECT_EQ(report(write), "stale_claim") << wrong << ' ' << write.index();
    const std::vector<ClaimRef> claims{claim};
    EXPECT_THAT(store().renew(kContext, claims, kLease).value(), ElementsAre(Renewal::stale)) << wrong;
    EXPECT_EQ(picture(), before) << wrong;
  };
  all_refused(other_token, "another token");
  all_refused(other_id, "another claim");
  pass(kLease + 1);
  all_refused(live.ref, "a lease that has ended");
  ASSERT_TRUE(expire(get_lease(1)));
  all_refused(live.ref, "an expired claim");
  const ClaimedJob next = claim_one();
  EXPECT_GT(next.epoch, live.epoch);
  all_refused(live.ref, "a claim that was taken over");
  ASSERT_EQ(report(EndReport{next.ref, failed()}), "ok");
  all_refused(live.ref, "an ended job");
}

// The current lease counts, to the millisecond, not the lease at the time of the claim.
TEST_F(Rows, LeaseIsCheckedWhenTheEndArrives) {
  for (const Id id : {1, 2, 3}) submit(id);
  auto jobs = claim();
  ASSERT_EQ(jobs.size(), 3U);
  pass(kLease / 2);
  const std::vector<ClaimRef> claims{jobs[2].ref};
  ASSERT_THAT(store().renew(kContext, claims, kLease).value(), ElementsAre(Renewal::renewed));
  pass(kLease / 2);
  EXPECT_EQ(now(), get_lease(1).until_ms);
  EXPECT_EQ(report(EndReport{jobs[0].ref, failed()}), "ok") << "at its last moment";
  pass(1);
  EXPECT_EQ(report(EndReport{jobs[1].ref, failed()}), "stale_claim") << "a moment too late";
  EXPECT_EQ(report(EndReport{jobs[2].ref, failed()}), "ok") << "it was renewed meanwhile";
}

// The server's time alone does not suffice; see also Sim.ShorterLease...
TEST_F(Rows, LeaseIsNotTakenOverBeforeTheServerExpiresIt) {
  submit(1);
  claim_one();
  pass(kLease);
  EXPECT_FALSE(expire(get_lease(1)));
  EXPECT_EQ(state(1), "live");
}

// The caller has observed the lease without renewal for a whole lease time; a longer remaining time is caused by the
// clock.
TEST_F(Rows, LeaseIsTakenOverAfterTheClockWentBack) {
  submit(1);
  claim_one();
  stage_.world.server_clock().shift_ms = -600000;
  pass(kLease);
  EXPECT_TRUE(expire(get_lease(1)));
  EXPECT_EQ(state(1), "queued");
}

// A renewal must be visible to observers, even while the lease ends later than a lease time from now.
TEST_F(Rows, RenewalIsSeenAfterTheClockWentBack) {
  submit(1);
  const ClaimedJob job = claim_one();
  const std::uint64_t before = get_lease(1).until_ms;
  stage_.world.server_clock().shift_ms = -60000;
  const std::vector<ClaimRef> claims{job.ref};
  ASSERT_THAT(store().renew(kContext, claims, kLease).value(), ElementsAre(Renewal::renewed));
  EXPECT_GT(get_lease(1).until_ms, before);
}

TEST_F(Rows, RepeatedCompletionIsWrittenOnce) {
  submit(1);
  const ClaimedJob job = claim_one();
  ASSERT_EQ(report(EndReport{job.ref, failed()}), "ok");
  const std::string before = picture();
  pass(5000);
  EXPECT_EQ(report(EndReport{job.ref, failed()}), "ok");
  EXPECT_EQ(finish(job), "conflict");
  EXPECT_EQ(report(EndReport{job.ref, failed(), 0}), "ok") << "it has ended: no retry comes of it";
  EXPECT_EQ(picture(), before);
}

// Dependent jobs move in the same step as the end of their dependency, without a notification.
TEST_F(Rows, CompletionNeedsNoWakeUp) {
  submit(1);
  submit(2, [](Job& j) { j.dependends = {1}; });
  const ClaimedJob job = claim_one();
  EXPECT_THAT(claim(), IsEmpty());
  ASSERT_EQ(finish(job), "ok");
  EXPECT_EQ(claim_one().ref.job_key, make_job_key(2));
}

TEST_F(Rows, DependentDoesNotRunBeforeItsDependencyEnds) {
  submit(2, [](Job& j) { j.dependends = {1}; });
  EXPECT_THAT(claim(), IsEmpty());
  submit(1);
  const ClaimedJob first = claim_one();
  EXPECT_EQ(first.ref.job_key, make_job_key(1));
  run_command({"HSET", make_job_key(1), "status", "finished"});  // the record alone does not end the job
  tick();
  EXPECT_THAT(claim(), IsEmpty());
  ASSERT_EQ(report(EndReport{first.ref, failed(), 100}), "ok");
  EXPECT_THAT(claim(), IsEmpty()) << "one of its attempts has failed, not the job";
  EXPECT_EQ(state(2), "waiting");
}

TEST_F(Rows, RetrySurvivesARestart) {
  submit(1);
  ASSERT_EQ(report(EndReport{claim_one().ref, failed(), 5000}), "ok");
  const auto due = place(1).due_ms;
  stage_.world.restart_server(1000);
  pass(2000);
  EXPECT_EQ(tick().queued, 0U);
  EXPECT_EQ(place(1).due_ms, due);
  pass(3000);
  EXPECT_EQ(tick().queued, 1U);
  EXPECT_EQ(claim_one().attempt, 2U);
}

TEST_F(Rows, StaleFailureSchedulesNoRetry) {
  submit(1);
  const ClaimedJob first = claim_one();
  pass(kLease + 1);
  ASSERT_TRUE(expire(get_lease(1)));
  EXPECT_EQ(report(EndReport{first.ref, failed(), 0}), "stale_claim");
  EXPECT_EQ(state(1), "queued");
  const ClaimedJob second = claim_one();
  EXPECT_EQ(second.attempt, 1U);
  EXPECT_EQ(second.deliveries, 2U);
  EXPECT_EQ(report(EndReport{first.ref, failed(), 0}), "stale_claim");
  EXPECT_EQ(state(1), "live");
}

// The owner is notified by the next heartbeat.
TEST_F(Rows, FailedHintDoesNotStopACancel) {
  submit(1);
  const ClaimedJob job = claim_one();
  run_command({"SET", "runner:1", "somebody else's"});
  EXPECT_EQ(get_error_code(store().cancel(kContext, make_job_key(1))), "ok");
  const std::vector<ClaimRef> claims{job.ref};
  EXPECT_THAT(store().renew(kContext, claims, kLease).value(), ElementsAre(Renewal::cancel));
}

}  // namespace
}  // namespace mycojobs::sim
