// The connections that stores share.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "contract/redis/redis_server.h"
#include "store/redis/redis_pool.h"
#include "store/redis/redis_stores.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;

class RedisPoolTest : public RedisServer {
 protected:
  void SetUp() override { start(); }
  void start() { RedisServer::start({.settings = {{"appendfsync", "always"}}}); }
  RedisConnection::Options options() const {
    RedisConnection::Options out;
    out.endpoint = parse_redis_url(url()).value();
    return out;
  }
  RedisStoreConfig config() const {
    RedisStoreConfig out = config_for(url());
    out.client_name = "pooled";
    return out;
  }
  std::shared_ptr<RedisPool> make_pool(milliseconds max_idle = std::chrono::seconds(60)) const {
    return std::make_shared<RedisPool>(options(), no_metrics(), max_idle);
  }
  // Executes a command of another client.
  Reply administrate(const Arguments& arguments, std::uint32_t database = 0) {
    return command(arguments, database).value();
  }
  std::size_t count_connections(std::string_view name = "name=pooled") {
    const Reply list = administrate({"CLIENT", "LIST"});
    std::size_t count = 0;
    for (std::size_t at = list.text().find(name); at != std::string_view::npos; at = list.text().find(name, at + 1))
      ++count;
    return count;
  }
  std::uint64_t count_scripts() {
    const Reply stats = administrate({"INFO", "commandstats"});
    std::uint64_t count = 0;
    for (const std::string_view name : {"cmdstat_eval:calls=", "cmdstat_evalsha:calls="}) {
      const auto at = stats.text().find(name);
      if (at != std::string_view::npos) count += std::stoull(std::string(stats.text().substr(at + name.size(), 12)));
    }
    return count;
  }

  static constexpr RedisPool::Timeouts kTimeouts{3000, 5000};
};

TEST_F(RedisPoolTest, StoresOfAThreadShareTheirConnections) {
  const auto factory = make_redis_stores(config());
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 5; ++i) stores.push_back(factory->open().value());
  auto objects = factory->open_objects().value();
  for (auto& store : stores) {
    ASSERT_TRUE(store->now_ms());
    for (Id context = 1; context <= 10; ++context) ASSERT_TRUE(store->queue_length(context, "queue:python"));
  }
  EXPECT_LE(count_connections(), 3U);
}

TEST_F(RedisPoolTest, ConcurrentCallsHaveConnectionsOfTheirOwn) {
  const auto pool = make_pool();
  auto first = pool->borrow(1, kTimeouts).value(), second = pool->borrow(1, kTimeouts).value();
  EXPECT_EQ(pool->open_connections(), 2U);
  pool->give_back(std::move(first));
  pool->give_back(std::move(second));
  first = pool->borrow(1, kTimeouts).value();
  EXPECT_EQ(pool->open_connections(), 2U);
  pool->give_back(std::move(first));
}

TEST_F(RedisPoolTest, ConnectionWithTheRightDatabaseIsPreferred) {
  const auto pool = make_pool();
  auto first = pool->borrow(1, kTimeouts).value(), second = pool->borrow(2, kTimeouts).value();
  const RedisConnection* const one = first.get();
  pool->give_back(std::move(first));
  pool->give_back(std::move(second));
  for (int i = 0; i < 3; ++i) {
    auto connection = pool->borrow(1, kTimeouts).value();
    EXPECT_EQ(connection.get(), one);
    pool->give_back(std::move(connection));
    connection = pool->borrow(2, kTimeouts).value();
    EXPECT_NE(connection.get(), one);
    pool->give_back(std::move(connection));
  }
}

TEST_F(RedisPoolTest, FrequentSelectionsAddConnectionsUpToALimit) {
  const auto pool = make_pool();
  for (int i = 0; i < 5000; ++i) {
    const std::uint32_t database = 1 + static_cast<std::uint32_t>(i % 40);
    auto connection = pool->borrow(database, kTimeouts).value();
    ASSERT_EQ(connection->database(), database);
    pool->give_back(std::move(connection));
  }
  EXPECT_EQ(pool->open_connections(), 16U);
}

TEST_F(RedisPoolTest, IdleConnectionsAreClosedAfterAWhile) {
  const auto pool = make_pool(milliseconds(50));
  std::vector<std::unique_ptr<RedisConnection>> connections;
  for (int i = 0; i < 8; ++i) connections.push_back(pool->borrow(1, kTimeouts).value());
  for (auto& connection : connections) pool->give_back(std::move(connection));
  EXPECT_EQ(pool->open_connections(), 8U);
  EXPECT_TRUE(eventually([&] {
    pool->give_back(pool->borrow(1, kTimeouts).value());
    return pool->open_connections() == 1;
  }));
}

TEST_F(RedisPoolTest, EachContextIsPreparedOnceForAllStores) {
  const auto factory = make_redis_stores(config());
  const auto first = factory->open().value(), second = factory->open().value();
  for (Id context = 1; context <= 5; ++context) ASSERT_TRUE(first->queue_length(context, "queue:python"));
  const std::uint64_t scripts = count_scripts();
  EXPECT_GE(scripts, 10U);
  std::thread other([&] {
    for (Id context = 1; context <= 5; ++context) EXPECT_TRUE(second->queue_length(context, "queue:python"));
  });
  other.join();
  administrate({"CLIENT", "KILL", "TYPE", "normal"});
  for (Id context = 1; context <= 5; ++context) ASSERT_TRUE(first->queue_length(context, "queue:python"));
  EXPECT_EQ(count_scripts(), scripts) << "a new connection to the same server prepares nothing";
  kill_server();
  start();
  for (Id context = 1; context <= 5; ++context) ASSERT_TRUE(second->queue_length(context, "queue:python"));
  EXPECT_GE(count_scripts(), 10U) << "a restarted server is prepared again";
}

TEST_F(RedisPoolTest, FailedPreparationIsRepeated) {
  const auto factory = make_redis_stores(config());
  const auto store = factory->open().value();
  administrate({"HSET", "mj:format", "version", "1000", "program", "9.9.9"}, 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(outcome(store->queue_length(1, "queue:python")), "denied");
  EXPECT_TRUE(store->queue_length(2, "queue:python"));
  administrate({"DEL", "mj:format"}, 1);
  EXPECT_TRUE(store->queue_length(1, "queue:python"));
}

TEST_F(RedisPoolTest, ConnectionsClosedByTheServerAreReplacedWithoutAnError) {
  const auto pool = make_pool();
  std::vector<std::unique_ptr<RedisConnection>> connections;
  for (int i = 0; i < 4; ++i) connections.push_back(pool->borrow(1, kTimeouts).value());
  for (auto& connection : connections) pool->give_back(std::move(connection));
  administrate({"CLIENT", "KILL", "TYPE", "normal"});
  auto connection = pool->borrow(1, kTimeouts).value();
  EXPECT_TRUE(connection->command({"PING"}));
  pool->give_back(std::move(connection));
  EXPECT_EQ(pool->open_connections(), 1U);
}

TEST_F(RedisPoolTest, RestartedServerIsUsedWithoutAnError) {
  const auto pool = make_pool();
  auto first = pool->borrow(1, kTimeouts).value(), second = pool->borrow(1, kTimeouts).value();
  const std::string run_id = first->server_run_id();
  pool->give_back(std::move(first));
  pool->give_back(std::move(second));
  kill_server();
  EXPECT_EQ(outcome(pool->borrow(1, kTimeouts)), "unavailable");
  start();
  auto connection = pool->borrow(1, kTimeouts).value();
  EXPECT_NE(connection->server_run_id(), run_id);
  pool->give_back(std::move(connection));
}

// The server delays writes. The command of the first connection is therefore still unread when the second is lent.
TEST_F(RedisPoolTest, AbandonedCommandIsNotExecutedAfterALaterCall) {
  const auto pool = make_pool();
  auto first = pool->borrow(1, {3000, 200}).value(), second = pool->borrow(2, kTimeouts).value();
  administrate({"CLIENT", "PAUSE", "60000", "WRITE"});
  EXPECT_EQ(outcome(first->command({"LPUSH", "late", "x"})), "unavailable");
  pool->give_back(std::move(first));
  EXPECT_EQ(pool->try_borrow(2, kTimeouts), nullptr);
  pool->give_back(std::move(second));
  auto later = pool->borrow(1, kTimeouts).value();
  administrate({"CLIENT", "UNPAUSE"});
  EXPECT_EQ(later->command({"LLEN", "late"}).value().number(), 0U);
  EXPECT_EQ(administrate({"EXISTS", "late"}, 1).number(), 0U);
  pool->give_back(std::move(later));
}

TEST_F(RedisPoolTest, AbandonedCommandIsEndedBeforeACallOfAnotherStore) {
  const auto factory = make_redis_stores(config());
  const auto reader = factory->open_reader().value(), other = factory->open().value();
  ASSERT_TRUE(reader->queue_length(1, "queue:python") && other->queue_length(2, "queue:python"));
  administrate({"CLIENT", "PAUSE", "60000", "WRITE"});
  EXPECT_EQ(outcome(reader->submit(simple_job(1, 1))), "unavailable");
  ASSERT_TRUE(other->queue_length(2, "queue:python"));
  administrate({"CLIENT", "UNPAUSE"});
  EXPECT_EQ(reader->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(administrate({"EXISTS", "job:12:1"}, 1).number(), 0U);
}

TEST_F(RedisPoolTest, RejectedSelectDoesNotExecuteTheCommandElsewhere) {
  administrate({"ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-select", "+select|1"});
  RedisStoreConfig limited = config();
  limited.default_url.replace(0, std::string("unix://").size(), "unix://limited:secret@");
  const auto store = make_redis_stores(limited)->open().value();
  ASSERT_TRUE(store->submit(simple_job(1, 1)));
  EXPECT_EQ(outcome(store->submit(simple_job(2, 2))), "denied");
  EXPECT_EQ(administrate({"EXISTS", "job:12:2"}, 1).number(), 0U);
  EXPECT_TRUE(store->submit(simple_job(3, 1)));
  EXPECT_TRUE(store->now_ms()) << "database 0 needs no permission for SELECT";
  const auto no_such_database = store->queue_length(1000, "queue:python");
  EXPECT_EQ(outcome(no_such_database), "denied");
}

TEST_F(RedisPoolTest, RejectedSelectLeavesNoConnection) {
  StoreConnection connection(config());
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(connection.command(999'999, {"LLEN", "queue:python"}));
  EXPECT_LE(count_connections(), 1U);
}

TEST_F(RedisPoolTest, ErrorOfAnUnknownCommandHidesItsArguments) {
  const Error error = redis_error("ERR unknown command 'AUTH', with args beginning with: 'user' 's3cret' ");
  EXPECT_THAT(error.message, testing::HasSubstr("unknown command 'AUTH'"));
  EXPECT_THAT(error.message, testing::Not(testing::HasSubstr("s3cret")));
}

TEST_F(RedisPoolTest, FailedPairOfCommandsLeavesTheConnectionUsable) {
  const auto pool = make_pool();
  auto connection = pool->borrow(1, kTimeouts).value();
  EXPECT_EQ(connection->command_pair({"SET", "a", "1"}, {"GET", "a"}, 0).value().text(), "1");
  EXPECT_FALSE(connection->command_pair({"LPUSH", "a", "1"}, {"GET", "a"}, 0));
  EXPECT_FALSE(connection->command_pair({"SET", "a", "2"}, {"LLEN", "a"}, 0));
  EXPECT_EQ(connection->command({"GET", "a"}).value().text(), "2");
  pool->give_back(std::move(connection));
}

TEST_F(RedisPoolTest, MissingReplicaIsAnErrorOfTheCallAlone) {
  RedisStoreConfig replicated = config();
  replicated.wait_replicas = 1;
  const auto store = make_redis_stores(replicated)->open().value();
  const auto submitted = store->submit(simple_job(1, 1));
  EXPECT_EQ(outcome(submitted), "unavailable");
  EXPECT_NE(submitted.error().message.find("0 replicas have the write"), std::string::npos)
      << submitted.error().message;
  EXPECT_EQ(store->queue_length(1, "queue:python").value(), 1U);
  EXPECT_EQ(count_connections(), 1U);
}

TEST_F(RedisPoolTest, CallsOfTwoThreadsSurviveAKilledServer) {
  constexpr Id kContexts = 6;
  const auto factory = make_redis_stores(config());
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> submitted{0};
  std::vector<std::thread> threads;
  for (Id thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      const auto store = factory->open().value();
      for (Id id = 1; !stop; ++id) {
        const Id context = 1 + id % kContexts;
        // The id names the context, so that a job in the database of another context is found below.
        if (store->submit(simple_job((id * 2 + thread) * 100 + context, context))) ++submitted;
      }
    });
  }
  for (int restart = 0; restart < 3; ++restart) {
    const std::uint64_t before = submitted;
    EXPECT_TRUE(eventually([&] { return submitted > before + 200; }));
    kill_server();
    start();
  }
  const std::uint64_t before = submitted;
  EXPECT_TRUE(eventually([&] { return submitted > before + 200; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::uint64_t stored = 0;
  for (Id context = 1; context <= kContexts; ++context) {
    const Reply keys = administrate({"KEYS", "job:*"}, context);
    stored += keys.size();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::string_view key = keys.at(i).text();
      EXPECT_EQ(key.back() - '0', static_cast<int>(context)) << key;
    }
  }
  EXPECT_GE(stored, submitted);
}

}  // namespace
}  // namespace mycojobs
