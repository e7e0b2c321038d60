#include "api/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/errno_text.h"
#include "base/ids.h"

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
    return fail(Code::invalid, "\"" + address.host + "\" is no address of this host: " + gai_strerror(error));
  return Addresses(found, &::freeaddrinfo);
}

}  // namespace

Result<ListenAddress> parse_listen(const std::string& text) {
  const auto colon = text.rfind(':');
  std::uint64_t port = 0;
  if (colon == std::string::npos || !parse_u64(text.substr(colon + 1), port) || port > 65535)
    return fail(Code::invalid, "\"" + text + "\" is no ADDRESS:PORT, such as 127.0.0.1:9652 or [::1]:9652");
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

Result<Listening> open_listening(const ListenAddress& address) {
  MJ_TRY(found, resolve(address));
  const std::string name = address.host + ':' + std::to_string(address.port);
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int on = 1;
  Listening out{Fd(::socket(found->ai_family, type, 0)), 0};
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

void Connection::expect(std::uint32_t ms, std::size_t bytes) {
  read_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  bytes_left_ = bytes;
  chunks_.reset();
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
  if (at_ < ahead_.size()) return true;
  if (broken_ || !wait(POLLIN, read_until_)) return false;
  char byte = 0;
  return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

long Connection::fill() {
  constexpr std::size_t kAtOnce = 16384;
  ahead_.erase(0, std::exchange(at_, 0));
  const std::size_t before = ahead_.size();
  while (true) {
    if (!wait(POLLIN, read_until_)) return -1;
    ahead_.resize(before + kAtOnce);
    const ssize_t got = ::recv(socket_.get(), ahead_.data() + before, kAtOnce, MSG_DONTWAIT);
    ahead_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    return got;
  }
}

Result<std::size_t> Connection::wait_for_head() {
  std::size_t looked = 0;
  while (!broken_) {
    MJ_TRY(length, head_length(ahead(), looked));
    if (length > bytes_left_ || (length == 0 && ahead().size() > bytes_left_))
      return mycojobs::fail(Code::too_large, "the head is over its limit");
    if (length > 0) return length;
    looked = ahead().size();
    const long got = fill();
    if (got == 0) return 0;
    if (got < 0) broken_ = true;
  }
  return mycojobs::fail(Code::unavailable, "the head does not come");
}

long Connection::read(char* into, std::size_t size) {
  if (broken_ || misframed_) return -1;
  // Also of what has arrived already: a head of a thousand lines is over the limit however fast it came.
  if (bytes_left_ == 0) return fail();
  if (at_ == ahead_.size()) {
    const long got = fill();
    if (got <= 0) return got == 0 ? 0 : fail();
  }
  const std::size_t taken = std::min({size, ahead_.size() - at_, bytes_left_});
  if (chunks_ && !chunks_->over() && !chunks_->accept(ahead().substr(0, taken))) {
    misframed_ = true;
    return -1;
  }
  std::memcpy(into, ahead_.data() + at_, taken);
  at_ += taken;
  bytes_left_ -= taken;
  return static_cast<long>(taken);
}

long Connection::write(const char* from, std::size_t size) {
  if (broken_) return -1;
  std::size_t done = 0;
  while (done < size) {
    const ssize_t sent = ::send(socket_.get(), from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return fail();
    if (!wait(POLLOUT, write_until_)) return fail();
  }
  return static_cast<long>(size);
}

}  // namespace mycojobs::api
