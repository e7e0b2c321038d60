// The HTTP server with TLS: well-behaved clients, clients that stop or misbehave during the handshake, and certificates
// that change under load.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "api/http/http_server.h"
#include "net/http_client.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using api::HttpReply;
using api::HttpRequest;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kTimeoutMs = 20000;

Fd connect_to(std::uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

bool send_plain(const Fd& fd, std::string_view text) {
  return ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// Reads until the server closes the connection, and returns the received bytes.
std::string read_to_end(const Fd& fd) {
  std::string text;
  char buffer[4096];
  while (wait_for_events(fd.get(), POLLIN, deadline_after(kTimeoutMs)) == 0) {
    const ssize_t count = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text + "<timeout>";
}

bool is_open(const Fd& fd) { return wait_for_events(fd.get(), POLLIN, deadline_after(0)) == ETIMEDOUT; }

// A client with TLS on one connection.
class TlsClient {
 public:
  TlsClient(TlsContext& context, std::uint16_t port) : fd_(connect_to(port)) {
    auto stream = TlsStream::open(context, fd_.get(), "localhost", "localhost:" + std::to_string(port));
    EXPECT_TRUE(stream) << stream.error().message;
    if (!stream) return;
    stream_ = std::move(*stream);
    if (const auto shaken = stream_->handshake(deadline_after(kTimeoutMs)); !shaken) error_ = shaken.error().message;
  }
  const std::string& error() const { return error_; }
  TlsState state() const { return stream_->state(); }
  bool send(std::string_view text) { return stream_->send_all(text, deadline_after(kTimeoutMs)).has_value(); }
  // Receives until `end` was received, or the connection is closed.
  std::string receive_until(std::string_view end) {
    std::string text;
    std::vector<char> buffer(65536);
    while (text.find(end) == std::string::npos) {
      const auto count = stream_->receive(buffer, deadline_after(kTimeoutMs));
      if (!count) return text + "<" + count.error().message + ">";
      text.append(buffer.data(), *count);
    }
    return text;
  }
  void close() {
    stream_->shut_down();
    stream_.reset();
    fd_.reset();
  }

 private:
  Fd fd_;
  std::unique_ptr<TlsStream> stream_;
  std::string error_;
};

std::string post(const std::string& body, const std::string& headers = "") {
  return "POST / HTTP/1.1\r\nHost: localhost\r\n" + headers + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

class HttpsServer : public testing::Test {
 protected:
  void start(bool has_tls = true) {
    std::vector<api::HttpRoute> routes{{"POST", "/",
                                        [](const HttpRequest& request) {
                                          return HttpReply{200, "text/plain", "got " + request.body, {}, {}};
                                        }},
                                       {"GET", "/events", [this](const HttpRequest&) {
                                          HttpReply reply;
                                          reply.type = "text/event-stream";
                                          reply.stream = [this](api::EventSink& sink) {
                                            while (sink.send("data: x\n\n"))
                                              std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                            has_stream_ended_ = true;
                                          };
                                          return reply;
                                        }}};
    const auto admit = [](const HttpRequest& request) {
      api::Admission admission;
      if (request.headers.contains("x-refuse")) admission.refusal = HttpReply{403, "text/plain", "refused", {}, {}};
      return admission;
    };
    if (has_tls) tls_ = std::make_shared<TlsContext>(server_settings_, TlsRole::server);
    auto server = api::HttpServer::start(listen_, limits_, std::move(routes), admit, tls_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
  }
  std::string start_error() {
    const auto server = api::HttpServer::start("127.0.0.1:0", limits_, {}, nullptr,
                                               std::make_shared<TlsContext>(server_settings_, TlsRole::server));
    return server ? "" : server.error().message;
  }
  TlsClient connect() { return TlsClient(client_context_, server_->port()); }
  // Returns the error of a call of the server, or an empty text. origin: scheme and host.
  std::string get_error(const std::string& origin, const std::string& ca = "") {
    HttpClient http;
    HttpPost call;
    call.url = origin + ":" + std::to_string(server_->port());
    call.ca = ca;
    const auto reply = http.get(call);
    return reply ? "" : std::string(mycojobs::to_string(reply.error().code)) + " " + reply.error().message;
  }
  void expect_serves() {
    TlsClient client = connect();
    ASSERT_EQ(client.error(), "");
    ASSERT_TRUE(client.send(post("hello")));
    EXPECT_THAT(client.receive_until("got hello"), HasSubstr("HTTP/1.1 200"));
  }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles files_ = ca_.issue("server", "DNS:localhost,IP:127.0.0.1");
  TlsSettings server_settings_{
      .table = "api.tls", .ca = "", .certificate = files_.certificate, .key = files_.key, .server_name = ""};
  TlsContext client_context_{{.ca = ca_.file(), .certificate = "", .key = "", .server_name = ""}};
  std::string listen_ = "127.0.0.1:0";
  ApiLimits limits_;
  std::atomic<bool> has_stream_ended_{false};
  std::shared_ptr<TlsContext> tls_;
  std::unique_ptr<api::HttpServer> server_;
};

TEST_F(HttpsServer, AnswersRequestsOfOneConnection) {
  start();
  EXPECT_THAT(server_->url(), HasSubstr("https://127.0.0.1:"));
  TlsClient client = connect();
  ASSERT_EQ(client.error(), "");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(post(std::to_string(i))));
    EXPECT_THAT(client.receive_until("got " + std::to_string(i)), HasSubstr("HTTP/1.1 200"));
  }
  ASSERT_TRUE(client.send(post("", "X-Refuse: 1\r\n")));
  EXPECT_THAT(client.receive_until("refused"), HasSubstr("HTTP/1.1 403"));
  EXPECT_THAT(client.receive_until("never"), HasSubstr("closed the connection"));
}

TEST_F(HttpsServer, SendsHstsOverTlsAndBeyondLoopbackOnly) {
  const auto receive_answers = [&] {
    start();
    TlsClient client = connect();
    EXPECT_TRUE(client.send(post("1")));
    std::string answers = client.receive_until("got 1");
    EXPECT_TRUE(client.send("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    return answers + client.receive_until("this path does not exist");
  };
  const std::string header = "Strict-Transport-Security: max-age=31536000\r\n";
  EXPECT_THAT(receive_answers(), Not(HasSubstr("Strict-Transport-Security")));
  listen_ = "0.0.0.0:0";
  EXPECT_THAT(receive_answers(), testing::ContainsRegex(header + ".*HTTP/1.1 404.*" + header));
  const Fd plain_client = connect_to(server_->port());
  ASSERT_TRUE(send_plain(plain_client, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(read_to_end(plain_client), Not(HasSubstr("Strict-Transport-Security")));
}

TEST_F(HttpsServer, RefusalOfTheFirstRequestReachesTheClient) {
  start();
  TlsClient client = connect();
  ASSERT_TRUE(client.send("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(client.receive_until("this path does not exist"), HasSubstr("HTTP/1.1 404"));
}

TEST_F(HttpsServer, TransfersLargeBodiesInBothDirections) {
  start();
  TlsClient client = connect();
  const std::string body(2U << 20, 'b');
  ASSERT_TRUE(client.send(post(body + "end")));
  const std::string answer = client.receive_until("bend");
  EXPECT_THAT(answer.substr(0, 400), HasSubstr("HTTP/1.1 200"));
  EXPECT_GT(answer.size(), body.size());
  ASSERT_TRUE(client.send(post("small")));
  EXPECT_THAT(client.receive_until("got small"), HasSubstr("HTTP/1.1 200"));
}

TEST_F(HttpsServer, SendsEventsUntilTheClientCloses) {
  start();
  TlsClient client = connect();
  ASSERT_TRUE(client.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_THAT(client.receive_until("data: x"), HasSubstr("text/event-stream"));
  EXPECT_THAT(client.receive_until("data: x"), HasSubstr("data: x"));
  EXPECT_FALSE(has_stream_ended_);
  client.close();
  EXPECT_TRUE(eventually([this] { return has_stream_ended_.load(); }));
}

TEST_F(HttpsServer, IncompleteHandshakesDelayNoOtherClient) {
  limits_.head_timeout_ms = 600'000;
  start();
  std::vector<Fd> half_open;
  for (int i = 0; i < 200; ++i) {
    half_open.push_back(connect_to(server_->port()));
    if (i % 2 == 0) {
      EXPECT_TRUE(send_plain(half_open.back(), std::string_view("\x16\x03\x01\x02\x00\x01", 6)));
    }
  }
  std::atomic<bool> should_stop{false};
  std::thread slow_client([&] {
    for (int i = 0; !should_stop; i = (i + 2) % 200) {
      (void)send_plain(half_open[static_cast<std::size_t>(i)], std::string_view("\x00", 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  for (int i = 0; i < 20; ++i) expect_serves();
  should_stop = true;
  slow_client.join();
  EXPECT_TRUE(is_open(half_open[1]));
  EXPECT_TRUE(is_open(half_open[199]));
}

TEST_F(HttpsServer, SlowHandshakeIsClosedAtItsDeadline) {
  limits_.head_timeout_ms = 300;
  start();
  const Fd slow_client = connect_to(server_->port());
  ASSERT_TRUE(send_plain(slow_client, std::string_view("\x16\x03\x01\x02\x00", 5)));
  EXPECT_TRUE(eventually([&] { return !send_plain(slow_client, "\x01"); }));
  TlsClient silent_client = connect();  // the head is missing
  EXPECT_THAT(silent_client.receive_until("never"), HasSubstr("closed the connection"));
  expect_serves();
}

TEST_F(HttpsServer, PlainTextIsAnsweredInPlainText) {
  start();
  const Fd client = connect_to(server_->port());
  ASSERT_TRUE(send_plain(client, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const std::string answer = read_to_end(client);
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nthis port uses TLS: write https:// in the address\n"));
  EXPECT_THAT(get_error("http://localhost"), HasSubstr("the port uses TLS: write https://"));
}

TEST_F(HttpsServer, ClientOfAPlainPortLearnsThatItLacksTls) {
  start(false);
  TlsClient client = connect();
  EXPECT_THAT(client.error(), HasSubstr("the port does not use TLS"));
  EXPECT_THAT(get_error("https://localhost"), HasSubstr("TLS: the server answers in plain text"));
}

TEST_F(HttpsServer, ClientNamesTheReasonOfARejectedCertificate) {
  const auto call_error = [&](const CertificateFiles& files, const std::string& ca, const std::string& host) {
    server_settings_.certificate = files.certificate;
    server_settings_.key = files.key;
    start();
    return get_error("https://" + host, ca);
  };
  const TestCa other_ca(folder_, "other-ca");
  EXPECT_EQ(call_error(files_, ca_.file(), "localhost"), "");
  EXPECT_EQ(call_error(files_, ca_.file(), "127.0.0.1"), "");
  EXPECT_THAT(call_error(files_, "", "localhost"), HasSubstr("unknown CA: set https.ca"));
  EXPECT_THAT(call_error(files_, other_ca.file(), "localhost"), HasSubstr("unavailable https://localhost:"));
  EXPECT_THAT(call_error(files_, other_ca.file(), "localhost"), HasSubstr("unknown CA: set https.ca"));
  EXPECT_THAT(call_error(files_, folder_ / "missing", "localhost"), HasSubstr("no readable certificate"));
  EXPECT_THAT(call_error(ca_.issue("named", "DNS:api.example.org"), ca_.file(), "localhost"),
              HasSubstr("is for another host"));
  EXPECT_THAT(call_error(ca_.issue("unnamed-address", "DNS:localhost"), ca_.file(), "127.0.0.1"),
              HasSubstr("is for another host"));
  EXPECT_THAT(
      call_error(ca_.issue("old", "DNS:localhost", "20200101000000Z", "20210101000000Z"), ca_.file(), "localhost"),
      HasSubstr("has expired"));
  EXPECT_THAT(
      call_error(ca_.issue("new", "DNS:localhost", "20900101000000Z", "20910101000000Z"), ca_.file(), "localhost"),
      HasSubstr("is not valid yet"));
}

TEST_F(HttpsServer, UnusableCertificateIsRefusedAtTheStart) {
  const CertificateFiles other = ca_.issue("other", "DNS:localhost");
  server_settings_.key = other.key;
  EXPECT_THAT(start_error(), HasSubstr("api.tls.key: " + other.key + " is not the key of the certificate"));
  server_settings_.key = "";
  EXPECT_THAT(start_error(), HasSubstr("api.tls.key: is not set"));
  std::filesystem::permissions(files_.key, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  server_settings_.key = files_.key;
  EXPECT_THAT(start_error(), HasSubstr("other users can read it: chmod 600"));
}

TEST_F(HttpsServer, CertificatesChangeUnderLoad) {
  start();
  std::atomic<bool> should_stop{false};
  std::atomic<int> failure_count{0}, request_count{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!should_stop) {
        TlsClient client = connect();
        const bool is_answered = client.error().empty() && client.send(post("hello")) &&
                                 client.receive_until("got hello").find("HTTP/1.1 200") != std::string::npos;
        ++(is_answered ? request_count : failure_count);
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    const CertificateFiles renewed = ca_.issue("renewed" + std::to_string(i), "DNS:localhost", "20260101000000Z",
                                               "20" + std::to_string(50 + i) + "0101000000Z");
    std::filesystem::rename(renewed.key, files_.key);  // for a moment key and certificate do not match
    const int count = request_count;
    EXPECT_TRUE(eventually([&] { return request_count > count + 3; }));
    std::filesystem::rename(renewed.certificate, files_.certificate);
    EXPECT_TRUE(eventually([&] { return request_count > count + 6; }));
  }
  should_stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failure_count, 0);
  const auto expiry_s = tls_->load_own_expiry_s();
  ASSERT_TRUE(expiry_s);
  EXPECT_EQ(*expiry_s, 2650838400);  // 2054-01-01
}

TEST_F(HttpsServer, RenegotiationIsRefused) {
  start();
  const ProcessResult result =
      run(folder_, {"openssl", "s_client", "-connect", "localhost:" + std::to_string(server_->port()), "-tls1_2"}, {},
          "R\n");
  EXPECT_THAT(result.out + result.err, testing::ContainsRegex("no renegotiation|NO_RENEGOTIATION|RENEGOTIATING"));
  EXPECT_NE(result.code, 0);
  expect_serves();
}

TEST_F(HttpsServer, HugeClientHelloIsRefused) {
  start();
  const Fd client = connect_to(server_->port());
  std::string record("\x16\x03\x01\x40\x00", 5);
  record.append("\x01\xff\xff\xff", 4);  // a ClientHello of 16 MiB
  record.resize(5 + 16384, '\x03');
  std::size_t sent_bytes = 0;
  while (sent_bytes < (64U << 20) && send_plain(client, record)) {
    sent_bytes += record.size();
    record.replace(5, 4, 4, '\x03');
  }
  EXPECT_LT(sent_bytes, 64U << 20);
  expect_serves();
}

TEST_F(HttpsServer, EndsWithOpenConnectionsAndHandshakes) {
  start();
  const Fd half_open = connect_to(server_->port());
  ASSERT_TRUE(send_plain(half_open, std::string_view("\x16\x03\x01", 3)));
  TlsClient client = connect();
  ASSERT_TRUE(client.send(post("hello")));
  EXPECT_THAT(client.receive_until("got hello"), HasSubstr("HTTP/1.1 200"));
  server_->stop();
  EXPECT_EQ(read_to_end(half_open), "");
  EXPECT_THAT(client.receive_until("never"), HasSubstr("closed the connection"));
}

}  // namespace
}  // namespace mycojobs::test
