#include "api/lobby.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "api/request_head.h"

namespace mycojobs::api {

void Lobby::enter(Fd socket) {
  if (guests_.size() >= places_) guests_.pop_front();
  Guest& guest = guests_.emplace_back();
  guest.socket = std::move(socket);
  guest.until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms_);
}

void Lobby::add_to(std::vector<pollfd>& entries) const {
  for (const Guest& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
}

bool Lobby::receive(Guest& guest) const {
  constexpr std::size_t kAtOnce = 16384;
  const std::size_t before = guest.bytes.size();
  guest.bytes.resize(before + kAtOnce);
  const ssize_t got = ::recv(guest.socket.get(), guest.bytes.data() + before, kAtOnce, MSG_DONTWAIT);
  const bool later = got < 0 && (errno == EAGAIN || errno == EINTR);
  guest.bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got <= 0) return later;
  guest.head = head_length(guest.bytes, guest.looked);
  guest.looked = guest.bytes.size();
  const std::size_t head = guest.head.value_or(0);
  if (guest.head && (head > most_bytes_ || (head == 0 && guest.bytes.size() > most_bytes_)))
    guest.head = fail(Code::too_large, "the head is over " + std::to_string(most_bytes_) + " bytes");
  return true;
}

std::vector<Lobby::Guest> Lobby::look(const pollfd* entries) {
  std::vector<Guest> ready;
  const auto now = std::chrono::steady_clock::now();
  for (auto guest = guests_.begin(); guest != guests_.end(); ++entries) {
    const bool stays = (entries->revents == 0 || receive(*guest)) && now < guest->until;
    const bool known = !guest->head || *guest->head > 0;
    if (known) ready.push_back(std::move(*guest));
    guest = stays && !known ? std::next(guest) : guests_.erase(guest);
  }
  return ready;
}

int Lobby::timeout_ms() const {
  if (guests_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(guests_.front().until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count(), 0, 60'000));
}

}  // namespace mycojobs::api
