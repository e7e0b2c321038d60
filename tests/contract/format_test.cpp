// An older program refuses the store of a newer program and does not change it. A database belongs to one context.
#include "store/redis/format_version.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/version.h"
#include "store/redis/redis_stores.h"
#include "store_contract.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

class StoreFormat : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "memory") {
      link_ = memory_.open_link(1);
      return;
    }
    RedisConnection::Options options;
    options.endpoint = parse_redis_url(TestRedis::instance().url()).value();
    options.database = 1;
    link_ = std::make_unique<RedisConnection>(std::move(options));
    ASSERT_TRUE(link_->command({"FLUSHALL"}));
  }
  std::string format() {
    auto found = link_->command({"HGET", "mj:format", "version"});
    return !found ? found.error().message : found->is_nil() ? "none" : std::string(found->text());
  }
  Result<void> agree(std::uint32_t own) { return agree_on_format(1, *link_, 1, {1, own}); }
  std::string owner() { return std::string(link_->command({"HGET", "mj:format", "context"}).value().text()); }

  SystemClock clock_;
  MemoryServer memory_{clock_};
  std::unique_ptr<Link> link_;
};

TEST_P(StoreFormat, IsWrittenWhenAProgramConnects) {
  EXPECT_EQ(format(), "none");
  ASSERT_TRUE(agree(1));
  EXPECT_EQ(format(), "1");
  ASSERT_TRUE(agree(1));
  EXPECT_EQ(format(), "1");
}

TEST_P(StoreFormat, NewerProgramUpgradesAnOlderStore) {
  ASSERT_TRUE(agree(1));
  ASSERT_TRUE(agree(3));
  EXPECT_EQ(format(), "3");
}

TEST_P(StoreFormat, OlderProgramRejectsANewerStoreUnchanged) {
  ASSERT_TRUE(agree(3));
  const auto refused = agree(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_EQ(refused.error().message,
            std::string("context 1: its store has format 3 of mycojobs ") + kVersion + ", and this is mycojobs " +
                kVersion +
                ", which supports formats up to 2: nothing was changed; install that version or a newer version");
  EXPECT_EQ(format(), "3");
  EXPECT_EQ(link_->command({"DBSIZE"})->number(), 1U);
}

TEST_P(StoreFormat, ProgramWithoutThisFormatRejectsAnOlderStoreUnchanged) {
  ASSERT_TRUE(agree(1));
  const auto refused = agree_on_format(1, *link_, 1, {2, 3});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_EQ(refused.error().message,
            std::string("context 1: its store has format 1 of mycojobs ") + kVersion + ", and this is mycojobs " +
                kVersion +
                ", which supports formats from 2: nothing was changed; end its jobs with that version, then use an "
                "empty database");
  EXPECT_FALSE(agree_on_format(1, *link_, 1)) << "this program supports only format 2";
  EXPECT_EQ(format(), "1");
  EXPECT_EQ(link_->command({"DBSIZE"})->number(), 1U);
}

TEST_P(StoreFormat, InvalidFormatIsIgnoredAndAnotherTypeIsAnError) {
  for (const char* nonsense : {"", "x", "-1", "1e400", "0", "2x"}) {
    ASSERT_TRUE(link_->command({"HSET", "mj:format", "version", nonsense}));
    ASSERT_TRUE(agree(1)) << nonsense;
    EXPECT_EQ(format(), "1") << nonsense;
  }
  ASSERT_TRUE(link_->command({"DEL", "mj:format"}));
  ASSERT_TRUE(link_->command({"SET", "mj:format", "planted"}));
  const auto refused = agree(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_THAT(refused.error().message, HasSubstr("mj:format is a string"));
}

TEST_P(StoreFormat, DatabaseBelongsToTheFirstContext) {
  ASSERT_TRUE(agree_on_format(3, *link_, 1));
  EXPECT_EQ(owner(), "3");
  ASSERT_TRUE(agree_on_format(3, *link_, 1));
  const auto refused = agree_on_format(5, *link_, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_EQ(refused.error().message,
            "context 5: its database belongs to context 3, and a database holds one context: nothing was changed; set "
            "contexts.5.redis or contexts.3.redis to another server or database");
  EXPECT_EQ(owner(), "3");
  EXPECT_EQ(link_->command({"DBSIZE"})->number(), 1U);
}

// Stores of former versions have no id.
TEST_P(StoreFormat, ExistingStoreGetsTheIdOfTheContextThatOpensIt) {
  ASSERT_TRUE(link_->command({"HSET", "mj:format", "version", "2", "program", "0.1.0"}));
  ASSERT_TRUE(link_->command({"HSET", "context:5", "id", "5"}));
  const auto refused = agree_on_format(3, *link_, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::denied);
  EXPECT_THAT(refused.error().message, HasSubstr("context 5, whose record context:5 it has, and not context:3"));
  EXPECT_THAT(refused.error().message, HasSubstr("delete the record if it was written by mistake"));
  EXPECT_EQ(owner(), "");
  ASSERT_TRUE(agree_on_format(5, *link_, 1));
  EXPECT_EQ(owner(), "5");
  EXPECT_EQ(link_->command({"HGET", "mj:format", "program"})->text(), "0.1.0") << "the format was not written again";
}

TEST_P(StoreFormat, OwnRecordDecidesBetweenRecordsOfContexts) {
  ASSERT_TRUE(link_->command({"HSET", "context:5", "id", "5"}));
  ASSERT_TRUE(link_->command({"HSET", "context:3", "id", "3"}));
  ASSERT_TRUE(link_->command({"HSET", "context:x", "id", "3"}));
  ASSERT_TRUE(agree_on_format(3, *link_, 1));
  EXPECT_EQ(owner(), "3");
  EXPECT_FALSE(agree_on_format(5, *link_, 1));
}

TEST_P(StoreFormat, InvalidIdOfAContextIsReplaced) {
  for (const char* nonsense : {"", "x", "-1", "0"}) {
    ASSERT_TRUE(link_->command({"HSET", "mj:format", "version", "2", "context", nonsense}));
    ASSERT_TRUE(agree_on_format(3, *link_, 1)) << nonsense;
    EXPECT_EQ(owner(), "3") << nonsense;
  }
}

// Former versions stored each context in the database of its number, here 1.
TEST_P(StoreFormat, RecordOfTheDatabaseNumberDecidesBeforeOthers) {
  ASSERT_TRUE(link_->command({"HSET", "mj:format", "version", "2"}));
  ASSERT_TRUE(link_->command({"HSET", "context:1", "id", "1"}));
  ASSERT_TRUE(link_->command({"HSET", "context:3", "id", "3"}));
  const auto refused = agree_on_format(3, *link_, 1);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("its database belongs to context 1"));
  EXPECT_EQ(owner(), "");
  EXPECT_TRUE(agree_on_format(1, *link_, 1));
  EXPECT_EQ(owner(), "1");
}

TEST_P(StoreFormat, RecordOfAnotherContextIsFoundAmongManyKeys) {
  ASSERT_TRUE(link_->command({"HSET", "mj:format", "version", "2"}));
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(link_->command({"SET", "key" + std::to_string(i), ""}));
  ASSERT_TRUE(link_->command({"HSET", "context:7", "id", "7"}));
  EXPECT_FALSE(agree_on_format(3, *link_, 1));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreFormat, testing::Values("redis", "memory"),
                         [](const auto& i) { return i.param; });

// The first of many contexts that open a database at the same time gets it.
TEST(DatabaseOfAContext, IsTakenOnceByParallelWriters) {
  constexpr Id kContexts = 8;
  auto& redis = TestRedis::instance();
  for (int round = 0; round < 20; ++round) {
    redis.run_command(1, {"FLUSHALL"});
    std::atomic<int> accepted = 0;
    std::vector<std::thread> writers;
    for (Id context = 1; context <= kContexts; ++context) {
      writers.emplace_back([&, context] {
        RedisConnection::Options options;
        options.endpoint = parse_redis_url(redis.url()).value();
        RedisConnection link(std::move(options));
        if (agree_on_format(context, link, 0)) ++accepted;
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(accepted, 1);
  }
}

// A user that may only read can use a store without an id. The next writer stores the id.
TEST(DatabaseOfAContext, ReaderDoesNotNeedToStoreTheId) {
  auto& redis = TestRedis::instance();
  redis.run_command(1, {"FLUSHALL"});
  redis.run_command(1, {"HSET", "mj:format", "version", std::to_string(kStoreFormat), "program", "0.1.0"});
  redis.run_command(1, {"ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@all", "-@write"});
  RedisConnection::Options options;
  options.endpoint = parse_redis_url(redis.url()).value();
  options.endpoint.user = "reader";
  options.database = 1;
  RedisConnection link(std::move(options));
  EXPECT_TRUE(agree_on_format(1, link, 1));
  EXPECT_TRUE(redis.run_command(1, {"HGET", "mj:format", "context"}).is_nil());
  redis.run_command(1, {"ACL", "DELUSER", "reader"});
}

// The user of an agent may not change the format. An agent that starts before each other program leaves it to them.
TEST(DatabaseOfAContext, UserWithoutTheRightLeavesTheFormatToTheNextWriter) {
  auto& redis = TestRedis::instance();
  redis.run_command(1, {"FLUSHALL"});
  redis.run_command(1, {"ACL", "SETUSER", "agent", "on", "nopass", "+@all", "~job:*", "%R~mj:format", "%R~context:*"});
  RedisConnection::Options options;
  options.endpoint = parse_redis_url(redis.url()).value();
  options.database = 1;
  RedisConnection writer(options);
  options.endpoint.user = "agent";
  RedisConnection agent(options);
  const auto accepted = agree_on_format(1, agent, 1);
  EXPECT_TRUE(accepted) << accepted.error().message;
  EXPECT_EQ(redis.run_command(1, {"DBSIZE"}).number(), 0U);
  EXPECT_FALSE(agent.command({"HSET", "mj:format", "version", "99"}));
  EXPECT_TRUE(agree_on_format(1, writer, 1));
  EXPECT_EQ(redis.run_command(1, {"HGET", "mj:format", "context"}).text(), "1");
  EXPECT_TRUE(agree_on_format(1, agent, 1));
  EXPECT_FALSE(agree_on_format(2, agent, 1));
  redis.run_command(1, {"ACL", "DELUSER", "agent"});
}

// The stores of agents, coordinators and commands do not connect.
TEST(NewerStoreFormat, RejectsAllCallsAndKeepsItsData) {
  auto& redis = TestRedis::instance();
  redis.run_command(1, {"FLUSHALL"});
  RedisStoreConfig config;
  config.default_url = redis.url();
  const auto stores = make_redis_stores(config);
  auto store = stores->open().value();
  redis.run_command(2, {"HSET", "mj:format", "version", std::to_string(kStoreFormat + 1)});
  Job job;
  job.id = 1, job.caller_id = 12, job.context_id = 2, job.script = "print(1)", job.script_type = "python";
  const auto submitted = store->submit(job);
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().code, Code::denied);
  EXPECT_THAT(submitted.error().message,
              HasSubstr("context 2: its store has format " + std::to_string(kStoreFormat + 1)));
  auto flows = stores->open_flows().value();
  EXPECT_EQ(flows->list(2, "", 0, 10).error().code, Code::denied);
  EXPECT_EQ(redis.run_command(2, {"DBSIZE"}).number(), 1U);
  job.context_id = 1;
  EXPECT_TRUE(store->submit(job)) << "the other context is not affected";
  EXPECT_EQ(redis.run_command(1, {"HGET", "mj:format", "version"}).text(), std::to_string(kStoreFormat));
}

}  // namespace
}  // namespace mycojobs
