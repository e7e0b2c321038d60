// Valid and invalid histories of a job, and the result of the fold for each.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "jobs/dispatch_journal.h"
#include "unit/facts.h"

namespace mycojobs {
namespace {

std::string summary(const FoldedJob& job) {
  std::ostringstream out;
  out << to_string(job.state) << ' ' << to_string(job.status) << '/' << job.detail << " e" << job.epoch << " a"
      << job.attempt << " d" << job.deliveries << " ends" << job.terminal_fact_count << " lives" << job.life_count;
  if (!job.reason.empty()) out << ' ' << job.reason;
  return out.str();
}

struct Good {
  const char* claim;  // the behaviour that the row shows
  std::string facts, summary;
};

class ValidHistory : public testing::TestWithParam<Good> {};

TEST_P(ValidHistory, FoldsWithoutAProblem) {
  FoldedJob job;
  for (const Fact& each : parse_history(GetParam().facts)) {
    const auto problem = fold(job, each);
    EXPECT_FALSE(problem) << problem->text;
    EXPECT_EQ(job.status, to_job_status(job.state, job.status)) << "the status must match the state";
  }
  EXPECT_EQ(summary(job), GetParam().summary) << GetParam().claim;
  EXPECT_EQ(job.revisions.size(), parse_history(GetParam().facts).size());
}

const std::vector<Good> kGood{
    {"NothingYet", "", " dispatched/ e0 a0 d0 ends0 lives1"},
    {"F02AScheduledJobIsQueued", "scheduled", "queued dispatched/queued e0 a0 d0 ends0 lives1"},
    {"F07ADelayedOneIsNotYetClaimable", "scheduled due=9000", "delayed dispatched/delayed e0 a0 d0 ends0 lives1"},
    {"F07ClaimedOnceItIsDue", "scheduled due=9000;queued why=due;" + kA, "live started/claimed e5 a1 d1 ends0 lives1"},
    {"ABareJobBeginsWithItsClaim", kA, "live started/claimed e5 a1 d1 ends0 lives1"},
    {"F05AnExpiredLeaseOffersItAgain", "scheduled;" + kA + ";heartbeat c=A;expired c=A e=5",
     "queued dispatched/queued e5 a1 d1 ends0 lives1 expired"},
    {"F08TakeoverIsANewDeliveryWithAHigherEpoch", kA + ";expired c=A e=5;" + format_claim('B', 1, 2),
     "live started/claimed e6 a1 d2 ends0 lives1"},
    {"F11ACompletion", kA + ";" + format_completion('A'), "ended finished/ok e5 a1 d1 ends1 lives1"},
    {"AReleaseThatRanCounts", kA + ";released c=A why=lost d=1;" + format_claim('B', 1, 2),
     "live started/claimed e6 a1 d2 ends0 lives1"},
    {"AReleaseThatNeverRanDoesNot", kA + ";released c=A why=drain d=0",
     "queued dispatched/queued e5 a1 d0 ends0 lives1 released"},
    {"F16ARetryWaitsAndIsTheNextAttempt", kA + ";retry c=A e=5 detail=exit due=9000",
     "delayed dispatched/retry_wait e5 a2 d0 ends0 lives1 retry"},
    {"F16TheRetryIsClaimed", kA + ";retry c=A e=5 detail=exit due=9000;queued why=due;" + format_claim('B', 2, 1),
     "live started/claimed e6 a2 d1 ends0 lives1"},
    {"F44AFailedAttemptThatWasTheLast", kA + ";failed c=A e=5 detail=exit g=digest",
     "ended error/exit e5 a1 d1 ends1 lives1"},
    {"ParkedOnDependencies", "scheduled;parked why=dependencies",
     "waiting waiting_for_prerequisites/dependencies e0 a0 d0 ends0 lives1"},
    {"ReleasedByTheLastOfThem", "scheduled;parked why=dependencies;queued why=dependencies;parked why=prerequisite",
     "prerequisites waiting_for_prerequisites/prerequisite e0 a0 d0 ends0 lives1"},
    {"ABareJobIsParkedFirst", "parked why=dependencies;failed detail=dependency_failed",
     "ended error/dependency_failed e0 a0 d0 ends1 lives1"},
    {"HeldByItsKey", "scheduled;parked why=held", "held dispatched/held e0 a0 d0 ends0 lives1"},
    {"ABareJobWithARunAt", "parked why=delayed due=9000;queued why=due",
     "queued dispatched/queued e0 a0 d0 ends0 lives1"},
    {"DelayedForTheQuotaOfItsCaller", "scheduled;parked why=quota due=9000",
     "delayed dispatched/quota e0 a0 d0 ends0 lives1"},
    {"QueuedAgainOnceItsCallerKeepsLess", "scheduled;parked why=quota due=9000;queued why=due",
     "queued dispatched/queued e0 a0 d0 ends0 lives1"},
    {"F47CancelBetweenClaimAndEnd", kA + ";cancelled c=A e=5 g=digest detail=cancelled",
     "ended error/cancelled e5 a1 d1 ends1 lives1"},
    {"CancelledJobOfADeadOwner", kA + ";cancelled detail=cancelled", "ended error/cancelled e5 a1 d1 ends1 lives1"},
    {"CancelledWhileItWaited", "scheduled;parked why=held;cancelled", "ended error/cancelled e0 a0 d0 ends1 lives1"},
    {"ACrashLoop", kA + ";expired c=A e=5;dead_lettered why=crash_loop",
     "ended error/dead_letter e5 a1 d1 ends1 lives1"},
    {"ARecordThatItsOwnerCannotRead", kA + ";dead_lettered c=A e=5 g=digest why=bad_record",
     "ended error/dead_letter e5 a1 d1 ends1 lives1"},
    {"AnOperatorReopensADeadLetter", "scheduled;dead_lettered why=too_large;requeued a=2",
     "queued dispatched/queued e0 a2 d0 ends1 lives2 requeued"},
    {"ASecondLifeHasAnEndOfItsOwn",
     kA + ";failed c=A e=5 detail=exit g=digest;requeued a=2;" + format_claim('B', 2, 1) + ";" + format_completion('B'),
     "ended finished/ok e6 a2 d1 ends2 lives2"},
    {"APlannedJobWaitsForItsFlow", "planned fl=1_7", "planned waiting_for_prerequisites/planned e0 a0 d0 ends0 lives1"},
    {"ItsFlowQueuesIt", "planned fl=1_7;queued why=flow;" + kA, "live started/claimed e5 a1 d1 ends0 lives1"},
    {"ItsFlowRunsItItself", "planned fl=1_7;completed detail=ok", "ended finished/ok e0 a0 d0 ends1 lives1"},
    {"ItsFlowSkipsIt", "planned fl=1_7;failed detail=skipped", "ended error/skipped e0 a0 d0 ends1 lives1"},
    {"ItsFlowPlansItAgainAfterACancel", "planned fl=1_7;cancelled;replanned a=1;queued why=flow;" + kA,
     "live started/claimed e5 a1 d1 ends1 lives2"},
    {"ItsFlowPlansTheNextAttempt", kA + ";failed c=A e=5 detail=exit g=digest;replanned a=2",
     "planned waiting_for_prerequisites/planned e5 a2 d0 ends1 lives2"},
    {"RebuildReportsTheStateAfterLostFacts",
     kA + ";restored s=live detail=claimed c=B t=x e=7 a=1 d=2 r=20 l=1;completed c=B e=7 detail=ok g=digest",
     "ended finished/ok e7 a1 d2 ends1 lives2"},
    {"AndOfAnEndThatItIsOne", "scheduled;restored s=ended st=error detail=exit c=B t=x e=7 a=1 d=1 g=digest",
     "ended error/exit e7 a1 d1 ends1 lives2"},
    {"WordsOfLaterVersionsAreKeptOut", "scheduled colour=red", "queued dispatched/queued e0 a0 d0 ends0 lives1"},
};
INSTANTIATE_TEST_SUITE_P(Table, ValidHistory, testing::ValuesIn(kGood), [](const auto& i) { return i.param.claim; });

struct Bad {
  const char* claim;
  std::string facts;  // only the last fact is invalid
  std::string_view rule;
};

class InvalidHistory : public testing::TestWithParam<Bad> {};

TEST_P(InvalidHistory, LastFactIsAProblemAndChangesNothing) {
  FoldedJob job;
  const auto facts = parse_history(GetParam().facts);
  for (std::size_t i = 0; i + 1 < facts.size(); ++i) ASSERT_FALSE(fold(job, facts[i])) << facts[i].kind;
  FoldedJob before = job;
  const auto problem = fold(job, facts.back());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->rule, GetParam().rule) << problem->text;
  EXPECT_NE(problem->text.find("revision " + std::to_string(facts.size())), std::string::npos) << problem->text;
  before.terminal_fact_count = job.terminal_fact_count;
  EXPECT_EQ(summary(job), summary(before));
  EXPECT_EQ(job.claim_id, before.claim_id);
  EXPECT_EQ(job.revisions.back(), facts.size()) << "the fact belongs to the job and is removed with it";
}

const std::vector<Bad> kBad{
    {"F03ScheduledTwiceAlike", "scheduled;scheduled", kFactOrder},
    {"F04ScheduledTwiceOtherwise", "scheduled;scheduled due=9", kFactOrder},
    {"F06AClaimOfAnEndedJob", kA + ";" + format_completion('A') + ";" + format_claim('B', 1, 2), kAfterEnd},
    {"F07ADelayedJobIsClaimed", "scheduled due=9000;" + kA, kFactOrder},
    {"F08TakeoverBeforeTheLeaseIsOver", kA + ";" + format_claim('B', 1, 2), kFactOrder},
    {"F09HeartbeatFromAnotherClaim", kA + ";heartbeat c=B", kFactClaim},
    {"F10HeartbeatOfAnExpiredOwner", kA + ";expired c=A e=5;heartbeat c=A", kFactClaim},
    {"F10CompletionOfAnExpiredOwner", kA + ";expired c=A e=5;" + format_completion('A'), kFactClaim},
    {"F10FailureOfAnExpiredOwner", kA + ";expired c=A e=5;failed c=A e=5 detail=exit g=x", kFactClaim},
    {"F10RetryOfAnExpiredOwner", kA + ";expired c=A e=5;retry c=A e=5 detail=exit due=9", kFactClaim},
    {"F11CompletedTwice", kA + ";" + format_completion('A') + ";" + format_completion('A'), kSecondEnd},
    {"F14StaleCompletion", kA + ";expired c=A e=5;" + format_claim('B', 1, 2) + ";" + format_completion('A'),
     kFactClaim},
    {"F14CompletionWithALowerEpoch", kA + ";completed c=A e=4 g=x", kFactEpoch},
    {"F15AClaimReopensAFinishedJob", kA + ";" + format_completion('A') + ";requeued a=2", kFactOrder},
    {"F17StaleFailureSchedulesARetry",
     kA + ";expired c=A e=5;" + format_claim('B', 1, 2) + ";retry c=A e=5 detail=exit due=9", kFactClaim},
    {"F21TwoRunnersOneEpoch", kA + ";expired c=A e=5;claimed c=B t=h e=5 a=1 d=2 r=21 l=1", kFactEpoch},
    {"F22EndedThenHeartbeat", kA + ";" + format_completion('A') + ";heartbeat c=A", kAfterEnd},
    {"F23ReleaseAfterTheEnd", kA + ";" + format_completion('A') + ";released c=A why=drain d=1", kAfterEnd},
    {"F43CompletedWithoutAClaim", "scheduled;" + format_completion('A'), kFactClaim},
    {"F45RetriedTwice", kA + ";retry c=A e=5 detail=exit due=9;retry c=A e=5 detail=exit due=9", kFactClaim},
    {"F47CompletionAfterCancel", kA + ";cancelled;" + format_completion('A'), kSecondEnd},
    {"ACancelledJobIsReopened", "scheduled;cancelled;requeued a=2", kFactOrder},
    {"ALivingJobIsReopened", "scheduled;requeued a=2", kFactOrder},
    {"AnEpochThatFalls", kA + ";expired c=A e=5;claimed c=Z t=h e=3 a=1 d=2 r=21 l=1", kFactEpoch},
    {"AnAttemptThatIsSkipped", kA + ";expired c=A e=5;" + format_claim('B', 2, 2), kFactCount},
    {"ADeliveryThatIsNotCounted", kA + ";expired c=A e=5;" + format_claim('B', 1, 1), kFactCount},
    {"AReleaseThatCountsBackTwo", kA + ";expired c=A e=5;" + format_claim('B', 1, 2) + ";released c=B why=x d=0",
     kFactCount},
    {"ARequeueOfTheSameAttempt", "scheduled;dead_lettered why=x;requeued a=1", kFactCount},
    {"AFailureByTheSystemWhileItRuns", kA + ";failed detail=timeout", kFactOrder},
    {"QueuedThoughItWasQueued", "scheduled;queued why=due", kFactOrder},
    {"UnparkedForAnotherReason", "scheduled;parked why=held;queued why=dependencies", kFactOrder},
    {"ParkedWhileItRuns", kA + ";parked why=held", kFactOrder},
    {"ParkedForNoKnownReason", "scheduled;parked why=rain", kFactOrder},
    {"AWaitingJobIsClaimed", "scheduled;parked why=dependencies;" + kA, kFactOrder},
    {"APlannedJobIsClaimed", "planned fl=1_7;" + kA, kFactOrder},
    {"APlannedJobIsParked", "planned fl=1_7;parked why=held", kFactOrder},
    {"APlannedJobIsQueuedForAnotherReason", "planned fl=1_7;queued why=due", kFactOrder},
    {"PlannedThoughItWasQueued", "scheduled;planned fl=1_7", kFactOrder},
    {"PlannedOfNoFlow", "planned", kFactField},
    {"AQueuedJobCompletesByItself", "planned fl=1_7;queued why=flow;completed detail=ok", kFactOrder},
    {"AFinishedJobIsPlannedAgain", kA + ";" + format_completion('A') + ";replanned a=2", kFactOrder},
    {"PlannedAgainTwoAttemptsOn", "planned fl=1_7;failed detail=skipped;replanned a=3", kFactCount},
    {"F33AnUnknownKind", "scheduled;exploded", kFactKind},
    {"F39ACorruptPayloadWithoutAKind", "scheduled; ", kFactKind},
    {"F39ANumberThatIsNone", "claimed c=A t=h e=many a=1 d=1 r=20 l=1", kFactField},
    {"F39AFieldThatIsMissing", "claimed c=A e=5 a=1 d=1 r=20 l=1", kFactField},
    {"F39AnEmptyField", kA + ";heartbeat c=", kFactField},
    {"F39AnEndThatNamesAClaimAndNoDigest", kA + ";failed c=A e=5 detail=exit", kFactField},
};
INSTANTIATE_TEST_SUITE_P(Table, InvalidHistory, testing::ValuesIn(kBad), [](const auto& i) { return i.param.claim; });

}  // namespace
}  // namespace mycojobs
