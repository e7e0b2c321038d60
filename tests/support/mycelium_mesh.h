// Runs imitated Mycelium nodes (tests/support/mycelium_node.py) in a child process of the test.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "support/process.h"

namespace mycojobs::test {

struct MeshNode {
  std::string rest_url, rpc_url;  // base URLs of the two APIs
  std::string key, ip;
};

// A network of imitated nodes, numbered from 0. Not thread-safe.
class MyceliumMesh {
 public:
  // A node retries an unreachable peer for `window_s` seconds.
  explicit MyceliumMesh(std::size_t nodes, unsigned window_s = 300);

  const MeshNode& operator[](std::size_t node) const { return nodes_.at(node); }
  // Sends a control order: "offline", "online", "stop", "start", "lose", "double" or "stick"; see mycelium_node.py.
  void control(std::size_t node, const std::string& action, unsigned count = 1);
  // Adds a message to the inbox of node `to` that claims to be from node `from`.
  void forge(std::size_t to, std::size_t from, const std::string& topic, const std::string& payload);
  // Numbers of messages of a node; see "count" in mycelium_node.py.
  struct Counts {
    std::uint64_t pushed = 0, pending = 0, sending = 0, inbox = 0;
    double longest_hold_s = 0;
  };
  Counts counts(std::size_t node);

 private:
  nlohmann::json send_control_request(const nlohmann::json&);

  TempDir folder_;
  Process program_;
  std::string control_url_;
  std::vector<MeshNode> nodes_;
  HttpClient http_;
};

}  // namespace mycojobs::test
