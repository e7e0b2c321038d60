// Attacks on the real program: DNS rebinding, redirects, floods, slow clients, random bytes, unresponsive name servers.
#include <gmock/gmock.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "fixture.h"
#include "name_server.h"
#include "support/process.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string send_request(std::uint16_t port, const std::string& request) {
  const Fd job = connect_to(port);
  EXPECT_TRUE(send_text(job.get(), request));
  return read_to_end(job.get());
}
std::string format_port(const Server& server) { return std::to_string(server.port()); }
void answer_ok(int fd) {
  read_head(fd);
  send_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

TEST(Rebinding, EachRequestIsCheckedByItsOwnLookup) {
  Server server(answer_ok);
  const TempDir folder;
  Egress egress({"--hosts", folder.write("hosts",
                                         "re.test 127.0.0.1\nre.test 127.0.0.9\nre.test 10.0.0.1\n"
                                         "both.test 127.0.0.1,169.254.169.254\n")});
  const std::string port = format_port(server);
  const std::uint16_t proxy = egress.serve(1, {"re.test:" + port, "both.test:" + port, "127.0.0.1:" + port});
  const std::string request = get_request("http://re.test:" + port + "/");
  for (int round = 1; round <= 2; ++round) {
    EXPECT_THAT(send_request(proxy, request), StartsWith("HTTP/1.1 200 OK"))
        << "connects to the address of the single lookup";
    EXPECT_THAT(send_request(proxy, request), HasSubstr("is 127.0.0.9, which is not public (loopback)"));
    EXPECT_THAT(send_request(proxy, request), HasSubstr("is 10.0.0.1, which is not public (private)"));
    EXPECT_EQ(server.accepted(), round);
  }
  // One denied address among permitted addresses makes the whole DNS response invalid.
  EXPECT_THAT(send_request(proxy, get_request("http://both.test:" + port + "/")),
              HasSubstr("is 169.254.169.254, which is not"));
  EXPECT_EQ(server.accepted(), 2);
  EXPECT_EQ(egress.close(1).denied, 5U);
}

TEST(Rebinding, ListedNameDoesNotOpenTheHost) {
  Server server(answer_ok);
  const TempDir folder;
  const std::string port = format_port(server);
  Egress egress({"--hosts", folder.write("hosts",
                                         "v4.test 127.0.0.1\nzero.test 0.0.0.0\nmapped.test ::ffff:127.0.0.1\n"
                                         "v6.test ::1\nnat.test 64:ff9b::7f00:1\n")});
  std::vector<std::string> allow = {"127.0.0.0/8:*", "0.0.0.0/0:*", "[::/0]:*"};
  const char* names[] = {"v4.test", "zero.test", "mapped.test", "v6.test", "nat.test"};
  for (const char* name : names) allow.push_back(std::string(name) + ":*");
  const std::uint16_t proxy = egress.serve(1, allow);
  for (const std::string host : {"v4.test", "zero.test", "mapped.test", "v6.test", "nat.test", "127.0.0.1", "127.0.0.2",
                                 "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"}) {
    EXPECT_THAT(send_request(proxy, get_request("http://" + host + ":" + port + "/")), StartsWith("HTTP/1.1 403 "))
        << host;
    EXPECT_THAT(send_request(proxy, connect_request(host + ":" + port)), StartsWith("HTTP/1.1 403 ")) << host;
  }
  EXPECT_EQ(server.accepted(), 0);
}

TEST(Redirect, ToAPrivateAddressIsANewRequest) {
  Server server([](int fd) {
    read_head(fd);
    send_text(fd, "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n");
  });
  Egress egress;
  const std::uint16_t proxy = egress.serve(1, {server.address(), "0.0.0.0/0:*"});
  EXPECT_THAT(send_request(proxy, get_request("http://" + server.address() + "/")),
              HasSubstr("Location: http://169.254.169.254/"));
  EXPECT_THAT(send_request(proxy, get_request("http://169.254.169.254/latest/")),
              HasSubstr("403 mycojobs: 169.254.169.254:80 is"));
}

TEST(Names, LookupsDelayNoOtherRequest) {
  Server server(answer_ok);
  NameServer names;
  Egress egress({"--name-servers", names.address(), "--connect-ms", "3000"});
  const std::string port = format_port(server);
  const std::uint16_t proxy = egress.serve(1, {"*.test:" + port, "127.0.0.1:" + port});
  std::vector<Fd> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(connect_to(proxy));
    ASSERT_TRUE(
        send_text(waiting.back().get(), get_request("http://silent" + std::to_string(i) + ".test:" + port + "/")));
  }
  EXPECT_THAT(send_request(proxy, get_request("http://good.test:" + port + "/")), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(send_request(proxy, get_request("http://private.test:" + port + "/")), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(send_request(proxy, get_request("http://nowhere.test:" + port + "/")), StartsWith("HTTP/1.1 502 "));
  EXPECT_THAT(send_request(proxy, get_request("http://other.example:" + port + "/")), StartsWith("HTTP/1.1 403 "));
  EXPECT_EQ(names.asked("other.example"), 0)
      << "names that are not listed are not resolved, because a name can carry data";
  for (const Fd& each : waiting) {
    EXPECT_THAT(read_to_end(each.get()), HasSubstr("504 mycojobs: silent"));
  }
  // The run of another request ends while the request waits.
  const Fd last = connect_to(proxy);
  ASSERT_TRUE(send_text(last.get(), get_request("http://silent.test:" + port + "/")));
  EXPECT_TRUE(eventually([&] { return names.asked("silent.test") > 0; }));
  egress.close(1);
  EXPECT_TRUE(wait_for_close(last.get()));
}

TEST(Flood, OfOneRunDoesNotAffectOthers) {
  Server server(echo);
  Egress egress;
  const std::uint16_t flooded = egress.serve(1, {server.address()});
  const std::uint16_t calm = egress.serve(2, {server.address()});
  const std::string part(65536, 'x');
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const Fd job = connect_to(flooded);
        send_text(job.get(), connect_request(server.address()));
        for (int times = 0; times < 20 && !stop && send_text(job.get(), part); ++times)
          read_some(job.get(), part.size());
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const Fd job = connect_to(calm);
    ASSERT_TRUE(send_text(job.get(), connect_request(server.address()) + "ping"));
    read_head(job.get());
    EXPECT_EQ(read_some(job.get(), 4), "ping");
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(egress.close(2).connections, 50U);
}

TEST(Flood, SixtyFifthConnectionWaits) {
  Server server(echo);
  Egress egress;
  const std::uint16_t proxy = egress.serve(1, {server.address()});
  const std::uint16_t other = egress.serve(2, {server.address()});
  std::vector<Fd> jobs;
  for (int i = 0; i < 64; ++i) {
    jobs.push_back(connect_to(proxy));
    ASSERT_TRUE(send_text(jobs.back().get(), connect_request(server.address())));
    ASSERT_THAT(read_head(jobs.back().get()), StartsWith("HTTP/1.1 200"));
  }
  const Fd late = connect_to(proxy);
  ASSERT_TRUE(send_text(late.get(), connect_request(server.address()) + "late"));
  const Fd of_other = connect_to(other);
  ASSERT_TRUE(send_text(of_other.get(), connect_request(server.address()) + "here"));
  read_head(of_other.get());
  EXPECT_EQ(read_some(of_other.get(), 4), "here");
  EXPECT_EQ(server.accepted(), 65);
  jobs.pop_back();
  read_head(late.get());
  EXPECT_EQ(read_some(late.get(), 4), "late");
}

TEST(Flood, OfRefusalsIsReportedTwentyTimesAndCounted) {
  Egress egress;
  const std::uint16_t proxy = egress.serve(1, {});
  for (int i = 0; i < 50; ++i) send_request(proxy, connect_request("a.example:" + std::to_string(i + 1)));
  EXPECT_EQ(egress.close(1).denied, 50U);
  EXPECT_EQ(egress.denied.size(), egress::kMaxDenied);
  EXPECT_EQ(egress.denied.front().text, "a.example:1 is not on this job's list; to allow: net = [\"a.example:1\"]");
}

// A warm process has one proxied run for all its jobs.
TEST(Flood, OfRefusalsIsReportedToEachJobOfARun) {
  Egress egress;
  const std::uint16_t proxy = egress.serve(1, {});
  for (int job = 0; job < 3; ++job) {
    for (int i = 0; i < 25; ++i) send_request(proxy, connect_request("a.example:" + std::to_string(100 * job + i + 1)));
    egress.next_job(1);
  }
  egress.next_job(2);  // run 2 does not exist
  EXPECT_EQ(egress.close(1).denied, 75U);
  ASSERT_EQ(egress.denied.size(), 3 * egress::kMaxDenied);
  EXPECT_THAT(egress.denied[2 * egress::kMaxDenied].text, StartsWith("a.example:201 "));
}

TEST(SlowLoris, WholeRequestHasOneDeadline) {
  Egress egress({"--header-ms", "400"});
  const std::uint16_t proxy = egress.serve(1, {});
  const auto drips = [&](const std::string& start, const std::string& drop) {
    const Fd job = connect_to(proxy);
    EXPECT_TRUE(send_text(job.get(), start));
    // The client sends continuously, so only a deadline for the whole request can end it.
    return eventually([&] {
      char byte = 0;
      const bool sent = drop.empty() || send_text(job.get(), drop);
      return !sent || ::recv(job.get(), &byte, 1, MSG_DONTWAIT) >= 0 || errno == ECONNRESET;
    });
  };
  EXPECT_TRUE(drips("GET http://a.example/ HTTP/1.1\r\n", "A"));
  EXPECT_TRUE(drips("\x05\xff", ""));
  EXPECT_TRUE(drips("", ""));
}

TEST(SlowLoris, IdleTunnelEnds) {
  Server server(echo);
  Egress egress({"--idle-ms", "400"});
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  ASSERT_TRUE(send_text(job.get(), connect_request(server.address())));
  EXPECT_THAT(read_head(job.get()), StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(wait_for_close(job.get()));
}

TEST(Garbage, EndlessHeadIsRejected) {
  Egress egress;
  const std::uint16_t proxy = egress.serve(1, {});
  EXPECT_THAT(send_request(proxy, "GET http://a.example/ HTTP/1.1\r\nA: " + std::string(16384, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(send_request(proxy, "\x04\x01\x01\xbb"), "");
  EXPECT_EQ(send_request(proxy, "\x16\x03\x01\x02"), "") << "TLS sent directly to the proxy";
  EXPECT_EQ(send_request(proxy, "\r\n"), "");
  EXPECT_EQ(egress.close(1).denied, 4U);
}

// MYCOJOBS_FUZZ_SEED repeats a run.
TEST(Garbage, RandomBytesAreHarmless) {
  const std::uint64_t seed = choose_seed("MYCOJOBS_FUZZ_SEED");
  std::mt19937_64 random(seed);
  Server server(echo);
  Egress egress({"--header-ms", "2000"});
  const std::uint16_t proxy = egress.serve(1, {server.address()});
  const std::string starts[] = {"",
                                "\x05",
                                std::string("\5\1\0\5\1\0", 6),
                                "GET http://",
                                "CONNECT ",
                                "POST ",
                                connect_request(server.address()),
                                get_request("http://a.example/"),
                                "GET http://" + server.address() + "/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"};
  for (int round = 0; round < 400; ++round) {
    const Fd job = connect_to(proxy);
    std::string bytes = starts[random() % std::size(starts)];
    for (std::uint64_t size = random() % 300; size > 0; --size) bytes += static_cast<char>(random());
    if (random() % 2 == 0) bytes += "\r\n\r\n";
    (void)!send_text(job.get(), bytes);
    switch (random() % 4) {
      case 0:
        close_sending(job.get());
        EXPECT_TRUE(wait_for_close(job.get())) << "seed " << seed << " round " << round;
        break;
      case 1: {
        const linger none{1, 0};
        ::setsockopt(job.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
        break;
      }
      default:
        break;
    }
  }
  const Fd job = connect_to(proxy);
  ASSERT_TRUE(send_text(job.get(), connect_request(server.address()) + "well"));
  read_head(job.get());
  EXPECT_EQ(read_some(job.get(), 4), "well");
}

// A network namespace like that of a job, with a listener for the proxy and sockets that connect to it.
struct Namespace {
  Fd listener;
  std::vector<Fd> sockets;
  std::uint16_t port = 0;
};
Namespace make_namespace(int sockets) {
  int pair[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const Fd ours(pair[0]);
  const Fd theirs(pair[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(1);
    const Fd control(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq loopback{};
    std::snprintf(loopback.ifr_name, sizeof loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    if (::ioctl(control.get(), SIOCSIFFLAGS, &loopback) != 0) ::_exit(2);
    std::uint16_t port = 0;
    const Fd listener = listen_on_loopback(port);
    std::vector<int> fds{listener.get()};
    for (int i = 0; i < sockets; ++i) fds.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::_exit(sandbox::send_raw(theirs.get(), std::string(reinterpret_cast<char*>(&port), sizeof port), fds));
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "cannot create a network namespace";
  sandbox::RawFrame frame;
  Namespace made;
  if (sandbox::receive_raw(ours.get(), frame, MSG_DONTWAIT) != sandbox::ReceiveResult::frame) return made;
  const std::string bytes = static_cast<char>(frame.kind) + frame.payload;
  std::memcpy(&made.port, bytes.data(), sizeof made.port);
  made.listener = std::move(frame.fds.front());
  for (std::size_t i = 1; i < frame.fds.size(); ++i) made.sockets.push_back(std::move(frame.fds[i]));
  return made;
}
int connect_in(const Fd& socket, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

TEST(Namespace, ListenerIsTheOnlyExit) {
  Server server(answer_ok);
  Egress egress;
  Namespace job = make_namespace(2);
  ASSERT_EQ(job.sockets.size(), 2U);
  EXPECT_EQ(connect_in(job.sockets[0], server.port()), ECONNREFUSED)
      << "the namespace must have another loopback interface than the host";
  egress.serve(1, {server.address()}, job.listener);
  job.listener.reset();
  ASSERT_EQ(connect_in(job.sockets[1], job.port), 0);
  ASSERT_TRUE(send_text(job.sockets[1].get(), get_request("http://" + server.address() + "/")));
  EXPECT_THAT(read_to_end(job.sockets[1].get()), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(egress.close(1).connections, 1U);
}

}  // namespace
}  // namespace mycojobs::test
