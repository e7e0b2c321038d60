#include "api/http/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

Code code_of(int error) {
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
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0)
    return fail(Code::invalid, "\"" + address.host + "\" is not an address of this host: " + gai_strerror(error));
  return Addresses(found, &::freeaddrinfo);
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
  MJ_TRY(found, resolve(address));
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  address.loopback = is_loopback(storage);
  return address;
}

Result<ListeningSocket> open_listening(const ListenAddress& address) {
  MJ_TRY(found, resolve(address));
  const std::string name = address.host + ':' + std::to_string(address.port);
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int on = 1;
  ListeningSocket out{Fd(::socket(found->ai_family, type, 0)), 0};
  if (!out.socket) return fail(Code::io, name + ": " + errno_text(errno));
  (void)::setsockopt(out.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(out.socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(out.socket.get(), kBacklog) != 0) {
    const int error = errno;
    const std::string remedy = error == EADDRINUSE ? ": another program listens there; choose another port" : "";
    return fail(code_of(error), name + ": " + errno_text(error) + remedy);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(out.socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return fail(Code::io, name + ": " + errno_text(errno));
  sockaddr_in6 six{};
  sockaddr_in four{};
  std::memcpy(&six, &bound, sizeof six);
  std::memcpy(&four, &bound, sizeof four);
  out.port = ntohs(bound.ss_family == AF_INET6 ? six.sin6_port : four.sin_port);
  return out;
}

bool is_loopback_peer(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && is_loopback(peer);
}

std::string network_of_peer(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return {};
  sockaddr_in6 six{};
  sockaddr_in four{};
  std::memcpy(&six, &peer, sizeof six);
  std::memcpy(&four, &peer, sizeof four);
  const bool is_six = peer.ss_family == AF_INET6;
  const bool is_mapped = is_six && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
  if (is_mapped) std::memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  std::memset(&six.sin6_addr.s6_addr[8], 0, 8);
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool as_six = is_six && !is_mapped;
  const void* address = as_six ? static_cast<const void*>(&six.sin6_addr) : &four.sin_addr;
  const char* shown = ::inet_ntop(as_six ? AF_INET6 : AF_INET, address, text.data(), text.size());
  return shown == nullptr ? "" : shown;
}

void Connection::expect(std::uint32_t ms) {
  read_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

void Connection::expect_body(std::uint32_t ms, std::uint32_t part_ms) {
  expect(ms);
  part_ms_ = part_ms;
}

void Connection::allow(std::uint32_t ms) {
  write_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

bool Connection::wait(short events, Deadline until) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{socket_.get(), events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<long long>(left, 3'600'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool Connection::wait_for_byte() {
  if (!ahead_.empty()) return true;
  if (broken_ || !wait(POLLIN, read_until_)) return false;
  char byte = 0;
  return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

long receive_some(int socket, std::string& onto) {
  char part[16384];
  const ssize_t got = ::recv(socket, part, sizeof part, MSG_DONTWAIT);
  if (got > 0) onto.append(part, static_cast<std::size_t>(got));
  return got;
}

bool Connection::fill() {
  while (!broken_ && wait(POLLIN, read_until_)) {
    const long got = receive_some(socket_.get(), ahead_);
    if (got > 0) return true;
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
  }
  return false;
}

Result<bool> Connection::read_head(RequestReader& reader) {
  while (true) {
    MJ_TRY(taken, reader.parse_head(ahead_));
    ahead_.erase(0, taken);
    if (reader.has_head()) return true;
    if (!fill()) return false;
  }
}

Result<bool> Connection::read_body(RequestReader& reader, BodyMemoryBudget& share) {
  bool awaited = reader.awaits_continue();
  while (true) {
    MJ_TRY(taken, reader.parse_body(ahead_, share));
    ahead_.erase(0, taken);
    if (reader.done()) return true;
    if (std::exchange(awaited, false) && !write("HTTP/1.1 100 Continue\r\n\r\n")) return false;
    const Deadline whole = read_until_;
    read_until_ = std::min(whole, std::chrono::steady_clock::now() + std::chrono::milliseconds(part_ms_));
    const bool filled = fill();
    read_until_ = whole;
    if (!filled) return false;
  }
}

bool Connection::write(std::string_view text) {
  while (!broken_ && !text.empty()) {
    const ssize_t sent = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if ((sent < 0 && errno != EAGAIN && errno != EINTR) || !wait(POLLOUT, write_until_)) {
      broken_ = true;
    }
  }
  return !broken_;
}

void Connection::finish() {
  ::shutdown(socket_.get(), SHUT_WR);
  do ahead_.clear();
  while (fill());
}

}  // namespace mycojobs::api
