// What Lua scripts talk to in tests: servers on loopback, each with a port of its own, and an agent that keeps objects
// in memory as the broker does in Redis.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/fd.h"

namespace mycojobs::test {

// HTTP: one request a connection, answered by a function of its head and body. Ends with the object.
class HttpServer {
 public:
  using Answer = std::function<std::string(const std::string& head, const std::string& body)>;  // the whole answer
  explicit HttpServer(Answer answer);
  ~HttpServer();
  std::uint16_t port() const { return port_; }

 private:
  void serve();
  void serve_one(Fd connection);

  Answer answer_;
  Fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// "200 OK", body -> the answer.
std::string http_answer(const std::string& status, const std::string& body, const std::string& headers = "");
// The part of Mycelium's API that scripts use: its one message queue gives back what was sent. Who waits for a reply
// gets what it sent with the topic "echo", and none with any other.
HttpServer::Answer mycelium_daemon();

// A redis-server of the test's own on loopback; ended by its pid.
class RedisServer {
 public:
  RedisServer();
  ~RedisServer();
  std::uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

// Answers calls of osis with objects in memory. Knows equality, ranges and pages; a search looks for the words as text.
class FakeObjects {
 public:
  std::string answer(const std::string& call);
  std::size_t calls = 0;

 private:
  nlohmann::json run(const std::string& method, const nlohmann::json& params);
  nlohmann::json apply(const nlohmann::json& operation, bool only_check);
  nlohmann::json page(const nlohmann::json& params, const std::function<bool(const nlohmann::json&)>& wanted);

  std::map<std::string, nlohmann::json> rows_;  // "namespace/kind/id" -> {id, version, created_ms, updated_ms, object}
  std::uint64_t next_id_ = 1;
};

}  // namespace mycojobs::test
