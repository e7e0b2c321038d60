#include "api/http/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/errno_text.h"
#include "base/parse.h"

namespace mycojobs::api {
namespace {

constexpr int kBacklog = 256;

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  return address.ss_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
                                           (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127));
}

Code to_code(int error) {
  switch (error) {
    case EADDRINUSE:
      return Code::conflict;
    case EACCES:
    case EPERM:
      return Code::denied;
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
      return Code::invalid;
    default:
      return Code::io;
  }
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Addresses> resolve(const ListenAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* addresses = nullptr;
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  std::to_string(address.port).c_str(), &hints, &addresses);
  if (error != 0)
    return fail(Code::invalid, "\"" + address.host + "\" is not an address of this host: " + gai_strerror(error));
  return Addresses(addresses, &::freeaddrinfo);
}

}  // namespace

Result<ListenAddress> parse_listen(const std::string& text) {
  const auto colon = text.rfind(':');
  std::uint64_t port = 0;
  if (colon == std::string::npos || !parse_u64(text.substr(colon + 1), port) || port > 65535)
    return fail(Code::invalid, "\"" + text + "\" is not ADDRESS:PORT, for example 127.0.0.1:9652 or [::1]:9652");
  ListenAddress address{text.substr(0, colon), static_cast<std::uint16_t>(port), false};
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return fail(Code::invalid, "\"" + text + "\": write an IPv6 address in brackets, as in [::1]:9652");
  }
  if (address.host.empty()) return address;
  MJ_TRY(addresses, resolve(address));
  sockaddr_storage storage{};
  std::memcpy(&storage, addresses->ai_addr, addresses->ai_addrlen);
  address.loopback = is_loopback(storage);
  return address;
}

Result<ListeningSocket> open_listening(const ListenAddress& address) {
  MJ_TRY(addresses, resolve(address));
  const std::string name = address.host + ':' + std::to_string(address.port);
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int enable = 1;
  ListeningSocket listening{Fd(::socket(addresses->ai_family, type, 0)), 0};
  if (!listening.socket) return fail(Code::io, name + ": " + errno_text(errno));
  (void)::setsockopt(listening.socket.get(), SOL_SOCKET, SO_REUSEADDR, &enable, sizeof enable);
  if (::bind(listening.socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(listening.socket.get(), kBacklog) != 0) {
    const int error = errno;
    const std::string remedy = error == EADDRINUSE ? ": another program listens there; choose another port" : "";
    return fail(to_code(error), name + ": " + errno_text(error) + remedy);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(listening.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return fail(Code::io, name + ": " + errno_text(errno));
  if (address.loopback && !is_loopback(bound))
    return fail(Code::invalid, name + ": the name has changed its address: write an IP address");
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  std::memcpy(&v6, &bound, sizeof v6);
  std::memcpy(&v4, &bound, sizeof v4);
  listening.port = ntohs(bound.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
  return listening;
}

bool is_loopback_peer(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && is_loopback(peer);
}

std::string get_peer_network(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return {};
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  std::memcpy(&v6, &peer, sizeof v6);
  std::memcpy(&v4, &peer, sizeof v4);
  const bool is_v6 = peer.ss_family == AF_INET6;
  const bool is_mapped = is_v6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  if (is_mapped) std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], sizeof v4.sin_addr);
  std::memset(&v6.sin6_addr.s6_addr[8], 0, 8);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool use_v6 = is_v6 && !is_mapped;
  const void* address = use_v6 ? static_cast<const void*>(&v6.sin6_addr) : &v4.sin_addr;
  const char* result = ::inet_ntop(use_v6 ? AF_INET6 : AF_INET, address, text.data(), text.size());
  return result == nullptr ? "" : result;
}

Result<void> ClientSocket::start_tls(TlsContext& context) {
  MJ_TRY(tls, TlsStream::open(context, socket_.get(), "", ""));
  tls_ = std::move(tls);
  return {};
}

ClientSocket::ReceiveResult ClientSocket::receive_available(std::string& buffer) {
  char part[16384];
  if (tls_) {
    const auto received = tls_->receive_available(part);
    if (!received) return ReceiveResult::end;
    buffer.append(part, *received);
    return *received > 0 ? ReceiveResult::bytes : ReceiveResult::nothing;
  }
  const ssize_t received = ::recv(socket_.get(), part, sizeof part, MSG_DONTWAIT);
  if (received > 0) buffer.append(part, static_cast<std::size_t>(received));
  if (received > 0) return ReceiveResult::bytes;
  return received < 0 && (errno == EAGAIN || errno == EINTR) ? ReceiveResult::nothing : ReceiveResult::end;
}

bool ClientSocket::send_all(std::string_view text, Deadline deadline) {
  if (tls_) return tls_->send_all(text, deadline).has_value();
  while (!text.empty()) {
    const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if ((sent < 0 && errno != EAGAIN && errno != EINTR) ||
               wait_for_events(socket_.get(), POLLOUT, deadline) != 0) {
      return false;
    }
  }
  return true;
}

void ClientSocket::end_output() {
  if (tls_) tls_->shut_down();
  ::shutdown(socket_.get(), SHUT_WR);
}

bool ClientSocket::discard_received() {
  char part[16384];
  const ssize_t received = ::recv(socket_.get(), part, sizeof part, MSG_DONTWAIT);
  return received > 0 || (received < 0 && (errno == EAGAIN || errno == EINTR));
}

void ClientSocket::close() {
  if (tls_) tls_->shut_down();
  tls_.reset();
  socket_.reset();
}

void Connection::set_read_timeout(std::uint32_t ms) { read_deadline_ = deadline_after(ms); }

void Connection::set_body_timeouts(std::uint32_t ms, std::uint32_t part_timeout_ms) {
  set_read_timeout(ms);
  part_timeout_ms_ = part_timeout_ms;
}

void Connection::set_write_timeout(std::uint32_t ms) { write_deadline_ = deadline_after(ms); }

bool Connection::wait_for_input() const {
  if (std::chrono::steady_clock::now() >= read_deadline_) return false;
  return socket_.has_buffered_input() || wait_for_events(socket_.fd(), POLLIN, read_deadline_) == 0;
}

bool Connection::receive_more() {
  while (!is_broken_ && wait_for_input()) {
    const auto received = socket_.receive_available(buffered_input_);
    if (received != ClientSocket::ReceiveResult::nothing) return received == ClientSocket::ReceiveResult::bytes;
  }
  return false;
}

Result<bool> Connection::read_head(RequestReader& reader) {
  while (true) {
    MJ_TRY(consumed, reader.parse_head(buffered_input_));
    buffered_input_.erase(0, consumed);
    if (reader.has_head()) return true;
    if (!receive_more()) return false;
  }
}

Result<bool> Connection::read_body(RequestReader& reader, const BodyMemoryCheck& check_memory) {
  return read_body(reader, check_memory, [] { return Result<void>(); });
}

Result<bool> Connection::read_body_parts(RequestReader& reader,
                                         const std::function<Result<void>(std::string_view)>& on_part) {
  return read_body(
      reader, [](std::size_t) { return true; },
      [&]() -> Result<void> {
        std::string& part = reader.request().body;
        if (!part.empty()) MJ_CHECK(on_part(part));
        part.clear();
        return {};
      });
}

Result<bool> Connection::read_body(RequestReader& reader, const BodyMemoryCheck& check_memory,
                                   const std::function<Result<void>()>& on_parsed) {
  bool needs_continue = reader.expects_continue();
  while (true) {
    MJ_TRY(consumed, reader.parse_body(buffered_input_, check_memory));
    buffered_input_.erase(0, consumed);
    MJ_CHECK(on_parsed());
    if (reader.is_complete()) return true;
    if (std::exchange(needs_continue, false) && !write("HTTP/1.1 100 Continue\r\n\r\n")) return false;
    const Deadline body_deadline = read_deadline_;
    read_deadline_ = std::min(body_deadline, deadline_after(part_timeout_ms_));
    const bool has_received = receive_more();
    read_deadline_ = body_deadline;
    if (!has_received) return false;
  }
}

bool Connection::write(std::string_view text) {
  is_broken_ = is_broken_ || !socket_.send_all(text, write_deadline_);
  return !is_broken_;
}

void Connection::finish() {
  buffered_input_.clear();
  socket_.end_output();
  while (wait_for_events(socket_.fd(), POLLIN, read_deadline_) == 0 && socket_.discard_received() &&
         std::chrono::steady_clock::now() < read_deadline_) {
  }
}

bool Connection::is_closed_by_client() {
  constexpr std::size_t kMaxBufferedBytes = 16384;
  if (buffered_input_.size() >= kMaxBufferedBytes) return false;
  return socket_.receive_available(buffered_input_) == ClientSocket::ReceiveResult::end;
}

}  // namespace mycojobs::api
