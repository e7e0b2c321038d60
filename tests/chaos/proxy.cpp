#include "chaos/proxy.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace mycojobs::test {
namespace {

constexpr int kTurnMs = 5;
constexpr auto kSlowness = std::chrono::milliseconds(200);

bool readable(const Fd& fd) {
  pollfd waiting{fd.get(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

}  // namespace

const char* to_string(Wire wire) {
  constexpr const char* kWords[] = {"whole", "refusing", "silent", "dropping", "slow", "cutting"};
  return kWords[static_cast<int>(wire)];
}

Proxy::Proxy(const TempDir& folder, const std::string& upstream_path) {
  const auto path_address = [](const std::string& path) {
    Address address;
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, path.c_str(), sizeof at.sun_path - 1);
    std::memcpy(&address.bytes, &at, sizeof at);
    address.size = sizeof at;
    return address;
  };
  upstream_ = path_address(upstream_path);
  url_ = "unix://" + folder / "wire.sock";
  listen_at(path_address(folder / "wire.sock"));
}

Proxy::Proxy(int upstream_port) : upstream_(on_host(upstream_port)) {
  listen_at(on_host(0));
  sockaddr_in at{};
  socklen_t size = sizeof at;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
  url_ = "http://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}

Proxy::Address Proxy::on_host(int port) {
  Address address;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&address.bytes, &at, sizeof at);
  address.size = sizeof at;
  return address;
}

Fd Proxy::stream_socket() const { return Fd(::socket(upstream_.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

void Proxy::listen_at(const Address& address) {
  listener_ = stream_socket();
  if (::bind(listener_.get(), address.get(), address.size) != 0 || ::listen(listener_.get(), 64) != 0)
    throw std::runtime_error("cannot listen on " + url_);
  thread_ = std::thread([this] { serve(); });
}

Proxy::~Proxy() {
  stop_ = true;
  thread_.join();
}

void Proxy::serve() {
  while (!stop_) {
    std::vector<pollfd> sources{{listener_.get(), POLLIN, 0}};
    const bool moving = wire_ != Wire::silent;
    for (const Pair& pair : pairs_) {
      if (moving) sources.push_back({pair.client.get(), POLLIN, 0});
      if (moving) sources.push_back({pair.server.get(), POLLIN, 0});
    }
    ::poll(sources.data(), sources.size(), kTurnMs);
    const Wire now = wire_;
    if (readable(listener_)) accept_one();
    if (now == Wire::slow) std::this_thread::sleep_for(kSlowness);
    if (now == Wire::silent) continue;
    pairs_.remove_if([&](Pair& pair) {
      if (now == Wire::refusing || (pair.spoilt && now != Wire::dropping)) return true;
      return (readable(pair.client) && !pass(pair, false)) || (readable(pair.server) && !pass(pair, true));
    });
  }
}

void Proxy::accept_one() {
  Pair pair{Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), stream_socket()};
  if (wire_ == Wire::refusing || !pair.client || ::connect(pair.server.get(), upstream_.get(), upstream_.size) != 0) {
    return;
  }
  pairs_.push_back(std::move(pair));
}

bool Proxy::pass(Pair& pair, bool answer) {
  std::array<char, 65536> bytes;
  const Fd& from = answer ? pair.server : pair.client;
  const Fd& to = answer ? pair.client : pair.server;
  const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got <= 0) return false;
  if (wire_ == Wire::dropping) {
    pair.spoilt = true;
    return true;
  }
  const bool cut = wire_ == Wire::cutting && answer;
  const auto size = static_cast<std::size_t>(cut ? got / 2 : got);
  const bool sent = ::send(to.get(), bytes.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
  return sent && !cut;
}

}  // namespace mycojobs::test
