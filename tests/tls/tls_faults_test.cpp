// Servers that break off, stall or send TLS in unusual pieces: no call hangs, and no connection is lost without need.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "net/host_lookup.h"
#include "store/redis/redis_stores.h"
#include "store/redis/redis_waiter.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::uint64_t kLimitMs = 60000;

class TlsFault : public testing::Test {
 protected:
  TlsSettings client_settings() const {
    TlsSettings settings;
    settings.ca = ca_.file();
    return settings;
  }
  std::shared_ptr<TlsContext> server_context() const { return server_context(server_); }
  static std::shared_ptr<TlsContext> server_context(const CertificateFiles& files) {
    TlsSettings settings;
    settings.certificate = files.certificate;
    settings.key = files.key;
    return std::make_shared<TlsContext>(settings, TlsRole::server);
  }
  RedisStream connect(const std::string& url) {
    auto stream = RedisStream::connect(parse_redis_url(url).value(), std::make_shared<TlsContext>(client_settings()),
                                       deadline_after(kLimitMs));
    EXPECT_TRUE(stream) << stream.error().message;
    return stream ? std::move(*stream) : RedisStream();
  }
  static std::string receive_text(RedisStream& stream) {
    std::array<char, 100> buffer{};
    const auto count = stream.receive(buffer, deadline_after(kLimitMs));
    return count ? std::string(buffer.data(), *count) : "error: " + count.error().message;
  }
  static void wait_for_end(int fd) {
    std::array<char, 1000> buffer{};
    while (wait_for_events(fd, POLLIN, deadline_after(kLimitMs)) == 0 &&
           ::recv(fd, buffer.data(), buffer.size(), 0) > 0) {
    }
  }
  void expect_no_answer_in_time(const std::string& url) const {
    RedisConnection::Options options = make_options(url, client_settings());
    options.command_timeout_ms = 300;
    const auto connected = RedisConnection(std::move(options)).connect();
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().message, "Redis at " + url + ": no answer in time");
  }

  TempDir folder_;
  TestCa ca_{folder_, "ca"};
  CertificateFiles server_ = ca_.issue("server", "DNS:localhost");
};

TEST_F(TlsFault, HandshakeWithoutAnAnswerEnds) {
  const FakeServer server(&wait_for_end);
  EXPECT_EQ(connect_error(server.numeric_url(), client_settings(), 300),
            "unavailable: cannot connect to Redis at " + server.numeric_url() +
                ": the TLS handshake was not completed in time (does the server use TLS at this port? For plain text, "
                "use redis://)");
}

TEST_F(TlsFault, HandshakeThatStallsEnds) {
  const FakeServer server([](int fd) {
    constexpr std::string_view kHalfRecord("\x16\x03\x03\x00\x7a\x02\x00", 7);
    (void)::send(fd, kHalfRecord.data(), kHalfRecord.size(), MSG_NOSIGNAL);
    wait_for_end(fd);
  });
  EXPECT_EQ(connect_error(server.numeric_url(), client_settings(), 300),
            "unavailable: cannot connect to Redis at " + server.numeric_url() +
                ": the TLS handshake was not completed in time");
}

// A client processes a HelloRequest without an answer, so that a peer can send one after the other.
TEST_F(TlsFault, EndlessHandshakeMessagesEndAtTheDeadline) {
  const FakeServer server([](int fd) {
    std::string flood;
    for (int i = 0; i < 1000; ++i) flood.append("\x16\x03\x03\x00\x04\x00\x00\x00\x00", 9);
    while (wait_for_events(fd, POLLOUT, deadline_after(kLimitMs)) == 0) {
      if (::send(fd, flood.data(), flood.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) return;
    }
  });
  EXPECT_THAT(connect_error(server.numeric_url(), client_settings(), 300),
              HasSubstr("the TLS handshake was not completed in time"));
}

// OpenSSL would check no name, or accept any sub-domain.
TEST_F(TlsFault, NameThatWouldNotBeCheckedIsRefused) {
  const FakeServer server(&wait_for_end);
  for (const std::string& name : {std::string(".org"), std::string("\0x", 2), std::string("a b")}) {
    TlsSettings settings = client_settings();
    settings.server_name = name;
    EXPECT_THAT(connect_error(server.url(), settings), HasSubstr("is not a host name or IP address"));
  }
}

TEST_F(TlsFault, CertificatesOfIntermediateCasAreSent) {
  const auto issue = [&](const std::string& name, const CertificateFiles& issuer) {
    const CertificateFiles files{folder_ / (name + ".crt"), folder_ / (name + ".key")};
    run_openssl(folder_, {"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                          files.key, "-out", files.certificate, "-subj", "/CN=" + name, "-addext",
                          "subjectAltName=DNS:localhost", "-CA", issuer.certificate, "-CAkey", issuer.key});
    return files;
  };
  const CertificateFiles intermediate = issue("intermediate", {ca_.file(), folder_ / "ca.key"});
  CertificateFiles files = issue("leaf", intermediate);
  const auto serve = [](TlsStream& stream) {
    answer_commands(stream, [&](std::string_view, std::string_view reply) {
      (void)stream.send_all(reply, deadline_after(kLimitMs));
    });
  };
  {
    const FakeServer server(serve_tls(server_context(files), serve));
    EXPECT_THAT(connect_error(server.url(), client_settings()), HasSubstr("unknown CA, /CN=intermediate"));
  }
  files.certificate = folder_.write("chain.crt", read_file(files.certificate) + read_file(intermediate.certificate));
  const FakeServer server(serve_tls(server_context(files), serve));
  EXPECT_EQ(connect_error(server.url(), client_settings()), "");
}

TEST_F(TlsFault, ServerThatClosesDuringTheHandshakeIsNamed) {
  const FakeServer server([](int) {});
  EXPECT_THAT(connect_error(server.url(), client_settings()),
              HasSubstr("the server closed the connection during the TLS handshake"));
}

TEST_F(TlsFault, ServerOfAnotherProtocolIsNamed) {
  const FakeServer server([](int fd) {
    constexpr std::string_view kText = "HTTP/1.1 400 Bad Request\r\n\r\n";
    (void)::send(fd, kText.data(), kText.size(), MSG_NOSIGNAL);
    wait_for_end(fd);
  });
  EXPECT_THAT(connect_error(server.url(), client_settings()), HasSubstr("answers in plain text"));
}

// The server answers the handshake only after a second connection has tested it for plain text.
TEST_F(TlsFault, TestForPlainTextDoesNotDisturbTheHandshake) {
  const auto context = server_context();
  Fd first_connection;
  const FakeServer server([&](int fd) {
    if (!first_connection) {
      first_connection = Fd(::dup(fd));
      return;
    }
    std::array<char, 100> buffer{};
    ASSERT_EQ(wait_for_events(fd, POLLIN, deadline_after(kLimitMs)), 0);
    EXPECT_EQ(std::string(buffer.data(), static_cast<std::size_t>(::recv(fd, buffer.data(), buffer.size(), 0))),
              "PING\r\n");
    auto tls = TlsStream::open(*context, first_connection.get(), "", "");
    ASSERT_TRUE(tls && (*tls)->handshake(deadline_after(kLimitMs)));
    EXPECT_TRUE((*tls)->send_all("hello", deadline_after(kLimitMs)));
    wait_for_end(first_connection.get());
  });
  RedisStream stream = connect(server.url());
  EXPECT_EQ(receive_text(stream), "hello");
}

// The reply is an array whose numbers arrive faster than the client reads them.
TEST_F(TlsFault, ReplyThatDoesNotEndIsGivenUpAtItsDeadline) {
  const FakeServer server([](int fd) {
    constexpr std::string_view kHeader = "*10000000\r\n";
    std::string numbers;
    for (int i = 0; i < 20000; ++i) numbers += ":1\r\n";
    (void)::send(fd, kHeader.data(), kHeader.size(), MSG_NOSIGNAL);
    while (wait_for_events(fd, POLLOUT, deadline_after(kLimitMs)) == 0) {
      if (::send(fd, numbers.data(), numbers.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN) return;
    }
  });
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  EXPECT_EQ(connect_error("redis://" + address, {}, 50), "unavailable: Redis at " + address + ": no answer in time");
}

// hiredis would allocate an array for the number of elements in a header.
TEST_F(TlsFault, ReplyWithTooManyElementsIsGivenUp) {
  std::string numbers;
  for (int i = 0; i < 6000; ++i) numbers += ":1\r\n";
  for (const std::string& reply : {std::string("*2147483646\r\n"), "*2\r\n*6000\r\n" + numbers + "*6000\r\n"}) {
    const FakeServer server([&](int fd) {
      (void)write_all(fd, reply);
      wait_for_end(fd);
    });
    RedisConnection::Options options = make_options("redis://127.0.0.1:" + std::to_string(server.port()), {});
    options.max_reply_bytes = 4 * 8192;
    const auto connected = RedisConnection(std::move(options)).connect();
    ASSERT_FALSE(connected);
    EXPECT_THAT(connected.error().message, HasSubstr("the answer is too long"));
  }
}

// The limit is that of one reply.
TEST_F(TlsFault, ManyRepliesMayHaveMoreElementsThanOne) {
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    answer_commands(stream, [&](std::string_view command, std::string_view reply) {
      const bool is_list = command.find("LRANGE") != std::string_view::npos;
      (void)stream.send_all(is_list ? "*2\r\n:1\r\n:2\r\n" : reply, deadline_after(kLimitMs));
    });
  }));
  RedisConnection::Options options = make_options(server.url(), client_settings());
  options.max_reply_bytes = 4000;
  RedisConnection connection(std::move(options));
  for (int i = 0; i < 600; ++i) {
    const auto reply = connection.command({"LRANGE", "list", "0", "-1"});
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->size(), 2U);
  }
}

// The deadline is that of the reply, not of each byte.
TEST_F(TlsFault, ReplyWhoseBytesArriveSlowlyIsGivenUpAtItsDeadline) {
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    while (stream.send_all("+", deadline_after(kLimitMs))) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }));
  expect_no_answer_in_time(server.url());
}

// Redis would log each connection without a handshake as a failure.
TEST_F(TlsFault, FilesThatCannotBeUsedOpenNoConnection) {
  std::atomic<int> connections = 0;
  const FakeServer server([&](int) { ++connections; });
  TlsSettings settings = client_settings();
  settings.ca = "/nowhere.crt";
  EXPECT_THAT(connect_error(server.url(), settings),
              HasSubstr("cannot connect to Redis at " + server.url() + ": redis_tls.ca: /nowhere.crt: ENOENT"));
  settings.ca = folder_.write("odd.crt", "odd");
  EXPECT_THAT(connect_error(server.url(), settings), HasSubstr("has no certificate in PEM"));
  settings.ca = ca_.file();
  EXPECT_THAT(connect_error(server.url(), settings), HasSubstr("closed the connection"));
  EXPECT_EQ(connections, 1);
}

// A listening socket whose queue is full, so that the kernel drops further connection requests.
class SilentAddress {
 public:
  SilentAddress() : listener_(make_socket()) {
    address_.size = sizeof(sockaddr_in);
    auto* const any = reinterpret_cast<sockaddr_in*>(&address_.storage);
    any->sin_family = AF_INET;
    any->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), address_.get(), address_.size), 0);
    EXPECT_EQ(::listen(listener_.get(), 0), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_.storage), &address_.size), 0);
    for (bool is_full = false; !is_full;) {
      const Fd& client = clients_.emplace_back(make_socket());
      (void)::connect(client.get(), address_.get(), address_.size);
      is_full = wait_for_events(client.get(), POLLOUT, deadline_after(300)) == ETIMEDOUT;
    }
  }
  const SocketAddress& address() const { return address_; }

 private:
  static Fd make_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }
  Fd listener_;
  SocketAddress address_;
  std::vector<Fd> clients_;
};

TEST_F(TlsFault, AddressThatDoesNotAnswerDoesNotHideTheNextOnes) {
  const SilentAddress silent;
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    answer_commands(stream, [&](std::string_view, std::string_view reply) {
      (void)stream.send_all(reply, deadline_after(kLimitMs));
    });
  }));
  const auto working = resolve_host("127.0.0.1", server.port(), deadline_after(kLimitMs)).value();
  set_name_lookup_for_test([&](const std::string&, std::uint16_t) -> Result<std::vector<SocketAddress>> {
    return std::vector<SocketAddress>{silent.address(), silent.address(), working.front()};
  });
  EXPECT_EQ(connect_error(server.url(), client_settings()), "");
  set_name_lookup_for_test([&](const std::string&, std::uint16_t) -> Result<std::vector<SocketAddress>> {
    return std::vector<SocketAddress>{silent.address(), silent.address()};
  });
  EXPECT_THAT(connect_error(server.url(), client_settings(), 700), HasSubstr("ETIMEDOUT"));
  set_name_lookup_for_test({});
}

TEST_F(TlsFault, ServerThatIsSilentAfterTheHandshakeEnds) {
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    std::array<char, 100> buffer{};
    while (stream.receive(buffer, deadline_after(kLimitMs))) {
    }
  }));
  expect_no_answer_in_time(server.url());
}

TEST_F(TlsFault, ServerThatClosesEachNewConnectionIsNamedOnce) {
  std::atomic<int> connections = 0;
  const FakeServer server(serve_tls(server_context(), [&](TlsStream& stream) {
    ++connections;
    stream.shut_down();
  }));
  EXPECT_THAT(connect_error(server.url(), client_settings()), HasSubstr("the server closed the connection"));
  EXPECT_EQ(connections, 1);
}

TEST_F(TlsFault, RecordsOfOneByteAreJoined) {
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    answer_commands(stream, [&](std::string_view, std::string_view reply) {
      for (const char& byte : reply) (void)stream.send_all(std::string_view(&byte, 1), deadline_after(kLimitMs));
    });
  }));
  RedisConnection connection(make_options(server.url(), client_settings()));
  for (int i = 0; i < 3; ++i) {
    const auto reply = connection.command({"PING"});
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->text(), "PONG");
  }
}

// Sends several records that arrive together.
void send_together(int fd, TlsStream& stream, std::initializer_list<std::string_view> records) {
  int is_corked = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &is_corked, sizeof is_corked);
  for (const std::string_view record : records) EXPECT_TRUE(stream.send_all(record, deadline_after(kLimitMs)));
  is_corked = 0;
  ::setsockopt(fd, IPPROTO_TCP, TCP_CORK, &is_corked, sizeof is_corked);
}

TEST_F(TlsFault, RecordBehindAnotherIsFoundWithoutAReadableSocket) {
  const auto context = server_context();
  const FakeServer server([&](int fd) {
    auto tls = TlsStream::open(*context, fd, "", "");
    ASSERT_TRUE(tls && (*tls)->handshake(deadline_after(kLimitMs)));
    send_together(fd, **tls, {"one", "two"});
    wait_for_end(fd);
  });
  RedisStream stream = connect(server.url());
  EXPECT_EQ(receive_text(stream), "one");
  pollfd readable{stream.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 0);
  EXPECT_TRUE(stream.has_buffered_input());
  std::array<char, 100> buffer{};
  EXPECT_EQ(stream.receive_available(buffer).value_or(0), 3U);
  EXPECT_EQ(stream.receive_available(buffer).value_or(99), 0U);
  EXPECT_FALSE(stream.has_buffered_input());
}

// The server does not answer the PING of the waiter, so that only the buffered record can end the wait.
TEST_F(TlsFault, HintBehindTheReplyWakesTheWaiter) {
  const auto context = server_context();
  const FakeServer server([&](int fd) {
    auto tls = TlsStream::open(*context, fd, "", "");
    // The waiter gives up a slow handshake, and tries again.
    if (!tls || !(*tls)->handshake(deadline_after(kLimitMs))) return;
    answer_commands(**tls, [&](std::string_view command, std::string_view reply) {
      if (command.find("SUBSCRIBE") != std::string_view::npos) {
        send_together(fd, **tls,
                      {"*3\r\n$9\r\nsubscribe\r\n$7\r\nmj:wake\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$5\r\ntopic\r\n:2\r\n",
                       "*3\r\n$7\r\nmessage\r\n$5\r\ntopic\r\n$4\r\nhint\r\n"});
      } else if (command.find("PING") == std::string_view::npos) {
        (void)(*tls)->send_all(reply, deadline_after(kLimitMs));
      }
    });
  });
  RedisStoreConfig config;
  config.default_url = server.url();
  config.tls = std::make_shared<TlsContext>(client_settings());
  auto waiter = RedisWaiter::open(config, {{1, ""}}, "topic");
  ASSERT_TRUE(waiter) << waiter.error().message;
  EXPECT_TRUE(eventually([&] {
    const auto result = (*waiter)->wait(1000, false);
    return result && result->hints == std::vector<std::string>{"hint"};
  }));
}

// Messages arrive without end, but not the reply to the PING of the waiter.
TEST_F(TlsFault, WaiterGivesUpAServerThatSendsWithoutAReply) {
  const FakeServer server(serve_tls(server_context(), [](TlsStream& stream) {
    answer_commands(stream, [&](std::string_view command, std::string_view reply) {
      if (command.find("SUBSCRIBE") != std::string_view::npos) {
        (void)stream.send_all("*3\r\n$9\r\nsubscribe\r\n$5\r\ntopic\r\n:1\r\n", deadline_after(kLimitMs));
      } else if (command.find("PING") != std::string_view::npos) {
        std::string messages;
        for (int i = 0; i < 1000; ++i) messages += "*3\r\n$7\r\nmessage\r\n$5\r\ntopic\r\n$4\r\nhint\r\n";
        while (stream.send_all(messages, deadline_after(kLimitMs))) {
        }
      } else {
        (void)stream.send_all(reply, deadline_after(kLimitMs));
      }
    });
  }));
  RedisStoreConfig config;
  config.default_url = server.url();
  config.tls = std::make_shared<TlsContext>(client_settings());
  auto waiter = RedisWaiter::open(config, {{1, ""}}, "topic");
  ASSERT_TRUE(waiter) << waiter.error().message;
  EXPECT_TRUE(eventually([&] {
    const auto result = (*waiter)->wait(kLimitMs, false);
    return !result || result->has_unreachable_server;
  }));
}

TEST_F(TlsFault, ResetConnectionRaisesNoSignal) {
  ASSERT_NE(std::signal(SIGPIPE, SIG_DFL), SIG_ERR);
  const auto context = server_context();
  const FakeServer server([&](int fd) {
    auto tls = TlsStream::open(*context, fd, "", "");
    ASSERT_TRUE(tls && (*tls)->handshake(deadline_after(kLimitMs)));
    const linger at_once{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  });
  RedisStream stream = connect(server.url());
  const std::string data(100000, 'x');
  std::string error;
  while (error.empty()) {
    if (const auto sent = stream.send_all(data, deadline_after(kLimitMs)); !sent) error = sent.error().message;
  }
  EXPECT_EQ(error, "the server closed the connection");
}

// A server that the test controls by the commands of `openssl s_server`.
class ControlledServer {
 public:
  ControlledServer(const TempDir& folder, const CertificateFiles& files, const std::string& protocol)
      : input_path_(folder / "input"), port_(find_free_port()) {
    EXPECT_EQ(::mkfifo(input_path_.c_str(), 0600), 0);
    input_ = Fd(::open(input_path_.c_str(), O_RDWR | O_CLOEXEC));
    process_ = std::make_unique<Process>(
        folder, std::vector<std::string>{"sh", "-c", "exec openssl s_server \"$@\" < \"$0\"", input_path_, "-accept",
                                         "127.0.0.1:" + std::to_string(port_), "-cert", files.certificate, "-key",
                                         files.key, protocol});
    EXPECT_TRUE(eventually([&] { return process_->out().find("ACCEPT") != std::string::npos; })) << process_->err();
  }
  std::string url() const { return "rediss://localhost:" + std::to_string(port_); }
  void type(std::string_view line) { EXPECT_TRUE(write_all(input_.get(), line)); }
  std::string output() const { return process_->out() + process_->err(); }

 private:
  std::string input_path_;
  std::uint16_t port_;
  Fd input_;
  std::unique_ptr<Process> process_;
};

TEST_F(TlsFault, KeyUpdateIsNeitherDataNorAClose) {
  ControlledServer server(folder_, server_, "-tls1_3");
  RedisStream stream = connect(server.url());
  EXPECT_FALSE(stream.is_closed_or_has_data()) << "session tickets";
  for (const char* command : {"k\n", "K\n"}) {
    server.type(command);
    pollfd readable{stream.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, static_cast<int>(kLimitMs)), 1) << server.output();
    EXPECT_FALSE(stream.is_closed_or_has_data());
    EXPECT_EQ(::poll(&readable, 1, 0), 0) << "the message was processed";
  }
  server.type("hello\n");
  EXPECT_EQ(receive_text(stream), "hello\n");
  EXPECT_FALSE(stream.is_closed_or_has_data());
}

TEST_F(TlsFault, RenegotiationIsRefusedWithoutAHang) {
  ControlledServer server(folder_, server_, "-tls1_2");
  RedisStream stream = connect(server.url());
  server.type("hello\n");
  EXPECT_EQ(receive_text(stream), "hello\n");
  server.type("R\n");
  EXPECT_THAT(receive_text(stream), HasSubstr("error: ")) << server.output();
}

TEST_F(TlsFault, NameThatIsNotResolvedInTimeEnds) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
    std::atomic<int> lookups = 0;
  };
  const auto gate = std::make_shared<Gate>();
  set_name_lookup_for_test([gate](const std::string&, std::uint16_t) -> Result<std::vector<SocketAddress>> {
    ++gate->lookups;
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->is_open; });
    return fail(Code::not_found, "no such host");
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(connect_error("redis://redis.example.org", {}, 50),
              "unavailable: cannot connect to Redis at redis.example.org:6379: the host name was not resolved in time "
              "(no name server answers)");
  }
  EXPECT_EQ(gate->lookups, 1) << "later attempts wait for the same lookup";
  {
    const std::lock_guard lock(gate->mutex);
    gate->is_open = true;
  }
  gate->changed.notify_all();
  EXPECT_TRUE(eventually(
      [] { return connect_error("redis://redis.example.org", {}).find("no such host") != std::string::npos; }));
  set_name_lookup_for_test({});
}

}  // namespace
}  // namespace mycojobs::test
