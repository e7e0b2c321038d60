#include "store/redis/redis_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/errno_text.h"
#include "net/host_lookup.h"
#include "store/redis/redis_connection.h"

namespace mycojobs {
namespace {

constexpr const char* kClosed = "the server closed the connection";
// A server that has not answered to a handshake in this time is tested for plain text, for as long at most.
constexpr std::chrono::milliseconds kMaxSilence{500};
// Time until the next address of a host is tried while the previous ones have not answered (RFC 8305).
constexpr std::chrono::milliseconds kAddressDelay{250};

// Starts to connect a new non-blocking socket. Returns 0 or an errno; EINPROGRESS: the socket becomes writable when the
// result is known. EAGAIN means that the backlog of a unix socket is full.
int start_connect(Fd& out, int family, const sockaddr* address, socklen_t size) {
  out = Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return out && ::connect(out.get(), address, size) == 0 ? 0 : errno;
}

int finish_connect(const Fd& fd) {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Connects a new non-blocking socket. Returns 0 or an errno.
int connect_to(Fd& out, int family, const sockaddr* address, socklen_t size, Deadline deadline) {
  Fd fd;
  int error = start_connect(fd, family, address, size);
  if (error == EINPROGRESS) error = wait_for_events(fd.get(), POLLOUT, deadline);
  if (error == 0) error = finish_connect(fd);
  if (error == 0) out = std::move(fd);
  return error;
}

// Waits until one of the sockets has a result or the deadline has passed. Removes sockets that have failed. Returns
// true if a socket is connected, which is moved to `out`; `error` is set to the errno of a failure.
bool poll_connects(std::vector<Fd>& sockets, Fd& out, int& error, Deadline deadline) {
  std::vector<pollfd> fds;
  for (const Fd& fd : sockets) fds.push_back({fd.get(), POLLOUT, 0});
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline - Deadline::clock::now()).count();
  if (::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<std::int64_t>(ms, 0, 1 << 30))) <= 0) return false;
  for (std::size_t i = sockets.size(); i-- > 0;) {
    if (fds[i].revents == 0) continue;
    const int result = finish_connect(sockets[i]);
    if (result == 0) {
      out = std::move(sockets[i]);
      return true;
    }
    error = result;
    sockets.erase(sockets.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return false;
}

// Connects to the first address that accepts. An address without an answer delays the next one for a short time only,
// and stays pending. Returns 0 or an errno.
int connect_to_any(Fd& out, const std::vector<SocketAddress>& addresses, Deadline deadline) {
  int error = ETIMEDOUT;
  std::vector<Fd> pending;
  for (std::size_t next = 0; next < addresses.size() || !pending.empty();) {
    if (next < addresses.size()) {
      const SocketAddress& address = addresses[next++];
      Fd fd;
      const int result = start_connect(fd, address.family(), address.get(), address.size);
      if (result == 0) {
        out = std::move(fd);
        return 0;
      }
      if (result != EINPROGRESS) {
        error = result;
        continue;
      }
      pending.push_back(std::move(fd));
    }
    const std::size_t pending_count = pending.size();
    const std::size_t untried_count = addresses.size() - next;
    const auto now = Deadline::clock::now();
    const auto remaining = deadline - now;
    const Deadline limit =
        untried_count == 0
            ? deadline
            : now + std::min<Deadline::duration>(remaining / static_cast<int>(untried_count + 1), kAddressDelay);
    do {
      if (poll_connects(pending, out, error, limit)) return 0;
    } while (pending.size() == pending_count && Deadline::clock::now() < limit);
    if (untried_count == 0 && pending.size() == pending_count) return ETIMEDOUT;
  }
  return error;
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

tl::unexpected<Error> unreachable(const RedisEndpoint& endpoint, const std::string& reason, std::string_view remedy,
                                  Code code = Code::unavailable) {
  return fail(code, "cannot connect to Redis at " + endpoint.redacted_url() + ": " + reason +
                        (remedy.empty() ? "" : " (" + std::string(remedy) + ")"));
}

std::string_view find_remedy(int error, bool is_path) {
  switch (error) {
    case ENOENT:
      return "the socket does not exist: check that Redis runs and that its setting `unixsocket` has this path";
    case ECONNREFUSED:
      return is_path ? "no process listens on the socket: check that Redis runs"
                     : "no process listens there: check that Redis runs, that the port of the redis url is correct, "
                       "and that its setting `bind` has this address";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "no route to the host: is the host of the redis url right?";
    case ETIMEDOUT:
      return "no answer: check the host of the redis url and whether a firewall blocks its port";
    case EACCES:
      return "this user has no permission for the socket: see the Redis setting `unixsocketperm`";
    default:
      return "";
  }
}

// Connects to the first address of the host that accepts. Error: unavailable, naming the endpoint.
Result<Fd> connect_socket(const RedisEndpoint& endpoint, Deadline deadline) {
  Fd fd;
  if (!endpoint.unix_path.empty()) {
    const int error = connect_unix(fd, endpoint.unix_path, deadline);
    if (error != 0) return unreachable(endpoint, errno_text(error), find_remedy(error, true));
    return fd;
  }
  const auto addresses = resolve_host(endpoint.host, endpoint.port, deadline);
  if (!addresses) {
    const bool is_unavailable = addresses.error().code == Code::unavailable;
    return unreachable(endpoint, addresses.error().message,
                       is_unavailable ? "no name server answers" : "is the host of the redis url right?");
  }
  const int error = connect_to_any(fd, *addresses, deadline);
  if (error != 0) return unreachable(endpoint, errno_text(error), find_remedy(error, false));
  tune_tcp(fd.get());
  return fd;
}

// Redis takes a TLS handshake for the begin of a line, and does not answer. Therefore a second connection to the same
// address sends a command; a server for TLS closes it, and the handshake on the first connection is not disturbed.
bool is_plain_text_server(const Fd& socket, Deadline deadline) {
  SocketAddress address;
  address.size = sizeof address.storage;
  Fd test_socket;
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0 ||
      connect_to(test_socket, address.family(), address.get(), address.size, deadline) != 0)
    return false;
  constexpr std::string_view kCommand = "PING\r\n";
  if (::send(test_socket.get(), kCommand.data(), kCommand.size(), MSG_NOSIGNAL) < 0 ||
      wait_for_events(test_socket.get(), POLLIN, deadline) != 0)
    return false;
  char byte = 0;
  return ::recv(test_socket.get(), &byte, 1, 0) == 1 && (byte == '-' || byte == '+');
}

}  // namespace

Result<RedisStream> RedisStream::connect(const RedisEndpoint& endpoint, const std::shared_ptr<TlsContext>& tls,
                                         Deadline deadline) {
  RedisStream stream;
  if (endpoint.is_tls) {
    // Files that cannot be used are found before the server gets a connection, which it would log as a failure.
    if (const auto loaded = tls->load(); !loaded)
      return unreachable(endpoint, loaded.error().message, "", loaded.error().code);
  }
  MJ_TRY(socket, connect_socket(endpoint, deadline));
  stream.socket_ = std::move(socket);
  if (endpoint.is_tls) {
    if (auto started = stream.start_tls(endpoint, *tls, deadline); !started)
      return unreachable(endpoint, started.error().message, "", started.error().code);
  }
  return stream;
}

Result<void> RedisStream::start_tls(const RedisEndpoint& endpoint, TlsContext& context, Deadline deadline) {
  MJ_TRY(tls, TlsStream::open(context, socket_.get(), endpoint.host, endpoint.redacted_url()));
  const auto remaining = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Deadline::clock::now());
  const auto silence = std::min(remaining / 4, kMaxSilence);
  auto result = tls->handshake(Deadline::clock::now() + silence);
  if (tls->is_handshake_pending() && !tls->has_received() &&
      is_plain_text_server(socket_, Deadline::clock::now() + silence))
    return fail(Code::unavailable,
                "the server answers in plain text: use its port for TLS (setting `tls-port`), or redis:// if it has "
                "none and the network is trusted");
  if (tls->is_handshake_pending()) result = tls->handshake(deadline);
  if (result) {
    tls_ = std::move(tls);
    return {};
  }
  if (tls->has_received() && result.error().code == Code::unavailable) return result;
  if (result.error().code == Code::unavailable)
    result.error().message += " (does the server use TLS at this port? For plain text, use redis://)";
  return result;
}

void RedisStream::close() {
  if (tls_) tls_->shut_down();
  tls_.reset();
  socket_.reset();
}

Result<void> RedisStream::send_all(std::string_view bytes, Deadline deadline) {
  if (tls_) {
    auto sent = tls_->send_all(bytes, deadline);
    is_closed_by_peer_ = tls_->is_closed_by_peer();
    return sent;
  }
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int error = wait_for_events(socket_.get(), POLLOUT, deadline);
      if (error != 0) return fail(Code::unavailable, errno_text(error));
    } else if (errno != EINTR) {
      return fail(Code::unavailable, errno_text(errno));
    }
  }
  return {};
}

Result<std::size_t> RedisStream::receive(std::span<char> buffer, Deadline deadline) {
  if (tls_) {
    auto received = tls_->receive(buffer, deadline);
    is_closed_by_peer_ = tls_->is_closed_by_peer();
    return received;
  }
  for (;;) {
    MJ_TRY(received, receive_available(buffer));
    if (received > 0) return received;
    const int error = wait_for_events(socket_.get(), POLLIN, deadline);
    if (error == ETIMEDOUT) return fail(Code::unavailable, "no answer in time");
    if (error != 0) return fail(Code::unavailable, errno_text(error));
  }
}

Result<std::size_t> RedisStream::receive_available(std::span<char> buffer) {
  if (tls_) {
    auto received = tls_->receive_available(buffer);
    is_closed_by_peer_ = tls_->is_closed_by_peer();
    return received;
  }
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) return static_cast<std::size_t>(count);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::size_t{0};
    if (count < 0 && errno == EINTR) continue;
    is_closed_by_peer_ = count == 0 || errno == ECONNRESET;
    return fail(Code::unavailable, count == 0 ? kClosed : errno_text(errno));
  }
}

bool RedisStream::is_closed_or_has_data() {
  pollfd idle{socket_.get(), POLLIN | POLLRDHUP, 0};
  const bool is_readable = ::poll(&idle, 1, 0) != 0;
  if (!tls_) return is_readable;
  if ((idle.revents & POLLRDHUP) != 0) return true;
  if (!is_readable && !tls_->has_buffered_input()) return false;
  char byte = 0;
  const auto received = tls_->receive_available(std::span(&byte, 1));
  return !received || *received > 0;
}

std::optional<TlsState> RedisStream::tls_state() const { return tls_ ? std::optional(tls_->state()) : std::nullopt; }

}  // namespace mycojobs
