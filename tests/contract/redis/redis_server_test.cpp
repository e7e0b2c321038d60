// Behaviour that only a real server has: restarts, refusals, settings.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "contract/redis/redis_server.h"
#include "contract/store_contract.h"
#include "inspect/verify/job_verify.h"
#include "inspect/verify/rebuild.h"
#include "store/redis/redis_stores.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

ClaimRequest simple_request(std::uint32_t lease_ms) {
  ClaimRequest request;
  request.context = 1;
  request.runner = 20;
  request.queues = {"queue:python"};
  request.lease_ms = lease_ms;
  return request;
}

TEST_F(RedisServer, CallToASilentServerIsNotRunAfterItsTimeout) {
  start();
  auto config = config_for(url());
  config.command_timeout_ms = 300;
  Store store(config);
  for (Id id = 1; id <= 5; ++id) {
    ASSERT_TRUE(store.submit(simple_job(id)));
    ASSERT_TRUE(store.queue_length(1, "queue:python"));
    ::kill(redis_->pid(), SIGSTOP);
    EXPECT_EQ(outcome(store.claim(simple_request(3600000))), "unavailable");
    ::kill(redis_->pid(), SIGCONT);
    std::vector<ClaimedJob> jobs;
    ASSERT_TRUE(eventually([&] {
      auto claimed = store.claim(simple_request(3600000));
      if (claimed) jobs = std::move(claimed->jobs);
      return !jobs.empty();
    })) << "the job waits for a lease without a holder";
    EXPECT_EQ(jobs[0].deliveries, 1U);
    EXPECT_EQ(store.queue_length(1, "queue:python").value(), 0U);
  }
}

TEST_F(RedisServer, ReadTimeoutIsShorterThanWriteTimeout) {
  start();
  auto config = config_for(url());
  config.reader_timeout_ms = 300;
  const auto stores = make_redis_stores(config);
  auto reader = *stores->open_reader(), writer = *stores->open();
  ASSERT_TRUE(reader->now_ms() && writer->now_ms());
  ::kill(redis_->pid(), SIGSTOP);
  std::atomic<bool> written{false};
  std::thread writing([&] { written = outcome(writer->now_ms()) == "ok"; });
  EXPECT_EQ(outcome(reader->now_ms()), "unavailable");
  ::kill(redis_->pid(), SIGCONT);
  writing.join();
  EXPECT_TRUE(written) << "the call waited for the server";
  EXPECT_TRUE(reader->now_ms()) << "a store works again after a timeout";
}

// If the append-only file is cut within a step, Redis keeps half of the step at its end and executes that half at its
// next start: a forgotten claim returns, and its revision is assigned twice.
class TruncatedAof : public RedisServer {
 protected:
  static constexpr Id kContext = 1;
  void restart_without(std::size_t bytes) {
    kill_server();
    if (bytes > 0) {
      const fs::path file = incremental_file();
      fs::resize_file(file, fs::file_size(file) - std::min<std::size_t>(bytes, fs::file_size(file)));
    }
    start({.start_timeout_ms = 30000, .settings = {{"appendfsync", "always"}}});
  }
  fs::path incremental_file() const {
    fs::path last;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      if (entry.path().string().ends_with(".incr.aof") && (last.empty() || last < entry.path())) last = entry.path();
    return last;
  }
  bool has_no_rewrite() {
    const auto info = command({"INFO", "persistence"});
    return info && info->text().find("aof_rewrite_in_progress:0") != std::string_view::npos &&
           info->text().find("aof_rewrite_scheduled:0") != std::string_view::npos;
  }
  // Submits, claims and ends some jobs; other jobs keep their state.
  static void work(Store& store, Id first) {
    for (Id id = first; id < first + 6; ++id) ASSERT_TRUE(store.submit(simple_job(id)));
    ClaimRequest request = simple_request(60000);
    request.max_jobs = 4;
    auto claimed = store.claim(request);
    ASSERT_TRUE(claimed) << claimed.error().message;
    for (std::size_t i = 0; i + 1 < claimed->jobs.size(); ++i) {
      JobEnd end;
      end.status = JobStatus::finished;
      end.detail = "ok";
      const std::vector<Report> reports{EndReport{claimed->jobs[i].ref, end}};
      ASSERT_TRUE(store.report(kContext, reports));
    }
  }
  static std::string violations(Store& store) {
    const auto report = verify(store, kContext, {});
    if (!report) return report.error().message;
    std::string out;
    for (const Finding& finding : report->findings)
      if (finding.violation) out += finding.rule + ": " + finding.text + "\n";
    return out;
  }
};

TEST_F(TruncatedAof, IsDetectedAndRepairedByARebuild) {
  start({.start_timeout_ms = 30000, .settings = {{"appendfsync", "always"}}});
  auto agent = std::make_unique<Store>(config_for(url()));
  Id first = 1;
  for (const std::size_t bytes : {100, 700, 1300, 2500, 4100}) {
    work(*agent, first);
    first += 6;
    testing::internal::CaptureStderr();
    restart_without(bytes);
    ASSERT_TRUE(agent->leases(kContext));
    const std::string reported = testing::internal::GetCapturedStderr();
    EXPECT_THAT(reported, HasSubstr("without the end of its data: queue:python is at revision")) << bytes;
    work(*agent, first);
    first += 6;
    ASSERT_TRUE(eventually([&] { return has_no_rewrite(); }));
    restart_without(0);
    ASSERT_TRUE(agent->leases(kContext));
    ASSERT_TRUE(rebuild(*agent, kContext, false, {}));
    EXPECT_EQ(violations(*agent), "") << "cut by " << bytes;
    EXPECT_TRUE(rebuild(*agent, kContext, true, {})->differences.empty()) << "cut by " << bytes;
  }
}

// A store of the time before the file was rewritten at each start. The damage is repaired, too.
TEST_F(TruncatedAof, WithARecoveredHalfStepIsRepaired) {
  bool disorder = false;
  for (std::size_t bytes = 20; bytes < 1500; bytes += 74) {
    start({.start_timeout_ms = 30000, .settings = {{"appendfsync", "always"}}});
    ASSERT_TRUE(command({"FLUSHALL"}));
    (void)command({"BGREWRITEAOF"});  // refused if the rewrite at the start of the server still runs
    // During a rewrite there are two incremental files, and Redis accepts only the last file without its end.
    ASSERT_TRUE(eventually([&] { return has_no_rewrite(); }));
    {
      Store agent = store();
      work(agent, 1);
    }
    restart_without(bytes);
    {
      // A client without the store's checks writes before an agent connects to the server.
      RedisConnection::Options options;
      options.endpoint = parse_redis_url(url()).value();
      options.database = kContext;
      Store agent(std::make_unique<StoreConnection>(
          [&](Id) -> Result<std::unique_ptr<Link>> { return std::make_unique<RedisConnection>(options); }));
      work(agent, 7);
    }
    restart_without(0);
    Store agent = store();
    disorder = !violations(agent).empty() || disorder;
    ASSERT_TRUE(rebuild(agent, kContext, false, {}));
    EXPECT_EQ(violations(agent), "") << "cut by " << bytes;
    kill_server();
  }
  EXPECT_TRUE(disorder) << "no truncation has shown the fault; check the version of Redis";
}

TEST_F(RedisServer, KilledServerIsUnavailableUntilItRestarts) {
  start({.start_timeout_ms = 30000, .settings = {{"appendfsync", "always"}}});
  Store store = this->store();
  ASSERT_TRUE(store.submit(simple_job(1)));
  const auto claimed = store.claim(simple_request(60000)).value().jobs.at(0);
  kill_server();
  EXPECT_EQ(outcome(store.now_ms()), "unavailable");
  EXPECT_EQ(outcome(store.queue_length(1, "queue:python")), "unavailable");
  EXPECT_EQ(outcome(store.queue_length(1, "queue:python")), "unavailable");
  start();
  JobEnd end;
  end.status = JobStatus::finished;
  EXPECT_EQ(outcome(store.report(1, std::vector<Report>{EndReport{claimed.ref, end}}).value().at(0)), "ok");
}

TEST_F(RedisServer, RestartGrantsEveryLiveClaimAFullLease) {
  start({.start_timeout_ms = 30000, .settings = {{"appendfsync", "always"}}});
  Store store = this->store();
  ASSERT_TRUE(store.submit(simple_job(1)));
  ASSERT_TRUE(store.submit(simple_job(2)));
  const auto brief = store.claim(simple_request(500)).value().jobs.at(0);
  ASSERT_TRUE(store.claim(simple_request(3600000)));
  const auto before = store.leases(1).value();
  ASSERT_EQ(before.size(), 2U);
  ASSERT_TRUE(eventually([&] { return store.now_ms().value() > before[0].until_ms; }));
  kill_server();
  start();
  ASSERT_TRUE(eventually([&] { return store.leases(1).has_value(); }));
  const auto after = store.leases(1).value();
  ASSERT_EQ(after.size(), 2U);
  EXPECT_GT(after[0].until_ms, before[0].until_ms) << "a lease that had passed is granted again";
  EXPECT_GE(after[1].until_ms, before[1].until_ms) << "no lease is shortened";
  EXPECT_EQ(after[0].job_key, brief.ref.job_key);
  Store another = this->store();
  EXPECT_EQ(another.leases(1).value()[1].until_ms, after[1].until_ms)
      << "another connection does not grant the lease again";
}

TEST_F(RedisServer, WaiterReportsOutageAndRecovery) {
  start();
  auto waiter = make_redis_stores(config_for(url()))->open_waiter({{1, "queue:python"}}, "runner20").value();
  ASSERT_TRUE(waiter->wait(1, true));
  kill_server();
  ASSERT_TRUE(eventually([&] { return outcome(waiter->wait(100, true)) == "unavailable"; }));
  const auto between_tries = waiter->wait(1, true);
  EXPECT_TRUE(between_tries && between_tries->has_unreachable_server);
  int calls = 0;
  const SystemClock clock;
  const auto began = clock.boot_ms();
  while (clock.boot_ms() - began < 1200) {
    (void)waiter->wait(60000, true);
    ++calls;
  }
  EXPECT_LE(calls, 10) << "the waiter must not poll in a busy loop";
  start();
  bool back = false;
  ASSERT_TRUE(eventually([&] {
    const auto woken = waiter->wait(1000, true);
    back = back || (woken && woken->reconnected && !woken->has_unreachable_server);
    return back;
  }));
  ASSERT_TRUE(store().submit(simple_job(1)));
  EXPECT_TRUE(eventually([&] {
    const auto woken = waiter->wait(1000, true);
    return woken && woken->has_work;
  }));
}

TEST_F(RedisServer, WaiterSurvivesClosedConnections) {
  start();
  auto waiter = make_redis_stores(config_for(url()))->open_waiter({{1, "queue:python"}}, "runner20").value();
  ASSERT_TRUE(waiter->wait(1, true));
  ASSERT_TRUE(command({"CLIENT", "KILL", "TYPE", "normal"}));
  ASSERT_TRUE(command({"CLIENT", "KILL", "TYPE", "pubsub"}));
  ASSERT_TRUE(store().submit(simple_job(1)));
  EXPECT_TRUE(eventually([&] {
    const auto woken = waiter->wait(1000, true);
    return woken && woken->has_work;
  }));
}

TEST_F(RedisServer, WrongPasswordIsNotRetried) {
  start({.start_timeout_ms = 30000, .settings = {{"requirepass", ""}}});
  ASSERT_TRUE(command({"CONFIG", "SET", "requirepass", "right"}));
  Store none = store();
  const auto without = none.queue_length(1, "q");
  EXPECT_EQ(outcome(without), "denied");
  EXPECT_THAT(without.error().message, HasSubstr("password"));
  const std::string path = folder_.path() + "/redis/redis.sock";
  Store wrong(config_for("unix://:wr0ng@" + path));
  const auto refused = wrong.queue_length(1, "q");
  EXPECT_EQ(outcome(refused), "denied");
  EXPECT_THAT(refused.error().message, Not(HasSubstr("wr0ng")));
  Store right(config_for("unix://:right@" + path));
  EXPECT_EQ(outcome(right.queue_length(1, "q")), "ok");
  Store user(config_for("unix://default:ri%67ht@" + path));
  EXPECT_EQ(outcome(user.queue_length(1, "q")), "ok");
}

TEST_F(RedisServer, TooFewDatabasesNamesTheSetting) {
  start();
  Store store = this->store();
  EXPECT_EQ(outcome(store.queue_length(63, "q")), "ok");
  const auto refused = store.queue_length(64, "q");
  EXPECT_EQ(outcome(refused), "unsupported");
  EXPECT_THAT(refused.error().message, HasSubstr("`databases`"));
  EXPECT_THAT(refused.error().message, HasSubstr("has 64"));
}

TEST_F(RedisServer, FullMemoryIsAnErrorAndLosesNothing) {
  start();
  Store store = this->store();
  ASSERT_TRUE(store.submit(simple_job(1)));
  ASSERT_TRUE(command({"CONFIG", "SET", "maxmemory", "1"}));
  const auto refused = store.claim(simple_request(60000));
  EXPECT_EQ(outcome(refused), "unavailable");
  EXPECT_THAT(refused.error().message, HasSubstr("maxmemory"));
  EXPECT_EQ(outcome(store.submit(simple_job(2))), "unavailable");
  EXPECT_EQ(store.queue_length(1, "queue:python").value(), 1U);
  ASSERT_TRUE(command({"CONFIG", "SET", "maxmemory", "0"}));
  EXPECT_EQ(store.claim(simple_request(60000)).value().jobs.size(), 1U);
}

TEST_F(RedisServer, ReplicaIsAnError) {
  start();
  Store store = this->store();
  ASSERT_TRUE(store.submit(simple_job(1)));
  ASSERT_TRUE(command({"REPLICAOF", "127.0.0.1", "1"}));
  const auto refused = store.claim(simple_request(60000));
  EXPECT_EQ(outcome(refused), "unavailable");
  EXPECT_THAT(refused.error().message, HasSubstr("replica"));
  EXPECT_TRUE(store.server_info(0).value().replica);
}

TEST_F(RedisServer, ServerFactsAreReported) {
  start();
  const auto server_info = store().server_info(0).value();
  const bool is_valkey = get_test_server_options().program.find("valkey") != std::string::npos;
  EXPECT_EQ(server_info.product, is_valkey ? "valkey" : "redis");
  EXPECT_NE(server_info.version, "");
  EXPECT_EQ(server_info.databases, 64U);
  EXPECT_EQ(server_info.appendonly, "yes");
  EXPECT_EQ(server_info.appendfsync, "everysec");
  EXPECT_EQ(server_info.maxmemory_policy, "noeviction");
  EXPECT_EQ(server_info.run_id.size(), 40U);
  EXPECT_FALSE(server_info.persistence_error || server_info.cluster || server_info.replica);
}

TEST_F(RedisServer, ContextMayHaveItsOwnServer) {
  start();
  TempFolder second_folder;
  auto second = EmbeddedRedis::start(second_folder.path(), get_test_server_options()).value();
  RedisStoreConfig config = config_for(url());
  config.context_urls[1000] = EmbeddedRedis::url(second_folder.path()) + "?db=5";
  Store store(config);
  Job job = simple_job(1);
  job.context_id = 1000;
  ASSERT_TRUE(store.submit(job));
  RedisConnection::Options options;
  options.endpoint = parse_redis_url(EmbeddedRedis::url(second_folder.path())).value();
  options.database = 5;
  EXPECT_EQ(RedisConnection(std::move(options)).command({"LLEN", "queue:python"}).value().number(), 1U);
  // The context of this number has no data there.
  Store direct(config_for(EmbeddedRedis::url(second_folder.path())));
  EXPECT_EQ(outcome(direct.queue_length(5, "queue:python")), "denied");
}

TEST_F(RedisServer, LineBreaksInServerErrorsAreReplaced) {
  start();
  Store store = this->store();
  ASSERT_TRUE(command({"SET", "job:12:1", "x"}, 1));
  const auto refused = store.load(1, "job:12:1");
  EXPECT_EQ(refused.error().message.find('\n'), std::string::npos);
  EXPECT_THAT(refused.error().message, HasSubstr("job:12:1"));
}

// A server that answers every command with the same bytes.
class FakeServer {
 public:
  enum class Behaviour { answers, closes, resets };
  explicit FakeServer(std::string answer, Behaviour behaviour = Behaviour::answers)
      : answer_(std::move(answer)), behaviour_(behaviour), path_(folder_.path() + "/s") {
    listener_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 5), 0);
    thread_ = std::thread([this] {
      for (;;) {
        const Fd client(::accept(listener_.get(), nullptr, nullptr));
        if (!client) return;
        char bytes[4096];
        if (behaviour_ == Behaviour::resets) {
          // Closing a socket with unread data resets the connection.
          (void)::recv(client.get(), bytes, 1, MSG_PEEK);
          continue;
        }
        while (::recv(client.get(), bytes, sizeof bytes, 0) > 0 && behaviour_ == Behaviour::answers) {
          if (!answer_.empty() && ::send(client.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL) < 0) break;
        }
      }
    });
  }
  ~FakeServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  Store store() const {
    RedisStoreConfig config = config_for("unix://" + path_);
    config.command_timeout_ms = 300;
    return Store(config);
  }

 private:
  std::string answer_;
  Behaviour behaviour_;
  TempFolder folder_;
  std::string path_;
  Fd listener_;
  std::thread thread_;
};

std::string bulk(const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; }

TEST(RedisErrors, OldServerIsUnsupported) {
  const FakeServer server(bulk("# Server\r\nredis_version:6.0.16\r\nrun_id:abc\r\n"));
  const auto refused = server.store().now_ms();
  EXPECT_EQ(outcome(refused), "unsupported");
  EXPECT_THAT(refused.error().message, HasSubstr("Redis 6.0.16"));
  EXPECT_THAT(refused.error().message, HasSubstr("7.0 or newer"));
}

TEST(RedisErrors, OtherServerIsUnavailable) {
  const FakeServer server("HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_EQ(outcome(server.store().now_ms()), "unavailable");
}

TEST(RedisErrors, SilentServerIsUnavailableInTime) {
  const FakeServer server("");
  const auto refused = server.store().now_ms();
  EXPECT_EQ(outcome(refused), "unavailable");
  EXPECT_THAT(refused.error().message, HasSubstr("no answer in time"));
}

TEST(RedisErrors, LoadingServerIsUnavailable) {
  const FakeServer server("-LOADING Redis is loading the dataset in memory\r\n");
  const auto refused = server.store().now_ms();
  EXPECT_EQ(outcome(refused), "unavailable");
  EXPECT_THAT(refused.error().message, HasSubstr("reading its data"));
}

TEST(RedisErrors, MissingServerIsUnavailable) {
  Store tcp(config_for("redis://127.0.0.1:1"));
  EXPECT_EQ(outcome(tcp.now_ms()), "unavailable");
  Store path(config_for("unix:///nonexistent/redis.sock"));
  const auto refused = path.now_ms();
  EXPECT_EQ(outcome(refused), "unavailable");
  EXPECT_THAT(refused.error().message, HasSubstr("/nonexistent/redis.sock"));
}

TEST(RedisUrl, ParsesServerAddresses) {
  const auto full = parse_redis_url("redis://me:p%40ss@[::1]:7000/3").value();
  EXPECT_EQ(full.host, "::1");
  EXPECT_EQ(full.port, 7000);
  EXPECT_EQ(full.user, "me");
  EXPECT_EQ(full.password, "p@ss");
  EXPECT_EQ(full.database, 3U);
  EXPECT_EQ(full.redacted_url(), "[::1]:7000");
  EXPECT_EQ(parse_redis_url("redis://h").value().port, 6379);
  EXPECT_EQ(parse_redis_url("redis://:pw@h").value().password, "pw");
  EXPECT_EQ(parse_redis_url("unix:/a/b").value().unix_path, "/a/b");
  EXPECT_EQ(parse_redis_url("unix:///a?db=4").value().database, 4U);
  for (const char* wrong : {"", "h:1", "redis://", "redis://h:0", "redis://h:99999", "redis://h/x",
                            "unix:", "redis://[::1", "unix:///a?x=1", "http://h"}) {
    EXPECT_EQ(outcome(parse_redis_url(wrong)), "invalid") << wrong;
  }
  const auto secure = parse_redis_url("rediss://me:pw@h/3").value();
  EXPECT_TRUE(secure.is_tls);
  EXPECT_EQ(secure.port, 6379);
  EXPECT_EQ(secure.database, 3U);
  EXPECT_EQ(secure.redacted_url(), "rediss://h:6379");
  EXPECT_EQ(outcome(parse_redis_url("unix:///" + std::string(200, 'a'))), "invalid");
  EXPECT_EQ(outcome(Store(config_for("redis://h/3")).now_ms()), "invalid");
}

TEST(RedisErrors, WrongAddressNamesItsRemedy) {
  const auto read_error_message = [](Store store) { return store.now_ms().error().message; };
  EXPECT_THAT(read_error_message(Store(config_for("redis://127.0.0.1:1"))),
              HasSubstr("check that Redis runs, that the port of the redis url"));
  EXPECT_THAT(read_error_message(Store(config_for("redis://no-such-host.invalid"))), HasSubstr("redis url right?"));
  EXPECT_THAT(read_error_message(Store(config_for("unix:///no/such/redis.sock"))), HasSubstr("`unixsocket`"));
  EXPECT_THAT(read_error_message(FakeServer("-WRONGPASS invalid\r\n").store()), HasSubstr("wrong user or password"));
  EXPECT_THAT(read_error_message(FakeServer("-NOAUTH Authentication required.\r\n").store()),
              HasSubstr("redis://:password@host"));
  EXPECT_THAT(read_error_message(FakeServer("-ERR unknown\r\n").store()), Not(HasSubstr("TLS")));
  // the alert that a TLS server sends to a client without TLS
  const std::string alert("\x15\x03\x03\x00\x02\x02\x46", 7);
  EXPECT_THAT(read_error_message(FakeServer(alert).store()), HasSubstr("requires TLS"));
  EXPECT_THAT(read_error_message(FakeServer("HTTP/1.1 400 Bad Request\r\n\r\n").store()), HasSubstr("is not Redis"));
  EXPECT_THAT(read_error_message(FakeServer("", FakeServer::Behaviour::closes).store()), HasSubstr("requires TLS"));
  EXPECT_THAT(read_error_message(FakeServer("", FakeServer::Behaviour::resets).store()), HasSubstr("requires TLS"));
}

}  // namespace
}  // namespace mycojobs
