// Assignment of threads to steps while steps of other deployments are slow.
#include "workflows/deployment/step_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "base/thread.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kEnoughMs = 60'000;

// Steps that run until they are released.
class StepPoolTest : public ::testing::Test {
 protected:
  void begin(StepShares shares) {
    pool_ = std::make_unique<StepPool>(shares, [this] { ++woken_; });
  }
  void TearDown() override {
    release();
    pool_.reset();
  }
  void release() {
    if (!std::exchange(is_released_, true)) release_.set_value();
  }
  void submit_slow(Id owner, const std::string& deployment, bool works = true) {
    pool_->submit(owner, deployment, [this, works] {
      ++slow_;
      released_.wait();
      ++ended_;
      return works;
    });
  }
  void submit_quick(Id owner, const std::string& deployment) {
    pool_->submit(owner, deployment, [this] {
      ++quick_;
      return true;
    });
  }
  // Waits until `count` slow steps are running.
  bool wait_for_slow(int count) {
    for (int i = 0; i < 20'000 && slow_ < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return slow_ == count;
  }
  bool wait_for_quick(int count) {
    return pool_->wait(kEnoughMs, [&] { return quick_ == count; });
  }

  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  bool is_released_ = false;
  std::atomic<int> slow_{0}, quick_{0}, ended_{0}, woken_{0};
  std::unique_ptr<StepPool> pool_;  // declared last: its threads use the members above
};

TEST_F(StepPoolTest, SlowDeploymentDelaysNoOther) {
  begin({.max_threads = 8, .max_per_owner = 3, .max_per_deployment = 2, .reserved_threads = 2});
  for (int i = 0; i < 50; ++i) submit_slow(1, "slow");
  ASSERT_TRUE(wait_for_slow(2));
  for (int i = 0; i < 50; ++i) submit_quick(1, "of the same owner");
  for (int i = 0; i < 50; ++i) submit_quick(2, "of another owner");
  EXPECT_TRUE(wait_for_quick(100));
  EXPECT_EQ(slow_, 2);
}

TEST_F(StepPoolTest, LastThreadsAreReservedForNewOwners) {
  begin({.max_threads = 4, .max_per_owner = 4, .max_per_deployment = 4, .reserved_threads = 2});
  for (int i = 0; i < 50; ++i) submit_slow(1, "first");
  ASSERT_TRUE(wait_for_slow(2));
  for (int i = 0; i < 50; ++i) submit_slow(2, "second");
  ASSERT_TRUE(wait_for_slow(3));
  for (int i = 0; i < 50; ++i) submit_quick(3, "third");
  EXPECT_TRUE(wait_for_quick(50));
  EXPECT_EQ(slow_, 3);
}

// The host gives 4 of the 8 threads.
TEST_F(StepPoolTest, ReserveIsTheLastAvailableThread) {
  begin({.max_threads = 8, .max_per_owner = 6, .max_per_deployment = 4, .reserved_threads = 2});
  for (Id owner = 1; owner <= 4; ++owner) submit_slow(owner, "of " + std::to_string(owner));
  ASSERT_TRUE(wait_for_slow(4));
  const SimulatedThreadShortage shortage;
  submit_quick(5, "waits");
  release();
  ASSERT_TRUE(pool_->wait(kEnoughMs, [&] { return ended_ == 4 && quick_ == 1; }));
  release_ = {};
  released_ = release_.get_future().share();
  is_released_ = false;
  for (int i = 0; i < 50; ++i) submit_slow(1, i % 2 == 0 ? "one" : "two");
  ASSERT_TRUE(wait_for_slow(6));
  for (int i = 0; i < 50; ++i) submit_quick(2, "of another owner");
  EXPECT_TRUE(wait_for_quick(51));
  EXPECT_EQ(slow_, 6);
}

TEST_F(StepPoolTest, OwnerThatBreaksTheEngineHasOneThread) {
  begin({.max_threads = 8, .max_per_owner = 4, .max_per_deployment = 4, .reserved_threads = 2});
  submit_slow(1, "hangs", false);
  ASSERT_TRUE(wait_for_slow(1));
  release();
  ASSERT_TRUE(pool_->wait(kEnoughMs, [&] { return ended_ == 1; }));
  release_ = {};
  released_ = release_.get_future().share();
  is_released_ = false;
  for (int i = 0; i < 20; ++i) submit_slow(1, "hangs");
  ASSERT_TRUE(wait_for_slow(2));
  for (int i = 0; i < 50; ++i) submit_quick(2, "works");
  EXPECT_TRUE(wait_for_quick(50));
  EXPECT_EQ(slow_, 2);
}

TEST_F(StepPoolTest, StepsOfADeploymentKeepTheirOrder) {
  begin({.max_threads = 4, .max_per_owner = 4, .max_per_deployment = 1, .reserved_threads = 1});
  std::vector<int> order;
  std::atomic<int> count{0};
  for (int i = 0; i < 100; ++i)
    pool_->submit(1, "one", [&order, &count, i] {
      order.push_back(i);
      ++count;
      return true;
    });
  ASSERT_TRUE(pool_->wait(kEnoughMs, [&] { return count == 100; }));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(StepPoolTest, FinishedStepsAreNamedAndWakeTheRound) {
  begin({});
  submit_slow(1, "one");
  ASSERT_TRUE(wait_for_slow(1));
  EXPECT_TRUE(pool_->pop_finished().empty());
  EXPECT_FALSE(pool_->wait(1, [&] { return ended_ > 0; }));
  release();
  for (int i = 0; i < 20'000 && woken_ == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(woken_, 1);
  EXPECT_EQ(pool_->pop_finished(), std::set<std::string>{"one"});
  EXPECT_TRUE(pool_->pop_finished().empty());
}

TEST_F(StepPoolTest, DroppedStepsAreNotRun) {
  begin({.max_threads = 1, .max_per_owner = 1, .max_per_deployment = 1, .reserved_threads = 0});
  submit_slow(1, "one");
  ASSERT_TRUE(wait_for_slow(1));
  for (int i = 0; i < 5; ++i) submit_quick(1, "one");
  pool_->drop_queued("one");
  release();
  std::atomic<bool> last{false};
  pool_->submit(2, "two", [&] { return last = true; });
  EXPECT_TRUE(pool_->wait(kEnoughMs, [&] { return last.load(); }));
  EXPECT_EQ(quick_, 0);
}

TEST_F(StepPoolTest, PoolsShareALimitOfThreads) {
  StepShares shares;
  shares.shared_limit = std::make_shared<SharedThreadLimit>(1);
  begin(shares);
  StepPool other(shares, [] {});
  std::atomic<int> other_steps{0};
  for (const Id owner : {1, 2, 3}) {
    const std::string deployment = std::to_string(owner);
    submit_slow(owner, deployment);
    other.submit(owner, deployment, [&] {
      ++other_steps;
      released_.wait();
      return true;
    });
  }
  EXPECT_EQ(pool_->thread_count(), 2U);
  EXPECT_EQ(other.thread_count(), 1U);
  ASSERT_TRUE(wait_for_slow(2));
  release();
  EXPECT_TRUE(other.wait(kEnoughMs, [&] { return other_steps == 3; }));
}

TEST_F(StepPoolTest, IdleThreadsEndAndLeaveTheLimitToOthers) {
  StepShares shares;
  shares.shared_limit = std::make_shared<SharedThreadLimit>(1);
  shares.thread_idle_ms = 1;
  begin(shares);
  for (int round = 0; round < 3; ++round) {
    submit_quick(1, "a");
    submit_quick(1, "b");
    ASSERT_TRUE(wait_for_quick(2 * (round + 1)));
    for (int i = 0; i < 20'000 && pool_->thread_count() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(pool_->thread_count(), 0U);
  }
  EXPECT_TRUE(shares.shared_limit->acquire());
  EXPECT_FALSE(shares.shared_limit->acquire());
}

}  // namespace
}  // namespace mycojobs
