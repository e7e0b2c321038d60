// The requests that a listener has received from its node and not answered yet. Peers are served round-robin, so that a
// busy peer does not delay others. A request over the limits is dropped, and its sender repeats it. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "messaging/transport/mycelium_node.h"

namespace mycojobs {

class MyceliumFairQueue {
 public:
  struct Limits {
    std::size_t max_peer_messages = 64, max_peer_bytes = 8U << 20, max_bytes = 64U << 20;
  };
  explicit MyceliumFairQueue(const Limits& limits) : limits_(limits) {}

  // Returns false if a message was dropped: the new message if its peer exceeds its limits, or, if the total size is
  // too large, the latest message of the peer with the most bytes.
  bool enqueue(MyceliumMessage);
  // Returns the first message of the next peer, or no value if there are no messages.
  std::optional<MyceliumMessage> pop();

 private:
  struct Peer {
    std::deque<MyceliumMessage> messages;
    std::size_t bytes = 0;
  };
  using Peers = std::map<std::string, Peer>;
  void drop_latest();
  // Removes the first message of the peer, or the latest message if `latest` is true.
  MyceliumMessage remove(Peers::iterator, bool latest);

  Limits limits_;
  Peers peers_;  // by the keys of their nodes
  std::string last_served_peer_;
  std::size_t bytes_ = 0;
};

}  // namespace mycojobs
