// Which times of a schedule start a flow; pure values, without a store.
#include <gtest/gtest.h>

#include <ctime>

#include "flow/moments.h"
#include "flows/schedules.h"
#include "text/cron.h"

namespace mycojobs {
namespace {

Schedule schedule(const char* overlap, const char* missed, const char* cron = "* * * * *") {
  Schedule out;
  out.name = "nightly";
  out.cron = cron;
  out.zone = "UTC";
  out.overlap = overlap;
  out.missed = missed;
  out.next_start_ms = kNoon;
  out.last_flow = 7;
  return out;
}
ScheduleDecision turn(const Schedule& of, std::uint64_t now, PreviousRun before = {}) {
  const auto turn = decide_schedule(of, before, now);
  EXPECT_TRUE(turn) << turn.error().message;
  return turn.value_or(ScheduleDecision());
}
using Moments = std::vector<std::uint64_t>;

TEST(ScheduleTurn, NothingFiresBeforeItsTime) {
  const ScheduleDecision early = turn(schedule("skip", "skip"), kNoon - 1);
  EXPECT_TRUE(early.starts.empty());
  EXPECT_EQ(early.next_ms, kNoon);
}

TEST(ScheduleTurn, EachTimeFiresOnceAndTheNextIsKnown) {
  for (const char* overlap : {"allow", "skip", "queue"}) {
    for (const char* missed : {"skip", "once", "all"}) {
      Schedule of = schedule(overlap, missed);
      const ScheduleDecision now = turn(of, kNoon + 5);
      EXPECT_EQ(now.starts, (Moments{kNoon}));
      EXPECT_EQ(now.next_ms, kNoon + kMinute);
      EXPECT_EQ(now.note, "");
      of.next_start_ms = now.next_ms;
      EXPECT_TRUE(turn(of, kNoon + 6).starts.empty()) << "the same time again";
    }
  }
}

TEST(ScheduleTurn, PausedOrExhaustedScheduleDoesNothing) {
  Schedule of = schedule("skip", "all");
  of.paused = true;
  EXPECT_TRUE(turn(of, kNoon + kDay).starts.empty());
  of.paused = false;
  of.next_start_ms = 0;
  EXPECT_TRUE(turn(of, kNoon + kDay).starts.empty());
}

TEST(ScheduleTurn, MissedTimesFollowThePolicy) {
  const std::uint64_t late = kNoon + 5 * kMinute + 30000;  // five times were missed, one is on time
  const ScheduleDecision skip = turn(schedule("allow", "skip"), late);
  EXPECT_EQ(skip.starts, (Moments{kNoon + 5 * kMinute}));
  EXPECT_EQ(skip.note, "5 moments skipped: no coordinator was running to start them");
  const ScheduleDecision once = turn(schedule("allow", "once"), late);
  EXPECT_EQ(once.starts, (Moments{kNoon + 5 * kMinute})) << "the current start replaces the missed starts";
  EXPECT_EQ(once.note, "");
  EXPECT_EQ(turn(schedule("allow", "all"), late).starts.size(), 6U);
}

TEST(ScheduleTurn, OncePolicyStartsTheLatestMissedTime) {
  const std::uint64_t later = kNoon + 3 * kDay + 10 * kMinute;
  EXPECT_EQ(turn(schedule("allow", "once", "0 12 * * *"), later).starts, (Moments{kNoon + 3 * kDay}));
  const ScheduleDecision skip = turn(schedule("allow", "skip", "0 12 * * *"), later);
  EXPECT_TRUE(skip.starts.empty());
  EXPECT_EQ(skip.note, "4 moments skipped: no coordinator was running to start them");
  EXPECT_EQ(skip.next_ms, kNoon + 4 * kDay);
}

TEST(ScheduleTurn, AtMostAHundredMissedTimesRunTenAtATime) {
  Schedule of = schedule("allow", "all");
  const std::uint64_t now = kNoon + 400 * kDay;
  Moments started;
  for (int i = 0; i < 50; ++i) {
    const ScheduleDecision each = turn(of, now);
    EXPECT_EQ(each.note, i == 0 ? "older times skipped: at most 100 missed times are started late" : "") << i;
    EXPECT_LE(each.starts.size(), kMaxConcurrentStarts);
    started.insert(started.end(), each.starts.begin(), each.starts.end());
    of.next_start_ms = each.next_ms;
    if (each.next_ms > now) break;
  }
  ASSERT_EQ(started.size(), kMaxPendingRuns);
  EXPECT_EQ(started.back(), now);
  EXPECT_EQ(started.front(), now - 99 * kMinute);
}

TEST(ScheduleTurn, OverlapIsSkippedWithItsReason) {
  const ScheduleDecision skipped = turn(schedule("skip", "all"), kNoon, {true, 0});
  EXPECT_TRUE(skipped.starts.empty());
  EXPECT_EQ(skipped.note, "1 moment skipped: flow 7 had not ended");
  EXPECT_EQ(skipped.next_ms, kNoon + kMinute);
  EXPECT_EQ(turn(schedule("skip", "all"), kNoon + 3 * kMinute).starts, (Moments{kNoon + 3 * kMinute}))
      << "several due times become one run";
}

TEST(ScheduleTurn, OverlapIsAllowed) {
  EXPECT_EQ(turn(schedule("allow", "skip"), kNoon, {true, 0}).starts, (Moments{kNoon}));
}

TEST(ScheduleTurn, QueuePolicyRunsEveryTimeSerially) {
  Schedule of = schedule("queue", "skip");
  const std::uint64_t ended = kNoon + 3 * kMinute + 1;
  const ScheduleDecision waiting = turn(of, kNoon + 3 * kMinute, {true, 0});
  EXPECT_TRUE(waiting.starts.empty());
  EXPECT_TRUE(waiting.is_waiting);
  EXPECT_EQ(waiting.next_ms, kNoon);
  EXPECT_EQ(waiting.note, "4 moments wait for the end of flow 7");
  Moments started;
  PreviousRun before{false, ended};
  std::uint64_t now = ended + 10;
  for (int i = 0; i < 4; ++i) {
    const ScheduleDecision each = turn(of, now, before);
    ASSERT_EQ(each.starts.size(), 1U) << i;
    started.push_back(each.starts[0]);
    of.next_start_ms = each.next_ms;
    EXPECT_TRUE(turn(of, now + 5, {true, 0}).starts.empty()) << "while the first run is running";
    before.ended_ms = now + 10;
    now += 20;
  }
  EXPECT_EQ(started, (Moments{kNoon, kNoon + kMinute, kNoon + 2 * kMinute, kNoon + 3 * kMinute}));
  EXPECT_EQ(of.next_start_ms, kNoon + 4 * kMinute);
}

TEST(ScheduleTurn, TimesMissedDuringADowntimeAreNotQueued) {
  const ScheduleDecision late =
      turn(schedule("queue", "skip", "0 12 * * *"), kNoon + kDay - 1000, {false, kNoon - kDay});
  EXPECT_TRUE(late.starts.empty());
  EXPECT_EQ(late.note, "1 moment skipped: no coordinator was running to start it");
}

TEST(ScheduleTurn, TimeRepeatedByDaylightSavingFiresOnce) {
  Schedule of = schedule("allow", "all", "30 2 * * *");
  of.zone = "Europe/Berlin";
  of.next_start_ms = 1792888200000;  // 2026-10-25 00:30:00 UTC, 02:30 in summer time
  EXPECT_EQ(turn(of, of.next_start_ms + 90 * kMinute).starts, (Moments{of.next_start_ms}))
      << "02:30 occurs a second time";
}

TEST(ScheduleTurn, UnreadableFieldIsNamed) {
  const auto get_error = [](Schedule of) {
    const auto turn = decide_schedule(of, {}, kNoon);
    return turn ? std::string("accepted") : turn.error().message;
  };
  Schedule of = schedule("skpi", "skip");
  EXPECT_EQ(get_error(of), "overlap: \"skpi\" is not one of allow, skip, queue; did you mean \"skip\"?");
  of = schedule("skip", "never");
  EXPECT_EQ(get_error(of), "missed: \"never\" is not one of skip, once, all");
  of = schedule("skip", "skip", "99 * * * *");
  EXPECT_EQ(get_error(of).substr(0, 30), "cron: minute: 99 is out of ran");
  of = schedule("skip", "skip");
  of.zone = "Mars/Olympus";
  EXPECT_EQ(get_error(of).substr(0, 45), "zone: \"Mars/Olympus\" is not a known time zone");
}

}  // namespace
}  // namespace mycojobs
