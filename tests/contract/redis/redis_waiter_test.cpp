// Waiting for more queues than there are blocking connections.
#include <gmock/gmock.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "contract/redis/redis_server.h"
#include "store/redis/redis_stores.h"
#include "store/redis/redis_waiter.h"

namespace mycojobs {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST(QueueHint, NamesAContextAndAQueue) {
  const auto hint = parse_queue_hint("7 queue:python").value();
  EXPECT_EQ(hint.context, 7U);
  EXPECT_EQ(hint.queue, "queue:python");
  for (const char* text : {"", "queue:python", "x queue:v", "-1 q", "99999999999 q"})
    EXPECT_FALSE(parse_queue_hint(text)) << text;
}

class ManyQueues : public RedisServer {
 protected:
  static constexpr Id kContexts = 30;
  void SetUp() override { start(); }
  void start() { RedisServer::start({.settings = {{"appendfsync", "always"}}}); }
  // Waits for three queues of each context.
  std::unique_ptr<Waiter> open_waiter() const {
    RedisStoreConfig named = config_for(url());
    named.client_name = "waiter";
    std::vector<std::pair<Id, std::string>> queues;
    for (Id context = 1; context <= kContexts; ++context) {
      for (const char* queue : {"queue:python", "queue:v", "mj:queue:runner:20"}) queues.emplace_back(context, queue);
    }
    return make_redis_stores(named)->open_waiter(queues, "runner20").value();
  }
  Reply administrate(Id context, const Arguments& arguments) { return command(arguments, context).value(); }
  void push(Id context, const char* queue = "queue:python") { administrate(context, {"LPUSH", queue, "job:12:1"}); }
  std::size_t count_connections() {
    const Reply list = administrate(0, {"CLIENT", "LIST"});
    std::size_t count = 0;
    for (auto at = list.text().find("name=waiter"); at != std::string_view::npos;
         at = list.text().find("name=waiter", at + 1))
      ++count;
    return count;
  }
  // Waits until there is work, and returns the contexts that have it.
  static std::vector<Id> wait_for_contexts(Waiter& waiter) {
    for (int i = 0; i < 60; ++i) {
      const auto result = waiter.wait(1000, true);
      if (result && result->has_work) return result->contexts;
    }
    return {};
  }
};

TEST_F(ManyQueues, NeedFewConnections) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(200, true).value().has_work);
  EXPECT_EQ(count_connections(), RedisWaiter::kMaxBlockingConnections + 2) << "for channels and for polls";
}

TEST_F(ManyQueues, EntriesOfPlainClientsAreFoundInAnyContext) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  for (const Id context : {Id{1}, Id{17}, kContexts}) {
    push(context, "queue:v");
    EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(context));
    EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(context)) << "the entry is still in the queue";
    administrate(context, {"DEL", "queue:v"});
    while (waiter->wait(20, true).value().has_work) continue;
  }
}

TEST_F(ManyQueues, EntriesInMoreQueuesThanConnectionsAreAllReported) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  std::set<Id> expected, found;
  for (Id context = 1; context <= kContexts; context += 2) {
    push(context);
    expected.insert(context);
  }
  ASSERT_TRUE(eventually([&] {
    for (const Id context : wait_for_contexts(*waiter)) found.insert(context);
    return found == expected;
  }));
}

TEST_F(ManyQueues, QueueWithWorkGetsABlockingConnection) {
  auto waiter = open_waiter();
  push(kContexts);
  ASSERT_THAT(wait_for_contexts(*waiter), ElementsAre(kContexts));
  administrate(kContexts, {"DEL", "queue:python"});
  const auto is_blocked_on = [&] {
    const Reply list = administrate(0, {"CLIENT", "LIST"});
    const std::string_view text = list.text();
    for (auto at = text.find("name=waiter"); at != std::string_view::npos; at = text.find("name=waiter", at + 1)) {
      const std::string_view line = text.substr(at, text.find('\n', at) - at);
      if (line.find(" db=" + std::to_string(kContexts) + " ") != std::string_view::npos &&
          line.find(" cmd=blmove ") != std::string_view::npos)
        return true;
    }
    return false;
  };
  ASSERT_TRUE(eventually([&] {
    (void)waiter->wait(100, true);
    return is_blocked_on();
  }));
  std::thread client([&] { push(kContexts); });
  EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(kContexts));
  client.join();
}

TEST_F(ManyQueues, SubmittedJobEndsTheWaitWithoutAPoll) {
  auto waiter = open_waiter();
  const Id context = kContexts;
  administrate(context, {"HSET", "mj:format", "context", std::to_string(context)});
  auto store = make_redis_stores(config_for(url()))->open().value();
  ASSERT_TRUE(store->queue_length(context, "queue:python"));
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(waiter->wait(100, true).value().has_work);  // the pause of polls grows
  std::uint64_t fastest_ms = 1000;
  for (Id id = 1; id <= 5; ++id) {
    const SystemClock clock;
    const std::uint64_t start_ms = clock.boot_ms();
    ASSERT_TRUE(store->submit(simple_job(id, context)));
    EXPECT_THAT(wait_for_contexts(*waiter), Contains(context));
    fastest_ms = std::min(fastest_ms, clock.boot_ms() - start_ms);
    administrate(context, {"DEL", "queue:python"});
    while (waiter->wait(20, true).value().has_work) continue;
  }
  EXPECT_LT(fastest_ms, 50U);
}

TEST_F(ManyQueues, JobWithAPriorityIsReported) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  administrate(0, {"PUBLISH", "mj:wake", "5 queue:python"});
  EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(5U));
  administrate(0, {"PUBLISH", "mj:wake", "5 queue:unknown"});
  administrate(0, {"PUBLISH", "mj:queue-filled", "1000 queue:python"});
  EXPECT_FALSE(waiter->wait(50, true).value().has_work) << "a queue of other agents";
  administrate(0, {"PUBLISH", "mj:wake", "queue:python"});
  const auto result = waiter->wait(30000, true).value();
  EXPECT_TRUE(result.has_work);
  EXPECT_TRUE(result.contexts.empty()) << "any context";
}

TEST_F(ManyQueues, HintWhileNoWorkIsRequestedIsNotLost) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(1, true).value().has_work);
  push(kContexts);
  administrate(0, {"PUBLISH", "mj:queue-filled", std::to_string(kContexts) + " queue:python"});
  EXPECT_FALSE(waiter->wait(50, false).value().has_work);
  EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(kContexts));
}

TEST_F(ManyQueues, PausedQueueAndKeyOfAnotherTypeDoNotEndWaits) {
  auto waiter = open_waiter();
  push(kContexts);
  administrate(kContexts, {"SET", "queue:v", "x"});
  waiter->set_paused(kContexts, {"queue:python"});
  EXPECT_FALSE(waiter->wait(1500, true).value().has_work);
  push(kContexts, "mj:queue:runner:20");
  EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(kContexts));
  waiter->set_paused(kContexts, {});
  administrate(kContexts, {"DEL", "mj:queue:runner:20"});
  EXPECT_TRUE(eventually([&] { return waiter->wait(1000, true).value().has_work; }));
}

TEST_F(ManyQueues, DatabaseThatCannotBeSelectedDoesNotAffectOthers) {
  RedisStoreConfig limited = config_for(url());
  administrate(
      0, {"ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-select", "+select|1", "+select|2",
          "+select|3", "+select|4", "+select|5", "+select|6", "+select|7", "+select|8", "+select|9", "+select|20"});
  limited.default_url.replace(0, std::string("unix://").size(), "unix://limited:secret@");
  std::vector<std::pair<Id, std::string>> queues;
  for (Id context = 20; context >= 1; --context) queues.emplace_back(context == 20 ? 19 : context, "queue:python");
  queues.emplace_back(20, "queue:python");
  auto waiter = make_redis_stores(limited)->open_waiter(queues, "runner20").value();
  EXPECT_FALSE(waiter->wait(300, true).value().has_work);
  push(20);
  EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(20U));
}

TEST_F(ManyQueues, RestartedServerIsWaitedForAgain) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(100, true).value().has_work);
  kill_server();
  EXPECT_TRUE(eventually([&] { return !waiter->wait(100, true); }));
  start();
  push(kContexts - 1);
  bool reconnected = false;
  std::vector<Id> contexts;
  EXPECT_TRUE(eventually([&] {
    const auto result = waiter->wait(1000, true);
    reconnected = reconnected || (result && result->reconnected);
    if (result && result->has_work) contexts = result->contexts;
    return !contexts.empty();
  }));
  EXPECT_TRUE(reconnected);
  EXPECT_THAT(contexts, ElementsAre(kContexts - 1));
}

// The connections of the waiter that block.
class FleetOfWaiters : public ManyQueues {
 protected:
  std::size_t count_blocked() {
    const Reply list = administrate(0, {"CLIENT", "LIST"});
    std::size_t count = 0;
    for (auto at = list.text().find(" cmd=blmove "); at != std::string_view::npos;
         at = list.text().find(" cmd=blmove ", at + 1)) {
      const std::size_t begin = list.text().rfind('\n', at) + 1;  // 0 in the first line
      if (list.text().substr(begin, at - begin).find(" flags=b") != std::string_view::npos) ++count;
    }
    return count;
  }
  // Lets the agent of the waiter come too late, as if another agent had claimed each job.
  void lose_claims(Waiter& waiter, int count) {
    for (int i = 0; i < count; ++i) {
      push(1);
      for (const Id context : wait_for_contexts(waiter)) waiter.on_claimed(context, false);
      administrate(1, {"DEL", "queue:python"});
    }
  }
};

TEST_F(FleetOfWaiters, WaiterThatComesTooLatePollsUntilItsClaimsSucceed) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(50, true).value().has_work);
  EXPECT_GT(count_blocked(), 0U);
  lose_claims(*waiter, 10);
  EXPECT_TRUE(eventually([&] {
    (void)waiter->wait(100, true);
    return count_blocked() == 0;
  }));
  for (const Id context : {Id{1}, Id{17}, kContexts}) {
    push(context, "queue:v");
    EXPECT_THAT(wait_for_contexts(*waiter), Contains(context)) << "polls find the job";
    waiter->on_claimed(context, true);
    administrate(context, {"DEL", "queue:v"});
  }
  EXPECT_TRUE(eventually([&] {
    push(2);
    for (const Id context : wait_for_contexts(*waiter)) waiter->on_claimed(context, true);
    return count_blocked() > 0;
  }));
}

TEST_F(FleetOfWaiters, ClaimsWithoutAReportDoNotCount) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(50, true).value().has_work);
  for (int i = 0; i < 20; ++i) waiter->on_claimed(1, false);
  EXPECT_FALSE(waiter->wait(1500, true).value().has_work);
  EXPECT_GT(count_blocked(), 0U);
}

TEST_F(FleetOfWaiters, EntryThatTheAgentHasClaimedItselfDoesNotCount) {
  auto waiter = open_waiter();
  EXPECT_FALSE(waiter->wait(50, true).value().has_work);
  for (int i = 0; i < 20; ++i) {
    administrate(0, {"PUBLISH", "mj:wake", "5 queue:python"});
    EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(5U));
    administrate(0, {"PUBLISH", "mj:wake", "5 queue:python"});
    waiter->on_claimed(5, true);  // of both jobs
    EXPECT_THAT(wait_for_contexts(*waiter), ElementsAre(5U));
    waiter->on_claimed(5, false);
  }
  EXPECT_FALSE(waiter->wait(1500, true).value().has_work);
  EXPECT_GT(count_blocked(), 0U);
}

TEST_F(FleetOfWaiters, WithoutReportsAndHintsAJobIsFoundAfterLostClaims) {
  administrate(0, {"ACL", "SETUSER", "limited", "on", ">secret", "~*", "resetchannels", "&mj:wake", "&runner20",
                   "+@all", "-client|tracking"});
  RedisStoreConfig limited = config_for(url());
  limited.default_url.replace(0, std::string("unix://").size(), "unix://limited:secret@");
  std::vector<std::pair<Id, std::string>> queues;
  for (Id context = 1; context <= kContexts; ++context) queues.emplace_back(context, "queue:python");
  auto waiter = make_redis_stores(limited)->open_waiter(queues, "runner20").value();
  EXPECT_FALSE(waiter->wait(50, true).value().has_work);
  lose_claims(*waiter, 10);
  for (const Id context : {Id{1}, kContexts}) {
    push(context);
    EXPECT_THAT(wait_for_contexts(*waiter), Contains(context));
    administrate(context, {"DEL", "queue:python"});
    while (waiter->wait(20, true).value().has_work) continue;
  }
}

// One agent ends after it was notified of a job, and before its claim.
TEST_F(FleetOfWaiters, EveryJobOfManyContextsIsClaimedOnce) {
  constexpr Id kJobs = 300;
  std::mutex mutex;
  std::multiset<std::string> claimed;
  std::atomic<bool> stop = false;
  const auto serve = [&](Id runner, bool ends_early) {
    auto waiter = open_waiter();
    auto store = make_redis_stores(config_for(url()))->open().value();
    while (!stop) {
      const auto result = waiter->wait(50, true).value();
      if (ends_early && result.has_work) return;
      for (const Id context : result.contexts) {
        ClaimRequest request{.context = context, .runner = runner, .instance = "a", .queues = {"queue:python"}};
        request.max_jobs = 4;
        const auto reply = store->claim(request).value();
        waiter->on_claimed(context, reply.has_found_entries);
        const std::lock_guard lock(mutex);
        for (const ClaimedJob& job : reply.jobs) claimed.insert(std::to_string(context) + ' ' + job.ref.job_key);
      }
    }
  };
  std::vector<std::thread> agents;
  for (Id runner = 1; runner <= 5; ++runner) agents.emplace_back(serve, runner, runner == 1);
  auto store = make_redis_stores(config_for(url()))->open().value();
  for (Id id = 1; id <= kJobs; ++id) {
    const Id context = 1 + id % kContexts;
    if (id % 2 == 0) {
      EXPECT_TRUE(store->submit(simple_job(id, context)));
    } else {  // a plain client
      const std::string key = "job:12:" + std::to_string(id), text = std::to_string(id);
      administrate(context, {"HSET", key, "id", text, "caller_id", "12", "script", "x", "script_type", "python"});
      administrate(context, {"LPUSH", "queue:python", key});
    }
  }
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return claimed.size() >= kJobs;
  }));
  stop = true;
  for (std::thread& agent : agents) agent.join();
  EXPECT_EQ(std::set<std::string>(claimed.begin(), claimed.end()).size(), kJobs);
  EXPECT_EQ(claimed.size(), kJobs);
}

}  // namespace
}  // namespace mycojobs
