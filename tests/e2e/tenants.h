// Two tenants, each with its own Redis, coordinator and agents. They know each other only by public keys. Bob (actor
// 12) works in context 7 of his side. Alice (actor 6) owns context 9 of her side, where bob is actor 5 and may submit.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/ed25519.h"
#include "base/fd.h"
#include "e2e/world.h"
#include "model/records.h"

namespace mycojobs::test {

inline constexpr Id kBob = 12, kBobAtAlice = 5, kBobsContext = 7, kAlicesContext = 9;

// Sends one request at a time to 127.0.0.1 over a persistent connection.
class HttpWire {
 public:
  explicit HttpWire(int port);
  struct Reply {
    int status = 0;  // 0 if there was no response
    std::string body;
  };
  Reply post(const std::string& path, const std::string& body, const std::string& extra_headers = "");
  bool send(const std::string& text);
  Reply read();

 private:
  Fd socket_;
  std::string buffer_;
};

class Tenant {
 public:
  Tenant(int context, std::vector<std::string> redis_options = {}, int second_context = 0);
  Tenant(const Tenant&) = delete;

  // runs the command as the operator and waits
  ProcessResult operator()(std::vector<std::string> words, std::string input = "") const;
  Process start(std::vector<std::string> words) const;
  nlohmann::json json(std::vector<std::string> words) const;
  std::string make_key(const std::string& name);  // returns the public key
  SigningKey key(const std::string& name) const { return SigningKey::load(keys() + "/" + name + ".key").value(); }
  std::string keys() const { return folder / "keys"; }
  // Starts the coordinator and waits until it listens. A restarted coordinator uses the same port.
  void start_coordinator(std::vector<std::string> extra_options = {});
  void work(int runner = 20, std::vector<std::string> extra_options = {});
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port); }

  std::string cli(std::vector<std::string> words, std::string input = "") const {
    return redis.cli(context, std::move(words), std::move(input));
  }
  std::string field(const std::string& key, const std::string& name) const { return cli({"HGET", key, name}); }
  bool wait_for_value(const std::string& key, const std::string& name, const std::string& value,
                      Seconds limit = Seconds(60)) const {
    return eventually([&] { return field(key, name) == value; }, limit);
  }
  // Returns the keys that match the pattern, for example "message:5:*".
  std::vector<std::string> find_keys(const std::string& pattern) const;
  std::vector<std::string> msg_in() const;  // oldest first
  void expect_verified() const;

  const int context;
  TempDir folder;
  RedisServer redis;
  int port = 0;
  bool shares_state = false;  // coordinator, agents and commands share one state_dir, as on one host
  std::unique_ptr<Process> coordinator;
  std::vector<std::unique_ptr<Process>> agents;

 private:
  std::vector<std::string> line(std::vector<std::string> words) const;
  std::string state_dir(const std::string& whose) const { return folder / (shares_state ? "host" : whose); }
  std::string contexts_;
};

struct Tenants {
  explicit Tenants(std::vector<std::string> redis_options = {});
  // Creates the records of each other with these addresses.
  void create_peer_records(const std::string& bobs_url, const std::string& alices_url);
  // Starts both coordinators and creates the records.
  void start_both();

  Tenant bob, alice;
  std::string bobs_key, alices_key, bobs_supervisor, alices_supervisor;  // public keys
};

// A message signed by bob for alice's context, as his program would create it.
Message message_of_bob(const Tenants&, Id id, const std::string& script = "result = {'n': '1'}");
// The JSON-RPC request that transports an envelope or a message.
std::string delivery(const nlohmann::json& envelope);
std::string delivery(const Tenants&, const Message&);

}  // namespace mycojobs::test
