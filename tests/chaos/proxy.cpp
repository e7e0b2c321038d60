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

constexpr int kPollIntervalMs = 5;
constexpr auto kDelay = std::chrono::milliseconds(200);

bool is_readable(const Fd& fd) {
  pollfd poll_entry{fd.get(), POLLIN, 0};
  return ::poll(&poll_entry, 1, 0) > 0;
}

}  // namespace

const char* to_string(LinkState state) {
  constexpr const char* kWords[] = {"whole", "refusing", "silent", "dropping", "slow", "cutting"};
  return kWords[static_cast<int>(state)];
}

Proxy::Proxy(const TempDir& folder, const std::string& upstream_path) {
  const auto path_address = [](const std::string& path) {
    Address address;
    sockaddr_un socket_address{};
    socket_address.sun_family = AF_UNIX;
    std::strncpy(socket_address.sun_path, path.c_str(), sizeof socket_address.sun_path - 1);
    std::memcpy(&address.bytes, &socket_address, sizeof socket_address);
    address.size = sizeof socket_address;
    return address;
  };
  upstream_ = path_address(upstream_path);
  url_ = "unix://" + folder / "wire.sock";
  start_listening(path_address(folder / "wire.sock"));
}

Proxy::Proxy(int upstream_port) : upstream_(make_loopback_address(upstream_port)) {
  start_listening(make_loopback_address(0));
  sockaddr_in socket_address{};
  socklen_t size = sizeof socket_address;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&socket_address), &size);
  url_ = "http://127.0.0.1:" + std::to_string(ntohs(socket_address.sin_port));
}

Proxy::Address Proxy::make_loopback_address(int port) {
  Address address;
  sockaddr_in socket_address{};
  socket_address.sin_family = AF_INET;
  socket_address.sin_port = htons(static_cast<std::uint16_t>(port));
  socket_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&address.bytes, &socket_address, sizeof socket_address);
  address.size = sizeof socket_address;
  return address;
}

Fd Proxy::make_stream_socket() const { return Fd(::socket(upstream_.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

void Proxy::start_listening(const Address& address) {
  listener_ = make_stream_socket();
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
    const bool is_forwarding = state_ != LinkState::silent;
    for (const ProxiedConnection& connection : connections_) {
      if (is_forwarding) sources.push_back({connection.client.get(), POLLIN, 0});
      if (is_forwarding) sources.push_back({connection.server.get(), POLLIN, 0});
    }
    ::poll(sources.data(), sources.size(), kPollIntervalMs);
    const LinkState current_state = state_;
    if (is_readable(listener_)) accept_connection();
    if (current_state == LinkState::slow) std::this_thread::sleep_for(kDelay);
    if (current_state == LinkState::silent) continue;
    connections_.remove_if([&](ProxiedConnection& connection) {
      if (current_state == LinkState::refusing || (connection.has_lost_data && current_state != LinkState::dropping))
        return true;
      return (is_readable(connection.client) && !forward(connection, false)) ||
             (is_readable(connection.server) && !forward(connection, true));
    });
  }
}

void Proxy::accept_connection() {
  ProxiedConnection connection{Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), make_stream_socket()};
  if (state_ == LinkState::refusing || !connection.client ||
      ::connect(connection.server.get(), upstream_.get(), upstream_.size) != 0) {
    return;
  }
  connections_.push_back(std::move(connection));
}

bool Proxy::forward(ProxiedConnection& connection, bool is_reply) {
  std::array<char, 65536> bytes;
  const Fd& source = is_reply ? connection.server : connection.client;
  const Fd& destination = is_reply ? connection.client : connection.server;
  const ssize_t received = ::recv(source.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received <= 0) return false;
  if (state_ == LinkState::dropping) {
    connection.has_lost_data = true;
    return true;
  }
  const bool should_cut = state_ == LinkState::cutting && is_reply;
  const auto size = static_cast<std::size_t>(should_cut ? received / 2 : received);
  const bool sent = ::send(destination.get(), bytes.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
  return sent && !should_cut;
}

}  // namespace mycojobs::test
