#include "transport/mycelium_turns.h"

#include <algorithm>
#include <utility>

namespace mycojobs {
namespace {

std::size_t size_of(const MyceliumMessage& message) { return sizeof message + message.payload.size(); }

}  // namespace

bool MyceliumTurns::put(MyceliumMessage message) {
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

void MyceliumTurns::drop_latest() {
  const auto most = std::max_element(peers_.begin(), peers_.end(), [](const auto& one, const auto& other) {
    return one.second.bytes < other.second.bytes;
  });
  const std::size_t size = size_of(most->second.waiting.back());
  most->second.waiting.pop_back();
  most->second.bytes -= size;
  bytes_ -= size;
  if (most->second.waiting.empty()) peers_.erase(most);
}

std::optional<MyceliumMessage> MyceliumTurns::next() {
  if (peers_.empty()) return std::nullopt;
  auto peer = peers_.upper_bound(last_);
  if (peer == peers_.end()) peer = peers_.begin();
  last_ = peer->first;
  MyceliumMessage message = std::move(peer->second.waiting.front());
  peer->second.waiting.pop_front();
  const std::size_t size = size_of(message);
  peer->second.bytes -= size;
  bytes_ -= size;
  if (peer->second.waiting.empty()) peers_.erase(peer);
  return message;
}

}  // namespace mycojobs
