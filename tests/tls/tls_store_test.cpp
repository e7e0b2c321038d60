// The store over TLS with a real server: jobs, waiters, resumed sessions, reports in two halves, rotated certificates.
#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "store/checks/default_user.h"
#include "store/redis/redis_pool.h"
#include "store/redis/redis_stores.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

class TlsStore : public testing::Test {
 protected:
  TlsSettings client_settings() const { return make_client_settings(ca_, client_); }
  RedisStoreConfig config_for(const TlsRedisServer& server) const {
    RedisStoreConfig config;
    config.default_url = server.url();
    config.tls = std::make_shared<TlsContext>(client_settings());
    return config;
  }
  static Job make_job(Id id) {
    Job job;
    job.id = id;
    job.caller_id = 12;
    job.context_id = 1;
    job.script = "print(1)";
    job.script_type = "python";
    return job;
  }
  static std::vector<ClaimedJob> claim(Store& store) {
    ClaimRequest request;
    request.context = 1;
    request.runner = 20;
    request.queues = {"queue:python"};
    auto reply = store.claim(request);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? std::move(reply->jobs) : std::vector<ClaimedJob>();
  }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles server_ = ca_.issue("server", "DNS:localhost");
  CertificateFiles client_ = ca_.issue("client", "");
};

TEST_F(TlsStore, JobsAreSubmittedWaitedForClaimedAndEnded) {
  for (const char* protocol : {"TLSv1.3", "TLSv1.2"}) {
    const TlsRedisServer server(folder_, ca_, server_, {"--tls-auth-clients", "yes", "--tls-protocols", protocol});
    const RedisStoreConfig config = config_for(server);
    Store store(config);
    auto waiter = *make_redis_stores(config)->open_waiter({{1, "queue:python"}}, "topic");
    for (Id id = 1; id <= 3; ++id) {
      const auto submitted = store.submit(make_job(id));
      ASSERT_TRUE(submitted) << submitted.error().message;
      const auto woken = waiter->wait(60000, true);
      ASSERT_TRUE(woken) << woken.error().message;
      EXPECT_TRUE(woken->has_work);
      const auto jobs = claim(store);
      ASSERT_EQ(jobs.size(), 1U);
      JobEnd end;
      end.status = JobStatus::finished;
      end.detail = "ok";
      end.result = {{"text", std::string(20000, 'x')}};
      const Report report = EndReport{jobs[0].ref, std::move(end), {}};
      const auto answers = store.report(1, std::span(&report, 1));
      ASSERT_TRUE(answers) << answers.error().message;
      EXPECT_TRUE(answers->at(0));
    }
  }
}

TEST_F(TlsStore, ReportInTwoHalvesIsAnsweredWhenTheDescriptorIsReadable) {
  const TlsRedisServer server(folder_, ca_, server_);
  Store store(config_for(server));
  for (Id id = 1; id <= 20; ++id) {
    ASSERT_TRUE(store.submit(make_job(id)));
    const auto jobs = claim(store);
    ASSERT_EQ(jobs.size(), 1U);
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    const Report report = EndReport{jobs[0].ref, std::move(end), {}};
    const auto fd = store.begin_report(1, std::span(&report, 1));
    ASSERT_TRUE(fd) << "the connection counts as closed";
    pollfd readable{*fd, POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 60000), 1);
    const auto answers = store.finish_report(1, std::span(&report, 1));
    ASSERT_TRUE(answers && answers->at(0));
  }
}

TEST_F(TlsStore, ConnectionIsKeptBetweenCommandsAndReplacedAfterAClose) {
  const TlsRedisServer server(folder_, ca_, server_);
  RedisConnection connection(make_options(server.url(), client_settings()));
  const std::uint64_t id = connection.command({"CLIENT", "ID"}).value().number();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(connection.command({"CLIENT", "ID"}).value().number(), id);
  RedisConnection other(make_options(server.url(), client_settings()));
  ASSERT_TRUE(other.command(Arguments{"CLIENT", "KILL", "ID"}.add(id)));
  EXPECT_TRUE(eventually([&] {
    const auto reply = connection.command({"CLIENT", "ID"});
    return reply && reply->number() != id;
  }));
}

TEST_F(TlsStore, SessionsAreResumed) {
  for (const char* protocol : {"TLSv1.3", "TLSv1.2"}) {
    const TlsRedisServer server(folder_, ca_, server_, {"--tls-auth-clients", "yes", "--tls-protocols", protocol});
    const RedisConnection::Options options = make_options(server.url(), client_settings());
    TlsState first;
    for (int i = 0; i < 4; ++i) {
      RedisConnection connection(options);
      ASSERT_TRUE(connection.command({"PING"}));
      const TlsState state = connection.tls_state().value();
      EXPECT_EQ(state.protocol, protocol);
      EXPECT_EQ(state.is_resumed, i > 0) << protocol << " connection " << i;
      if (i == 0) first = state;
      EXPECT_EQ(state.peer_expiry_s, first.peer_expiry_s);
      EXPECT_GT(state.peer_expiry_s, 0);
      EXPECT_GT(state.own_expiry_s, 0);
    }
    RedisConnection::Options other_name = options;
    TlsSettings settings = client_settings();
    settings.server_name = "other";
    other_name.tls = std::make_shared<TlsContext>(settings);
    EXPECT_FALSE(RedisConnection(other_name).connect());
  }
}

TEST_F(TlsStore, ProbeShowsTheStateWithoutLoggingIn) {
  const TlsRedisServer server(folder_, ca_, server_, {"--requirepass", "secret"});
  const auto state = probe_tls(server.url(), std::make_shared<TlsContext>(client_settings()));
  ASSERT_TRUE(state && *state);
  EXPECT_EQ((*state)->protocol, "TLSv1.3");
  EXPECT_FALSE(*probe_tls(server.plain_url(), nullptr));
}

TEST_F(TlsStore, MetricsShowProtocolAndExpiry) {
  const TlsRedisServer server(folder_, ca_, server_);
  RedisStoreConfig config = config_for(server);
  config.instrumentation.metrics = Metrics::make();
  Store store(config);
  ASSERT_TRUE(store.submit(make_job(1)));
  const std::string text = config.instrumentation.metrics->render();
  using testing::HasSubstr;
  EXPECT_THAT(text, HasSubstr("mycojobs_redis_tls_info{context=\"1\",protocol=\"TLSv1.3\"} 1\n"));
  for (const char* certificate : {"server", "client"}) {
    EXPECT_THAT(text, testing::ContainsRegex("mycojobs_redis_certificate_expiry_days.certificate=\"" +
                                             std::string(certificate) + "\",context=\"1\". 36[45]"));
  }
}

TEST_F(TlsStore, StateIsThatOfTheNewestConnection) {
  const TlsRedisServer server(folder_, ca_, server_);
  RedisPool pool(make_options(server.url(), client_settings()), Metrics::make());
  constexpr RedisPool::Timeouts kTimeouts{60000, 60000};
  auto old_connection = pool.borrow(0, kTimeouts).value();
  const std::int64_t old_expiry_s = pool.tls_state().value().peer_expiry_s;
  const CertificateFiles renewed = ca_.issue("renewed", "DNS:localhost", "20260101000000Z", "20270601000000Z");
  RedisConnection administrator(make_options(server.plain_url(), {}));
  ASSERT_TRUE(
      administrator.command({"CONFIG", "SET", "tls-cert-file", renewed.certificate, "tls-key-file", renewed.key}));
  auto new_connection = pool.borrow(0, kTimeouts).value();
  pool.give_back(std::move(new_connection));
  pool.give_back(std::move(old_connection));
  EXPECT_NE(pool.tls_state().value().peer_expiry_s, old_expiry_s);
  EXPECT_EQ(pool.tls_state().value().peer_expiry_s, 1811808000);
}

// Each certificate is replaced in two steps, between which it does not fit its key.
TEST_F(TlsStore, CertificatesAreRotatedUnderLoad) {
  const TlsRedisServer server(folder_, ca_, server_, {"--tls-auth-clients", "yes"});
  const RedisConnection::Options options = make_options(server.url(), client_settings());
  std::atomic<bool> should_stop = false;
  std::atomic<int> connection_count = 0, failure_count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!should_stop) {
        RedisConnection connection(options);
        for (int command = 0; command < 5; ++command) {
          if (const auto reply = connection.command({"PING"}); !reply) {
            ++failure_count;
            ADD_FAILURE() << reply.error().message;
          }
        }
        ++connection_count;
      }
    });
  }
  RedisConnection administrator(make_options(server.plain_url(), {}));
  EXPECT_TRUE(eventually([&] { return connection_count > 0; })) << "the files were read once";
  for (int round = 0; round < 8; ++round) {
    const std::string number = std::to_string(round);
    const CertificateFiles client = ca_.issue("client" + number, ""),
                           new_server = ca_.issue("server" + number, "DNS:localhost");
    const int count = connection_count;
    fs::rename(client.certificate, client_.certificate);
    EXPECT_TRUE(eventually([&] { return connection_count > count + 3 || failure_count > 0; }));
    fs::rename(client.key, client_.key);
    EXPECT_TRUE(administrator.command(
        {"CONFIG", "SET", "tls-cert-file", new_server.certificate, "tls-key-file", new_server.key}));
    const int later_count = connection_count;
    EXPECT_TRUE(eventually([&] { return connection_count > later_count + 3 || failure_count > 0; }));
  }
  should_stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failure_count, 0);
}

}  // namespace
}  // namespace mycojobs::test
