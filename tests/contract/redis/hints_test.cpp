// Subscriptions to hints: messages on channels, and changes of lists that plain clients write.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <mutex>

#include "contract/redis/redis_server.h"
#include "contract/store_contract.h"
#include "store/redis/redis_stores.h"

namespace mycojobs {
namespace {

class RecordingListener final : public HintListener {
 public:
  void on_message(std::string_view channel, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    hints_.push_back(std::string(channel) + ' ' + std::string(text));
  }
  void on_key_changed(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    hints_.push_back(std::string(key) + " changed");
  }
  void on_subscription_changed(bool is_complete) override {
    const std::lock_guard lock(mutex_);
    states_.push_back(is_complete);
  }
  std::vector<std::string> hints() {
    const std::lock_guard lock(mutex_);
    return hints_;
  }
  std::vector<bool> states() {
    const std::lock_guard lock(mutex_);
    return states_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> hints_;
  std::vector<bool> states_;
};

class Hints : public StoreContract {
 protected:
  std::unique_ptr<HintSubscription> subscribe(const HintTopics& topics, HintListener& listener) {
    auto subscription = backend_->stores().subscribe(1, topics, listener).value();
    EXPECT_TRUE(eventually([&] { return subscription->is_complete(); }));
    return subscription;
  }
};

TEST_P(Hints, MessagesReachTheListenersOfTheirChannel) {
  RecordingListener first, second;
  const auto of_first = subscribe({{"mj:a", "mj:b"}, {}}, first), of_second = subscribe({{"mj:b"}, {}}, second);
  backend_->publish("mj:a", "1 2");
  backend_->publish("mj:b", "3");
  backend_->publish("mj:c", "4");
  backend_->publish("mj:b", "");
  ASSERT_TRUE(eventually([&] { return first.hints().size() == 3 && second.hints().size() == 2; }));
  EXPECT_THAT(first.hints(), testing::ElementsAre("mj:a 1 2", "mj:b 3", "mj:b "));
  EXPECT_THAT(second.hints(), testing::ElementsAre("mj:b 3", "mj:b "));
}

TEST_P(Hints, PushOfAPlainClientIsAChangeOfTheKey) {
  RecordingListener listener;
  const auto subscription = subscribe({{}, {"msg_out", "mj:queue:router"}}, listener);
  backend_->push(1, "mj:queue:router:host", "job:1:1");
  backend_->push(1, "msg_out", "message:1:1");
  ASSERT_TRUE(eventually([&] { return !listener.hints().empty(); }));
  EXPECT_THAT(listener.hints(), testing::ElementsAre("msg_out changed")) << "other keys with the same prefix";
}

TEST_P(Hints, NothingArrivesAfterTheEnd) {
  RecordingListener ended, present;
  auto of_ended = subscribe({{"mj:a"}, {"msg_out"}}, ended);
  const auto of_present = subscribe({{"mj:a"}, {"msg_out"}}, present);
  of_ended.reset();
  backend_->publish("mj:a", "1");
  backend_->push(1, "msg_out", "message:1:1");
  ASSERT_TRUE(eventually([&] { return present.hints().size() >= 2; }));
  EXPECT_THAT(ended.hints(), testing::IsEmpty());
}

MJ_BOTH_STORES(Hints);

class HintServer : public RedisServer {
 protected:
  std::unique_ptr<StoreFactory> stores() { return make_redis_stores(config_for(url())); }
  std::size_t count_connections() {
    const std::string clients(command({"CLIENT", "LIST", "TYPE", "pubsub"}).value().text());
    return static_cast<std::size_t>(std::count(clients.begin(), clients.end(), '\n'));
  }
};

TEST_F(HintServer, SubscriptionsShareAConnectionAndChangesCrossDatabases) {
  start();
  const auto factory = stores();
  RecordingListener listeners[4];
  std::vector<std::unique_ptr<HintSubscription>> subscriptions;
  for (Id context = 1; context <= 4; ++context) {
    const HintTopics topics{{"mj:flows:due", "mj:extra" + std::to_string(context)}, {"msg_out"}};
    subscriptions.push_back(factory->subscribe(context, topics, listeners[context - 1]).value());
  }
  for (const auto& subscription : subscriptions) ASSERT_TRUE(eventually([&] { return subscription->is_complete(); }));
  EXPECT_EQ(count_connections(), 1U);
  ASSERT_TRUE(command({"LPUSH", "msg_out", "message:1:1"}, 3));
  for (RecordingListener& listener : listeners)
    EXPECT_TRUE(eventually([&] { return listener.hints().size() == 1; })) << "a change in any database";
  subscriptions.clear();
  EXPECT_TRUE(eventually([&] { return count_connections() == 0; }));
}

TEST_F(HintServer, OutageIsReportedAndHintsArriveAfterIt) {
  start();
  const auto factory = stores();
  RecordingListener listener;
  const auto subscription = factory->subscribe(1, {{"mj:a"}, {"msg_out"}}, listener).value();
  ASSERT_TRUE(eventually([&] { return subscription->is_complete(); }));
  ::kill(redis_->pid(), SIGKILL);
  redis_.reset();
  ASSERT_TRUE(eventually([&] { return !subscription->is_complete(); }));
  start();
  ASSERT_TRUE(eventually([&] { return listener.states() == std::vector<bool>{true, false, true}; }));
  ASSERT_TRUE(command({"PUBLISH", "mj:a", "1"}));
  ASSERT_TRUE(command({"LPUSH", "msg_out", "message:1:1"}, 2));
  EXPECT_TRUE(eventually([&] { return listener.hints().size() == 2; }));
}

TEST_F(HintServer, WithoutTheRightToTrackKeysTheListenerMustPoll) {
  start();
  ASSERT_TRUE(command({"ACL", "SETUSER", "default", "-client|tracking"}));
  const auto factory = stores();
  RecordingListener with_key, without_key;
  const auto of_key = factory->subscribe(1, {{"mj:a"}, {"msg_out"}}, with_key).value();
  const auto of_channel = factory->subscribe(1, {{"mj:a"}, {}}, without_key).value();
  ASSERT_TRUE(eventually([&] { return of_channel->is_complete(); }));
  EXPECT_FALSE(of_key->is_complete());
  ASSERT_TRUE(command({"PUBLISH", "mj:a", "1"}));
  EXPECT_TRUE(eventually([&] { return with_key.hints().size() == 1 && without_key.hints().size() == 1; }));
}

}  // namespace
}  // namespace mycojobs
