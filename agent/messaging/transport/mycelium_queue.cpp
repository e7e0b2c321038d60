#include "messaging/transport/mycelium_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mycojobs {
namespace {

std::size_t accounted_size(const MyceliumMessage& message) { return sizeof message + message.payload.size(); }

}  // namespace

bool MyceliumFairQueue::enqueue(MyceliumMessage message) {
  const std::size_t size = accounted_size(message);
  Peer& peer = peers_[message.from.key];
  if (peer.messages.size() >= limits_.max_peer_messages ||
      (!peer.messages.empty() && peer.bytes + size > limits_.max_peer_bytes))
    return false;
  peer.messages.push_back(std::move(message));
  peer.bytes += size;
  bytes_ += size;
  if (bytes_ <= limits_.max_bytes) return true;
  drop_latest();
  return false;
}

void MyceliumFairQueue::drop_latest() {
  remove(std::max_element(peers_.begin(), peers_.end(),
                          [](const auto& left, const auto& right) { return left.second.bytes < right.second.bytes; }),
         true);
}

std::optional<MyceliumMessage> MyceliumFairQueue::pop() {
  if (peers_.empty()) return std::nullopt;
  auto peer = peers_.upper_bound(last_served_peer_);
  if (peer == peers_.end()) peer = peers_.begin();
  last_served_peer_ = peer->first;
  return remove(peer, false);
}

MyceliumMessage MyceliumFairQueue::remove(Peers::iterator peer, bool latest) {
  std::deque<MyceliumMessage>& messages = peer->second.messages;
  const auto position = latest ? std::prev(messages.end()) : messages.begin();
  MyceliumMessage message = std::move(*position);
  messages.erase(position);
  const std::size_t size = accounted_size(message);
  peer->second.bytes -= size;
  bytes_ -= size;
  if (messages.empty()) peers_.erase(peer);
  return message;
}

}  // namespace mycojobs
