// Requests that a listener has received from its node and not answered yet. Peers are served round-robin, so that a
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
    std::size_t of_peer = 64, bytes_of_peer = 8U << 20, bytes = 64U << 20;
  };
  explicit MyceliumFairQueue(const Limits& limits) : limits_(limits) {}

  // Returns false if a message was dropped: the new message if its peer has too many, or, if the total size is too
  // large, the latest message of the peer with the most bytes.
  bool put(MyceliumMessage);
  // Returns the first message of the next peer, or no value if there are no messages.
  std::optional<MyceliumMessage> next();

 private:
  struct Peer {
    std::deque<MyceliumMessage> waiting;
    std::size_t bytes = 0;
  };
  using Peers = std::map<std::string, Peer>;
  void drop_latest();
  MyceliumMessage take(Peers::iterator, bool latest);  // latest: removes the latest message of the peer, else the first

  Limits limits_;
  Peers peers_;       // by the keys of their nodes
  std::string last_;  // the peer that was served last
  std::size_t bytes_ = 0;
};

}  // namespace mycojobs
