// From supervisor to supervisor over Mycelium: the node of this host carries requests and answers as messages.
//
//   MyceliumTransport                                     MyceliumListener
//     push, topic supervisor.rpc  --> node ~~~ node -->     pop
//     pop                         <-- node ~~~ node <--     push, topic supervisor.answer.<random>
//
// The transport gives each request an id of JSON-RPC of its own, "supervisor.answer.<random>:<number>", which says
// where its answer goes, and puts the caller's back into the answer. An answer counts if it has that id and comes from
// the node that was asked. A request with any other id is answered by a reply of Mycelium: a client that is not ours
// waits for it with reply_timeout. We do not: a reply that comes late would stay in the inbox of the node for ever, and
// one of somebody else would end the wait (transport/mycelium_node.h).
//
// A node is trusted with carrying alone: what stands in a message is signed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "mycojobs/transport.h"
#include "transport/mycelium_node.h"
#include "transport/mycelium_turns.h"

namespace mycojobs {

inline constexpr std::string_view kSupervisorTopic = "supervisor.rpc";

class MyceliumTransport final : public Transport {
 public:
  explicit MyceliumTransport(const std::string& node_url);

  std::string_view name() const override { return "mycelium"; }
  bool is_address(const std::string& address) const override { return parse_mycelium(address).has_value(); }
  // While the node holds a request to this address whose peer is away (for up to 300 s), or whose chunks still arrive
  // there, nothing more is given to the node: the call waits, then is `unavailable`. A request that is stuck although
  // the peer is there lets others pass, unless kMaxStuck of them are stuck. So keep an instance for as long as you
  // deliver.
  Result<std::string> exchange(const std::string& address, const std::string& request,
                               std::uint32_t timeout_ms) override;
  bool is_peer_there() const override { return is_peer_there_; }
  // Messages on our topic that were no answers: of another node, late, or nonsense. Any thread.
  std::uint64_t ignored() const { return ignored_; }

 private:
  struct Call;
  // A request that the node had not delivered when its time was over.
  struct Undelivered {
    std::string id;
    std::uint64_t acked = 0;     // chunks, as the node said the last time,
    std::uint64_t since_ms = 0;  // and since when it says so
  };
  static constexpr std::size_t kMaxStuck = 4;
  // Forgets those that the node has delivered or given up. True: none of the others keeps a further request back.
  Result<bool> has_room(const Call&, std::vector<Undelivered>&);
  Result<void> wait_for_room(const Call&);
  Result<std::string> send(const Call&);
  Result<std::string> await(const Call&, std::string sent);
  // Nothing: it was no answer to this.
  std::optional<std::string> answer_to(const Call&, const MyceliumMessage&);

  MyceliumNode node_;
  std::string topic_;
  std::uint64_t number_ = 0;
  std::map<std::string, std::vector<Undelivered>> undelivered_;  // by peer
  bool is_peer_there_ = false;
  std::atomic<std::uint64_t> ignored_ = 0;
};

// Answers what other supervisors ask. Has a thread, which asks the node every 10 to 250 ms, and every second while it
// is away. Peers take turns (mycelium_turns.h). Several on one node take what they get by chance: then all of them must
// be able to answer.
class MyceliumListener {
 public:
  // A request, and the public key of the node that it comes from, to its answer.
  using FromNode = std::function<std::string(std::string_view request, const std::string& node)>;
  MyceliumListener(const std::string& node_url, FromNode);  // which is called from the thread
  MyceliumListener(const std::string& node_url, Answerer);  // the same, whichever node it is
  ~MyceliumListener();                                      // ends it, after at most an answer and a call to the node
  MyceliumListener(const MyceliumListener&) = delete;
  MyceliumListener& operator=(const MyceliumListener&) = delete;

  bool started() const { return thread_.joinable(); }   // false: there is no thread for it, and it answers nothing
  bool connected() const { return connected_; }         // the node answers. Any thread, as the next
  std::uint64_t answered() const { return answered_; }  // requests
  std::uint64_t ignored() const { return ignored_; }    // messages on the topic that were no requests to us
  std::uint64_t dropped() const { return dropped_; }    // requests, since their peer had too many

 private:
  void run();
  Result<bool> turn();     // false: there was nothing to do
  Result<bool> take_in();  // the same
  Result<void> answer(const MyceliumMessage&);
  void note(const Error*);  // null: the node answers
  void pause(std::uint32_t ms);

  const std::string url_;
  const FromNode answerer_;
  std::atomic<bool> stop_ = false, connected_ = false;
  std::atomic<std::uint64_t> answered_ = 0, ignored_ = 0, dropped_ = 0;
  MyceliumTurns turns_{{}};
  bool is_away_ = false;  // and the log says so
  std::string own_key_;   // of the node; empty: not asked since it was away
  MyceliumNode node_;
  std::thread thread_;
};

}  // namespace mycojobs
