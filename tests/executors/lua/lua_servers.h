// Servers for Lua scripts in tests: servers on loopback with a port of their own, and an agent that stores objects in
// memory as the broker does in Redis.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "support/process.h"

namespace mycojobs::test {

// An HTTP server. Each connection has one request, answered by a function of its head and body. The destructor stops
// it.
class HttpServer {
 public:
  // Returns the whole response.
  using Handler = std::function<std::string(const std::string& head, const std::string& body)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  std::uint16_t port() const { return port_; }

 private:
  void serve();
  void serve_request(Fd connection);

  Handler handler_;
  Fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Returns a response with a status such as "200 OK" and a body.
std::string format_http_response(const std::string& status, const std::string& body, const std::string& headers = "");
// Returns a handler for the part of Mycelium's API that scripts use. Its only message queue returns the sent messages.
// A client that waits for a reply receives its own message if the topic is "echo", and no reply otherwise.
HttpServer::Handler make_mycelium_handler();

// A redis-server on loopback for one test. The destructor ends it by its pid.
class RedisServer {
 public:
  RedisServer();
  std::uint16_t port() const { return port_; }

 private:
  TempDir folder_;
  std::uint16_t port_;
  Process process_;
};

// Answers osis calls with objects in memory. Supports equality, ranges and pages; a search finds its words in the text.
class FakeObjects {
 public:
  std::string answer(const std::string& call);
  std::size_t calls = 0;

 private:
  nlohmann::json run(const std::string& method, const nlohmann::json& params);
  nlohmann::json apply(const nlohmann::json& operation, bool only_check);
  nlohmann::json read_page(const nlohmann::json& params, const std::function<bool(const nlohmann::json&)>& matches);

  // maps "namespace/kind/id" to {id, version, created_ms, updated_ms, object}
  std::map<std::string, nlohmann::json> rows_;
  std::uint64_t next_id_ = 1;
};

}  // namespace mycojobs::test
