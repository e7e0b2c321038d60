// Two tenants, Bob and Alice, for tests of messages between hosts. Each tenant has a Redis server, a coordinator and
// agents; only public keys are exchanged. On Bob's host, Bob is actor 12 and uses context 7. On Alice's host, Alice is
// actor 6 and owns context 9, where Bob is actor 5 and a submitter. Not thread-safe.
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

inline constexpr Id kBob = 12, kBobsActorAtAlice = 5, kBobsContext = 7, kAlicesContext = 9;

// Sends one request at a time to 127.0.0.1 over a persistent connection.
class HttpConnection {
 public:
  explicit HttpConnection(int port);
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
  Tenant(int first_context, std::vector<std::string> redis_options = {}, int second_context = 0);
  Tenant(const Tenant&) = delete;

  // Runs a command of the tenant's operator to its end.
  ProcessResult operator()(std::vector<std::string> words, std::string input = "") const;
  Process start_command(std::vector<std::string> words) const;
  // Runs the command with --json and returns its parsed output.
  nlohmann::json run_json(std::vector<std::string> words) const;
  std::string make_key(const std::string& name);  // returns the public key
  SigningKey load_key(const std::string& name) const {
    return SigningKey::load(keys_dir() + "/" + name + ".key").value();
  }
  std::string keys_dir() const { return folder / "keys"; }
  // Starts the coordinator and waits until it listens. A restarted coordinator uses the same port.
  void start_coordinator(std::vector<std::string> extra_options = {});
  void start_runner(int runner_id = 20, std::vector<std::string> extra_options = {});
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port); }

  std::string cli(std::vector<std::string> words, std::string input = "") const {
    return redis.cli(context, std::move(words), std::move(input));
  }
  std::string read_field(const std::string& key, const std::string& name) const { return cli({"HGET", key, name}); }
  bool wait_for_value(const std::string& key, const std::string& name, const std::string& value,
                      Seconds limit = Seconds(60)) const {
    return eventually([&] { return read_field(key, name) == value; }, limit);
  }
  // Returns the keys that match the pattern, for example "message:5:*".
  std::vector<std::string> find_keys(const std::string& pattern) const;
  std::vector<std::string> list_msg_in() const;  // entries of the list msg_in, oldest first
  // Checks that `mycojobs verify` finds no violation in the tenant's Redis.
  void expect_verify_succeeds() const;

  const int context;
  TempDir folder;
  RedisServer redis;
  int port = 0;                       // port of the coordinator; 0 before its first start
  bool has_shared_state_dir = false;  // coordinator, agents and commands share one state_dir, as on one host
  std::unique_ptr<Process> coordinator;
  std::vector<std::unique_ptr<Process>> agents;

 private:
  std::vector<std::string> make_argv(std::vector<std::string> words) const;
  std::string state_dir(const std::string& process_name) const {
    return folder / (has_shared_state_dir ? "host" : process_name);
  }
  std::string context_list_;
};

struct Tenants {
  explicit Tenants(std::vector<std::string> redis_options = {});
  // Creates, at each tenant, the actor, context and runner records of both tenants with these addresses.
  void create_peer_records(const std::string& bobs_url, const std::string& alices_url);
  // Starts both coordinators, then calls create_peer_records().
  void start_both();

  Tenant bob, alice;
  std::string bobs_key, alices_key, bobs_supervisor, alices_supervisor;  // public keys
};

// Returns a message for Alice's context with one Python job, signed by Bob.
Message make_message_from_bob(const Tenants&, Id id, const std::string& script = "result = {'n': '1'}");
// Returns the JSON-RPC request "message.deliver" for an envelope, or for a message in an envelope of Bob's supervisor.
std::string make_delivery_request(const nlohmann::json& envelope);
std::string make_delivery_request(const Tenants&, const Message&);

}  // namespace mycojobs::test
