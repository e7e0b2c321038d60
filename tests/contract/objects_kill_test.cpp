// A killed writer or a killed server leaves each write either complete or absent.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "base/random.h"
#include "store/objects/object_store.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"
#include "store_contract.h"

namespace mycojobs {
namespace {

constexpr int kKills = 300;
constexpr int kAccounts = 20, kEach = 100;
const ObjectKind kAccount{"bank", "account"}, kNote{"bank", "note"};

class ObjectsKilled : public StoreContract {
 protected:
  static std::string account(int number) { return "account-" + std::to_string(number); }
  static std::unique_ptr<StoreFactory> open_stores(const std::string& url) {
    RedisStoreConfig config;
    config.default_url = url;
    return make_redis_stores(config);
  }
  static void lay_out(ObjectStore& objects, const ClaimRef& claim) {
    std::vector<ObjectOp> ops;
    for (int i = 0; i < kAccounts; ++i) ops.push_back(put(kAccount, account(i), {{"balance", kEach}}, 0));
    ASSERT_TRUE(objects.write(claim, "start", ops));
    ASSERT_TRUE(objects.declare(claim, kAccount, {"balance"}, {"words"}));
    ASSERT_TRUE(objects.declare(claim, kNote, {"amount"}, {"text"}));
    while (objects.index_more(1, kAccount).value()) {
    }
  }
  static ObjectOp put(const ObjectKind& of, std::string id, const nlohmann::json& object,
                      std::optional<std::uint64_t> version) {
    return {ObjectOp::Verb::put, of, std::move(id), version, object.dump()};
  }

  // Moves amounts between accounts and writes a note of each transfer, until the process is killed. The child must not
  // change the state of the test.
  [[noreturn]] static void write_for_ever(const std::string& url, const ClaimRef& claim, unsigned seed) {
    const auto objects = open_stores(url)->open_objects().value();
    std::mt19937 random(seed);
    for (std::uint64_t n = 0;; ++n) {
      const std::string from = account(static_cast<int>(random() % kAccounts));
      const std::string to = account(static_cast<int>(random() % kAccounts));
      if (from == to) continue;
      const auto a = objects->get(1, kAccount, from), b = objects->get(1, kAccount, to);
      if (!a || !b) ::_exit(1);
      auto giver = nlohmann::json::parse(a->json), taker = nlohmann::json::parse(b->json);
      const int amount = static_cast<int>(random() % 10);
      giver["balance"] = giver["balance"].get<int>() - amount;
      taker["balance"] = taker["balance"].get<int>() + amount;
      giver["words"] = "last gave " + std::to_string(amount);
      std::vector<ObjectOp> ops{put(kAccount, from, giver, a->version), put(kAccount, to, taker, b->version)};
      const std::string note = "note-" + std::to_string(random() % 50);
      if (random() % 3 != 0) {
        ops.push_back(put(kNote, note, {{"text", from + " gave " + to}, {"amount", amount}}, std::nullopt));
      } else if (objects->get(1, kNote, note)) {
        ops.push_back({ObjectOp::Verb::remove, kNote, note, std::nullopt, ""});
      }
      if (!objects->write(claim, random_hex(8), ops)) ::_exit(2);
      if (n % 8 == 7) {  // a field that was not declared before, with objects to be indexed
        const std::vector<std::string> field{"f" + std::to_string(random() % 40)};
        if (!objects->declare(claim, kAccount, field, {})) ::_exit(3);
        if (!objects->index_more(1, kAccount)) ::_exit(4);
      }
    }
  }

  void expect_whole(const std::unique_ptr<ObjectStore>& objects, int round) {
    const auto verdict = objects->verify(1, 5).value();
    for (const auto& problem : verdict.problems) ADD_FAILURE() << "after kill " << round << ": " << problem.text;
    int sum = 0;
    const auto accounts = objects->list(1, kAccount, "", 100).value();
    for (const StoredObject& each : accounts.objects) {
      sum += nlohmann::json::parse(each.json)["balance"].get<int>();
    }
    EXPECT_EQ(sum, kAccounts * kEach) << "after kill " << round;
  }
};

TEST_P(ObjectsKilled, KilledWriterLeavesNothingHalfWritten) {
  submit(1);
  const ClaimRef claim = claim_one(600000).ref;
  const std::string url = TestRedis::instance().url();
  const auto objects = open_stores(url)->open_objects().value();
  lay_out(*objects, claim);
  std::mt19937 random(7);
  for (int round = 1; round <= kKills && !HasFailure(); ++round) {
    const auto seed = static_cast<unsigned>(random());
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_for_ever(url, claim, seed);
    ::usleep(static_cast<useconds_t>(random() % 12000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer exited before it was killed: " << WEXITSTATUS(status);
    if (round % 20 == 0) expect_whole(objects, round);
  }
  EXPECT_GT(objects->get(1, kAccount, account(0)).value().version, 1U) << "something was written";
  while (objects->index_more(1, kAccount).value()) {
  }
  expect_whole(objects, kKills);
  // The index finds each balance.
  const auto accounts = objects->list(1, kAccount, "", 100).value();
  for (const StoredObject& each : accounts.objects) {
    const double balance = nlohmann::json::parse(each.json)["balance"].get<double>();
    const auto found = objects->find(1, kAccount, {"balance", balance, {}, {}}, "", 100).value();
    EXPECT_TRUE(
        std::any_of(found.objects.begin(), found.objects.end(), [&](const auto& one) { return one.id == each.id; }));
  }
}

TEST_P(ObjectsKilled, KilledServerLeavesNothingHalfWritten) {
  const TempFolder folder;
  const std::string url = EmbeddedRedis::url(folder.path());
  std::mt19937 random(11);
  ClaimRef claim;
  for (int round = 0; round < 12 && !HasFailure(); ++round) {
    auto redis = EmbeddedRedis::start(folder.path());
    ASSERT_TRUE(redis.has_value()) << redis.error().message;
    const auto stores = open_stores(url);
    const auto objects = stores->open_objects().value();
    if (round == 0) {
      const auto store = stores->open().value();
      ASSERT_TRUE(store->submit(job(1)));
      claim = store->claim(request(1, 600000)).value().jobs.at(0).ref;
      lay_out(*objects, claim);
    }
    expect_whole(objects, round);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_for_ever(url, claim, static_cast<unsigned>(random()) + static_cast<unsigned>(round));
    ::usleep(20000 + static_cast<useconds_t>(random() % 30000));
    ::kill((*redis)->pid(), SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "the writer must exit after the server was killed";
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, ObjectsKilled, testing::Values("redis"), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace mycojobs
