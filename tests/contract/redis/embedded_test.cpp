// The embedded Redis server.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract/store_contract.h"
#include "store/redis/redis_stores.h"

namespace mycojobs {
namespace {

using testing::HasSubstr;

Store store_in(const std::string& state_dir) {
  RedisStoreConfig config;
  config.default_url = EmbeddedRedis::url(state_dir);
  return Store(config);
}

TEST(EmbeddedRedis, StartsInAPrivateFolderAndKeepsItsData) {
  TempFolder folder;
  const std::string state = folder.path() + "/with a blank/and %41?";
  for (int round = 0; round < 2; ++round) {
    auto redis = EmbeddedRedis::start(state);
    ASSERT_TRUE(redis) << redis.error().message;
    Store store = store_in(state);
    if (round == 0) {
      ASSERT_TRUE(store.save(1, "actor:1", {{"id", "1"}}));
    }
    EXPECT_EQ(outcome(store.load(1, "actor:1")), "ok");
    struct stat info {};
    ASSERT_EQ(::stat((state + "/redis").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
    ASSERT_EQ(::stat((state + "/redis/redis.sock").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
    (*redis)->stop();
    (*redis)->stop();
    EXPECT_EQ(outcome(store_in(state).now_ms()), "unavailable");
  }
}

TEST(EmbeddedRedis, SecondServerInAFolderIsAConflictWithTheHolder) {
  TempFolder folder;
  auto first = EmbeddedRedis::start(folder.path());
  ASSERT_TRUE(first) << first.error().message;
  const auto second = EmbeddedRedis::start(folder.path());
  EXPECT_EQ(outcome(second), "conflict");
  EXPECT_THAT(second.error().message, HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_EQ(outcome(store_in(folder.path()).now_ms()), "ok") << "the first one is not disturbed";
}

TEST(EmbeddedRedis, PathTooLongForASocketIsRejected) {
  TempFolder folder;
  const auto refused = EmbeddedRedis::start(folder.path() + "/" + std::string(100, 'x'));
  EXPECT_EQ(outcome(refused), "invalid");
  EXPECT_THAT(refused.error().message, HasSubstr("shorter"));
}

TEST(EmbeddedRedis, UncreatableFolderIsNamed) {
  const auto refused = EmbeddedRedis::start("/proc/mycojobs");
  EXPECT_EQ(outcome(refused), "io");
  EXPECT_THAT(refused.error().message, HasSubstr("/proc/mycojobs"));
}

TEST(EmbeddedRedis, ServerThatExitsAtOnceReportsWhy) {
  TempFolder folder;
  EmbeddedRedis::Options options;
  options.settings = {{"maxmemory-policy", "nonsense"}};
  const auto refused = EmbeddedRedis::start(folder.path(), options);
  EXPECT_EQ(outcome(refused), "io");
  EXPECT_THAT(refused.error().message, HasSubstr(folder.path()));
  EXPECT_THAT(refused.error().message, HasSubstr("argument"));
}

TEST(EmbeddedRedis, KilledServerIsRestartedOnItsDataIfConfigured) {
  TempFolder folder;
  auto redis = EmbeddedRedis::start(folder.path(), {.restart_on_exit = true});
  ASSERT_TRUE(redis) << redis.error().message;
  Store store = store_in(folder.path());
  ASSERT_TRUE(store.save(1, "actor:1", {{"id", "1"}}));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the file is written once per second
  const pid_t first = (*redis)->pid();
  ::kill(first, SIGKILL);
  EXPECT_TRUE(eventually([&] { return (*redis)->pid() != first && outcome(store.load(1, "actor:1")) == "ok"; }));
  const pid_t second = (*redis)->pid();
  EXPECT_EQ(::kill(second, 0), 0);
  (*redis)->stop();
  EXPECT_EQ(::kill(second, 0), -1);
}

TEST(EmbeddedRedis, EndsWithTheProcessThatStartedIt) {
  TempFolder folder;
  const pid_t owner = ::fork();
  if (owner == 0) {
    auto redis = EmbeddedRedis::start(folder.path());
    if (!redis) ::_exit(1);
    ::pause();
  }
  ASSERT_GT(owner, 0);
  EXPECT_TRUE(eventually([&] { return store_in(folder.path()).now_ms().has_value(); }));
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  // Starts at once: the old server may still be writing its data, and the new server must wait for it.
  auto next = EmbeddedRedis::start(folder.path());
  EXPECT_TRUE(next) << next.error().message;
}

}  // namespace
}  // namespace mycojobs
