// The real program: the traffic it forwards, the requests it refuses, and how connections end.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "fixture.h"
#include "support/process.h"

namespace mycojobs::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kTunnelIsOpen = "HTTP/1.1 200 Connection established\r\n\r\n";

std::string make_response(const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" + body;
}

std::string pattern(std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>(i * 31 + i / 1021);
  return out;
}

TEST(Egress, TunnelReachesListedHosts) {
  Server server(echo);
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  // The first bytes of the tunnel are sent with the request, as TLS clients do.
  ASSERT_TRUE(send_text(job.get(), connect_request(server.address()) + "early"));
  EXPECT_EQ(read_head(job.get()), kTunnelIsOpen);
  EXPECT_EQ(read_some(job.get(), 5), "early");
  ASSERT_TRUE(send_text(job.get(), "later"));
  EXPECT_EQ(read_some(job.get(), 5), "later");
  close_sending(job.get());
  EXPECT_EQ(read_to_end(job.get()), "");
  const auto ended = egress.close(1);
  EXPECT_EQ(ended.connections, 1U);
  EXPECT_EQ(ended.bytes_up, 10U);
  EXPECT_EQ(ended.bytes_down, 10U);
  EXPECT_EQ(ended.denied, 0U);
}

TEST(Egress, UnlistedHostIsRejectedInEveryProtocol) {
  Server server(echo);
  Egress egress;
  const std::uint16_t port = egress.serve(1, {"api.example.org:443"});
  const std::string reason =
      server.address() + " is not on this job's list; to allow: net = [\"" + server.address() + "\"]";
  for (const std::string& request :
       {connect_request(server.address()), get_request("http://" + server.address() + "/")}) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), request));
    const std::string answer = read_to_end(job.get());
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 403 mycojobs: " + reason + "\r\n"));
    EXPECT_EQ(egress.next_denied(), reason);
  }
  const Fd job = connect_to(port);
  ASSERT_TRUE(send_text(job.get(), socks_request("127.0.0.1", server.port())));
  EXPECT_EQ(read_to_end(job.get()), std::string("\5\0\5\2\0\1\0\0\0\0\0\0", 12));
  EXPECT_EQ(egress.next_denied(), reason);
  EXPECT_EQ(server.accepted(), 0);
  EXPECT_EQ(egress.close(1).denied, 3U);
}

TEST(Egress, PlainRequestHasOneAnswer) {
  std::promise<std::string> asked, more;
  Server server([&](int fd) {
    asked.set_value(read_head(fd));
    send_text(fd, make_response("hello", "Connection: keep-alive\r\n"));
    more.set_value(read_to_end(fd));
  });
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  // A second request on the same connection is neither checked nor forwarded.
  ASSERT_TRUE(
      send_text(job.get(), get_request("http://" + server.address() + "/one", "Proxy-Connection: keep-alive\r\n") +
                               get_request("http://other.example/two")));
  EXPECT_EQ(read_head(job.get()), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(read_some(job.get(), 5), "hello");
  EXPECT_EQ(asked.get_future().get(),
            "GET /one HTTP/1.1\r\nHost: " + server.address() + "\r\nVia: 1.1 mycojobs\r\nConnection: close\r\n\r\n");
  egress.close(1);
  EXPECT_EQ(more.get_future().get(), "");
}

TEST(Egress, BodyIsForwardedToItsEndOnly) {
  std::promise<std::string> got;
  Server server([&](int fd) {
    read_head(fd);
    got.set_value(read_some(fd, 21));
    send_text(fd, make_response(""));
  });
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  const std::string chunks = "6\r\nchunks\r\n0\r\nA: b\r\n\r\n";
  ASSERT_TRUE(send_text(job.get(), "POST http://" + server.address() +
                                       "/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks +
                                       get_request("http://" + server.address() + "/smuggled")));
  EXPECT_THAT(read_to_end(job.get()), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_EQ(got.get_future().get(), chunks.substr(0, 21));
  EXPECT_EQ(server.accepted(), 1);

  Server other(echo);
  const Fd liar = connect_to(egress.serve(2, {other.address()}));
  ASSERT_TRUE(send_text(liar.get(),
                        "POST http://" + other.address() + "/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"));
  EXPECT_THAT(read_to_end(liar.get()), StartsWith("HTTP/1.1 400 mycojobs: the chunks"));
}

TEST(Egress, SocksAcceptsNamesAndAddresses) {
  Server server(echo);
  const TempDir folder;
  Egress egress({"--hosts", folder.write("hosts", "service.test 127.0.0.1\n")});
  const std::uint16_t port = egress.serve(1, {server.address(), "service.test:" + std::to_string(server.port())});
  for (const char* host : {"127.0.0.1", "service.test", "SERVICE.Test"}) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), socks_request(host, server.port()) + "hi"));
    EXPECT_EQ(read_some(job.get(), 14), std::string("\5\0\5\0\0\1\0\0\0\0\0\0hi", 14)) << host;
  }
  for (const char* host : {"127.1", "127.0.0.1.", "2130706433", "service.test.", "other.test"}) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), socks_request(host, server.port())));
    EXPECT_EQ(read_to_end(job.get()), std::string("\5\0\5\2\0\1\0\0\0\0\0\0", 12)) << host;
  }
}

TEST(Egress, HalfCloseIsForwardedInBothDirections) {
  Server collects([](int fd) {
    const std::string all = read_to_end(fd);
    send_text(fd, "got " + std::to_string(all.size()));
  });
  std::promise<std::string> after;
  Server speaks_first([&](int fd) {
    send_text(fd, "bye");
    close_sending(fd);
    after.set_value(read_to_end(fd));
  });
  Egress egress;
  const std::uint16_t port = egress.serve(1, {collects.address(), speaks_first.address()});
  const Fd job = connect_to(port);
  ASSERT_TRUE(send_text(job.get(), connect_request(collects.address()) + std::string(300000, 'x')));
  close_sending(job.get());
  EXPECT_EQ(read_to_end(job.get()), kTunnelIsOpen + "got 300000");

  const Fd other = connect_to(port);
  ASSERT_TRUE(send_text(other.get(), connect_request(speaks_first.address())));
  EXPECT_EQ(read_to_end(other.get()), kTunnelIsOpen + "bye");
  ASSERT_TRUE(send_text(other.get(), std::string(300000, 'y')));
  close_sending(other.get());
  EXPECT_EQ(after.get_future().get().size(), 300000U);
}

TEST(Egress, ClientThatShutsItsWriteSideGetsTheAnswer) {
  Server server([](int fd) {
    read_head(fd);
    send_text(fd, make_response(pattern(500000)));
  });
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  ASSERT_TRUE(send_text(job.get(), get_request("http://" + server.address() + "/")));
  close_sending(job.get());
  read_head(job.get());
  EXPECT_EQ(read_to_end(job.get()), pattern(500000));
}

TEST(Egress, BytesArriveWholeThroughSlowReaders) {
  constexpr std::size_t kSize = 8U << 20;
  Server server(echo);
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  ASSERT_TRUE(send_text(job.get(), connect_request(server.address())));
  EXPECT_EQ(read_head(job.get()), kTunnelIsOpen);
  const std::string data = pattern(kSize);
  // The job does not read until the buffers of both directions are full.
  std::thread writer([&] {
    EXPECT_TRUE(send_text(job.get(), data));
    close_sending(job.get());
  });
  ::usleep(200000);
  EXPECT_TRUE(read_to_end(job.get()) == data);
  writer.join();
  const auto ended = egress.close(1);
  EXPECT_EQ(ended.bytes_up, kSize);
  EXPECT_EQ(ended.bytes_down, kSize);
}

TEST(Egress, AnswerBeforeTheEndOfTheBodyIsForwarded) {
  Server server([](int fd) {
    read_head(fd);
    send_text(fd, "HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n");
  });
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  ASSERT_TRUE(
      send_text(job.get(), "POST http://" + server.address() + "/ HTTP/1.1\r\nContent-Length: 50000000\r\n\r\nsome"));
  EXPECT_THAT(read_to_end(job.get()), StartsWith("HTTP/1.1 413 Too large\r\n"));
}

TEST(Egress, FinalBytesOfAServerPassTheTunnel) {
  Server server([](int fd) {
    read_some(fd, 1000);
    send_text(fd, pattern(100000));
  });
  Egress egress;
  const std::uint16_t port = egress.serve(1, {server.address()});
  for (int round = 0; round < 20; ++round) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), connect_request(server.address())));
    EXPECT_EQ(read_head(job.get()), kTunnelIsOpen);
    ASSERT_TRUE(send_text(job.get(), std::string(1000, 'x')));
    EXPECT_TRUE(read_some(job.get(), 100000) == pattern(100000));
    // The server has closed the connection, so sending more data eventually causes a reset.
    while (send_text(job.get(), std::string(1000, 'x'))) continue;
  }
}

TEST(Egress, MissingServerIsABadGateway) {
  std::uint16_t unused = 0;
  listen_on_loopback(unused).reset();
  Server silent([](int fd) { read_head(fd); });
  Server rude([](int fd) {
    const linger none{1, 0};
    read_head(fd);
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  });
  const std::string missing_server = "127.0.0.1:" + std::to_string(unused);
  Egress egress;
  const std::uint16_t port = egress.serve(1, {missing_server, silent.address(), rude.address()});
  for (const std::string& request : {connect_request(missing_server), get_request("http://" + missing_server + "/")}) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), request));
    EXPECT_THAT(read_to_end(job.get()), StartsWith("HTTP/1.1 502 mycojobs: " + missing_server + ": ECONNREFUSED"));
  }
  for (const Server* server : {&silent, &rude}) {
    const Fd job = connect_to(port);
    ASSERT_TRUE(send_text(job.get(), get_request("http://" + server->address() + "/")));
    EXPECT_THAT(read_to_end(job.get()), ContainsRegex("^HTTP/1.1 502 mycojobs: the server .* without an answer"));
  }
  EXPECT_EQ(egress.close(1).denied, 0U);
}

TEST(Egress, CloseEndsActiveConnections) {
  Server server([](int fd) {
    const std::string part(65536, 'x');
    while (send_text(fd, part)) continue;
  });
  Egress egress;
  const std::uint16_t port = egress.serve(1, {server.address()});
  std::vector<Fd> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back(connect_to(port));
    ASSERT_TRUE(send_text(jobs.back().get(), connect_request(server.address())));
    EXPECT_EQ(read_some(jobs.back().get(), 100000).size(), 100000U);
  }
  const auto ended = egress.close(1);
  EXPECT_EQ(ended.connections, 5U);
  EXPECT_GE(ended.bytes_down, 500000U);
  for (const Fd& job : jobs) EXPECT_TRUE(wait_for_close(job.get()));
  EXPECT_EQ(egress.close(1).connections, 0U) << "Close of a run that has ended is answered, too";
  EXPECT_EQ(egress.close_socket(), 0);
}

TEST(Egress, EndsWithItsLauncher) {
  Server server(echo);
  Egress egress;
  const Fd job = connect_to(egress.serve(1, {server.address()}));
  ASSERT_TRUE(send_text(job.get(), connect_request(server.address())));
  EXPECT_EQ(read_head(job.get()), kTunnelIsOpen);
  EXPECT_EQ(egress.close_socket(), 0);
  EXPECT_TRUE(wait_for_close(job.get()));
}

TEST(Egress, UnusableRequestIsAnError) {
  Egress egress;
  std::uint16_t port = 0;
  const Fd listener = listen_on_loopback(port);
  egress.serve(1, {"nonsense"}, listener);
  EXPECT_THAT(egress.next_problem(), HasSubstr("run 1: \"nonsense\": the port is missing"));
  egress.serve(2, {}, listen_on_loopback(port, SOCK_DGRAM));
  EXPECT_THAT(egress.next_problem(), HasSubstr("run 2: the descriptor is not a TCP listener"));
  egress.serve(3, {}, Fd(::dup(egress.socket())));
  EXPECT_THAT(egress.next_problem(), HasSubstr("run 3: the descriptor is not a TCP listener"));
  ASSERT_EQ(sandbox::send_message(egress.socket(), egress::Serve{4, {}}), 0);
  EXPECT_THAT(egress.next_problem(), HasSubstr("invalid frame from the launcher: kind 1, 0 descriptors"));
  ASSERT_EQ(sandbox::send_raw(egress.socket(), std::string("\1\2\3", 3)), 0);
  EXPECT_THAT(egress.next_problem(), HasSubstr("invalid frame from the launcher"));
  ASSERT_EQ(sandbox::send_raw(egress.socket(), "\x7f", {listener.get(), listener.get()}), 0);
  EXPECT_THAT(egress.next_problem(), HasSubstr("invalid frame from the launcher: kind 127, 2 descriptors"));
  egress.serve(5, {}, listener);
  egress.serve(5, {}, listener);
  EXPECT_THAT(egress.next_problem(), HasSubstr("run 5: is served already"));
  for (std::uint64_t run = 1; run <= 6; ++run) EXPECT_EQ(egress.close(run).run, run);
}

TEST(Egress, HasNoCapabilities) {
  Egress egress;
  egress.close(1);  // returns after the program has started
  const std::string status = read_file("/proc/" + std::to_string(egress.pid()) + "/status");
  EXPECT_THAT(status, HasSubstr("CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n"));
  EXPECT_THAT(status, HasSubstr("NoNewPrivs:\t1\n"));
  EXPECT_THAT(status, HasSubstr("Seccomp:\t2\n"));
  if (::geteuid() == 0) {
    EXPECT_THAT(status, HasSubstr("CapBnd:\t0000000000000000\n"));
    EXPECT_THAT(status, Not(HasSubstr("Uid:\t0")));
    EXPECT_THAT(status, HasSubstr("Groups:\t \n"));
  }
}

}  // namespace
}  // namespace mycojobs::test
