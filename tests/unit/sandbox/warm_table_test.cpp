// Accounting of the warm processes (sandbox/launcher/warm_table.h).
#include "sandbox/launcher/warm_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <unordered_map>

namespace mycojobs::sandbox {
namespace {

using Ids = WarmTable::Ids;

constexpr Id kContext = 1;

Warm of(const std::string& key, const std::string& family = "", std::uint64_t idle_ms = 1000) {
  return {100, idle_ms, key, family.empty() ? key : family};
}

TEST(WarmTable, ProcessServesOnlyItsKeyAndOneRunAtATime) {
  WarmTable table(8);
  EXPECT_FALSE(table.take(of("a")));
  EXPECT_EQ(table.made(1, of("a"), kContext), Ids{});
  EXPECT_FALSE(table.take(of("a"))) << "it is in use";
  EXPECT_TRUE(table.return_process(1, 0));
  EXPECT_FALSE(table.take(of("b")));
  EXPECT_EQ(table.take(of("a")), 1U);
  EXPECT_FALSE(table.take(of("a")));
  EXPECT_TRUE(table.return_process(1, 0));
  EXPECT_FALSE(table.return_process(1, 0)) << "it rests already";
  EXPECT_FALSE(table.return_process(2, 0)) << "nobody knows it";
}

TEST(WarmTable, ForgottenKeyServesNoRun) {
  WarmTable table(8);
  table.made(1, of("a"), kContext), table.return_process(1, 1);
  table.made(2, of("a"), kContext);
  table.made(3, of("b"), kContext), table.return_process(3, 1);
  EXPECT_EQ(table.forget("none"), Ids{});
  EXPECT_EQ(table.forget("a"), Ids{1});
  EXPECT_FALSE(table.can_rest(2)) << "it is in use";
  EXPECT_FALSE(table.take(of("a")));
  EXPECT_EQ(table.take(of("b")), 3U);
  table.made(4, of("a"), kContext);
  EXPECT_TRUE(table.return_process(4, 2)) << "the value is back";
}

TEST(WarmTable, TakesTheMostRecentlyUsedProcess) {
  WarmTable table(8);
  for (const std::uint64_t id : {1U, 2U, 3U}) {
    table.made(id, of("a"), kContext);
    table.return_process(id, id);
  }
  EXPECT_EQ(table.take(of("a")), 3U);
  EXPECT_EQ(table.take(of("a")), 2U);
}

TEST(WarmTable, EvictsTheLongestIdleProcess) {
  WarmTable table(2);
  table.made(1, of("a"), kContext), table.return_process(1, 1);
  table.made(2, of("b"), kContext), table.return_process(2, 2);
  EXPECT_EQ(table.take(of("a")), 1U);
  EXPECT_TRUE(table.return_process(1, 3));
  EXPECT_EQ(table.made(3, of("c"), kContext), Ids{2});
  EXPECT_FALSE(table.take(of("b")));
  EXPECT_EQ(table.size(), 2U);
}

TEST(WarmTable, ExcessProcessesAreNotKept) {
  WarmTable table(1);
  table.made(1, of("a"), kContext);
  EXPECT_EQ(table.made(2, of("a"), kContext), Ids{}) << "nobody rests";
  EXPECT_FALSE(table.can_rest(1));
  EXPECT_FALSE(table.return_process(1, 0));
  table.gone(1);
  EXPECT_TRUE(table.return_process(2, 0));
  WarmTable none(0);
  none.made(1, of("a"), kContext);
  EXPECT_FALSE(none.return_process(1, 0));
}

TEST(WarmTable, ExpiresIdleProcesses) {
  WarmTable table(8);
  table.made(1, of("a", "", 100), kContext), table.return_process(1, 50);
  table.made(2, of("b", "", 20), kContext), table.return_process(2, 60);
  table.made(3, of("c", "", 1), kContext);
  EXPECT_EQ(table.next_expiry(), 80U);
  EXPECT_EQ(table.expired(79), Ids{});
  EXPECT_EQ(table.expired(80), Ids{2});
  EXPECT_EQ(table.next_expiry(), 150U);
  EXPECT_EQ(table.expired(1000), Ids{1});
  EXPECT_FALSE(table.next_expiry());
  EXPECT_TRUE(table.return_process(3, 1000)) << "one in use has no such time";
}

TEST(WarmTable, AnotherKeyOfAFamilyEndsOldProcesses) {
  WarmTable table(8);
  table.made(1, of("old", "f"), kContext), table.return_process(1, 0);
  table.made(2, of("old", "f"), kContext);
  table.made(3, of("x"), kContext), table.return_process(3, 0);
  EXPECT_EQ(table.renewed(of("old", "f")), Ids{});
  EXPECT_EQ(table.renewed(of("new", "f")), Ids{1});
  EXPECT_FALSE(table.can_rest(2)) << "in use, under the old one";
  EXPECT_FALSE(table.take(of("old", "f")));
  table.made(4, of("new", "f"), kContext);
  EXPECT_TRUE(table.return_process(4, 0));
  EXPECT_EQ(table.take(of("x")), 3U);
}

TEST(WarmTable, ContextIsLimitedToItsShare) {
  WarmTable table(4);
  table.made(1, of("theirs"), 2), table.return_process(1, 1);
  table.made(2, of("theirs too"), 2), table.return_process(2, 2);
  Ids given_up;
  for (std::uint64_t id = 10; id < 30; ++id) {
    for (const std::uint64_t each : table.made(id, of(std::to_string(id)), 3)) given_up.push_back(each);
    EXPECT_TRUE(table.return_process(id, id));
  }
  EXPECT_EQ(given_up.size(), 18U);
  EXPECT_EQ(given_up.front(), 10U) << "its own that has rested longest";
  EXPECT_EQ(table.take(of("theirs")), 1U);
  EXPECT_TRUE(table.return_process(1, 100)) << "within its part";
  EXPECT_EQ(table.take(of("theirs too")), 2U);
}

TEST(WarmTable, SharesShrinkWithMoreContexts) {
  WarmTable table(4);
  for (const std::uint64_t id : {1U, 2U, 3U, 4U}) {
    table.made(id, of(std::to_string(id)), 2);
    table.return_process(id, id);
  }
  EXPECT_EQ(table.made(5, of("5"), 3), Ids{1}) << "all that the first had beyond its part";
  EXPECT_TRUE(table.return_process(5, 5));
  EXPECT_EQ(table.made(6, of("6"), 3), Ids{2});
  EXPECT_TRUE(table.return_process(6, 6));
  EXPECT_EQ(table.made(7, of("7"), 4), Ids{3}) << "two have most: the one that has rested longest";
  EXPECT_EQ(table.made(8, of("8"), 4), Ids{5});
}

TEST(WarmTable, ContextOverItsShareEvictsNoOther) {
  WarmTable table(4);
  for (const std::uint64_t id : {1U, 2U}) {
    table.made(id, of(std::to_string(id)), 2);
    table.return_process(id, id);
  }
  for (std::uint64_t id = 10; id < 16; ++id) EXPECT_EQ(table.made(id, of("a"), 3), Ids{}) << id;
  for (std::uint64_t id = 10; id < 14; ++id) {
    EXPECT_FALSE(table.return_process(id, id)) << id;
    table.gone(id);
  }
  EXPECT_TRUE(table.return_process(14, 14));
  EXPECT_EQ(table.take(of("1")), 1U);
  EXPECT_TRUE(table.return_process(1, 15));
  EXPECT_EQ(table.resting(), 3U);
}

// In any order of calls: a process is only given to its own key, never while it is in use, and the number of idle
// processes stays within the limit.
TEST(WarmTable, InvariantsHoldInAnyOrder) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 chance(seed);
    const auto below = [&](unsigned n) { return chance() % n; };
    const std::size_t max = below(5), contexts = 1 + below(4);
    WarmTable table(max);
    std::unordered_map<std::uint64_t, std::string> key_of;
    std::set<std::uint64_t> in_use;
    std::uint64_t next = 1, now = 0;
    const auto gone = [&](const Ids& ids) {
      for (const std::uint64_t id : ids) {
        EXPECT_FALSE(in_use.contains(id)) << seed;
        table.gone(id);
      }
    };
    for (int step = 0; step < 300; ++step) {
      now += below(30);
      const std::string family(1, static_cast<char>('a' + below(3)));
      const Warm wanted = of(family + std::to_string(below(2)), family, 50);
      if (below(2) == 0) {
        gone(table.renewed(wanted));
        if (const auto id = table.take(wanted)) {
          EXPECT_EQ(key_of.at(*id), wanted.key) << seed;
          EXPECT_TRUE(in_use.insert(*id).second) << seed;
        } else {
          key_of[next] = wanted.key;
          in_use.insert(next);
          gone(table.made(next++, wanted, static_cast<Id>(1 + below(static_cast<unsigned>(contexts)))));
        }
      } else if (!in_use.empty()) {
        const std::uint64_t id =
            *std::next(in_use.begin(), static_cast<long>(below(static_cast<unsigned>(in_use.size()))));
        in_use.erase(id);
        const bool may = below(5) != 0 && table.can_rest(id);
        if (may) {
          EXPECT_TRUE(table.return_process(id, now)) << seed;
        } else {
          table.gone(id);
        }
      }
      gone(table.expired(now));
      EXPECT_LE(table.resting(), max) << seed;
    }
  }
}

}  // namespace
}  // namespace mycojobs::sandbox
