#include "messaging/transport/mycelium_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mycojobs {
namespace {

std::size_t size_of(const MyceliumMessage& message) { return sizeof message + message.payload.size(); }

}  // namespace

bool MyceliumFairQueue::put(MyceliumMessage message) {
  const std::size_t size = size_of(message);
  Peer& peer = peers_[message.from.key];
  if (peer.waiting.size() >= limits_.of_peer || (!peer.waiting.empty() && peer.bytes + size > limits_.bytes_of_peer))
    return false;
  peer.waiting.push_back(std::move(message));
  peer.bytes += size;
  bytes_ += size;
  if (bytes_ <= limits_.bytes) return true;
  drop_latest();
  return false;
}

void MyceliumFairQueue::drop_latest() {
  take(std::max_element(peers_.begin(), peers_.end(),
                        [](const auto& one, const auto& other) { return one.second.bytes < other.second.bytes; }),
       true);
}

std::optional<MyceliumMessage> MyceliumFairQueue::next() {
  if (peers_.empty()) return std::nullopt;
  auto peer = peers_.upper_bound(last_);
  if (peer == peers_.end()) peer = peers_.begin();
  last_ = peer->first;
  return take(peer, false);
}

MyceliumMessage MyceliumFairQueue::take(Peers::iterator peer, bool latest) {
  std::deque<MyceliumMessage>& waiting = peer->second.waiting;
  const auto at = latest ? std::prev(waiting.end()) : waiting.begin();
  MyceliumMessage message = std::move(*at);
  waiting.erase(at);
  const std::size_t size = size_of(message);
  peer->second.bytes -= size;
  bytes_ -= size;
  if (waiting.empty()) peers_.erase(peer);
  return message;
}

}  // namespace mycojobs
