#include "sandbox/egress/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/errno_text.h"
#include "sandbox/egress/socket_address.h"
#include "sandbox/egress/socks.h"

namespace mycojobs::egress {
namespace {

constexpr std::size_t kMaxAttempts = 4;
// The kernel would otherwise let each socket buffer grow to megabytes, which are charged to the host and not to the
// job.
constexpr int kSocketBufferBytes = 208 << 10;

void set_socket_options(int fd) {
  const int enabled = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &enabled, sizeof enabled);
}

// Returns 0, or an errno if no connection attempt is in progress.
int start_connect(int fd, const IpAddress& address, std::uint16_t port) {
  const SocketAddress socket_address(address, port);
  return ::connect(fd, socket_address.get(), socket_address.size()) == 0 || errno == EINPROGRESS ? 0 : errno;
}

constexpr std::size_t kBufferBytes = 32U << 10;  // size of a read, and limit of buffered data per direction

constexpr std::uint32_t kBrokenEvents = EPOLLERR | EPOLLHUP;

bool is_retriable(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Connection::Connection(ProxyRunState& run, std::uint32_t id, Fd client, std::uint64_t now_ms)
    : run_(run), id_(id), now_ms_(now_ms), deadline_ms_(now_ms + run.timeouts.header_ms) {
  client_.fd = std::move(client);
  set_socket_options(client_.fd.get());
  watch(client_, EPOLLIN);
}

// Defined explicitly, since ending a lookup calls back into members that must still exist.
Connection::~Connection() { close(); }

void Connection::on_event(int fd, std::uint32_t events, std::uint64_t now_ms) {
  now_ms_ = now_ms;
  switch (state_) {
    case State::reading:
      return read_request();
    case State::resolving:
      lookup_->on_event(fd, events);
      return use_addresses();
    case State::connecting: {
      int error = 0;
      socklen_t size = sizeof error;
      if (fd != server_.fd.get()) return;
      if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      if (error == 0) {
        // Ignores a late event of an earlier descriptor with the same number.
        sockaddr_storage peer{};
        size = sizeof peer;
        return ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 ? on_connected() : void();
      }
      last_failure_ = errno_text(error);
      return connect_next();
    }
    case State::relaying:
      return relay(fd, events);
    case State::draining:
      return drain(events);
    case State::closed:
      return;
  }
}

void Connection::on_time(std::uint64_t now_ms) {
  now_ms_ = now_ms;
  if (state_ == State::resolving) {
    lookup_->on_time();
    use_addresses();
  }
  if (now_ms < deadline_ms_) return;
  switch (state_) {
    case State::reading:
      return protocol_ == Protocol::unknown ? close()
                                            : refuse(408, socks_failure, "the request was not received in time");
    case State::resolving:
      return refuse(504, socks_unreachable, request_.target.host.name + ": its name servers do not answer");
    case State::connecting:
      last_failure_ = "no answer in time";
      return connect_next();
    case State::relaying:
      return refuse(504, socks_failure, "the server did not answer in time");
    case State::draining:
    case State::closed:
      return close();
  }
}

void Connection::read_request() {
  char buffer[4096];
  const std::size_t max_size = std::min(sizeof buffer, kMaxHeadBytes - input_.size());
  const ssize_t size = ::recv(client_.fd.get(), buffer, max_size, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return close();
  input_.append(buffer, static_cast<std::size_t>(size));
  if (protocol_ == Protocol::unknown) {
    const char first = input_.front();
    if (first == 5) {
      protocol_ = Protocol::socks;
    } else if (first >= 'A' && first <= 'Z') {
      protocol_ = Protocol::http;
    } else {
      return deny(400, socks_failure, "a connection to the proxy that speaks neither HTTP nor SOCKS5");
    }
  }
  const bool is_complete = protocol_ == Protocol::http ? read_http() : read_socks();
  if (state_ != State::reading) return;
  if (is_complete) return resolve_target(request_.target);
  if (input_.size() >= kMaxHeadBytes) deny(431, socks_failure, "the head of a request is over 16 KiB");
}

bool Connection::read_http() {
  const auto size = parser_.parse_head(input_);
  if (size && *size == 0) return false;
  auto head = size ? read_request_head(parser_) : tl::unexpected<Error>(size.error());
  if (!head) {
    deny(400, 0, head.error().message);
    return false;
  }
  request_ = std::move(*head);
  input_.erase(0, *size);
  return true;
}

bool Connection::read_socks() {
  if (!is_greeted_) {
    const auto size = parse_socks_greeting(input_);
    if (!size) {
      deny(0, size.error().reply, size.error().reason);
      return false;
    }
    if (*size == 0) return false;
    input_.erase(0, *size);
    is_greeted_ = true;
    // Two bytes into an empty buffer always fit, unless the job has closed the connection.
    if (::send(client_.fd.get(), "\x05\0", 2, MSG_DONTWAIT | MSG_NOSIGNAL) != 2) {
      close();
      return false;
    }
  }
  auto parsed = parse_socks_request(input_);
  if (!parsed) {
    deny(0, parsed.error().reply, parsed.error().reason);
    return false;
  }
  if (parsed->size == 0) return false;
  request_.target = std::move(parsed->target);
  request_.is_tunnel = true;
  input_.erase(0, parsed->size);
  return true;
}

void Connection::resolve_target(HostPort target) {
  watch(client_, 0);  // nothing more is read until the server is connected
  if (state_ == State::closed) return;
  if (const auto allowed = run_.checker.check_request(target); !allowed)
    return deny(403, socks_not_allowed, allowed.error().message);
  deadline_ms_ = now_ms_ + run_.timeouts.connect_ms;
  state_ = State::resolving;
  if (!target.host.address) {
    lookup_ = run_.resolver.start_lookup(target.host.name, [this](int fd, std::uint32_t events) {
      std::uint32_t& current_events = lookup_waits_[fd];
      // A lookup whose descriptor cannot be watched ends by its own time-out.
      (void)run_.poller.set_events(fd, id_, current_events, events);
      if (current_events == 0) lookup_waits_.erase(fd);
    });
  }
  use_addresses();
}

void Connection::use_addresses() {
  std::vector<IpAddress> addresses;
  if (lookup_) {
    if (!lookup_->answer()) return;
    const auto answer = *lookup_->answer();
    lookup_.reset();
    if (!answer) return refuse(502, socks_unreachable, answer.error().message);
    addresses = *answer;
  } else {
    addresses = {*request_.target.host.address};
  }
  const auto host_addresses = list_host_addresses(addresses);  // evaluated now, since interfaces change
  if (!host_addresses) return refuse(500, socks_failure, host_addresses.error().message);
  // All addresses must be allowed before any is used: a mix of public and private addresses is never legitimate.
  for (const auto& address : addresses) {
    const auto allowed = run_.checker.check_address(request_.target, address, *host_addresses);
    if (!allowed) return deny(403, socks_not_allowed, allowed.error().message);
  }
  // IPv4 first (at the back), since unreachable IPv6 destinations often cause time-outs instead of errors.
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const IpAddress& a, const IpAddress& b) { return a.is_v6 && !b.is_v6; });
  if (addresses.size() > kMaxAttempts) addresses.erase(addresses.begin(), addresses.end() - kMaxAttempts);
  attempt_timeout_ms_ = run_.timeouts.connect_ms / addresses.size();
  candidates_ = std::move(addresses);
  connect_next();
}

void Connection::connect_next() {
  state_ = State::connecting;
  while (!candidates_.empty()) {
    const IpAddress address = candidates_.back();
    candidates_.pop_back();
    watch(server_, 0);
    server_.fd.reset(::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = server_.fd ? 0 : errno;
    if (error == 0) {
      set_socket_options(server_.fd.get());
      error = start_connect(server_.fd.get(), address, request_.target.port);
    }
    if (error == 0) {
      deadline_ms_ = now_ms_ + attempt_timeout_ms_;
      return watch(server_, EPOLLOUT);
    }
    last_failure_ = errno_text(error);
  }
  refuse(502, socks_refused, to_text(request_.target) + ": " + last_failure_);
}

void Connection::on_connected() {
  ++run_.connections;
  state_ = State::relaying;
  deadline_ms_ = now_ms_ + run_.timeouts.idle_ms;
  candidates_.clear();
  if (protocol_ == Protocol::socks) {
    downstream_.pending = encode_socks_reply(socks_granted);
  } else if (request_.is_tunnel) {
    downstream_.pending = "HTTP/1.1 200 Connection established\r\n\r\n";
  } else {
    run_.bytes_up += request_.forwarded_head.size();
    upstream_.pending = std::exchange(request_.forwarded_head, {});
  }
  const std::string early_data = std::exchange(input_, {});
  if (!early_data.empty() && !read_upstream(early_data)) return;
  flush(upstream_);
  if (state_ == State::relaying) flush(downstream_);
  if (state_ == State::relaying) update_events();
}

void Connection::deny(int status, std::uint8_t socks_reply, const std::string& reason) {
  ++run_.denied;
  run_.report_denied(reason);
  refuse(status, socks_reply, reason);
}

// The status line contains the reason too, since clients that open a tunnel show the status line, not the body.
void Connection::refuse(int status, std::uint8_t socks_reply, const std::string& reason) {
  // A response that is partly sent cannot be replaced by an error.
  if (state_ == State::relaying && (request_.is_tunnel || response_.is_complete())) return abort();
  watch(server_, 0);
  server_.fd.reset();
  lookup_.reset();
  downstream_.pending.clear();
  if (protocol_ == Protocol::unknown) return close();
  if (protocol_ == Protocol::socks) {
    downstream_.pending = encode_socks_reply(socks_reply);
  } else {
    const std::string text = "mycojobs: " + reason;
    downstream_.pending = "HTTP/1.1 " + std::to_string(status) + ' ' + text +
                          "\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(text.size() + 1) +
                          "\r\nConnection: close\r\n\r\n" + text + '\n';
  }
  start_draining();
}

bool Connection::should_read(const RelayDirection& direction) const {
  if (direction.has_ended || !direction.pending.empty()) return false;
  return &direction != &upstream_ || request_.is_tunnel || !parser_.is_complete();
}

void Connection::relay(int fd, std::uint32_t events) {
  const bool is_client = fd == client_.fd.get();
  RelayDirection& source = is_client ? upstream_ : downstream_;
  RelayDirection& destination = is_client ? downstream_ : upstream_;
  if ((events & (EPOLLOUT | kBrokenEvents)) != 0 && !destination.pending.empty()) flush(destination);
  if (state_ == State::relaying && (events & (EPOLLIN | kBrokenEvents)) != 0 && should_read(source)) fill(source);
  if (state_ == State::relaying) update_events();
}

void Connection::fill(RelayDirection& direction) {
  const bool is_upstream = &direction == &upstream_;
  char buffer[kBufferBytes];
  const ssize_t size = ::recv((is_upstream ? client_ : server_).fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (size < 0) {
    if (is_retriable(errno)) return;
    if (is_upstream || request_.is_tunnel || response_.is_complete()) return abort();
    return refuse(502, socks_failure, "the server broke the connection without an answer: " + errno_text(errno));
  }
  if (size == 0) {
    if (is_upstream && !request_.is_tunnel) return abort();  // incomplete body
    direction.has_ended = true;
    return forward_shutdown(direction);
  }
  const std::string_view bytes(buffer, static_cast<std::size_t>(size));
  if (is_upstream ? read_upstream(bytes) : read_downstream(bytes)) flush(direction);
}

// Returns false if the connection has ended or will end.
bool Connection::read_upstream(std::string_view bytes) {
  if (!request_.is_tunnel) {
    input_ += bytes;
    HttpRequestParser::Body forwarded_body;  // unchanged, including chunks
    const auto body_size = parser_.parse_body(input_, forwarded_body);
    if (!body_size) {
      deny(400, socks_failure, body_size.error().message);
      return false;
    }
    run_.bytes_up += *body_size;
    upstream_.pending.append(input_, 0, *body_size);
    // Bytes after a complete body are discarded: they are not part of the request that was checked.
    input_.erase(0, parser_.is_complete() ? input_.npos : *body_size);
    if (input_.empty()) std::string().swap(input_);
    return true;
  }
  run_.bytes_up += bytes.size();
  upstream_.pending += bytes;
  return true;
}

bool Connection::read_downstream(std::string_view bytes) {
  run_.bytes_down += bytes.size();
  if (request_.is_tunnel) {
    downstream_.pending += bytes;
    return true;
  }
  auto forwarded = response_.feed(bytes);
  if (!forwarded) {
    refuse(502, socks_failure, forwarded.error().message);
    return false;
  }
  downstream_.pending += *forwarded;
  return true;
}

void Connection::flush(RelayDirection& direction) {
  const bool is_upstream = &direction == &upstream_;
  if (!direction.pending.empty()) {
    const ssize_t size = ::send((is_upstream ? server_ : client_).fd.get(), direction.pending.data(),
                                direction.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0) {
      if (is_retriable(errno)) return;
      if (!is_upstream) return abort();
      // The server accepts no more data, but may have sent the reason before it closed: its response is still
      // forwarded.
      direction.has_ended = direction.is_end_forwarded = direction.is_broken = true;
      direction.pending = {};
      return downstream_.is_end_forwarded ? abort() : void();
    }
    deadline_ms_ = now_ms_ + run_.timeouts.idle_ms;
    direction.pending.erase(0, static_cast<std::size_t>(size));
    if (!direction.pending.empty()) return;
    std::string().swap(direction.pending);  // idle connections hold no buffer
  }
  forward_shutdown(direction);
}

void Connection::forward_shutdown(RelayDirection& direction) {
  if (!direction.has_ended || direction.is_end_forwarded || !direction.pending.empty()) return;
  if (!request_.is_tunnel) {  // the server has ended
    if (!response_.is_complete()) return refuse(502, socks_failure, "the server closed without an answer");
    return start_draining();
  }
  direction.is_end_forwarded = true;
  ::shutdown((&direction == &upstream_ ? server_ : client_).fd.get(), SHUT_WR);
  // Data of the job for a closed server is read and discarded; otherwise a reset would discard the server's last data.
  if (upstream_.is_end_forwarded && downstream_.is_end_forwarded) upstream_.is_broken ? start_draining() : close();
}

void Connection::start_draining() {
  watch(server_, 0);
  server_.fd.reset();
  upstream_ = {};
  downstream_.has_ended = true;
  downstream_.is_end_forwarded = false;
  state_ = State::draining;
  deadline_ms_ = now_ms_ + run_.timeouts.drain_ms;
  drain(EPOLLOUT);
}

void Connection::drain(std::uint32_t events) {
  if (!downstream_.pending.empty()) {
    const ssize_t size =
        ::send(client_.fd.get(), downstream_.pending.data(), downstream_.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0 && !is_retriable(errno)) return close();
    if (size > 0) downstream_.pending.erase(0, static_cast<std::size_t>(size));
  }
  if (downstream_.pending.empty() && !downstream_.is_end_forwarded) {
    ::shutdown(client_.fd.get(), SHUT_WR);
    downstream_.is_end_forwarded = true;
  }
  if ((events & (EPOLLIN | kBrokenEvents)) != 0 && !upstream_.has_ended) {
    char buffer[kBufferBytes];
    const ssize_t size = ::recv(client_.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0 && !is_retriable(errno)) return close();
    if (size == 0) upstream_.has_ended = true;
  }
  if (upstream_.has_ended && downstream_.is_end_forwarded) return close();
  watch(client_, (upstream_.has_ended ? 0U : static_cast<std::uint32_t>(EPOLLIN)) |
                     (downstream_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
}

void Connection::update_events() {
  watch(client_, (should_read(upstream_) ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                     (downstream_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
  if (state_ == State::closed) return;
  watch(server_, (should_read(downstream_) ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                     (upstream_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
}

void Connection::watch(Endpoint& endpoint, std::uint32_t events) {
  if (!endpoint.fd) return;
  // Out of memory: a connection that is not watched would never end.
  if (run_.poller.set_events(endpoint.fd.get(), id_, endpoint.watched_events, events) != 0) abort();
}

void Connection::abort() {
  const linger reset_on_close{1, 0};
  for (Endpoint* endpoint : {&client_, &server_}) {
    if (endpoint->fd) ::setsockopt(endpoint->fd.get(), SOL_SOCKET, SO_LINGER, &reset_on_close, sizeof reset_on_close);
  }
  close();
}

void Connection::close() {
  state_ = State::closed;
  lookup_.reset();
  client_ = {};
  server_ = {};
}

}  // namespace mycojobs::egress
