// Loops without threads of their own run on the threads of a pool: each loop by itself, any number in turn.
#include "base/loop_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "support/process.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using test::eventually;

// The members without atomics show to the thread sanitizer that two iterations never overlap.
class TestLoop final : public PooledLoop {
 public:
  explicit TestLoop(std::uint64_t pause_ms) : pause_ms_(pause_ms) {}
  ~TestLoop() override { end_loop(); }
  Result<void> begin(LoopPool& pool) { return begin_loop(pool); }
  void end() { end_loop(); }
  void wake_soon(milliseconds delay = {}) { wake(delay); }
  std::uint64_t run_once() override {
    EXPECT_FALSE(has_ended);
    EXPECT_FALSE(std::exchange(is_running_, true));
    ++iterations_;
    if (blocker != nullptr) blocker->wait();
    is_running_ = false;
    ++iterations;
    return pause_ms_;
  }
  void ended() override {
    EXPECT_TRUE(stopped());
    EXPECT_FALSE(is_running_);
    EXPECT_EQ(iterations_, iterations);
    has_ended = true;
  }
  std::atomic<int> iterations{0};
  const std::shared_future<void>* blocker = nullptr;  // each iteration waits for it
  bool has_ended = false;

 private:
  const std::uint64_t pause_ms_;
  bool is_running_ = false;
  int iterations_ = 0;
};

constexpr std::uint64_t kHourMs = 3600'000;

TEST(LoopPool, RunsManyLoopsOnFewThreads) {
  LoopPool pool("test", {.max_threads = 3, .max_replacements = 0});
  std::vector<std::unique_ptr<TestLoop>> loops;
  for (int i = 0; i < 50; ++i) {
    loops.push_back(std::make_unique<TestLoop>(1));
    ASSERT_TRUE(loops.back()->begin(pool));
  }
  for (const auto& loop : loops) EXPECT_TRUE(eventually([&] { return loop->iterations > 5; }));
  EXPECT_LE(pool.thread_count(), 3U);
}

TEST(LoopPool, WakeEndsAPause) {
  LoopPool pool("test");
  TestLoop loop(kHourMs);
  loop.wake_soon();  // no effect before begin()
  ASSERT_TRUE(loop.begin(pool));
  for (int expected = 1; expected < 100; ++expected) {
    ASSERT_TRUE(eventually([&] { return loop.iterations >= expected; })) << expected;
    loop.wake_soon(milliseconds(expected % 3));
  }
}

TEST(LoopPool, WakeDuringAnIterationCausesAnother) {
  LoopPool pool("test");
  std::promise<void> promise;
  const std::shared_future<void> future(promise.get_future());
  TestLoop loop(kHourMs);
  loop.blocker = &future;
  ASSERT_TRUE(loop.begin(pool));
  ASSERT_TRUE(eventually([&] { return loop.progress() == 1; }));
  loop.wake_soon();
  promise.set_value();
  EXPECT_TRUE(eventually([&] { return loop.iterations == 2; }));
}

TEST(LoopPool, EndWaitsForTheIterationAndCallsEndedOnce) {
  LoopPool pool("test");
  std::promise<void> promise;
  const std::shared_future<void> future(promise.get_future());
  TestLoop loop(0);
  loop.blocker = &future;
  ASSERT_TRUE(loop.begin(pool));
  ASSERT_TRUE(eventually([&] { return loop.progress() == 1; }));
  auto end = run_in_parallel([&] { loop.end(); });
  ASSERT_TRUE(eventually([&] { return loop.stopped(); }));
  EXPECT_FALSE(loop.has_ended);
  promise.set_value();
  end.get();
  EXPECT_TRUE(loop.has_ended);
  loop.wake_soon();  // no effect after the end
  const int iterations = loop.iterations;
  loop.end();
  EXPECT_EQ(loop.iterations, iterations);
}

TEST(LoopPool, LoopThatBlocksDelaysNoOtherLoop) {
  LoopPool pool("test", {.max_threads = 2, .max_replacements = 0});
  std::promise<void> promise;
  const std::shared_future<void> future(promise.get_future());
  TestLoop blocked(0), other(1);
  blocked.blocker = &future;
  ASSERT_TRUE(blocked.begin(pool));
  ASSERT_TRUE(other.begin(pool));
  EXPECT_TRUE(eventually([&] { return other.iterations > 10; }));
  EXPECT_TRUE(pool.has_progressed());
  promise.set_value();
}

TEST(LoopPool, StuckThreadsAreReplacedUpToALimit) {
  LoopPool pool("test", {.max_threads = 1, .max_replacements = 1, .stuck_after = milliseconds(1)});
  std::promise<void> promise;
  const std::shared_future<void> future(promise.get_future());
  TestLoop stuck(0), stuck_too(0), other(1);
  stuck.blocker = stuck_too.blocker = &future;
  ASSERT_TRUE(stuck.begin(pool));
  ASSERT_TRUE(eventually([&] { return stuck.progress() == 1; }));
  ASSERT_TRUE(stuck_too.begin(pool));
  EXPECT_TRUE(eventually([&] { return !pool.has_progressed() || stuck_too.progress() == 1; }));
  EXPECT_TRUE(eventually([&] {
    pool.start_missing_thread();
    return stuck_too.progress() == 1;
  }));
  ASSERT_TRUE(other.begin(pool));
  EXPECT_TRUE(eventually([&] { return !pool.has_progressed(); })) << "a due loop has no thread";
  EXPECT_EQ(pool.thread_count(), 2U);
  promise.set_value();
  EXPECT_TRUE(eventually([&] { return other.iterations > 0 && pool.has_progressed(); }));
}

TEST(LoopPool, ShortageIsAnErrorOnlyWithoutAnyThread) {
  LoopPool pool("test");
  TestLoop first(1), second(1);
  {
    const SimulatedThreadShortage shortage;
    const auto started = first.begin(pool);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code, Code::unavailable);
  }
  ASSERT_TRUE(first.begin(pool));
  ASSERT_TRUE(eventually([&] { return first.iterations > 0; }));
  const SimulatedThreadShortage shortage;
  ASSERT_TRUE(second.begin(pool));
  EXPECT_TRUE(eventually([&] { return second.iterations > 5 && first.iterations > 5; }));
}

TEST(LoopPool, SurvivesManyThreadsThatWakeAndEndLoops) {
  LoopPool pool("test", {.max_threads = 4, .max_replacements = 0});
  std::vector<std::unique_ptr<TestLoop>> loops;
  for (std::uint64_t i = 0; i < 16; ++i) {
    loops.push_back(std::make_unique<TestLoop>(i % 2 == 0 ? kHourMs : i % 3));
    ASSERT_TRUE(loops.back()->begin(pool));
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      for (std::size_t count = i; !stop; ++count) {
        loops[count % loops.size()]->wake_soon(milliseconds(count % 2));
        TestLoop temporary(count % 2);
        EXPECT_TRUE(temporary.begin(pool));
        temporary.wake_soon();
      }
    });
  }
  for (const auto& loop : loops) EXPECT_TRUE(eventually([&] { return loop->iterations > 100; }));
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(pool.thread_count(), 4U);
}

}  // namespace
}  // namespace mycojobs
