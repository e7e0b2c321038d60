// Tests the accounting of warm processes (sandbox/launcher/warm_table.h).
#include "sandbox/launcher/warm_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <unordered_map>

namespace mycojobs::sandbox {
namespace {

using Ids = WarmTable::Ids;

constexpr ContextId kContext = 1;

WarmReuse make_warm(const std::string& key, const std::string& family = "", std::uint64_t idle_ms = 1000) {
  return {100, idle_ms, key, family.empty() ? key : family};
}

TEST(WarmTable, ProcessServesOnlyItsKeyAndOneRunAtATime) {
  WarmTable table(8);
  EXPECT_FALSE(table.acquire(make_warm("a")));
  EXPECT_EQ(table.add(1, make_warm("a"), kContext), Ids{});
  EXPECT_FALSE(table.acquire(make_warm("a"))) << "the process is in use";
  EXPECT_TRUE(table.return_process(1, 0));
  EXPECT_FALSE(table.acquire(make_warm("b")));
  EXPECT_EQ(table.acquire(make_warm("a")), 1U);
  EXPECT_FALSE(table.acquire(make_warm("a")));
  EXPECT_TRUE(table.return_process(1, 0));
  EXPECT_FALSE(table.return_process(1, 0)) << "the process is idle already";
  EXPECT_FALSE(table.return_process(2, 0)) << "the id is unknown";
}

TEST(WarmTable, ForgottenKeyServesNoRun) {
  WarmTable table(8);
  table.add(1, make_warm("a"), kContext), table.return_process(1, 1);
  table.add(2, make_warm("a"), kContext);
  table.add(3, make_warm("b"), kContext), table.return_process(3, 1);
  EXPECT_EQ(table.retire_key("none"), Ids{});
  EXPECT_EQ(table.retire_key("a"), Ids{1});
  EXPECT_FALSE(table.can_become_idle(2)) << "the process is in use";
  EXPECT_FALSE(table.acquire(make_warm("a")));
  EXPECT_EQ(table.acquire(make_warm("b")), 3U);
  table.add(4, make_warm("a"), kContext);
  EXPECT_TRUE(table.return_process(4, 2)) << "the key is used again";
}

TEST(WarmTable, TakesTheMostRecentlyUsedProcess) {
  WarmTable table(8);
  for (const std::uint64_t id : {1U, 2U, 3U}) {
    table.add(id, make_warm("a"), kContext);
    table.return_process(id, id);
  }
  EXPECT_EQ(table.acquire(make_warm("a")), 3U);
  EXPECT_EQ(table.acquire(make_warm("a")), 2U);
}

TEST(WarmTable, EvictsTheLongestIdleProcess) {
  WarmTable table(2);
  table.add(1, make_warm("a"), kContext), table.return_process(1, 1);
  table.add(2, make_warm("b"), kContext), table.return_process(2, 2);
  EXPECT_EQ(table.acquire(make_warm("a")), 1U);
  EXPECT_TRUE(table.return_process(1, 3));
  EXPECT_EQ(table.add(3, make_warm("c"), kContext), Ids{2});
  EXPECT_FALSE(table.acquire(make_warm("b")));
  EXPECT_EQ(table.size(), 2U);
}

TEST(WarmTable, ExcessProcessesAreNotKept) {
  WarmTable table(1);
  table.add(1, make_warm("a"), kContext);
  EXPECT_EQ(table.add(2, make_warm("a"), kContext), Ids{}) << "no process is idle";
  EXPECT_FALSE(table.can_become_idle(1));
  EXPECT_FALSE(table.return_process(1, 0));
  table.remove_process(1);
  EXPECT_TRUE(table.return_process(2, 0));
  WarmTable empty_table(0);
  empty_table.add(1, make_warm("a"), kContext);
  EXPECT_FALSE(empty_table.return_process(1, 0));
}

TEST(WarmTable, ExpiresIdleProcesses) {
  WarmTable table(8);
  table.add(1, make_warm("a", "", 100), kContext), table.return_process(1, 50);
  table.add(2, make_warm("b", "", 20), kContext), table.return_process(2, 60);
  table.add(3, make_warm("c", "", 1), kContext);
  EXPECT_EQ(table.next_expiry(), 80U);
  EXPECT_EQ(table.discard_expired(79), Ids{});
  EXPECT_EQ(table.discard_expired(80), Ids{2});
  EXPECT_EQ(table.next_expiry(), 150U);
  EXPECT_EQ(table.discard_expired(1000), Ids{1});
  EXPECT_FALSE(table.next_expiry());
  EXPECT_TRUE(table.return_process(3, 1000)) << "a process in use does not expire";
}

TEST(WarmTable, AnotherKeyOfAFamilyEndsOldProcesses) {
  WarmTable table(8);
  table.add(1, make_warm("old", "f"), kContext), table.return_process(1, 0);
  table.add(2, make_warm("old", "f"), kContext);
  table.add(3, make_warm("x"), kContext), table.return_process(3, 0);
  EXPECT_EQ(table.discard_outdated(make_warm("old", "f")), Ids{});
  EXPECT_EQ(table.discard_outdated(make_warm("new", "f")), Ids{1});
  EXPECT_FALSE(table.can_become_idle(2)) << "in use, with the old key";
  EXPECT_FALSE(table.acquire(make_warm("old", "f")));
  table.add(4, make_warm("new", "f"), kContext);
  EXPECT_TRUE(table.return_process(4, 0));
  EXPECT_EQ(table.acquire(make_warm("x")), 3U);
}

TEST(WarmTable, ContextIsLimitedToItsShare) {
  WarmTable table(4);
  table.add(1, make_warm("theirs"), 2), table.return_process(1, 1);
  table.add(2, make_warm("theirs too"), 2), table.return_process(2, 2);
  Ids given_up;
  for (std::uint64_t id = 10; id < 30; ++id) {
    for (const std::uint64_t each : table.add(id, make_warm(std::to_string(id)), 3)) given_up.push_back(each);
    EXPECT_TRUE(table.return_process(id, id));
  }
  EXPECT_EQ(given_up.size(), 18U);
  EXPECT_EQ(given_up.front(), 10U) << "its own process that has been idle for the longest time";
  EXPECT_EQ(table.acquire(make_warm("theirs")), 1U);
  EXPECT_TRUE(table.return_process(1, 100)) << "within its share";
  EXPECT_EQ(table.acquire(make_warm("theirs too")), 2U);
}

TEST(WarmTable, SharesShrinkWithMoreContexts) {
  WarmTable table(4);
  for (const std::uint64_t id : {1U, 2U, 3U, 4U}) {
    table.add(id, make_warm(std::to_string(id)), 2);
    table.return_process(id, id);
  }
  EXPECT_EQ(table.add(5, make_warm("5"), 3), Ids{1}) << "all processes of the first context beyond its share";
  EXPECT_TRUE(table.return_process(5, 5));
  EXPECT_EQ(table.add(6, make_warm("6"), 3), Ids{2});
  EXPECT_TRUE(table.return_process(6, 6));
  EXPECT_EQ(table.add(7, make_warm("7"), 4), Ids{3})
      << "two contexts have most: the process that has been idle for the longest time";
  EXPECT_EQ(table.add(8, make_warm("8"), 4), Ids{5});
}

TEST(WarmTable, ContextOverItsShareEvictsNoOther) {
  WarmTable table(4);
  for (const std::uint64_t id : {1U, 2U}) {
    table.add(id, make_warm(std::to_string(id)), 2);
    table.return_process(id, id);
  }
  for (std::uint64_t id = 10; id < 16; ++id) EXPECT_EQ(table.add(id, make_warm("a"), 3), Ids{}) << id;
  for (std::uint64_t id = 10; id < 14; ++id) {
    EXPECT_FALSE(table.return_process(id, id)) << id;
    table.remove_process(id);
  }
  EXPECT_TRUE(table.return_process(14, 14));
  EXPECT_EQ(table.acquire(make_warm("1")), 1U);
  EXPECT_TRUE(table.return_process(1, 15));
  EXPECT_EQ(table.idle_count(), 3U);
}

// In any order of calls: a process is only given to its own key, never while it is in use, and the number of idle
// processes stays within the limit.
TEST(WarmTable, InvariantsHoldInAnyOrder) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto choose_below = [&](unsigned n) { return random() % n; };
    const std::size_t max_idle = choose_below(5), context_count = 1 + choose_below(4);
    WarmTable table(max_idle);
    std::unordered_map<std::uint64_t, std::string> keys_by_id;
    std::set<std::uint64_t> in_use;
    std::uint64_t next_id = 1, now_ms = 0;
    const auto check_removed = [&](const Ids& ids) {
      for (const std::uint64_t id : ids) {
        EXPECT_FALSE(in_use.contains(id)) << seed;
        table.remove_process(id);
      }
    };
    for (int step = 0; step < 300; ++step) {
      now_ms += choose_below(30);
      const std::string family(1, static_cast<char>('a' + choose_below(3)));
      const WarmReuse warm = make_warm(family + std::to_string(choose_below(2)), family, 50);
      if (choose_below(2) == 0) {
        check_removed(table.discard_outdated(warm));
        if (const auto id = table.acquire(warm)) {
          EXPECT_EQ(keys_by_id.at(*id), warm.key) << seed;
          EXPECT_TRUE(in_use.insert(*id).second) << seed;
        } else {
          keys_by_id[next_id] = warm.key;
          in_use.insert(next_id);
          check_removed(table.add(next_id++, warm,
                                  static_cast<ContextId>(1 + choose_below(static_cast<unsigned>(context_count)))));
        }
      } else if (!in_use.empty()) {
        const std::uint64_t id =
            *std::next(in_use.begin(), static_cast<long>(choose_below(static_cast<unsigned>(in_use.size()))));
        in_use.erase(id);
        const bool can_return = choose_below(5) != 0 && table.can_become_idle(id);
        if (can_return) {
          EXPECT_TRUE(table.return_process(id, now_ms)) << seed;
        } else {
          table.remove_process(id);
        }
      }
      check_removed(table.discard_expired(now_ms));
      EXPECT_LE(table.idle_count(), max_idle) << seed;
    }
  }
}

}  // namespace
}  // namespace mycojobs::sandbox
