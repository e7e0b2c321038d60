// Connections through sentinels: resolution, verification of the role, and the end of connections to a former master.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>

#include "sentinel/sentinel_servers.h"
#include "store/checks/sentinel_overview.h"
#include "store/redis/redis_connection.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string local_address(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

std::string connect_error_of(RedisConnection::Options options) {
  const auto result = RedisConnection(std::move(options)).connect();
  return result ? "" : std::string(to_string(result.error().code)) + ": " + result.error().message;
}

// Writes until a write is accepted, and returns the port of that server.
std::uint16_t write_until_accepted(RedisConnection& connection) {
  EXPECT_TRUE(eventually([&] { return connection.command({"SET", "written", "1"}).has_value(); }));
  return connection.server().port;
}

class Sentinel : public testing::Test {
 protected:
  TempDir folder_;
};

TEST_F(Sentinel, ConnectionFollowsAKilledMaster) {
  RedisGroup group(folder_);
  RedisConnection connection(make_sentinel_options(group.url()));
  EXPECT_EQ(write_until_accepted(connection), group.server_port(0));
  group.kill_server(0);
  const std::uint16_t port = write_until_accepted(connection);
  EXPECT_EQ(port, group.server_port(group.wait_for_failover(0)));
}

TEST_F(Sentinel, ConnectionFollowsASwitchover) {
  RedisGroup group(folder_);
  RedisConnection connection(make_sentinel_options(group.url()));
  write_until_accepted(connection);
  ASSERT_TRUE(group.ask_sentinel(0, {"SENTINEL", "FAILOVER", "mymaster"}));
  const std::size_t master = group.wait_for_failover(0);
  EXPECT_TRUE(eventually([&] { return write_until_accepted(connection) == group.server_port(master); }));
}

// The socket of a server that hangs stays open, so that only the sentinels reveal that it is not the master any more.
TEST_F(Sentinel, PendingCommandOfAHangingMasterEnds) {
  RedisGroup group(folder_);
  RedisConnection::Options options = make_sentinel_options(group.url());
  options.command_timeout_ms = 60000;
  RedisConnection connection(std::move(options));
  ASSERT_TRUE(connection.connect());
  ASSERT_TRUE(eventually([&] {  // the monitor subscribes after a while
    const auto clients = group.ask_sentinel(1, {"CLIENT", "LIST", "TYPE", "PUBSUB"});
    return clients && clients->text().find("name=mycojobs") != std::string_view::npos;
  }));
  group.signal_server(0, SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(connection.command({"SET", "written", "1"}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(55));
  EXPECT_NE(write_until_accepted(connection), group.server_port(0));
  group.signal_server(0, SIGCONT);
}

TEST_F(Sentinel, ReplicaThatIsAnnouncedIsNotUsed) {
  RedisGroup group(folder_);
  FakeSentinel liar(group.address(1));
  const std::string lies = "redis+sentinel://" + local_address(liar.port());
  EXPECT_THAT(
      connect_error_of(make_sentinel_options(lies + "/mymaster")),
      AllOf(HasSubstr("unavailable: no connection to the master of redis+sentinel://"),
            HasSubstr("sentinel " + local_address(liar.port()) + " announces " + local_address(group.server_port(1)) +
                      ": it is a replica of " + local_address(group.server_port(0)))));
  RedisConnection connection(make_sentinel_options(lies + "," + local_address(group.sentinel_port(0)) + "/mymaster"));
  const auto connected = connection.connect();
  ASSERT_TRUE(connected) << connected.error().message;
  EXPECT_EQ(connection.server().port, group.server_port(0));
}

// A wrong event costs a new connection, and the role of the announced server is verified.
TEST_F(Sentinel, AnnouncementOfAReplicaIsVerified) {
  RedisGroup group(folder_);
  FakeSentinel liar(group.address(0));
  RedisConnection connection(make_sentinel_options("redis+sentinel://" + local_address(liar.port()) + "," +
                                                   local_address(group.sentinel_port(0)) + "/mymaster"));
  ASSERT_TRUE(connection.connect());
  EXPECT_TRUE(eventually([&] {  // the event is repeated until the monitor has subscribed
    liar.announce(group.address(1));
    return !connection.command({"PING"}) || connection.server().port != group.server_port(0) || liar.questions() > 1;
  }));
  EXPECT_EQ(write_until_accepted(connection), group.server_port(0));
}

TEST_F(Sentinel, ConnectionMovesToTheAnnouncedMaster) {
  RedisGroup one(folder_);
  const TempDir other_folder;
  const RedisGroup two(other_folder);
  FakeSentinel sentinel(one.address(0));
  RedisConnection connection(make_sentinel_options("redis+sentinel://" + local_address(sentinel.port()) + "/mymaster"));
  EXPECT_EQ(write_until_accepted(connection), one.server_port(0));
  EXPECT_TRUE(eventually([&] {
    sentinel.announce(two.address(0));
    (void)connection.command({"PING"});
    return connection.connected() && connection.server().port == two.server_port(0);
  }));
}

// The first sentinel was cut off before a failover and announces the old master, which does not know of it either.
TEST_F(Sentinel, SentinelWithTheNewerConfigurationIsFollowed) {
  RedisGroup old(folder_);
  const TempDir other_folder;
  RedisGroup group(other_folder);
  ASSERT_TRUE(group.ask_sentinel(0, {"SENTINEL", "FAILOVER", "mymaster"}));
  const std::size_t master = group.wait_for_failover(0);
  FakeSentinel late(old.address(0));
  RedisConnection connection(make_sentinel_options("redis+sentinel://" + local_address(late.port()) + "," +
                                                   local_address(group.sentinel_port(1)) + "/mymaster"));
  ASSERT_TRUE(connection.connect());
  EXPECT_EQ(connection.server().port, old.server_port(0));
  EXPECT_TRUE(eventually([&] {
    (void)connection.command({"PING"});
    return connection.connected() && connection.server().port == group.server_port(master);
  }));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(connection.command({"PING"}));
  EXPECT_EQ(connection.server().port, group.server_port(master));
}

TEST_F(Sentinel, ReadOnlyReplyEndsTheConnection) {
  RedisGroup group(folder_);
  FakeSentinel sentinel(group.address(0));
  RedisConnection connection(make_sentinel_options("redis+sentinel://" + local_address(sentinel.port()) + "/mymaster"));
  RedisConnection other(make_sentinel_options("redis+sentinel://" + local_address(sentinel.port()) + "/mymaster"));
  ASSERT_TRUE(connection.connect());
  ASSERT_TRUE(other.connect());
  // No sentinel does this, so that the server keeps its connections.
  ASSERT_TRUE(group.command(0, {"REPLICAOF", "127.0.0.1", "1"}));
  const auto refused = connection.command({"SET", "written", "1"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("READONLY"));
  EXPECT_FALSE(connection.connected());
  const auto read = other.command({"PING"});  // the other connection of the process is closed, too
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("it is a replica of 127.0.0.1:1"));
}

TEST_F(Sentinel, OneSentinelSuffices) {
  RedisGroup group(folder_);
  group.kill_sentinel(0);
  group.signal_sentinel(1, SIGSTOP);
  RedisConnection connection(make_sentinel_options(group.url()));
  const auto connected = connection.connect();
  EXPECT_TRUE(connected) << connected.error().message;
  group.signal_sentinel(1, SIGCONT);
}

TEST_F(Sentinel, OpenConnectionNeedsNoSentinel) {
  RedisGroup group(folder_);
  RedisConnection connection(make_sentinel_options(group.url()));
  write_until_accepted(connection);
  for (std::size_t i = 0; i < kServers; ++i) group.kill_sentinel(i);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(connection.command({"INCR", "count"}));
  EXPECT_THAT(connect_error_of(make_sentinel_options(group.url())),
              AllOf(HasSubstr("unavailable: no connection to the master of " +
                              make_sentinel_options(group.url()).endpoint.redacted_url()),
                    HasSubstr("sentinel " + local_address(group.sentinel_port(2)) + ": ECONNREFUSED")));
  for (std::size_t i = 0; i < kServers; ++i) group.start_sentinel(i);
  EXPECT_EQ(connect_error_of(make_sentinel_options(group.url())), "");
}

TEST_F(Sentinel, SentinelsHaveTheirOwnCredentials) {
  GroupOptions group_options;
  group_options.sentinel_password = "sentinel-secret";
  group_options.server_options = {"--requirepass",
                                  "server-secret",
                                  "--masterauth",
                                  "server-secret",
                                  "--user",
                                  "app",
                                  "on",
                                  ">app-secret",
                                  "~*",
                                  "&*",
                                  "+@all"};
  group_options.sentinel_lines = {"sentinel auth-pass mymaster server-secret"};
  group_options.server_password = "server-secret";
  RedisGroup group(folder_, group_options);
  RedisConnection::Options options = make_sentinel_options(group.url("app:app-secret"));
  EXPECT_THAT(connect_error_of(options), AllOf(HasSubstr("denied: "), HasSubstr("NOAUTH")));
  options.sentinel.password_file = folder_.write("password", "sentinel-secret\n");
  EXPECT_THAT(connect_error_of(options), HasSubstr("redis_sentinel.password_file: "));
  EXPECT_THAT(connect_error_of(options), HasSubstr("other users can read it: chmod 600"));
  using std::filesystem::perms;
  std::filesystem::permissions(options.sentinel.password_file, perms::owner_read | perms::owner_write);
  EXPECT_EQ(connect_error_of(options), "");
  options.endpoint.password = "wrong-server-secret";
  EXPECT_THAT(connect_error_of(options),
              AllOf(HasSubstr("denied: "), HasSubstr("WRONGPASS"), Not(HasSubstr("secret"))));
  folder_.write("password", "wrong-secret\n");
  EXPECT_THAT(connect_error_of(options), AllOf(HasSubstr("denied: "), HasSubstr("WRONGPASS"),
                                               HasSubstr("redis_sentinel.user"), Not(HasSubstr("wrong-secret"))));
  options.sentinel.password_file = folder_ / "missing";
  EXPECT_THAT(connect_error_of(options), HasSubstr("missing: ENOENT"));
}

TEST_F(Sentinel, UnknownMasterIsNamed) {
  const RedisGroup group(folder_);
  std::string url = group.url();
  url.replace(url.rfind('/') + 1, std::string::npos, "other");
  EXPECT_THAT(connect_error_of(make_sentinel_options(url)),
              AllOf(HasSubstr("invalid: "), HasSubstr("it knows no master other; it knows mymaster")));
}

TEST_F(Sentinel, ServersAndSentinelsAreNotConfused) {
  const RedisGroup group(folder_);
  EXPECT_THAT(connect_error_of(make_sentinel_options("redis://" + local_address(group.sentinel_port(0)))),
              HasSubstr("is a sentinel: write redis+sentinel://" + local_address(group.sentinel_port(0)) + "/MASTER"));
  EXPECT_THAT(connect_error_of(make_sentinel_options("redis+sentinel://" + local_address(group.server_port(0)) + "/m")),
              HasSubstr("is not a sentinel"));
}

TEST_F(Sentinel, NodeOfRedisClusterIsRefused) {
  const std::uint16_t port = find_free_port();
  const Process server(folder_, {"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save", "",
                                 "--dir", folder_.path().string(), "--cluster-enabled", "yes", "--cluster-port",
                                 std::to_string(find_free_port())});
  std::string error;
  EXPECT_TRUE(eventually([&] {
    error = connect_error_of(make_sentinel_options("redis://" + local_address(port)));
    return error.find("ECONNREFUSED") == std::string::npos;
  }));
  EXPECT_THAT(error, AllOf(HasSubstr("unsupported: Redis at " + local_address(port) + " is in cluster mode"),
                           HasSubstr("one for each context")));
}

// The sentinel announces an IP address, and the certificates of the servers have a name.
TEST_F(Sentinel, CertificateOfTheServersMayHaveAName) {
  const TestCa ca(folder_, "ca");
  const TlsRedisServer server(folder_, ca, ca.issue("server", "DNS:redis.test"));
  const CertificateFiles files = ca.issue("sentinel", "DNS:localhost");
  const std::string port = std::to_string(find_free_port());
  const std::string config = folder_.write(
      "sentinel.conf", "port 0\ntls-port " + port + "\nbind 127.0.0.1\ntls-replication yes\ntls-auth-clients no\n" +
                           "tls-cert-file " + files.certificate + "\ntls-key-file " + files.key +
                           "\ntls-ca-cert-file " + ca.file() + "\ndir " + folder_.path().string() +
                           "\nsentinel monitor mymaster 127.0.0.1 " + std::to_string(server.tls_port()) + " 1\n");
  const Process sentinel(folder_, {"redis-server", config, "--sentinel"});
  TlsSettings settings;
  settings.ca = ca.file();
  RedisConnection::Options options = make_options("rediss+sentinel://localhost:" + port + "/mymaster", settings);
  std::string error;
  EXPECT_TRUE(eventually([&] {
    error = connect_error_of(options);
    return error.find("ECONNREFUSED") == std::string::npos;
  }));
  EXPECT_THAT(error, HasSubstr("is for redis.test, not for 127.0.0.1"));
  settings.server_name = "redis.test";
  options.tls = std::make_shared<TlsContext>(settings);
  EXPECT_EQ(connect_error_of(options), "");
  const auto overview = load_sentinel_overview("rediss+sentinel://localhost:" + port + "/mymaster", options.tls, {});
  ASSERT_TRUE(overview && *overview);
  EXPECT_EQ((*overview)->master, local_address(server.tls_port()));
  EXPECT_EQ((*overview)->sentinels.at(0).master, (*overview)->master);
}

}  // namespace
}  // namespace mycojobs::test
