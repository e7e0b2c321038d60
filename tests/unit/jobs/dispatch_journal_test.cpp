// Properties of every history and of the tables. dispatch_fold_test.cpp has the histories.
#include "jobs/dispatch_journal.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "unit/facts.h"

namespace mycojobs {
namespace {

TEST(DispatchJournal, F38TwoFactsAtOneRevisionAreAProblem) {
  FoldedJob job;
  ASSERT_FALSE(fold(job, parse_fact("scheduled", 7)));
  const auto problem = fold(job, parse_fact("cancelled", 7));
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->rule, kFactRevision);
  EXPECT_EQ(fold(job, parse_fact("cancelled", 6)).value().rule, kFactRevision);
  EXPECT_EQ(job.revisions, (std::vector<std::uint64_t>{7}));
  EXPECT_EQ(job.state, JobState::queued);
}

TEST(DispatchJournal, F39RevisionsOfOtherJobsAreNoGap) {
  FoldedJob job;
  EXPECT_FALSE(fold(job, parse_fact("scheduled", 3)));
  EXPECT_FALSE(fold(job, parse_fact(kA, 900)));
}

TEST(DispatchJournal, FactWithoutATimeIsAProblem) {
  FoldedJob job;
  Fact one = parse_fact("scheduled", 1);
  one.at_ms = 0;
  EXPECT_EQ(fold(job, one).value().rule, kFactField);
}

TEST(DispatchJournal, F61ProblemsHideTokensAndControlCharacters) {
  FoldedJob job;
  ASSERT_FALSE(fold(job, parse_fact(kA, 1)));
  Fact one = parse_fact(format_claim('B', 1, 2), 2);
  EXPECT_EQ(fold(job, one)->text.find("hashB"), std::string::npos);
  one = parse_fact("heartbeat", 3);
  one.fields.emplace_back("c", "\x1b[2J\n" + std::string(5000, 'x'));
  const std::string text = fold(job, one)->text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_LT(text.size(), 300U);
}

TEST(DispatchJournal, ClaimMatchesTheFacts) {
  FoldedJob job;
  for (const Fact& each : parse_history(kA + ";heartbeat c=A")) ASSERT_FALSE(fold(job, each));
  ClaimView live = to_claim_view(job, "queue:python");
  EXPECT_EQ(live.state + ' ' + live.claim_id + ' ' + live.token_hash + ' ' + live.queue + ' ' + live.instance,
            "live A hashA queue:python inst");
  EXPECT_EQ(live.lease_ms, 30000U);
  EXPECT_EQ(live.runner, 20U);
  EXPECT_EQ(live.revisions, (std::vector<std::uint64_t>{1, 2}));
  ASSERT_FALSE(fold(job, parse_fact("retry c=A e=5 detail=exit due=9000", 3)));
  EXPECT_EQ(job.due_ms, 9000U);
  ASSERT_FALSE(fold(job, parse_fact("cancelled", 4)));
  const ClaimView ended = to_claim_view(job, "queue:python");
  EXPECT_EQ(ended.state + ' ' + ended.status + ' ' + ended.detail, "ended error cancelled");
  EXPECT_EQ(ended.ended_ms, 1004U);
  EXPECT_TRUE(ended.claim_id.empty()) << "the system ended the job, so no client may report that end again";
  EXPECT_FALSE(to_claim_view(FoldedJob{}, "").exists);
}

// The fold and the state machine in state_machines.h are separate tables; this test keeps them consistent. In every
// history of up to six facts, in any order, each accepted fact is a transition of advance().
TEST(DispatchJournal, EveryValidFactIsAnEventOfTheStateMachine) {
  std::mt19937 random(20);  // NOLINT: a fixed seed makes the run reproducible
  const std::vector<std::string> kinds{"scheduled",
                                       "scheduled due=9",
                                       "parked why=dependencies",
                                       "parked why=prerequisite",
                                       "parked why=held",
                                       "queued why=dependencies",
                                       "queued why=prerequisite",
                                       "queued why=held",
                                       "queued why=due",
                                       "claimed",
                                       "heartbeat",
                                       "released why=x",
                                       "expired",
                                       "retry detail=exit due=9",
                                       "completed",
                                       "failed detail=exit",
                                       "failed by system",
                                       "cancelled",
                                       "dead_lettered why=x",
                                       "requeued",
                                       "planned fl=1_7",
                                       "queued why=flow",
                                       "replanned"};
  std::vector<std::size_t> fitted(kinds.size());
  for (int round = 0; round < 20000; ++round) {
    FoldedJob job;
    for (std::uint64_t revision = 1; revision <= 12; ++revision) {
      const std::size_t pick = std::uniform_int_distribution<std::size_t>(0, kinds.size() - 1)(random);
      Fact one = parse_fact(kinds[pick], revision);
      if (one.kind == "claimed") {
        one = parse_fact(format_claim(static_cast<char>('A' + revision), static_cast<int>(std::max(1U, job.attempt)),
                                      static_cast<int>(job.deliveries + 1)),
                         revision);
      } else if (kinds[pick] == "failed by system") {
        one.fields = {{"detail", "queue_timeout"}};
      } else {
        for (const char* name : {"c", "e", "g", "d", "a"}) one.fields.emplace_back(name, "x");
        for (auto& [name, value] : one.fields) {
          if (name == "c") value = job.claim_id;
          if (name == "e") value = std::to_string(job.epoch);
          if (name == "d") value = std::to_string(job.deliveries);
          if (name == "a") value = std::to_string(std::max(1U, job.attempt) + 1);
        }
      }
      const JobState from = job.state;
      const JobStatus status = job.status;
      if (fold(job, one)) continue;
      ++fitted[pick];
      EXPECT_EQ(job.status, to_job_status(job.state, job.status));
      const auto event = to_job_event(*parse_fact_kind(one.kind), from, job.state);
      if (event) {
        EXPECT_EQ(advance(status, *event), job.status) << one.kind << " in state " << to_string(from);
      } else if (one.kind != "requeued" && one.kind != "replanned" && from != JobState::planned) {
        EXPECT_EQ(status, job.status) << one.kind;
      }
    }
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) EXPECT_GT(fitted[i], 0U) << kinds[i] << " was never valid";
}

TEST(DispatchJournal, EveryKindHasItsRowAndItsWord) {
  ASSERT_EQ(fact_shapes().size(), 16U);
  for (std::size_t i = 0; i < fact_shapes().size(); ++i) {
    const FactShape& shape = fact_shapes()[i];
    EXPECT_EQ(static_cast<std::size_t>(shape.kind), i);
    EXPECT_FALSE(shape.meaning.empty());
    EXPECT_EQ(parse_fact_kind(to_string(shape.kind)), shape.kind);
  }
  EXPECT_EQ(to_string(static_cast<FactKind>(16)), "?") << "the table lacks a kind";
  EXPECT_FALSE(parse_fact_kind("?"));
  for (const JobState state : {JobState::none, JobState::queued, JobState::held, JobState::ended, JobState::planned}) {
    EXPECT_EQ(parse_job_state(to_string(state)), state);
  }
  EXPECT_FALSE(parse_job_state("lost"));
}

TEST(DispatchJournal, InvalidEntriesDoNotStopTheFold) {
  std::mt19937 random(7);  // NOLINT: a fixed seed makes the run reproducible
  const auto below = [&](unsigned limit) { return std::uniform_int_distribution<unsigned>(0, limit - 1)(random); };
  const std::vector<std::string> names{"c", "t", "e", "a", "d", "r", "i", "l", "why", "due", "detail", "g", "fl"};
  const std::vector<std::string> values{
      "", "A", "0", "1", "5", "18446744073709551615", "-1", "held", "\xff\n", "99999999999999999999"};
  FoldedJob job;
  for (std::uint64_t revision = 1; revision < 20000; ++revision) {
    if (below(50) == 0) job = FoldedJob{};
    Fact one;
    one.revision = below(20) == 0 ? below(5) : revision;
    one.at_ms = below(10) == 0 ? 0 : revision;
    one.kind = below(20) == 0 ? values[below(10)] : std::string(to_string(static_cast<FactKind>(below(15))));
    for (unsigned i = below(10); i > 0; --i) one.fields.emplace_back(names[below(13)], values[below(10)]);
    const auto problem = fold(job, one);
    EXPECT_TRUE(!problem || !problem->text.empty());
    EXPECT_EQ(job.status, to_job_status(job.state, job.status));
  }
}

}  // namespace
}  // namespace mycojobs
