#include "base/strands/strand_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/strands/mount_table.h"
#include "base/thread.h"
#include "support/gate.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

// Records the order of calls. Thread-safe.
class CallRecord {
 public:
  std::function<void()> note(char call) {
    return [this, call] {
      const std::lock_guard lock(mutex_);
      calls_ += call;
    };
  }
  std::string calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::string calls_;
};

TEST(StrandPoolTest, FunctionsRunInOrderAndStrandsAreIndependent) {
  BlockingGate gate;
  CallRecord record;
  StrandPool strands;
  strands.post({"hangs", "disk"}, [&] { gate.pass(); });
  strands.post({"hangs", "disk"}, record.note('a'));
  strands.post({"hangs", "disk"}, record.note('b'));
  strands.post({"continues", "disk"}, record.note('x'));
  ASSERT_TRUE(eventually([&] { return record.calls() == "x"; }));
  gate.open();
  ASSERT_TRUE(eventually([&] { return record.calls() == "xab"; }));
  strands.stop();
  strands.post({"continues", "disk"}, record.note('y'));
  EXPECT_EQ(record.calls(), "xab");
}

TEST(StrandPoolTest, ThreadHasTheNameOfItsStrand) {
  StrandPool strands(1);
  CallRecord record;
  std::vector<std::string> names;
  for (const char* name : {"a strand with a long name", "disk 2"}) {
    strands.post({name, "disk"}, [&] {
      std::array<char, 16> thread_name{};
      ::pthread_getname_np(::pthread_self(), thread_name.data(), thread_name.size());
      names.emplace_back(thread_name.data());
      record.note('.')();
    });
  }
  ASSERT_TRUE(eventually([&] { return record.calls() == ".."; }));
  EXPECT_EQ(names, (std::vector<std::string>{"a strand with a", "disk 2"}));
}

TEST(StrandPoolTest, ThreadsOfAGroupAreBounded) {
  StrandPool strands(3);
  std::atomic<int> running{0}, max_running{0}, done{0};
  for (int i = 0; i < 100; ++i) {
    strands.post({"disk " + std::to_string(i), "disk"}, [&] {
      const int now = ++running;
      for (int max = max_running; now > max && !max_running.compare_exchange_weak(max, now);) {
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      --running;
      ++done;
    });
  }
  EXPECT_LE(strands.thread_count(), 3U);
  ASSERT_TRUE(eventually([&] { return done == 100; }));
  EXPECT_LE(max_running, 3);
}

TEST(StrandPoolTest, HangingStrandsDelayNoOtherStrandOfTheirGroup) {
  BlockingGate gate;
  CallRecord record;
  StrandPool strands(2);
  for (int i = 0; i < 5; ++i) strands.post({"hangs " + std::to_string(i), "disk"}, [&] { gate.pass(); });
  strands.post({"continues", "disk"}, record.note('x'));
  ASSERT_TRUE(eventually([&] {
    strands.start_missing_threads();
    return record.calls() == "x" && gate.waiting_count() == 5;
  }));
  EXPECT_TRUE(strands.start_missing_threads());
  gate.open();
}

TEST(StrandPoolTest, GroupThatHangsDelaysNoOtherGroup) {
  BlockingGate gate;
  CallRecord record;
  StrandPool strands(1);
  strands.post({"hangs", "disk"}, [&] { gate.pass(); });
  strands.post({"waits", "disk"}, record.note('a'));
  strands.post({"continues", "other disk"}, record.note('x'));
  ASSERT_TRUE(eventually([&] { return record.calls() == "x"; }));
  gate.open();
  ASSERT_TRUE(eventually([&] { return record.calls() == "xa"; }));
}

TEST(StrandPoolTest, IdleThreadsEnd) {
  constexpr int kMaxIdleMs = 5;
  StrandPool strands(4, kMaxIdleMs);
  std::atomic<int> done{0};
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 20; ++i) strands.post({"disk " + std::to_string(i), "disk"}, [&] { ++done; });
    ASSERT_TRUE(eventually([&] { return done == 20 * round && strands.thread_count() == 0; }));
  }
}

TEST(StrandPoolTest, StrandKeepsItsWorkUntilItHasAThread) {
  StrandPool strands;
  CallRecord record;
  {
    const SimulatedThreadShortage shortage;
    EXPECT_FALSE(strands.post({"disk 1", "disk"}, record.note('a')));
    strands.post({"disk 1", "disk"}, record.note('b'));
    EXPECT_FALSE(strands.start_missing_threads());
    EXPECT_EQ(strands.thread_count(), 0U);
  }
  EXPECT_TRUE(strands.start_missing_threads());
  EXPECT_TRUE(eventually([&] { return record.calls() == "ab"; }));
}

TEST(StrandPoolTest, AbandonDoesNotWaitForRunningFunctions) {
  const auto gate = std::make_shared<BlockingGate>();
  const auto done = std::make_shared<std::atomic<bool>>(false);
  {
    StrandPool strands;
    strands.post({"hangs", "disk"}, [gate, done] {
      gate->pass();
      *done = true;
    });
    ASSERT_TRUE(eventually([&] { return gate->waiting_count() == 1; }));
    strands.abandon();
  }
  EXPECT_FALSE(*done);
  gate->open();
  EXPECT_TRUE(eventually([&] { return done->load(); }));
}

// For the address sanitizer: a thread that has taken a function does not use its strand after abandon().
TEST(StrandPoolTest, AbandonWithFunctionsThatBeginDestroysNothingInUse) {
  for (int i = 0; i < 500; ++i) {
    StrandPool strands;
    for (int strand = 0; strand < 8; ++strand) strands.post({"strand " + std::to_string(strand), "disk"}, [] {});
    strands.abandon();
  }
}

// Several threads post to strands of several groups, while threads end and cannot be created. Every function runs once,
// and the functions of a strand run in order and one at a time.
TEST(StrandPoolTest, NoFunctionIsLostOrReorderedUnderLoad) {
  constexpr int kPosters = 4, kStrands = 12, kFunctions = 400;
  struct StrandState {
    std::atomic<int> next{0};
    std::atomic<bool> is_running{false};
  };
  std::array<StrandState, kPosters * kStrands> states;
  std::atomic<int> violations{0};
  StrandPool strands(2, 1);
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kPosters; ++poster) {
    posters.emplace_back([&, poster] {
      std::mt19937 random(static_cast<unsigned>(poster));
      for (int number = 0; number < kFunctions; ++number) {
        for (int i = 0; i < kStrands; ++i) {
          StrandState& state = states[static_cast<std::size_t>(poster * kStrands + i)];
          strands.post({std::to_string(poster) + ' ' + std::to_string(i), "group " + std::to_string(i % 5)},
                       [&state, &violations, number] {
                         if (state.is_running.exchange(true) || state.next++ != number) ++violations;
                         state.is_running = false;
                       });
        }
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 4));
        if (random() % 64 == 0) {
          const SimulatedThreadShortage shortage;
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      }
    });
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_TRUE(eventually([&] {
    strands.start_missing_threads();
    return std::all_of(states.begin(), states.end(), [](const auto& state) { return state.next == kFunctions; });
  }));
  EXPECT_EQ(violations, 0);
  EXPECT_TRUE(eventually([&] { return strands.thread_count() == 0; }));
}

TEST(MountTableTest, PathBelongsToTheLongestMountPointAboveIt) {
  MountTable mounts;
  EXPECT_EQ(mounts.find_mount_point("/"), "/");
  EXPECT_EQ(mounts.find_mount_point("/does/not/exist"), "/");
  EXPECT_EQ(mounts.find_mount_point("/proc/self/fd"), "/proc");
  EXPECT_EQ(mounts.find_mount_point("/proc"), "/proc");
  EXPECT_EQ(mounts.find_mount_point("/process"), "/");
  EXPECT_EQ(mounts.find_mount_point("/process/../proc/self"), "/proc");
}

}  // namespace
}  // namespace mycojobs::test
