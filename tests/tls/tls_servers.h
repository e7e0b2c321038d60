// Certificates and servers for the tests of TLS. Each object has its files in the folder of its test.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "net/tls.h"
#include "store/redis/redis_connection.h"
#include "support/process.h"

namespace mycojobs::test {

struct CertificateFiles {
  std::string certificate, key;
};

// A certificate authority, which uses the program openssl.
class TestCa {
 public:
  TestCa(const TempDir&, std::string name);
  const std::string& file() const { return certificate_; }
  // names: as of subjectAltName, such as "DNS:localhost,IP:127.0.0.1"; empty: only the common name `name`. Times are
  // of the form 20260101000000Z.
  CertificateFiles issue(const std::string& name, const std::string& names, const std::string& not_before = "",
                         const std::string& not_after = "") const;

 private:
  const TempDir& folder_;
  std::string name_, certificate_, config_;
};

// Runs openssl. The test fails with its messages if it does not exit with 0.
void run_openssl(const TempDir&, std::vector<std::string> arguments);

// Returns a TCP port of the loopback that is free now.
std::uint16_t find_free_port();

// A redis-server with a port for TLS, and a port for plain text if requested.
class TlsRedisServer {
 public:
  TlsRedisServer(const TempDir&, const TestCa&, const CertificateFiles&, std::vector<std::string> extra_options = {});
  std::string url(const std::string& credentials = "") const;
  std::string plain_url() const { return "redis://127.0.0.1:" + std::to_string(plain_port_); }
  std::uint16_t tls_port() const { return tls_port_; }
  std::uint16_t plain_port() const { return plain_port_; }
  std::string log() const { return process_->out(); }

 private:
  std::uint16_t tls_port_ = 0, plain_port_ = 0;
  std::unique_ptr<Process> process_;
};

// A listening socket of the loopback, whose connections are served one after another by a function of the test.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> serve);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  std::uint16_t port() const { return port_; }
  std::string url() const { return "rediss://localhost:" + std::to_string(port_); }
  std::string numeric_url() const { return "rediss://127.0.0.1:" + std::to_string(port_); }  // needs no lookup

 private:
  void run();
  std::function<void(int fd)> serve_;
  Fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> should_stop_{false};
  std::thread thread_;
};

// Serves a connection with TLS. REQUIRES: context has the role of a server.
std::function<void(int fd)> serve_tls(std::shared_ptr<TlsContext> context, std::function<void(TlsStream&)> serve);

// Receives commands until the connection ends. send: gets each command and its reply, which is that of Redis for the
// commands of the handshake of a RedisConnection, and for PING.
void answer_commands(TlsStream&, const std::function<void(std::string_view command, std::string_view reply)>& send);

// Settings of a client that trusts the CA and has a certificate.
TlsSettings make_client_settings(const TestCa&, const CertificateFiles&);
RedisConnection::Options make_options(const std::string& url, const TlsSettings&);
// Connects and returns the message of the error; an empty text if there is none.
std::string connect_error(const std::string& url, const TlsSettings&, std::uint32_t timeout_ms = 60000);

}  // namespace mycojobs::test
