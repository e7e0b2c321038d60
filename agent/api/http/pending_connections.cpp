#include "api/http/pending_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace mycojobs::api {

void PendingConnections::add(Fd socket) {
  if (guests_.size() >= job_states_) guests_.pop_front();
  const Deadline until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms_);
  guests_.push_back(Connection{std::move(socket), {}, until, RequestReader(limits_), {}});
}

void PendingConnections::append_pollfds(std::vector<pollfd>& entries) const {
  for (const Connection& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
}

bool PendingConnections::receive(Connection& guest) {
  const long got = receive_some(guest.socket.get(), guest.bytes);
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  if (const auto head = guest.reader.parse_head(guest.bytes)) {
    guest.bytes.erase(0, *head);
  } else {
    guest.wrong = head.error();
  }
  return true;
}

std::vector<PendingConnections::Connection> PendingConnections::receive_heads(const pollfd* entries) {
  std::vector<Connection> ready;
  const auto now = std::chrono::steady_clock::now();
  for (auto guest = guests_.begin(); guest != guests_.end(); ++entries) {
    const bool stays = (entries->revents == 0 || receive(*guest)) && now < guest->until;
    const bool known = guest->wrong || guest->reader.has_head();
    if (known) ready.push_back(std::move(*guest));
    guest = stays && !known ? std::next(guest) : guests_.erase(guest);
  }
  return ready;
}

int PendingConnections::timeout_ms() const {
  if (guests_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(guests_.front().until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, 60'000));
}

}  // namespace mycojobs::api
