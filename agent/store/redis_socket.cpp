#include "store/redis_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/errno_text.h"

namespace mycojobs {
namespace {

// 0, or an errno: ETIMEDOUT at the deadline.
int wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{fd, events, 0};
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1 << 30)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (std::chrono::steady_clock::now() >= deadline) return ETIMEDOUT;
  }
}

// 0, or an errno.
int connect_to(Fd& out, int family, const sockaddr* address, socklen_t size, Deadline deadline) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  if (::connect(fd.get(), address, size) != 0) {
    if (errno != EINPROGRESS) return errno;  // EAGAIN: the backlog of a unix socket is full
    if (const int error = wait_for(fd.get(), POLLOUT, deadline); error != 0) return error;
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  out = std::move(fd);
  return 0;
}

int connect_unix(Fd& out, const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  return connect_to(out, AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

void tune_tcp(int fd) {
  const int on = 1;
  const int idle_s = 15;
  const int interval_s = 5;
  const int probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

tl::unexpected<Error> unreachable(const RedisEndpoint& endpoint, const std::string& why) {
  return fail(Code::unavailable, "cannot connect to Redis at " + endpoint.shown() + ": " + why);
}

}  // namespace

Deadline deadline_in(std::uint64_t ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }

Result<Fd> connect_socket(const RedisEndpoint& endpoint, Deadline deadline) {
  Fd fd;
  if (!endpoint.unix_path.empty()) {
    const int error = connect_unix(fd, endpoint.unix_path, deadline);
    if (error != 0) return unreachable(endpoint, errno_text(error));
    return fd;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) return unreachable(endpoint, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int last = ETIMEDOUT;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    last = connect_to(fd, each->ai_family, each->ai_addr, each->ai_addrlen, deadline);
    if (last == 0) {
      tune_tcp(fd.get());
      return fd;
    }
  }
  return unreachable(endpoint, errno_text(last));
}

std::string send_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(fd, POLLOUT, deadline); error != 0) return errno_text(error);
    } else if (errno != EINTR) {
      return errno_text(errno);
    }
  }
  return {};
}

std::string receive_some(int fd, std::span<char> room, std::size_t& got, Deadline deadline) {
  for (;;) {
    const ssize_t count = ::recv(fd, room.data(), room.size(), 0);
    if (count > 0) {
      got = static_cast<std::size_t>(count);
      return {};
    }
    if (count == 0) return "the server closed the connection";
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int error = wait_for(fd, POLLIN, deadline);
      if (error == ETIMEDOUT) return "no answer in time";
      if (error != 0) return errno_text(error);
    } else if (errno != EINTR) {
      return errno_text(errno);
    }
  }
}

}  // namespace mycojobs
