// Transport between supervisors over Mycelium: the node of this host carries requests and answers as messages.
//
//   MyceliumTransport                                     MyceliumListener
//     push, topic supervisor.rpc  --> node ~~~ node -->     pop
//     pop                         <-- node ~~~ node <--     push, topic supervisor.answer.<random>
//
// The transport replaces the JSON-RPC id of each request by its own, "supervisor.answer.<random>:<number>", which
// contains the topic of the answer, and restores the caller's id in the answer. An answer is accepted if it has that id
// and comes from the called node. A request with any other id is answered by a reply of Mycelium, for which a foreign
// client waits with reply_timeout. The transport does not use replies: a late reply would stay in the inbox of the
// node, and a reply of another peer would end the wait (messaging/transport/mycelium_node.h).
//
// A node is trusted only to deliver messages; their content is signed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "messaging/transport/mycelium_node.h"
#include "messaging/transport/mycelium_queue.h"
#include "messaging/transport/transport.h"

namespace mycojobs {

inline constexpr std::string_view kSupervisorTopic = "supervisor.rpc";

class MyceliumTransport final : public Transport {
 public:
  explicit MyceliumTransport(const std::string& node_url);

  std::string_view name() const override { return "mycelium"; }
  bool is_address(const std::string& address) const override { return parse_mycelium(address).has_value(); }
  // While the node holds a request to this address, because the peer is unreachable (for up to 300 s) or still receives
  // chunks of the request, no other request is passed to the node: the call waits and then fails with `unavailable`. A
  // request that is stuck although the peer is reachable does not block others, unless kMaxStuck requests are stuck.
  // The instance keeps this state, so it must live as long as requests are sent.
  Result<std::string> exchange(const std::string& address, const std::string& request,
                               std::uint32_t timeout_ms) override;
  bool is_peer_reachable() const override { return is_peer_reachable_; }
  // Returns the number of messages on the topic that were not accepted as answers, since they came from another node,
  // were late or were invalid. Thread-safe.
  std::uint64_t ignored() const { return ignored_; }

 private:
  struct Call;
  // A request that the node had not delivered within its time.
  struct UndeliveredRequest {
    std::string id;
    std::uint64_t acked = 0;     // acknowledged chunks at the last check
    std::uint64_t since_ms = 0;  // time since which this number is unchanged
  };
  static constexpr std::size_t kMaxStuck = 4;
  // Removes the requests that the node has delivered or given up. Returns true if no remaining request blocks a new
  // request.
  Result<bool> has_send_capacity(const Call&, std::vector<UndeliveredRequest>&);
  Result<void> wait_for_send_capacity(const Call&);
  Result<std::string> send(const Call&);
  Result<std::string> await_answer(const Call&, std::string request_id);
  // Returns no value if the message is not the answer to this call.
  std::optional<std::string> parse_answer(const Call&, const MyceliumMessage&);

  MyceliumNode node_;
  std::string topic_;
  std::uint64_t call_count_ = 0;
  std::map<std::string, std::vector<UndeliveredRequest>> undelivered_;  // by peer
  bool is_peer_reachable_ = false;
  std::atomic<std::uint64_t> ignored_ = 0;
};

// Answers the requests of other supervisors. Its thread polls the node every 10 to 250 ms, and every second while the
// node is unreachable. Peers are served round-robin (mycelium_queue.h). Several listeners on one node receive an
// arbitrary part of the requests each, so all of them must be able to answer every request.
class MyceliumListener {
 public:
  // Returns the answer to a request, given the public key of the sending node.
  using NodeRequestHandler = std::function<std::string(std::string_view request, const std::string& node)>;
  MyceliumListener(const std::string& node_url, NodeRequestHandler);  // called from the thread
  MyceliumListener(const std::string& node_url, RequestHandler);      // same, for any node
  ~MyceliumListener();  // Stops the thread, after at most one answer and one call to the node.
  MyceliumListener(const MyceliumListener&) = delete;
  MyceliumListener& operator=(const MyceliumListener&) = delete;

  // Returns false if no thread could be created, so that requests are not answered.
  bool started() const { return thread_.joinable(); }
  // The following functions are thread-safe.
  bool connected() const { return connected_; }         // whether the node answers
  std::uint64_t answered() const { return answered_; }  // number of answered requests
  std::uint64_t ignored() const { return ignored_; }    // number of messages on the topic that were not requests
  std::uint64_t dropped() const { return dropped_; }    // number of requests over the limits of the queue

 private:
  void run();
  // Both functions return whether there was any work.
  Result<bool> run_once();
  Result<bool> receive_requests();
  Result<void> answer(const MyceliumMessage&);
  void log_state(const Error*);  // null if the node answers
  void pause(std::uint32_t ms);

  const std::string url_;
  const NodeRequestHandler handler_;
  std::atomic<bool> stop_ = false, connected_ = false;
  std::atomic<std::uint64_t> answered_ = 0, ignored_ = 0, dropped_ = 0;
  MyceliumFairQueue queue_{{}};
  bool is_unavailable_ = false;  // whether the log reports that the node is unreachable
  std::string own_key_;          // key of the node; empty until it is read, and while the node is unreachable
  MyceliumNode node_;
  std::thread thread_;
};

}  // namespace mycojobs
