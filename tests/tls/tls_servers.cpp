#include "tls/tls_servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <random>

namespace mycojobs::test {
namespace {

constexpr std::uint64_t kServerTimeoutMs = 60000;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Binds a socket to a free port of the loopback, and returns the port.
std::uint16_t bind_free_port(const Fd& fd) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

bool accepts_connections(std::uint16_t port) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

void run_openssl(const TempDir& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "openssl");
  const ProcessResult result = run(folder, arguments);
  EXPECT_EQ(result.code, 0) << arguments[1] << ": " << result.err << result.out;
}

TestCa::TestCa(const TempDir& folder, std::string name)
    : folder_(folder), name_(std::move(name)), certificate_(folder / (name_ + ".crt")) {
  const std::string key = folder / (name_ + ".key");
  run_openssl(folder, {"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                       "-out", certificate_, "-subj", "/CN=" + name_, "-days", "3650", "-addext",
                       "keyUsage=critical,keyCertSign,cRLSign"});
  folder.write(name_ + ".index", "");
  config_ = folder.write(name_ + ".cnf",
                         "[ca]\ndefault_ca=test\n[test]\ndatabase=" + folder / (name_ + ".index") + "\nnew_certs_dir=" +
                             folder.path().string() + "\ncertificate=" + certificate_ + "\nprivate_key=" + key +
                             "\nrand_serial=yes\nunique_subject=no\ndefault_md=sha256\ndefault_days=365\n"
                             "policy=any\ncopy_extensions=copy\nx509_extensions=server\n[any]\ncommonName=supplied\n"
                             "[server]\nbasicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\n"
                             "authorityKeyIdentifier=keyid\n");
}

CertificateFiles TestCa::issue(const std::string& name, const std::string& names, const std::string& not_before,
                               const std::string& not_after) const {
  const CertificateFiles files{folder_ / (name + ".crt"), folder_ / (name + ".key")};
  const std::string request = folder_ / (name + ".csr");
  std::vector<std::string> arguments{"req",        "-new",    "-newkey", "ec",   "-pkeyopt", "ec_paramgen_curve:P-256",
                                     "-nodes",     "-keyout", files.key, "-out", request,    "-subj",
                                     "/CN=" + name};
  if (!names.empty()) arguments.insert(arguments.end(), {"-addext", "subjectAltName=" + names});
  run_openssl(folder_, arguments);
  std::vector<std::string> sign{"ca",  "-batch", "-notext", "-config",        config_,
                                "-in", request,  "-out",    files.certificate};
  if (!not_before.empty()) sign.insert(sign.end(), {"-startdate", not_before, "-enddate", not_after});
  run_openssl(folder_, sign);
  std::filesystem::permissions(files.key, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return files;
}

// The system assigns ports above this range to outgoing connections of all processes, so that such a port may be in use
// again before a server binds to it.
std::uint16_t find_free_port() {
  constexpr unsigned kFirstPort = 10000, kPorts = 22000, kMaxAttempts = 1000;
  std::random_device random;
  for (unsigned attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const auto port = static_cast<std::uint16_t>(kFirstPort + random() % kPorts);
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return port;
  }
  ADD_FAILURE() << "no port of 127.0.0.1 is free";
  return 0;
}

TlsRedisServer::TlsRedisServer(const TempDir& folder, const TestCa& ca, const CertificateFiles& files,
                               std::vector<std::string> extra_options) {
  // Another process may take a free port before the server does.
  for (int attempt = 0; attempt < 5; ++attempt) {
    tls_port_ = find_free_port();
    plain_port_ = find_free_port();
    std::vector<std::string> arguments{"redis-server",
                                       "--port",
                                       std::to_string(plain_port_),
                                       "--tls-port",
                                       std::to_string(tls_port_),
                                       "--bind",
                                       "127.0.0.1",
                                       "--save",
                                       "",
                                       "--dir",
                                       folder.path().string(),
                                       "--tls-cert-file",
                                       files.certificate,
                                       "--tls-key-file",
                                       files.key,
                                       "--tls-ca-cert-file",
                                       ca.file(),
                                       "--tls-auth-clients",
                                       "no"};
    arguments.insert(arguments.end(), extra_options.begin(), extra_options.end());
    process_ = std::make_unique<Process>(folder, arguments);
    if (eventually([this] { return !process_->is_running() || accepts_connections(tls_port_); }) &&
        process_->is_running())
      return;
  }
  ADD_FAILURE() << "redis-server does not start: " << log();
}

std::string TlsRedisServer::url(const std::string& credentials) const {
  return "rediss://" + (credentials.empty() ? "" : credentials + "@") + "localhost:" + std::to_string(tls_port_);
}

FakeServer::FakeServer(std::function<void(int fd)> serve)
    : serve_(std::move(serve)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  port_ = bind_free_port(listener_);
  EXPECT_EQ(::listen(listener_.get(), 16), 0);
  thread_ = std::thread([this] { run(); });
}

FakeServer::~FakeServer() {
  should_stop_ = true;
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

void FakeServer::run() {
  while (!should_stop_) {
    if (wait_for_events(listener_.get(), POLLIN, deadline_after(kServerTimeoutMs)) != 0) continue;
    const Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) serve_(fd.get());
  }
}

std::function<void(int fd)> serve_tls(std::shared_ptr<TlsContext> context, std::function<void(TlsStream&)> serve) {
  return [context = std::move(context), serve = std::move(serve)](int fd) {
    auto stream = TlsStream::open(*context, fd, "", "");
    ASSERT_TRUE(stream) << stream.error().message;
    if ((*stream)->handshake(deadline_after(kServerTimeoutMs))) serve(**stream);
  };
}

void answer_commands(TlsStream& stream, const std::function<void(std::string_view, std::string_view)>& send) {
  const auto bulk = [](const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; };
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto count = stream.receive(buffer, deadline_after(kServerTimeoutMs));
    if (!count) return;
    const std::string_view command(buffer.data(), *count);
    const auto has_word = [&](std::string_view word) { return command.find(word) != std::string_view::npos; };
    std::string reply = "+OK\r\n";
    if (has_word("INFO")) reply = bulk("redis_version:7.0.15\r\nrun_id:abc\r\n");
    if (has_word("CLIENT") && has_word("\r\nID\r\n")) reply = ":5\r\n";
    if (has_word("PING")) reply = "+PONG\r\n";
    send(command, reply);
  }
}

TlsSettings make_client_settings(const TestCa& ca, const CertificateFiles& files) {
  TlsSettings settings;
  settings.ca = ca.file();
  settings.certificate = files.certificate;
  settings.key = files.key;
  return settings;
}

RedisConnection::Options make_options(const std::string& url, const TlsSettings& settings) {
  RedisConnection::Options options;
  options.endpoint = parse_redis_url(url).value();
  options.tls = std::make_shared<TlsContext>(settings);
  options.connect_timeout_ms = options.command_timeout_ms = 60000;
  return options;
}

std::string connect_error(const std::string& url, const TlsSettings& settings, std::uint32_t timeout_ms) {
  RedisConnection::Options options = make_options(url, settings);
  options.connect_timeout_ms = options.command_timeout_ms = timeout_ms;
  RedisConnection connection(std::move(options));
  const auto connected = connection.connect();
  return connected ? "" : std::string(to_string(connected.error().code)) + ": " + connected.error().message;
}

}  // namespace mycojobs::test
