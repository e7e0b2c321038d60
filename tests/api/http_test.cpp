// The HTTP server with real sockets on loopback: slow, faulty and hostile clients, and too many clients.
#include "api/http/http_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "support/process.h"

namespace mycojobs::api {
namespace {

using test::eventually;

class Peer {
 public:
  // host: its own address is 127.0.0.HOST
  explicit Peer(std::uint16_t port, std::uint32_t host = 1)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Reads until the server closes, `until` was received, or the time-out expires.
  std::string read(std::string_view until = "\r\n\r\n\r\n", int ms = 10000) const {
    std::string text;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (text.find(until) == std::string::npos) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd entry{socket_.get(), POLLIN, 0};
      if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) return text + "<timeout>";
      char buffer[4096];
      const ssize_t got = ::recv(socket_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return text + "<closed>";
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }
  // Returns the number of bytes that arrive until the server closes the connection, or sends none for this time.
  std::size_t drain(int ms = 10000) const {
    std::size_t bytes = 0;
    std::vector<char> buffer(1U << 20);
    pollfd entry{socket_.get(), POLLIN, 0};
    while (::poll(&entry, 1, ms) > 0) {
      const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      bytes += static_cast<std::size_t>(got);
    }
    return bytes;
  }
  bool closed() const { return read("never").find("<closed>") != std::string::npos; }
  void half_close() const { ::shutdown(socket_.get(), SHUT_WR); }
  void close() { socket_.reset(); }

 private:
  Fd socket_;
};

std::string post(const std::string& body, const std::string& more = "", const std::string& path = "/") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

class Http : public ::testing::Test {
 protected:
  ApiLimits limits_ = quick();
  std::atomic<int> calls_{0};
  std::atomic<bool> streams_over_{false}, released_{false};
  std::unique_ptr<HttpServer> server_;

  static ApiLimits quick() {
    ApiLimits limits;
    limits.max_connections = 8;
    limits.head_timeout_ms = 300;
    limits.body_timeout_ms = 300;
    limits.idle_timeout_ms = 300;
    limits.write_timeout_ms = 300;
    limits.event_write_timeout_ms = 300;
    limits.max_head_bytes = 8192;
    limits.max_body_bytes = 100'000;
    return limits;
  }
  void start() {
    auto server = HttpServer::start(
        "127.0.0.1:0", limits_,
        {{"POST", "/", [this](const HttpRequest& from) { return ++calls_, echo(from); }},
         {"GET", "/big",
          [](const HttpRequest&) {
            return HttpReply{200, "text/plain", std::string(20 << 20, 'x'), {}, {}};
          }},
         {"GET", "/a.json", [](const HttpRequest& from) { return echo(from); }},
         {"POST", "/peer",
          [](const HttpRequest& from) {
            HttpReply reply = echo(from);
            reply.signer_key = from.header("x-proves");
            return reply;
          }},
         {"GET", "/slow",
          [this](const HttpRequest&) {
            ++calls_;
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            return HttpReply{200, "text/plain", "slow", {}, {}};
          }},
         {"GET", "/wait",
          [this](const HttpRequest& from) {
            ++calls_;
            while (!released_ && from.report_wait(true)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            from.report_wait(false);
            return HttpReply{200, "text/plain", "waited", {}, {}};
          }},
         {"GET", "/busy", [this](const HttpRequest&) { return busy_call(); }},
         {"GET", "/busy.json", [this](const HttpRequest&) { return busy_call(); }},
         {"POST", "/login", [this](const HttpRequest&) { return busy_call(); }},
         {"GET", "/page",
          [](const HttpRequest&) {
            return HttpReply{200, "text/plain", std::string(20 << 20, 'p'), {}, {}};
          }},
         {"GET", "/throw", [](const HttpRequest&) -> HttpReply { throw std::runtime_error("secret"); }},
         {"GET", "/events", [this](const HttpRequest&) { return events(); }}},
        [](const HttpRequest& from) -> Admission {
          if (from.headers.contains("x-refuse")) return {error_reply(403, "denied", "no", "nothing")};
          if (from.headers.contains("x-operator")) return {{}, ConnectionClass::operators};
          if (from.headers.contains("authorization"))
            return {{}, ConnectionClass::token, std::strtoull(from.header("authorization").c_str(), nullptr, 10)};
          if (from.path == "/peer") return {{}, ConnectionClass::peer};
          if (from.path == "/login") return {{}, ConnectionClass::login};
          if (from.path == "/page") return {{}, ConnectionClass::page};
          if (from.path == "/busy.json")
            return {{}, ConnectionClass::health, 0, [] { return HttpReply{200, "text/plain", "the latest", {}, {}}; }};
          return {{}, from.path == "/a.json" ? ConnectionClass::health : ConnectionClass::anonymous};
        });
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  // Runs until the test releases it.
  HttpReply busy_call() {
    ++calls_;
    while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return HttpReply{200, "text/plain", "was busy", {}, {}};
  }
  static HttpReply echo(const HttpRequest& from) { return {200, "text/plain", from.method + ":" + from.body, {}, {}}; }
  HttpReply events() {
    HttpReply reply;
    reply.type = "text/event-stream";
    reply.stream = [this](EventSink& sink) {
      for (int i = 0; sink.send("data: " + std::string(1000, 'e') + "\n\n"); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      streams_over_ = true;
    };
    return reply;
  }
  Peer peer(std::uint32_t host = 1) const { return Peer(server_->port(), host); }
  void TearDown() override { released_ = true; }
  // The server still answers promptly.
  void expect_serves() {
    const Peer client = peer();
    ASSERT_TRUE(client.send(post("hello", "Connection: close\r\n")));
    const std::string reply = client.read("POST:hello");
    EXPECT_NE(reply.find("HTTP/1.1 200"), std::string::npos) << reply;
    EXPECT_NE(reply.find("POST:hello"), std::string::npos) << reply;
  }
};

TEST_F(Http, AnswersAndKeepsTheConnection) {
  start();
  const Peer client = peer();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post("one")));
    EXPECT_NE(client.read("POST:one").find("200"), std::string::npos);
  }
  ASSERT_TRUE(client.send(post("a") + post("b")));  // pipelined
  EXPECT_NE(client.read("POST:b").find("POST:a"), std::string::npos);
  ASSERT_TRUE(
      client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"));
  EXPECT_NE(client.read("POST:abcde").find("200"), std::string::npos);
  ASSERT_TRUE(client.send("GET /a.json HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(client.read("GET:").find("200"), std::string::npos);
}

// RFC 9112, 3.2: exactly one Host field with one host, without a list or user information.
TEST_F(Http, InvalidHostHeaderIsRejected) {
  limits_.max_connections = 100;
  start();
  for (const char* host : {"",
                           "Host:\r\n",
                           "Host: a\r\nHost: a\r\n",
                           "Host: localhost:9652, evil\r\n",
                           "Host: localhost, localhost\r\n",
                           "Host: 127.0.0.1:9652@evil\r\n",
                           "Host: user@localhost\r\n",
                           "Host: local host\r\n",
                           "Host: a:b\r\n",
                           "Host: a:99999\r\n",
                           "Host: a:0\r\n",
                           "Host: a:\r\n",
                           "Host: a:1:2\r\n",
                           "Host: ::1\r\n",
                           "Host: [::1\r\n",
                           "Host: [::1]a\r\n",
                           "Host: [evil]\r\n",
                           "Host: http://a\r\n",
                           "Host: a/b\r\n",
                           "Host: a?\r\n",
                           "Host: [::1%lo]\r\n"}) {
    const Peer client = peer();
    ASSERT_TRUE(client.send(std::string("GET /a.json HTTP/1.1\r\n") + host + "\r\n"));
    const std::string reply = client.read("\r\n\r\n");
    EXPECT_NE(reply.find("HTTP/1.1 400"), std::string::npos) << host << reply;
  }
  for (const char* host :
       {"localhost:9652", "LocalHost", "127.0.0.1:1", "[::1]:9652", "[2001:DB8::1]", "a-b_c.example:65535"}) {
    const Peer client = peer();
    ASSERT_TRUE(client.send(std::string("GET /a.json HTTP/1.1\r\nHost: ") + host + "\r\n\r\n"));
    EXPECT_NE(client.read("GET:").find("200"), std::string::npos) << host;
  }
  const Peer old = peer();
  ASSERT_TRUE(old.send("GET /a.json HTTP/1.0\r\n\r\n"));
  EXPECT_NE(old.read("GET:").find("200"), std::string::npos) << "HTTP/1.0 has no Host";
}

// A request that two parsers could interpret differently is rejected.
TEST_F(Http, MalformedHeadIsRejected) {
  limits_.max_connections = 100;  // a connection that its client has closed may end a moment later
  start();
  const std::string host = "POST / HTTP/1.1\r\nHost: x\r\n", body(47, 'b');
  for (const std::string& request :
       {host + "Content-Length: 47abc\r\n\r\n" + body,
        host + "Content-Length: +47\r\n\r\n" + body,
        host + "Content-Length: -1\r\n\r\n" + body,
        host + "Content-Length: 0x2f\r\n\r\n" + body,
        host + "Content-Length: 47, 47\r\n\r\n" + body,
        host + "Content-Length:\r\n\r\n" + body,
        host + "Content-Length: 99999999999999999999\r\n\r\n" + body,
        host + "Transfer-Encoding: chunked\r\n\r\n0x2f\r\n" + body + "\r\n0\r\n\r\n",
        host + "Transfer-Encoding: chunked\r\n\r\n+2f\r\n" + body + "\r\n0\r\n\r\n",
        host + "Transfer-Encoding: chunked\r\n\r\n 2f\r\n" + body + "\r\n0\r\n\r\n",
        host + "Transfer-Encoding: chunked\r\n\r\n2f\n" + body + "\r\n0\r\n\r\n",
        host + "Transfer-Encoding: chunked\r\n\r\n2e\r\n" + body + "\r\n0\r\n\r\n",
        host + "Transfer-Encoding: chunked\r\n\r\n2f\r\n" + body + "\r\n0\r\nX-Trailer: 1\r\n\r\n",
        host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        host + "Transfer-Encoding: identity\r\nContent-Length: 47\r\n\r\n" + body,
        host + "X-Folded: a\r\n b\r\n\r\n",
        host + "Origin : null\r\n\r\n",
        host + " Origin: null\r\n\r\n",
        host + "Authorization: a\r\nAuthorization: b\r\n\r\n",
        host + "Host: y\r\n\r\n",
        host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nb",
        std::string("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        host + "X\r\n\r\n",
        host + ": x\r\n\r\n",
        host + "X: a\rb\r\n\r\n",
        host + "X: a\x01\r\n\r\n",
        host + "X: a\n\r\n",
        std::string("POST / HTTP/1.1\nHost: x\n\n"),
        std::string("POST  / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("POST / HTTP/1.1 \r\n\r\n"),
        std::string("POST /\r\n\r\n"),
        std::string("\r\n\r\n"),
        std::string("GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n")}) {
    calls_ = 0;
    const Peer first = peer(), later = peer();
    ASSERT_TRUE(first.send(request));
    const std::string reply = first.read("}}}");
    EXPECT_NE(reply.find("HTTP/1.1 400"), std::string::npos) << request << "\n" << reply;
    // The invalid request is also rejected after a valid one on the same connection.
    ASSERT_TRUE(later.send(post("fine") + request));
    const std::string second = later.read("}}}");
    EXPECT_NE(second.find("POST:fine"), std::string::npos) << request << "\n" << second;
    EXPECT_NE(second.find("HTTP/1.1 400"), std::string::npos) << request << "\n" << second;
    EXPECT_EQ(calls_, 1) << request;
  }
  expect_serves();
}

TEST_F(Http, ChunkSyntaxOfTheRfcIsAccepted) {
  start();
  const Peer client = peer();
  ASSERT_TRUE(client.send(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\n"));
  EXPECT_NE(client.read("POST:0123456789").find("200"), std::string::npos);
}

TEST_F(Http, ClientDecidesWhetherConnectionStaysOpen) {
  start();
  const Peer old = peer(), asks = peer(), closes = peer(), head = peer();
  ASSERT_TRUE(old.send("POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nold"));
  EXPECT_NE(old.read("never").find("POST:old<closed>"), std::string::npos);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(asks.send("POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nold"));
    EXPECT_NE(asks.read("POST:old").find("Connection: keep-alive"), std::string::npos);
  }
  ASSERT_TRUE(closes.send(post("x", "Connection: close\r\n")));
  EXPECT_NE(closes.read("never").find("POST:x<closed>"), std::string::npos);
  // the response to HEAD has the length, but no body
  ASSERT_TRUE(head.send("HEAD /big HTTP/1.1\r\nHost: x\r\n\r\n" + post("next")));
  const std::string both = head.read("POST:next");
  EXPECT_NE(both.find("Content-Length: 20971520\r\n"), std::string::npos);
  EXPECT_LT(both.size(), 1000U);
}

TEST_F(Http, ExpectContinueIsAnswered) {
  start();
  const Peer client = peer(), large = peer();
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"));
  EXPECT_EQ(client.read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("ok"));
  EXPECT_NE(client.read("POST:ok").find("200"), std::string::npos);
  ASSERT_TRUE(large.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n"));
  EXPECT_EQ(large.read("}}}").substr(9, 3), "413");
}

// With Nagle's algorithm, each response would wait 40 ms for the client's acknowledgement.
TEST_F(Http, ResponsesDoNotWaitForAcknowledgements) {
  start();
  const Peer client = peer();
  std::vector<std::chrono::steady_clock::duration> took;
  for (int i = 0; i < 41; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(client.send(post("one")));
    ASSERT_NE(client.read("POST:one").find("200"), std::string::npos);
    took.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::sort(took.begin(), took.end());
  EXPECT_LT(took[20], std::chrono::milliseconds(30));
}

// Slow clients open far more connections than permitted. A client with a token is still served.
TEST_F(Http, SilentConnectionsDoNotBlockOthers) {
  limits_.head_timeout_ms = 60000;
  limits_.max_pending_connections = 16;
  start();
  std::vector<Peer> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(peer());
    (void)silent.back().send("POST / HTTP/1.1\r\nHost: x\r\nX-Slow: ");
    if (i % 20 == 0) expect_serves();
  }
  const Peer token = peer();
  ASSERT_TRUE(token.send(post("mine", "Authorization: Bearer t\r\n")));
  EXPECT_NE(token.read("POST:mine").find("200"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return server_->count_connections() <= 16U + 2U; }));
}

TEST_F(Http, NetworkGetsAtMostAQuarterOfThePendingConnections) {
  limits_.head_timeout_ms = 60000;
  limits_.max_pending_connections = 16;
  limits_.exempt_loopback = false;
  start();
  const Peer client = peer(2);
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\n"));
  ASSERT_TRUE(eventually([&] { return server_->count_connections() == 1U; }));
  std::vector<Peer> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(peer(3));
  EXPECT_TRUE(silent[45].closed()) << "the oldest connections of the network are closed";
  ASSERT_TRUE(client.send("Host: x\r\nContent-Length: 5\r\n\r\nhello"));
  EXPECT_NE(client.read("POST:hello").find("200"), std::string::npos);
  ASSERT_TRUE(silent[46].send(post("late", "Connection: close\r\n")));
  EXPECT_NE(silent[46].read("POST:late").find("200"), std::string::npos);
}

// Unauthenticated connections use a separate limit.
TEST_F(Http, EachConnectionClassHasItsOwnLimit) {
  limits_.max_connections = 2;
  limits_.event_write_timeout_ms = 10000;
  start();
  std::vector<Peer> streams;
  const auto stream = [&](const std::string& more) {
    streams.push_back(peer());
    (void)streams.back().send("GET /events HTTP/1.1\r\nHost: x\r\n" + more + "\r\n");
    return streams.back().read("\r\n\r\n").substr(9, 3);
  };
  EXPECT_EQ(stream(""), "200");
  EXPECT_EQ(stream(""), "200");
  EXPECT_EQ(stream(""), "503");
  EXPECT_EQ(stream("Authorization: Bearer t\r\n"), "200");
  EXPECT_EQ(stream("Authorization: Bearer t\r\n"), "200");
  EXPECT_EQ(stream("Authorization: Bearer t\r\n"), "503");
  const Peer open = peer();
  ASSERT_TRUE(open.send("GET /a.json HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(open.read("GET:").find("Connection: close"), std::string::npos);
  EXPECT_TRUE(open.closed()) << "what anybody may ask is one request";
}

// All clients may send to peers' paths, so these bodies have a separate memory limit from those of clients with a
// token.
TEST_F(Http, PeerBodiesHaveTheirOwnLimitAndShare) {
  // The incomplete bodies must use their memory until the end of the test, however slow the host is.
  limits_.head_timeout_ms = limits_.body_timeout_ms = limits_.body_part_timeout_ms = 600'000;
  limits_.max_body_bytes = 1'000'000;
  limits_.max_peer_body_bytes = 200'000;
  start();
  const Peer large = peer();
  ASSERT_TRUE(large.send("POST /peer HTTP/1.1\r\nHost: x\r\nContent-Length: 200001\r\n\r\n"));
  EXPECT_NE(large.read("\r\n\r\n").find(" 413 "), std::string::npos);
  std::vector<Peer> holding;
  for (int i = 0; i < 30; ++i) {
    holding.push_back(peer());
    (void)holding.back().send("POST /peer HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" +
                              std::string(199'000, ' '));
  }
  // Waits until the server has read data of all connections.
  EXPECT_TRUE(eventually([&] {
    const Peer one_more = peer();
    (void)one_more.send(post(std::string(150'000, 'x'), "", "/peer"));
    return one_more.read("\r\n\r\n").find(" 503 ") != std::string::npos;
  })) << "theirs is used up";
  const Peer client = peer();
  ASSERT_TRUE(client.send(post(std::string(900'000, 'x'), "Authorization: Bearer t\r\n")));
  EXPECT_NE(client.read("\r\n\r\n").find(" 200 "), std::string::npos) << "and not that of others";
  // The limit depends on the requested path, not on the earlier requests of the connection.
  const Peer both = peer();
  ASSERT_TRUE(both.send(post("a", "Authorization: Bearer t\r\n")));
  EXPECT_NE(both.read("POST:a").find(" 200 "), std::string::npos);
  ASSERT_TRUE(both.send("POST /peer HTTP/1.1\r\nHost: x\r\nContent-Length: 200001\r\n\r\n"));
  EXPECT_NE(both.read("\r\n\r\n").find(" 413 "), std::string::npos);
}

TEST_F(Http, IdleAuthenticatedConnectionIsEvicted) {
  limits_.max_peer_connections = 8;
  limits_.idle_timeout_ms = 60000;
  start();
  std::vector<Peer> proven;
  const auto asks = [](const Peer& client, const std::string& who) {
    (void)client.send(post("x", who.empty() ? "" : "X-Proves: " + who + "\r\n", "/peer"));
    const std::string reply = client.read("POST:x");
    return reply.size() > 12 ? reply.substr(9, 3) : "nothing";
  };
  for (int i = 0; i < 8; ++i) {
    proven.push_back(peer());
    ASSERT_EQ(asks(proven.back(), "key" + std::to_string(i)), "200");
  }
  ASSERT_EQ(asks(proven[0], "key0"), "200") << "the second is silent longest now";
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // all connections wait for their next request again
  const Peer ninth = peer(), tenth = peer();
  EXPECT_EQ(asks(ninth, ""), "200") << "a place is found";
  EXPECT_TRUE(proven[1].closed());
  EXPECT_EQ(asks(tenth, ""), "200");
  EXPECT_TRUE(ninth.closed()) << "it had proven nothing";
  for (const int i : {0, 2, 3, 4, 5, 6, 7}) EXPECT_EQ(asks(proven[static_cast<std::size_t>(i)], ""), "200") << i;
}

TEST_F(Http, OneKeyGetsAtMostAQuarterOfThePlaces) {
  limits_.max_peer_connections = 8;
  limits_.idle_timeout_ms = 60000;
  start();
  std::vector<Peer> greedy;
  const auto asks = [](const Peer& client, const std::string& who) {
    (void)client.send(post("x", "X-Proves: " + who + "\r\n", "/peer"));
    const std::string reply = client.read("POST:x");
    return reply.size() > 12 ? reply.substr(9, 3) : "nothing";
  };
  const Peer other = peer();
  ASSERT_EQ(asks(other, "other"), "200");
  for (int i = 0; i < 7; ++i) {
    greedy.push_back(peer());
    ASSERT_EQ(asks(greedy.back(), "greedy"), "200");
  }
  std::vector<Peer> more;
  for (int i = 0; i < 5; ++i) {
    more.push_back(peer());
    EXPECT_EQ(asks(more.back(), "key" + std::to_string(i)), "200");
  }
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(greedy[i].closed()) << i;
  EXPECT_EQ(asks(greedy[5], "greedy"), "200");
  EXPECT_EQ(asks(greedy[6], "greedy"), "200");
  EXPECT_EQ(asks(other, "other"), "200");
}

TEST_F(Http, UnsupportedRequestIsRejectedAndClosed) {
  start();
  for (const auto& [request, status] : std::vector<std::pair<std::string, std::string>>{
           {post("x", "", "/none"), "404"},
           {"GET /aXjson HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
           {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
           {"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
           {"OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\n\r\n", "405"},
           {post("x", "Content-Encoding: gzip\r\n"), "415"},
           {post("x", "Content-Type: multipart/form-data; boundary=b\r\n"), "415"},
           {post("x", "X-Refuse: 1\r\n"), "403"},
           {"nonsense\r\n\r\n", "400"},
           {"GET / HTTP/9.9\r\n\r\n", "400"},
           {"GET /throw HTTP/1.1\r\nHost: x\r\n\r\n", "500"},
           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n", "413"},
           {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", ""}}) {
    const Peer client = peer();
    ASSERT_TRUE(client.send(request));
    client.half_close();
    const std::string reply = client.read("never");
    EXPECT_NE(reply.find("<closed>"), std::string::npos) << request.substr(0, 40) << "\n" << reply;
    EXPECT_NE(reply.find(status), std::string::npos) << request.substr(0, 40) << "\n" << reply;
    EXPECT_EQ(reply.find("secret"), std::string::npos);
    EXPECT_EQ(reply.find("Access-Control"), std::string::npos);
  }
  EXPECT_EQ(calls_, 0);
  expect_serves();
}

// Returns the head of a request of this actor. The test does not send the body.
std::string unsent_body(int actor, std::size_t length = 5) {
  return "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: " + std::to_string(actor) +
         "\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n";
}

std::string get(const std::string& path, int actor) {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: " + std::to_string(actor) + "\r\n\r\n";
}

// When an actor opens more connections, its oldest connections are closed. Those of other actors are not affected.
TEST_F(Http, ActorHasAShareOfTheConnections) {
  limits_.body_timeout_ms = limits_.body_part_timeout_ms = limits_.idle_timeout_ms = 60000;
  start();
  std::vector<Peer> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(peer());
    ASSERT_TRUE(silent.back().send(unsent_body(7)));
  }
  EXPECT_TRUE(test::eventually([&] { return server_->count_connections() <= 2; })) << server_->count_connections();
  for (int i = 0; i < 4; ++i) {
    const Peer other = peer();
    ASSERT_TRUE(other.send(post("in", "Authorization: 8\r\nConnection: close\r\n")));
    EXPECT_NE(other.read("POST:in").find("200"), std::string::npos);
  }
}

TEST_F(Http, ActorWithMostConnectionsIsEvictedFirst) {
  limits_.body_timeout_ms = limits_.body_part_timeout_ms = limits_.idle_timeout_ms = 60000;
  start();
  std::vector<Peer> silent;
  for (int actor = 1; actor <= 4; ++actor) {
    for (int i = 0; i < 2; ++i) {
      silent.push_back(peer());
      ASSERT_TRUE(silent.back().send(unsent_body(actor)));
    }
  }
  ASSERT_TRUE(test::eventually([&] { return server_->count_connections() == 8; }));
  const Peer other = peer();
  ASSERT_TRUE(other.send(post("in", "Authorization: 9\r\n")));
  EXPECT_NE(other.read("POST:in").find("200"), std::string::npos);
}

// Four actors with their whole shares have all connections: an hour of waiting must not keep others out.
TEST_F(Http, WaitingCallsAreEvictedForOtherActors) {
  start();
  std::vector<Peer> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(peer());
    ASSERT_TRUE(waiting.back().send(get("/wait", i / 2 + 1)));
    ASSERT_TRUE(eventually([&] { return calls_ == i + 1; }));
  }
  const Peer own = peer();
  ASSERT_TRUE(own.send(get("/wait", 4)));
  EXPECT_NE(own.read("}").find("503"), std::string::npos) << "an actor's own waits stay";
  const Peer other = peer();
  ASSERT_TRUE(other.send(post("in", "Authorization: 9\r\n")));
  EXPECT_NE(other.read("POST:in").find("200"), std::string::npos);
  released_ = true;
  int answered = 0;
  for (const Peer& each : waiting) answered += each.read("waited").find("200") != std::string::npos ? 1 : 0;
  EXPECT_EQ(answered, 7) << "one has made room";
}

TEST_F(Http, EventStreamsAreEvictedForOtherActors) {
  limits_.event_write_timeout_ms = 600'000;
  start();
  std::vector<Peer> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(peer());
    ASSERT_TRUE(streams.back().send(get("/events", i / 2 + 1)));
    ASSERT_NE(streams.back().read("data: ").find("200"), std::string::npos);
  }
  const Peer other = peer();
  ASSERT_TRUE(other.send(post("in", "Authorization: 9\r\n")));
  EXPECT_NE(other.read("POST:in").find("200"), std::string::npos);
}

// Evicts connections of each actor with many connections, also if the first of these actors has no waiting connection.
TEST_F(Http, ActorsWithManyConnectionsAreEvictedInTurn) {
  limits_.max_connections = 12;
  limits_.idle_timeout_ms = 600'000;
  start();
  std::vector<Peer> clients;
  for (int actor = 1; actor <= 4; ++actor) {
    for (int i = 0; i < 3; ++i) {
      clients.push_back(peer());
      const bool is_busy = actor != 3;
      ASSERT_TRUE(clients.back().send(is_busy ? get("/busy", actor) : get("/a.json", actor)));
      if (!is_busy) {
        ASSERT_NE(clients.back().read("GET:").find("200"), std::string::npos);
      }
    }
  }
  ASSERT_TRUE(eventually([&] { return calls_ == 9; }));
  EXPECT_TRUE(eventually([&] {  // as soon as the idle ones are known to be idle
    const Peer other = peer();
    (void)other.send(post("in", "Authorization: 9\r\n"));
    return other.read("}").find("503") == std::string::npos;
  }));
}

// A client that requests large answers and does not read them holds a limited amount of memory.
TEST_F(Http, UnreadResponsesOfAnActorAreBounded) {
  limits_.write_timeout_ms = 600'000;
  limits_.max_connections = 100;
  limits_.max_answer_bytes = 30U << 20;
  start();
  const Peer first = peer(), second = peer(), other = peer();
  for (const Peer* each : {&first, &second}) {
    ASSERT_TRUE(each->send(get("/big", 7)));
    ASSERT_NE(each->read("xxxx").find("200"), std::string::npos);
  }
  ASSERT_TRUE(other.send(get("/big", 8)));
  ASSERT_NE(other.read("xxxx").find("200"), std::string::npos);
  EXPECT_LT(first.drain(), 19U << 20) << "it is not read for longest";
  EXPECT_GE(second.drain(), 19U << 20);
  EXPECT_GE(other.drain(), 19U << 20);
}

TEST_F(Http, UnreadResponsesAreEvictedForOtherActors) {
  limits_.write_timeout_ms = 600'000;
  limits_.max_connections = 100;
  limits_.max_answer_bytes = 12U << 20;  // two answers are within the bound of all, of any length
  start();
  const Peer first = peer(), second = peer(), third = peer();
  for (const Peer* each : {&first, &second, &third}) {
    const int actor = each == &first ? 1 : each == &second ? 2 : 3;
    ASSERT_TRUE(each->send(get("/big", actor)));
    ASSERT_NE(each->read("xxxx").find("200"), std::string::npos);
  }
  EXPECT_LT(first.drain(), 19U << 20);
  EXPECT_GE(third.drain(), 19U << 20);
}

// A connection counts only towards the limit of its current class, so a client cannot exceed another limit.
TEST_F(Http, ConnectionIsCountedByItsLatestRequest) {
  limits_.idle_timeout_ms = 600'000;
  start();
  std::vector<Peer> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(peer());
    ASSERT_TRUE(clients.back().send(post("x", "", "/peer")));
    ASSERT_NE(clients.back().read("POST:x").find("200"), std::string::npos);
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(clients[static_cast<std::size_t>(i)].send(get("/wait", 7)));
    if (i < 2) {
      ASSERT_TRUE(eventually([&] { return calls_ == i + 1; }));
    }
  }
  for (std::size_t i : {2, 3}) EXPECT_NE(clients[i].read("}").find("503"), std::string::npos) << i;
  const Peer other = peer();
  ASSERT_TRUE(other.send(post("in", "Authorization: 8\r\n")));
  EXPECT_NE(other.read("POST:in").find("200"), std::string::npos);
  ASSERT_TRUE(other.send(post("as another", "Authorization: 7\r\n")));
  EXPECT_NE(other.read("}").find("503"), std::string::npos) << "actor 7 has its share";
}

TEST_F(Http, OperatorsHaveReservedConnections) {
  start();
  std::vector<Peer> streams;
  for (int i = 0; i < 8; ++i) {  // the calls do not wait, so the server cannot close their connections
    streams.push_back(peer());
    ASSERT_TRUE(streams.back().send(get("/busy", i / 2 + 1)));
    ASSERT_TRUE(eventually([&] { return calls_ == i + 1; }));
  }
  const Peer ninth = peer();
  ASSERT_TRUE(ninth.send(post("in", "Authorization: 9\r\n")));
  EXPECT_NE(ninth.read("}").find("503"), std::string::npos);
  const Peer owner = peer();
  ASSERT_TRUE(owner.send(post("in", "X-Operator: 1\r\n")));
  EXPECT_NE(owner.read("POST:in").find("200"), std::string::npos);
}

TEST_F(Http, LargeBodiesOfOneActorAreBounded) {
  limits_.body_timeout_ms = limits_.body_part_timeout_ms = 60000;
  limits_.max_body_bytes = 1'000'000;
  limits_.max_connections = 100;
  start();
  const std::string half(600'000, 'b');
  const Peer first = peer(), second = peer(), other = peer();
  ASSERT_TRUE(first.send(unsent_body(7, 1'000'000) + half));
  std::string refused;
  EXPECT_TRUE(test::eventually([&] {  // once the server has read the bytes of the first request
    const Peer next = peer();
    (void)next.send(unsent_body(7, half.size()) + half);
    refused = next.read(half.substr(0, 100));
    return refused.find("503") != std::string::npos;
  })) << refused;
  ASSERT_TRUE(other.send(unsent_body(8, half.size()) + half));
  EXPECT_NE(other.read("POST:").find("200"), std::string::npos);
}

// Three actors can hold as much as all may have.
TEST_F(Http, LargeBodiesOfThreeActorsDoNotBlockOthers) {
  limits_.body_timeout_ms = limits_.body_part_timeout_ms = 600'000;
  limits_.max_body_bytes = 1'000'000;
  limits_.max_connections = 100;
  start();
  const std::string max(999'000, 'b'), some(600'000, 'b');
  std::vector<Peer> holders;
  for (int actor = 1; actor <= 3; ++actor) {
    holders.push_back(peer());
    ASSERT_TRUE(holders.back().send(unsent_body(actor, 1'000'000) + max));
    ASSERT_TRUE(eventually([&] {  // once requests of the actor are rejected, its bytes have been received
      const Peer probe = peer();
      (void)probe.send(unsent_body(actor, 100'000) + some.substr(0, 100'000));
      return probe.read("bbbbb").find("503") != std::string::npos;
    }));
  }
  const Peer other = peer();
  ASSERT_TRUE(other.send(unsent_body(9, some.size()) + some));
  EXPECT_NE(other.read("POST:").find("200"), std::string::npos);
}

// Every complete request is answered. Requests above the limit receive the latest result without a new check.
TEST_F(Http, HealthIsAnsweredWhenItsPlacesAreFull) {
  limits_.max_health_connections = 2;
  start();
  std::vector<Peer> first;
  for (int i = 0; i < 2; ++i) {
    first.push_back(peer());
    ASSERT_TRUE(first.back().send("GET /busy.json HTTP/1.1\r\nHost: x\r\n\r\n"));
    ASSERT_TRUE(eventually([&] { return calls_ == i + 1; }));
  }
  for (int i = 0; i < 10; ++i) {
    const Peer later = peer();
    ASSERT_TRUE(later.send("GET /busy.json HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_NE(later.read("the latest").find("200"), std::string::npos);
  }
  released_ = true;
  for (const Peer& each : first) EXPECT_NE(each.read("was busy").find("200"), std::string::npos);
}

TEST_F(Http, CompleteLoginIsAnsweredUnderFlood) {
  limits_.max_login_connections = 2;
  limits_.head_timeout_ms = limits_.body_part_timeout_ms = 600'000;
  start();
  const Peer complete = peer(), incomplete = peer();
  ASSERT_TRUE(complete.send(post("x", "", "/login")));
  ASSERT_TRUE(eventually([&] { return calls_ == 1; }));
  ASSERT_TRUE(incomplete.send("POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"));
  std::vector<Peer> second;
  ASSERT_TRUE(eventually([&] {  // as soon as the body of the other one is waited for
    second.push_back(peer());
    (void)second.back().send(post("x", "", "/login"));
    (void)second.back().read("}", 200);
    return calls_ == 2;
  }));
  EXPECT_TRUE(incomplete.closed());
  for (int i = 0; i < 3; ++i) {
    const Peer later = peer();
    ASSERT_TRUE(later.send(post("x", "", "/login")));
    EXPECT_NE(later.read("}").find("503"), std::string::npos) << i;
  }
  released_ = true;
  EXPECT_NE(complete.read("was busy").find("200"), std::string::npos);
  EXPECT_NE(second.back().read("was busy").find("200"), std::string::npos);
}

TEST_F(Http, NetworkGetsAtMostAQuarterOfTheLogins) {
  limits_.max_login_connections = 8;
  limits_.exempt_loopback = false;
  start();
  std::vector<Peer> clients;
  const auto log_in = [&](std::uint32_t host) -> const Peer& {
    clients.push_back(peer(host));
    (void)clients.back().send(post("x", "", "/login"));
    return clients.back();
  };
  log_in(2);
  log_in(2);
  ASSERT_TRUE(eventually([&] { return calls_ == 2; }));
  EXPECT_NE(log_in(2).read("}").find("503"), std::string::npos);
  log_in(3);
  EXPECT_TRUE(eventually([&] { return calls_ == 3; })) << "another network has places";
}

TEST_F(Http, UnreadPageConnectionIsEvicted) {
  limits_.max_page_connections = 2;
  limits_.write_timeout_ms = 600'000;
  start();
  std::vector<Peer> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(peer());
    ASSERT_TRUE(clients.back().send("GET /page HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_NE(clients.back().read("ppp").find("200"), std::string::npos) << i;
  }
  EXPECT_LT(clients[0].drain(), 19U << 20);
}

TEST_F(Http, HealthIsAnsweredDuringIncompleteBodies) {
  limits_.body_timeout_ms = limits_.body_part_timeout_ms = 60000;
  start();
  std::vector<Peer> silent;
  for (const char* length : {"Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"}) {
    for (int i = 0; i < 40; ++i) {
      silent.push_back(peer());
      ASSERT_TRUE(silent.back().send(std::string("GET /a.json HTTP/1.1\r\nHost: x\r\n") + length + "\r\n"));
    }
    EXPECT_NE(silent.back().read("}").find("400"), std::string::npos);
  }
  const Peer probe = peer();
  ASSERT_TRUE(probe.send("GET /a.json HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_NE(probe.read("GET:").find("200"), std::string::npos);
}

TEST_F(Http, StalledBodyClosesItsConnection) {
  limits_.body_timeout_ms = 600'000;
  limits_.body_part_timeout_ms = 100;
  start();
  const Peer client = peer();
  ASSERT_TRUE(client.send(unsent_body(7) + "ab"));
  EXPECT_NE(client.read("never").find("the body ends too early"), std::string::npos);
}

TEST_F(Http, RequestSmugglingIsRejected) {
  start();
  for (const std::string& first :
       {std::string("GET /a.json HTTP/1.1\r\nHost: x\r\nContent-Length: ") + std::to_string(post("x").size()) +
            "\r\n\r\n",
        std::string("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello")}) {
    calls_ = 0;
    const Peer client = peer();
    ASSERT_TRUE(client.send(first + post("smuggled")));
    const std::string reply = client.read("never");
    EXPECT_EQ(reply.find("POST:smuggled"), std::string::npos) << first << reply;
    EXPECT_LE(calls_, 1);
  }
  expect_serves();
}

TEST_F(Http, OversizedBodyIsDiscarded) {
  start();
  const Peer client = peer();
  std::string chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 3; ++i) chunked += "c350\r\n" + std::string(50000, 'x') + "\r\n";
  (void)client.send(chunked + "0\r\n\r\n");
  EXPECT_NE(client.read("}}").find("413"), std::string::npos);
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(calls_, 0);
  expect_serves();
}

// The error response arrives while the client still sends. Unread data must not reset the connection before it is read.
TEST_F(Http, RejectionReachesAClientThatKeepsSending) {
  limits_.body_timeout_ms = 10000;
  start();
  const Peer client = peer();
  ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n"));
  EXPECT_TRUE(client.send(std::string(8'000'000, 'x')));
  EXPECT_NE(client.read("}}}").find("413"), std::string::npos);
}

TEST_F(Http, EndlessHeadIsCutOff) {
  start();
  const Peer many = peer();
  std::string head = "POST / HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 2000; ++i) head += "X-" + std::to_string(i) + ": y\r\n";
  (void)many.send(head);
  EXPECT_TRUE(many.closed());
  expect_serves();
}

TEST_F(Http, SlowClientsAreDroppedWithoutDelayingOthers) {
  start();
  std::vector<Peer> slow;
  for (int i = 0; i < 7; ++i) slow.push_back(peer());
  std::atomic<bool> done{false};
  std::thread drip([&] {  // sends single bytes, so that no single wait is long
    const std::string head = "POST / HTTP/1.1\r\nHost: x\r\nX-Slow: " + std::string(4000, 's');
    for (std::size_t i = 0; i < head.size() && !done; ++i) {
      for (const Peer& client : slow) (void)client.send(head.substr(i, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  expect_serves();  // while the slow requests continue
  EXPECT_TRUE(eventually([&] { return server_->count_connections() == 0; }));
  done = true;
  drip.join();
  expect_serves();
}

TEST_F(Http, SilentAndHalfClosedClientsAreDropped) {
  start();
  const Peer silent = peer(), in_body = peer(), idle = peer(), half = peer();
  ASSERT_TRUE(in_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"));
  ASSERT_TRUE(idle.send(post("x")));
  ASSERT_TRUE(half.send(post("half")));
  half.half_close();
  EXPECT_NE(half.read("POST:half").find("200"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return server_->count_connections() == 0; }));
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(idle.closed());
  expect_serves();
}

TEST_F(Http, ClientThatNeverReadsIsDropped) {
  start();
  const Peer deaf = peer();
  ASSERT_TRUE(deaf.send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n"));
  expect_serves();
  EXPECT_TRUE(eventually([&] { return server_->count_connections() == 0; }));
}

TEST_F(Http, ConnectionsOverTheLimitAreReportedAtOnce) {
  limits_.max_connections = 2;
  limits_.idle_timeout_ms = 60000;
  start();
  const Peer first = peer(), second = peer();
  for (const Peer* each : {&first, &second}) {
    ASSERT_TRUE(each->send(post("x")));
    EXPECT_NE(each->read("POST:x").find("200"), std::string::npos);
  }
  for (int i = 0; i < 5; ++i) {
    const Peer third = peer();
    ASSERT_TRUE(third.send(post("y")));
    const std::string reply = third.read("}}}", 3000);
    EXPECT_NE(reply.find("503"), std::string::npos) << reply;
    EXPECT_NE(reply.find("Retry-After"), std::string::npos) << reply;
  }
  ASSERT_TRUE(first.send(post("x")));
  EXPECT_NE(first.read("POST:x").find("200"), std::string::npos);
}

TEST_F(Http, EventStreamEndsWithItsClient) {
  limits_.max_connections = 2;
  start();
  Peer client = peer();
  ASSERT_TRUE(client.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(client.read("eee").find("text/event-stream"), std::string::npos);
  client.close();
  EXPECT_TRUE(eventually([&] { return streams_over_.load(); }));
  EXPECT_TRUE(eventually([&] { return server_->count_connections() == 0; }));
}

TEST_F(Http, EventStreamUsesServerSentEventFraming) {
  start();
  const Peer now = peer(), old = peer();
  const std::string text = "data: " + std::string(1000, 'e') + "\n\n";
  ASSERT_TRUE(now.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(now.read(text + "\r\n3f0\r\n").find("\r\n\r\n3f0\r\n" + text), std::string::npos);
  ASSERT_TRUE(old.send("GET /events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  const std::string plain = old.read(text + text);
  EXPECT_NE(plain.find("\r\n\r\n" + text + text), std::string::npos);
  EXPECT_EQ(plain.find("keep-alive"), std::string::npos);
}

TEST_F(Http, UnreadEventStreamEnds) {
  start();
  const Peer client = peer();
  ASSERT_TRUE(client.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_TRUE(eventually([&] { return streams_over_.load(); }));
  expect_serves();
}

TEST_F(Http, StopEndsWaitingConnectionsAndStreams) {
  limits_.head_timeout_ms = limits_.idle_timeout_ms = 60000;
  start();
  const Peer silent = peer(), stream = peer();
  ASSERT_TRUE(stream.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_NE(stream.read("eee").find("200"), std::string::npos);
  server_->stop();
  EXPECT_EQ(server_->count_connections(), 0U);
  EXPECT_TRUE(silent.closed());
  server_.reset();
}

TEST_F(Http, StopCompletesRunningRequests) {
  start();
  std::vector<Peer> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(peer());
    ASSERT_TRUE(clients.back().send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  ASSERT_TRUE(eventually([&] { return calls_ == 4; }));
  server_->stop();
  for (const Peer& client : clients) EXPECT_NE(client.read("slow").find("Connection: close"), std::string::npos);
}

TEST(Listen, ParsesAddresses) {
  EXPECT_TRUE(parse_listen("127.0.0.1:9652")->loopback);
  EXPECT_TRUE(parse_listen("localhost:0")->loopback);
  EXPECT_TRUE(parse_listen("[::1]:9652")->loopback);
  EXPECT_FALSE(parse_listen("0.0.0.0:9652")->loopback);
  EXPECT_FALSE(parse_listen(":9652")->loopback);
  for (const char* wrong : {"", "9652", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:9652", "127.0.0.1:x"}) {
    const auto parsed = parse_listen(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code, Code::invalid);
  }
}

TEST(Listen, NameThatIsNoLongerOfLoopbackIsRefused) {
  const auto listening = open_listening({"0.0.0.0", 0, true});
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().code, Code::invalid);
  EXPECT_EQ(listening.error().message, "0.0.0.0:0: the name has changed its address: write an IP address");
  EXPECT_TRUE(open_listening({"0.0.0.0", 0, false}));
  EXPECT_TRUE(open_listening({"127.0.0.1", 0, true}));
}

TEST_F(Http, PortInUseIsAConflict) {
  start();
  const auto second = HttpServer::start("127.0.0.1:" + std::to_string(server_->port()), limits_, {},
                                        [](const HttpRequest&) { return Admission(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::conflict);
  EXPECT_NE(second.error().message.find(std::to_string(server_->port())), std::string::npos);
}

}  // namespace
}  // namespace mycojobs::api
