// The waiter, which wakes when queues or flows have work.
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <set>

#include "contract/store_contract.h"

namespace mycojobs {
namespace {

class Waiting : public StoreContract {
 protected:
  std::unique_ptr<Waiter> waiter() {
    return backend_->stores()
        .open_waiter({{1, "queue:python"}, {1, "queue:v"}, {2, "queue:python"}}, "runner20")
        .value();
  }
};

TEST_P(Waiting, PushWakesAndTheJobStays) {
  auto waiter = this->waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  std::thread client([&] { backend_->push(2, "queue:python", "job:12:1"); });
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
  client.join();
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work) << "the job is still queued";
  EXPECT_EQ(store_->queue_length(2, "queue:python").value(), 1U);
}

TEST_P(Waiting, WakesForWorkOnlyIfRequested) {
  auto waiter = this->waiter();
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_FALSE(waiter->wait(20, false).value().has_work);
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
  EXPECT_FALSE(waiter->wait(20, false).value().has_work);
}

TEST_P(Waiting, WakeFromAnotherThreadIsStoredOnce) {
  auto waiter = this->waiter();
  waiter->wake();
  ASSERT_TRUE(waiter->wait(600000, true));
  std::thread other([&] { waiter->wake(); });
  ASSERT_TRUE(waiter->wait(600000, true));
  other.join();
}

TEST_P(Waiting, HintContainsItsText) {
  auto waiter = this->waiter();
  ASSERT_TRUE(waiter->wait(0, false));
  backend_->publish("runner20", "message:12:101");
  backend_->publish("runner21", "message:12:102");
  std::vector<std::string> hints;
  ASSERT_TRUE(eventually([&] {
    const auto woken = waiter->wait(1000, false).value();
    hints.insert(hints.end(), woken.hints.begin(), woken.hints.end());
    return !hints.empty();
  }));
  EXPECT_THAT(hints, testing::ElementsAre("message:12:101"));
}

TEST_P(Waiting, SentMessageIsAHint) {
  auto waiter = this->waiter();
  ASSERT_TRUE(waiter->wait(0, true));
  ASSERT_TRUE(store_->send_to_topic(1, "runner20", "message:12:5", {{"id", "5"}}));
  EXPECT_TRUE(eventually([&] { return !waiter->wait(1000, true).value().hints.empty(); }));
}

TEST_P(Waiting, QueueOfAnotherTypeDoesNotAffectOthers) {
  backend_->put_text(1, "queue:v", "x");
  auto waiter = this->waiter();
  EXPECT_FALSE(waiter->wait(20, true).value().has_work);
  backend_->push(1, "queue:python", "job:12:1");
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
}

TEST_P(Waiting, PausedQueueIsNotWatchedUntilResumed) {
  auto waiter = this->waiter();
  backend_->push(1, "queue:python", "job:12:1");
  waiter->set_paused(1, {"queue:python", "queue:unknown"});
  EXPECT_FALSE(waiter->wait(20, true).value().has_work);
  waiter->set_paused(2, {"queue:v"});
  EXPECT_FALSE(waiter->wait(20, true).value().has_work) << "queues are paused per context";
  backend_->push(2, "queue:python", "job:12:1");
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
  backend_->erase(2, "queue:python");
  waiter->set_paused(1, {"queue:v"});
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work) << "queues that are no longer paused are watched again";
}

TEST_P(Waiting, AnnouncementWakesTheWaiter) {
  auto waiter = this->waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  std::thread client([&] { backend_->publish("mj:wake", "queue:python"); });
  const auto woken = waiter->wait(30000, true).value();
  client.join();
  EXPECT_TRUE(woken.has_work);
  EXPECT_THAT(woken.hints, testing::IsEmpty()) << "the wake-up is not a message of the topic";
  EXPECT_FALSE(waiter->wait(20, true).value().has_work) << "the wake-up was already reported";
}

TEST_P(Waiting, AnnouncementBetweenTwoWaitsIsNotLost) {
  auto waiter = this->waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  backend_->publish("mj:wake", "queue:python");
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
}

TEST_P(Waiting, AnnouncementDuringAnotherWaitIsReportedToTheNextWaitForWork) {
  auto waiter = this->waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  backend_->publish("mj:wake", "queue:python");
  EXPECT_FALSE(waiter->wait(20, false).value().has_work);
  EXPECT_TRUE(waiter->wait(30000, true).value().has_work);
  EXPECT_FALSE(waiter->wait(20, true).value().has_work) << "the announcement was already reported";
}

TEST_P(Waiting, EveryWaiterWakesAndEachJobIsClaimedOnce) {
  constexpr std::size_t kJobs = 100;
  std::mutex mutex;
  std::multiset<std::string> taken;
  std::atomic<bool> stop{false};
  std::vector<std::thread> agents;
  for (int i = 0; i < 2; ++i) {
    agents.emplace_back([&] {
      auto store = backend_->stores().open().value();
      auto waiter = this->waiter();
      while (!stop) {
        if (!waiter->wait(50, true).value().has_work) continue;
        const auto reply = store->claim(request(2)).value();
        std::lock_guard lock(mutex);
        for (const ClaimedJob& each : reply.jobs) taken.insert(each.ref.job_key);
      }
    });
  }
  for (Id id = 1; id <= kJobs; ++id) submit(id);
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(mutex);
    return taken.size() >= kJobs;
  }));
  stop = true;
  for (auto& agent : agents) agent.join();
  EXPECT_EQ(taken.size(), kJobs);
  EXPECT_EQ(std::set<std::string>(taken.begin(), taken.end()).size(), kJobs);
}

MJ_BOTH_STORES(Waiting);

}  // namespace
}  // namespace mycojobs
