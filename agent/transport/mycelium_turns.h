// Requests that a listener has taken from its node and not answered yet. Peers take turns, so that one that sends very
// much keeps no other one waiting; what it has no room for goes, and whoever has sent it asks again. One thread.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "transport/mycelium_node.h"

namespace mycojobs {

class MyceliumTurns {
 public:
  struct Limits {
    std::size_t of_peer = 64, bytes_of_peer = 8U << 20, bytes = 64U << 20;
  };
  explicit MyceliumTurns(const Limits& limits) : limits_(limits) {}

  // False: of its peer there are too many, and it is gone. Where all of them are too large, the latest of who has most
  // goes.
  bool put(MyceliumMessage);
  // The first of the peer whose turn it is; nothing: there is none.
  std::optional<MyceliumMessage> next();

 private:
  struct Peer {
    std::deque<MyceliumMessage> waiting;
    std::size_t bytes = 0;
  };
  using Peers = std::map<std::string, Peer>;
  void drop_latest();
  MyceliumMessage take(Peers::iterator, bool latest);  // of its messages the latest, or the first

  Limits limits_;
  Peers peers_;       // by the keys of their nodes
  std::string last_;  // whose turn it was
  std::size_t bytes_ = 0;
};

}  // namespace mycojobs
