// A server with database 0 alone, several addresses of one database, and servers that forbid commands, as managed
// services do.
#include <gmock/gmock.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "contract/redis/redis_server.h"
#include "inspect/doctor.h"
#include "inspect/verify/actor_verify.h"
#include "inspect/verify/context_verify.h"
#include "inspect/verify/rebuild.h"
#include "model/codec.h"
#include "service/actor_service.h"
#include "store/redis/forbidden_commands.h"
#include "store/redis/redis_stores.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr Id kContext = 3;
constexpr const char* kPublicKey = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

// A server of a single test. Context 3 is in database 0.
class OneDatabase : public RedisServer {
 protected:
  // settings: lines of redis.conf.
  void start(const std::string& settings = "") {
    const std::string file = folder_.path() + "/extra.conf";
    std::ofstream(file) << settings;
    RedisServer::start({.settings = {{"databases", "1"}, {"include", file}}});
    config_.default_url = url();
    config_.context_urls[kContext] = url() + "?db=0";
    store_ = std::make_unique<Store>(config_);
  }
  // The configuration of a program that does not know the database of context 3.
  RedisStoreConfig config_without_address() const { return config_for(url()); }
  Reply command(const Arguments& arguments) {
    auto reply = RedisServer::command(arguments);
    EXPECT_TRUE(reply) << reply.error().message;
    return *reply;
  }
  void run_job(Id id) {
    ASSERT_TRUE(store_->submit(simple_job(id, kContext)));
    ClaimRequest request;
    request.context = kContext, request.runner = 20, request.queues = {"queue:python"}, request.lease_ms = 60000;
    const auto claimed = store_->claim(request);
    ASSERT_TRUE(claimed && claimed->jobs.size() == 1);
    JobEnd end;
    end.status = JobStatus::finished;
    const std::array<Report, 1> reports{EndReport{claimed->jobs[0].ref, end}};
    const auto results = store_->report(kContext, reports);
    ASSERT_TRUE(results && results->at(0));
  }
  std::string find_command_check(const std::string& name) {
    for (const Check& check : diagnose_server(store_->server_info(kContext).value(), 0, 0)) {
      if (check.name == "command " + name) return check.detail;
    }
    return "";
  }

  void create_actor() {
    Actor actor;
    actor.id = 30, actor.pubkey = kPublicKey;
    const auto created = service::create_actor(operator_, *store_, actor);
    ASSERT_TRUE(created) << created.error().message;
  }

  RedisStoreConfig config_;
  std::unique_ptr<Store> store_;
  service::RequestContext operator_{kContext, 1, EntryPoint::command, true};
};

TEST_F(OneDatabase, ActorsAndAContextShareIt) {
  start();
  create_actor();
  run_job(1);
  Context record;
  record.id = kContext, record.readers = {30};
  ASSERT_TRUE(store_->create_record(kContext, {"context:", "context", kContext, encode(record)}));
  EXPECT_EQ(store_->owner_of_key(kPublicKey).value().id, 30U);
  EXPECT_EQ(command({"HGET", "mj:format", "context"}).text(), "3");
  const std::vector<Id> contexts{kContext};
  EXPECT_EQ(outcome(service::delete_actor(operator_, *store_, 30, contexts)), "conflict");
  const auto delete_if_readers_are = [&](std::string_view readers) {
    return store_->delete_actor_if(30, std::vector<ExpectedContext>{{kContext, {{"readers", std::string(readers)}}}});
  };
  EXPECT_FALSE(delete_if_readers_are("").value()) << "the record in database 0 is compared";
  EXPECT_TRUE(delete_if_readers_are(field_of(encode(record), "readers")).value());
}

// The work of a context reads, counts and deletes no key of actors.
TEST_F(OneDatabase, MaintenanceKeepsActors) {
  start();
  create_actor();
  run_job(1);
  ASSERT_TRUE(store_->delete_record(kContext, "job:12:1"));
  const auto stores = make_redis_stores(config_);
  auto objects = stores->open_objects().value();
  auto flows = stores->open_flows().value();
  auto deployments = stores->open_workflows().value();
  const auto ignore = [](std::string_view, std::uint64_t, std::uint64_t) {};
  const auto report = verify_context({*store_, *objects, *flows, *deployments}, kContext, ignore);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(report->findings, IsEmpty());
  EXPECT_THAT(verify_actors(*store_).value(), IsEmpty());
  EXPECT_THAT(rebuild(*store_, kContext, false, ignore).value().differences, IsEmpty());
  EXPECT_THAT(rebuild_actors(*store_, false).value(), IsEmpty());
  EXPECT_EQ(store_->owner_of_key(kPublicKey).value().id, 30U);
  EXPECT_TRUE(store_->load(0, "actor:30"));
}

TEST_F(OneDatabase, SearchFindsContextsByTheirIds) {
  start();
  EXPECT_THAT(store_->find_contexts().value(), IsEmpty());
  command({"HSET", "actor:30", "id", "30"});
  Store without_address(config_without_address());
  EXPECT_THAT(without_address.find_contexts().value(), IsEmpty()) << "actors are not a context";
  EXPECT_THAT(store_->find_contexts().value(), ElementsAre(kContext)) << "the address names the database";
  run_job(1);
  EXPECT_THAT(store_->find_contexts().value(), ElementsAre(kContext));
  EXPECT_THAT(without_address.find_contexts().value(), IsEmpty()) << "context 3 would be searched in database 3";
  const auto info = store_->server_info().value();
  EXPECT_THAT(info.used_databases, ElementsAre(std::pair<std::uint32_t, Id>(0, kContext)));
  EXPECT_EQ(info.databases, 1U);
}

TEST_F(OneDatabase, SecondContextIsRefusedUnderEachAddress) {
  start("port 0\n");
  run_job(1);
  RedisStoreConfig other = config_;
  other.context_urls = {{5, "unix://" + std::string("/proc/self/root") + url().substr(7) + "?db=0"}};
  Store store(other);
  const auto refused = store.queue_length(5, "queue:python");
  ASSERT_EQ(outcome(refused), "denied");
  EXPECT_THAT(refused.error().message, HasSubstr("context 5: its database belongs to context 3"));
  EXPECT_THAT(refused.error().message, HasSubstr("(database 0 of Redis at /proc/self/root"));
  const auto checks = diagnose_format(store, 5);
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].status, CheckStatus::error);
  EXPECT_THAT(checks[0].remedy, HasSubstr("troubleshooting.md"));
}

TEST_F(OneDatabase, ContextWithoutAnAddressGetsTheRemedy) {
  start();
  const auto refused = Store(config_without_address()).queue_length(3, "queue:python");
  EXPECT_EQ(outcome(refused), "unsupported");
  EXPECT_THAT(refused.error().message, HasSubstr("database 3 of Redis at "));
  EXPECT_THAT(refused.error().message, HasSubstr("(it has 1)"));
  EXPECT_THAT(refused.error().message, HasSubstr("[contexts.ID] redis"));
}

TEST_F(OneDatabase, RenamedCommandsAreReplacedOrMissed) {
  start(
      "rename-command CONFIG \"\"\nrename-command CLIENT hidden-client\nrename-command SELECT \"\"\n"
      "rename-command BGREWRITEAOF \"\"\nrename-command ACL \"\"\nrename-command DEBUG \"\"\n");
  run_job(1);
  EXPECT_EQ(outcome(store_->delete_actor_if(30, std::vector<ExpectedContext>{{kContext, {{"readers", ""}}}})),
            "not_found")
      << "SELECT is not called for database 0";
  EXPECT_THAT(store_->find_contexts().value(), ElementsAre(kContext));
  const auto info = store_->server_info().value();
  EXPECT_EQ(info.databases, 0U);
  EXPECT_EQ(info.maxmemory_policy, "");
  EXPECT_THAT(find_command_check("CLIENT"), HasSubstr("may still be executed later"));
  EXPECT_THAT(find_command_check("CONFIG"), HasSubstr("maxmemory-policy"));
  EXPECT_EQ(find_command_check("INFO"), "");
  const auto refused = store_->queue_length(4, "queue:python");
  EXPECT_EQ(outcome(refused), "unsupported");
  EXPECT_THAT(refused.error().message, HasSubstr("the server forbids SELECT"));
}

TEST_F(OneDatabase, UserWithoutInfoAndConfigRunsJobs) {
  start();
  command({"ACL", "SETUSER", "tenant", "on", ">secret", "~*", "&*", "+@all", "-info", "-config", "-client", "-acl",
           "-bgrewriteaof", "-select"});
  config_.default_url = "unix://tenant:secret@" + url().substr(7);
  config_.context_urls[kContext] = config_.default_url + "?db=0";
  store_ = std::make_unique<Store>(config_);
  run_job(1);
  const auto info = store_->server_info(kContext).value();
  EXPECT_EQ(info.version, "");
  EXPECT_THAT(store_->find_contexts().value(), IsEmpty()) << "INFO shows the databases";
  EXPECT_THAT(find_command_check("INFO"), HasSubstr("restarts of the server"));
  // Without INFO, a restart is not noticed.
  redis_.reset();
  start();
  EXPECT_EQ(store_->queue_length(kContext, "queue:python").value(), 0U);
}

TEST_F(OneDatabase, AbandonedConnectionIsNotKilledWithoutAnId) {
  start("rename-command CLIENT \"\"\n");
  config_.command_timeout_ms = 300;
  store_ = std::make_unique<Store>(config_);
  run_job(1);
  ::kill(redis_->pid(), SIGSTOP);
  EXPECT_EQ(outcome(store_->submit(simple_job(2, kContext))), "unavailable");
  ::kill(redis_->pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] { return store_->submit(simple_job(2, kContext)).has_value(); }));
}

TEST(ForbiddenCommands, AreRecognisedByTheTextsOfServices) {
  for (const char* text :
       {"ERR unknown command 'CONFIG', with args beginning with: 'GET' ", "ERR unknown command `CLIENT`, with args",
        "ERR Unknown subcommand or wrong number of arguments for 'NO-EVICT'. Try CLIENT HELP.",
        "ERR Command is not available: 'CONFIG'.", "ERR command not allowed", "ERR Unsupported CONFIG parameter: x",
        "NOPERM this user has no permissions to run the 'config|get' command",
        "redis: NOPERM User x has no permissions to run the 'info' command"})
    EXPECT_TRUE(is_forbidden_command(text)) << text;
  for (const char* text :
       {"NOAUTH Authentication required.", "LOADING Redis is loading the dataset in memory", "ERR No such client",
        "ERR DB index is out of range", "WRONGPASS invalid", "", "MASTERDOWN Link with MASTER is down"})
    EXPECT_FALSE(is_forbidden_command(text)) << text;
}

TEST(ForbiddenCommands, AreListedForTheirServer) {
  note_forbidden_command("one:1", "CONFIG", "ERR unknown command");
  note_forbidden_command("one:1", "CONFIG", "ERR unknown command");
  note_forbidden_command("one:1", "SELECT", "ERR unknown command");
  EXPECT_EQ(forbidden_commands("one:1").size(), 1U);
  EXPECT_THAT(forbidden_commands("two:1"), IsEmpty());
}

// Databases of the default server that the addresses of contexts name.
TEST(DatabasesOfContexts, AreFoundByIdAndByAddress) {
  auto& redis = TestRedis::instance();
  redis.run_command(1, {"FLUSHALL"});
  RedisStoreConfig config;
  config.default_url = redis.url();
  config.context_urls = {{3, redis.url() + "?db=7"}, {9, redis.url() + "?db=0"}};
  redis.run_command(7, {"SET", "here", "1"});
  redis.run_command(2, {"SET", "here", "1"});
  redis.run_command(4, {"HSET", "mj:format", "version", "2", "context", "12"});
  Store store(config);
  EXPECT_THAT(store.find_contexts().value(), UnorderedElementsAre(2, 3)) << "context 12 would be in database 12";
  redis.run_command(0, {"HSET", "mj:format", "version", "2", "context", "9"});
  EXPECT_THAT(store.find_contexts().value(), UnorderedElementsAre(2, 3, 9));
  EXPECT_EQ(store.database_number(3), 7U);
  EXPECT_EQ(store.database_number(2), 2U);
  redis.run_command(1, {"FLUSHALL"});
}

}  // namespace
}  // namespace mycojobs
