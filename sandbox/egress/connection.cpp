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
constexpr int kSocketBuffer = 208 << 10;

void tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Returns 0, or an errno if no connection attempt is in progress.
int begin_connect(int fd, const IpAddress& address, std::uint16_t port) {
  const SocketAddress where(address, port);
  return ::connect(fd, where.get(), where.size()) == 0 || errno == EINPROGRESS ? 0 : errno;
}

constexpr std::size_t kPart = 32U << 10;  // size of a read, and limit of buffered data per direction

constexpr std::uint32_t kBroken = EPOLLERR | EPOLLHUP;

bool try_again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Connection::Connection(ProxyRunState& run, std::uint32_t id, Fd client, std::uint64_t now)
    : run_(run), id_(id), now_(now), deadline_(now + run.times.header_ms) {
  client_.fd = std::move(client);
  tune(client_.fd.get());
  wait(client_, EPOLLIN);
}

// Defined explicitly, since ending a lookup calls back into members that must still exist.
Connection::~Connection() { close(); }

void Connection::on_event(int fd, std::uint32_t events, std::uint64_t now) {
  now_ = now;
  switch (state_) {
    case State::reading:
      return read_request();
    case State::resolving:
      lookup_->on_event(fd, events);
      return take_answer();
    case State::connecting: {
      int error = 0;
      socklen_t size = sizeof error;
      if (fd != server_.fd.get()) return;
      if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      if (error == 0) {
        // Ignores a late event of an earlier descriptor with the same number.
        sockaddr_storage peer{};
        size = sizeof peer;
        return ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 ? connected() : void();
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

void Connection::on_time(std::uint64_t now) {
  now_ = now;
  if (state_ == State::resolving) {
    lookup_->on_time();
    take_answer();
  }
  if (now < deadline_) return;
  switch (state_) {
    case State::reading:
      return language_ == Language::unknown ? close()
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
  char part[4096];
  const std::size_t room = std::min(sizeof part, kMaxHeadBytes - input_.size());
  const ssize_t size = ::recv(client_.fd.get(), part, room, MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return close();
  input_.append(part, static_cast<std::size_t>(size));
  if (language_ == Language::unknown) {
    const char first = input_.front();
    if (first == 5) {
      language_ = Language::socks;
    } else if (first >= 'A' && first <= 'Z') {
      language_ = Language::http;
    } else {
      return deny(400, socks_failure, "a connection to the proxy that speaks neither HTTP nor SOCKS5");
    }
  }
  const bool whole = language_ == Language::http ? read_http() : read_socks();
  if (state_ != State::reading) return;
  if (whole) return ask(request_.target);
  if (input_.size() >= kMaxHeadBytes) deny(431, socks_failure, "the head of a request is over 16 KiB");
}

bool Connection::read_http() {
  const auto size = parser_.take_head(input_);
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
  if (!greeted_) {
    const auto size = parse_socks_greeting(input_);
    if (!size) {
      deny(0, size.error().reply, size.error().why);
      return false;
    }
    if (*size == 0) return false;
    input_.erase(0, *size);
    greeted_ = true;
    // Two bytes into an empty buffer always fit, unless the job has closed the connection.
    if (::send(client_.fd.get(), "\x05\0", 2, MSG_DONTWAIT | MSG_NOSIGNAL) != 2) {
      close();
      return false;
    }
  }
  auto parsed = parse_socks_request(input_);
  if (!parsed) {
    deny(0, parsed.error().reply, parsed.error().why);
    return false;
  }
  if (parsed->size == 0) return false;
  request_.target = std::move(parsed->target);
  request_.tunnel = true;
  input_.erase(0, parsed->size);
  return true;
}

void Connection::ask(HostPort target) {
  wait(client_, 0);  // nothing more is read until the server is connected
  if (state_ == State::closed) return;
  if (const auto may = run_.judge.check_request(target); !may) return deny(403, socks_not_allowed, may.error().message);
  deadline_ = now_ + run_.times.connect_ms;
  state_ = State::resolving;
  if (!target.host.address) {
    lookup_ = run_.resolver.look_up(target.host.name, [this](int fd, std::uint32_t events) {
      std::uint32_t& now = lookup_waits_[fd];
      // A lookup whose descriptor cannot be watched ends by its own time-out.
      (void)run_.poller.wait_for(fd, id_, now, events);
      if (now == 0) lookup_waits_.erase(fd);
    });
  }
  take_answer();
}

void Connection::take_answer() {
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
  const auto own = own_addresses(addresses);  // evaluated now, since interfaces change
  if (!own) return refuse(500, socks_failure, own.error().message);
  // All addresses must be allowed before any is used: a mix of public and private addresses is never legitimate.
  for (const auto& address : addresses) {
    const auto may = run_.judge.check_address(request_.target, address, *own);
    if (!may) return deny(403, socks_not_allowed, may.error().message);
  }
  // IPv4 first (at the back), since unreachable IPv6 destinations often cause time-outs instead of errors.
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const IpAddress& a, const IpAddress& b) { return a.v6 && !b.v6; });
  if (addresses.size() > kMaxAttempts) addresses.erase(addresses.begin(), addresses.end() - kMaxAttempts);
  attempt_ms_ = run_.times.connect_ms / addresses.size();
  candidates_ = std::move(addresses);
  connect_next();
}

void Connection::connect_next() {
  state_ = State::connecting;
  while (!candidates_.empty()) {
    const IpAddress address = candidates_.back();
    candidates_.pop_back();
    wait(server_, 0);
    server_.fd.reset(::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = server_.fd ? 0 : errno;
    if (error == 0) {
      tune(server_.fd.get());
      error = begin_connect(server_.fd.get(), address, request_.target.port);
    }
    if (error == 0) {
      deadline_ = now_ + attempt_ms_;
      return wait(server_, EPOLLOUT);
    }
    last_failure_ = errno_text(error);
  }
  refuse(502, socks_refused, to_text(request_.target) + ": " + last_failure_);
}

void Connection::connected() {
  ++run_.connections;
  state_ = State::relaying;
  deadline_ = now_ + run_.times.idle_ms;
  candidates_.clear();
  if (language_ == Language::socks) {
    down_.pending = socks_answer(socks_granted);
  } else if (request_.tunnel) {
    down_.pending = "HTTP/1.1 200 Connection established\r\n\r\n";
  } else {
    run_.bytes_up += request_.forward.size();
    up_.pending = std::exchange(request_.forward, {});
  }
  const std::string early = std::exchange(input_, {});
  if (!early.empty() && !read_upstream(early)) return;
  flush(up_);
  if (state_ == State::relaying) flush(down_);
  if (state_ == State::relaying) update_waits();
}

void Connection::deny(int status, std::uint8_t socks_reply, const std::string& why) {
  ++run_.denied;
  run_.report_denied(why);
  refuse(status, socks_reply, why);
}

// The status line contains the reason too, since clients that open a tunnel show the status line, not the body.
void Connection::refuse(int status, std::uint8_t socks_reply, const std::string& why) {
  if (state_ == State::relaying && (request_.tunnel || response_.complete()))
    return abort();  // a response is partly sent
  wait(server_, 0);
  server_.fd.reset();
  lookup_.reset();
  down_.pending.clear();
  if (language_ == Language::unknown) return close();
  if (language_ == Language::socks) {
    down_.pending = socks_answer(socks_reply);
  } else {
    const std::string text = "mycojobs: " + why;
    down_.pending = "HTTP/1.1 " + std::to_string(status) + ' ' + text +
                    "\r\nContent-Type: text/plain\r\nContent-Length: " + std::to_string(text.size() + 1) +
                    "\r\nConnection: close\r\n\r\n" + text + '\n';
  }
  start_draining();
}

bool Connection::wants_more(const RelayDirection& direction) const {
  if (direction.ended || !direction.pending.empty()) return false;
  return &direction != &up_ || request_.tunnel || !parser_.done();
}

void Connection::relay(int fd, std::uint32_t events) {
  const bool of_client = fd == client_.fd.get();
  RelayDirection& from = of_client ? up_ : down_;
  RelayDirection& to = of_client ? down_ : up_;
  if ((events & (EPOLLOUT | kBroken)) != 0 && !to.pending.empty()) flush(to);
  if (state_ == State::relaying && (events & (EPOLLIN | kBroken)) != 0 && wants_more(from)) fill(from);
  if (state_ == State::relaying) update_waits();
}

void Connection::fill(RelayDirection& direction) {
  const bool up = &direction == &up_;
  char part[kPart];
  const ssize_t size = ::recv((up ? client_ : server_).fd.get(), part, sizeof part, MSG_DONTWAIT);
  if (size < 0) {
    if (try_again(errno)) return;
    if (up || request_.tunnel || response_.complete()) return abort();
    return refuse(502, socks_failure, "the server broke the connection without an answer: " + errno_text(errno));
  }
  if (size == 0) {
    if (up && !request_.tunnel) return abort();  // incomplete body
    direction.ended = true;
    return forward_shutdown(direction);
  }
  const std::string_view bytes(part, static_cast<std::size_t>(size));
  if (up ? read_upstream(bytes) : read_downstream(bytes)) flush(direction);
}

// Returns false if the connection has ended or will end.
bool Connection::read_upstream(std::string_view bytes) {
  if (!request_.tunnel) {
    input_ += bytes;
    HttpRequestParser::Body passed_on;  // unchanged, including chunks
    const auto own = parser_.take_body(input_, passed_on);
    if (!own) {
      deny(400, socks_failure, own.error().message);
      return false;
    }
    run_.bytes_up += *own;
    up_.pending.append(input_, 0, *own);
    input_.erase(0, parser_.done() ? input_.npos : *own);  // later bytes are not part of the request that was checked
    if (input_.empty()) std::string().swap(input_);
    return true;
  }
  run_.bytes_up += bytes.size();
  up_.pending += bytes;
  return true;
}

bool Connection::read_downstream(std::string_view bytes) {
  run_.bytes_down += bytes.size();
  if (request_.tunnel) {
    down_.pending += bytes;
    return true;
  }
  auto passed = response_.feed(bytes);
  if (!passed) {
    refuse(502, socks_failure, passed.error().message);
    return false;
  }
  down_.pending += *passed;
  return true;
}

void Connection::flush(RelayDirection& direction) {
  const bool up = &direction == &up_;
  if (!direction.pending.empty()) {
    const ssize_t size = ::send((up ? server_ : client_).fd.get(), direction.pending.data(), direction.pending.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0) {
      if (try_again(errno)) return;
      if (!up) return abort();
      // The server accepts no more data, but may have sent the reason before it closed: its response is still
      // forwarded.
      direction.ended = direction.passed_on = direction.broken = true;
      direction.pending = {};
      return down_.passed_on ? abort() : void();
    }
    deadline_ = now_ + run_.times.idle_ms;
    direction.pending.erase(0, static_cast<std::size_t>(size));
    if (!direction.pending.empty()) return;
    std::string().swap(direction.pending);  // idle connections hold no buffer
  }
  forward_shutdown(direction);
}

void Connection::forward_shutdown(RelayDirection& direction) {
  if (!direction.ended || direction.passed_on || !direction.pending.empty()) return;
  if (!request_.tunnel) {  // the server has ended
    if (!response_.complete()) return refuse(502, socks_failure, "the server closed without an answer");
    return start_draining();
  }
  direction.passed_on = true;
  ::shutdown((&direction == &up_ ? server_ : client_).fd.get(), SHUT_WR);
  // Data of the job for a closed server is read and discarded; otherwise a reset would discard the server's last data.
  if (up_.passed_on && down_.passed_on) up_.broken ? start_draining() : close();
}

void Connection::start_draining() {
  wait(server_, 0);
  server_.fd.reset();
  up_ = {};
  down_.ended = true;
  down_.passed_on = false;
  state_ = State::draining;
  deadline_ = now_ + run_.times.drain_ms;
  drain(EPOLLOUT);
}

void Connection::drain(std::uint32_t events) {
  if (!down_.pending.empty()) {
    const ssize_t size =
        ::send(client_.fd.get(), down_.pending.data(), down_.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0 && !try_again(errno)) return close();
    if (size > 0) down_.pending.erase(0, static_cast<std::size_t>(size));
  }
  if (down_.pending.empty() && !down_.passed_on) {
    ::shutdown(client_.fd.get(), SHUT_WR);
    down_.passed_on = true;
  }
  if ((events & (EPOLLIN | kBroken)) != 0 && !up_.ended) {
    char part[kPart];
    const ssize_t size = ::recv(client_.fd.get(), part, sizeof part, MSG_DONTWAIT);
    if (size < 0 && !try_again(errno)) return close();
    if (size == 0) up_.ended = true;
  }
  if (up_.ended && down_.passed_on) return close();
  wait(client_, (up_.ended ? 0U : static_cast<std::uint32_t>(EPOLLIN)) |
                    (down_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
}

void Connection::update_waits() {
  wait(client_, (wants_more(up_) ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                    (down_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
  if (state_ == State::closed) return;
  wait(server_, (wants_more(down_) ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                    (up_.pending.empty() ? 0U : static_cast<std::uint32_t>(EPOLLOUT)));
}

void Connection::wait(Endpoint& side, std::uint32_t events) {
  if (!side.fd) return;
  // Out of memory: a connection that is not watched would never end.
  if (run_.poller.wait_for(side.fd.get(), id_, side.waits_for, events) != 0) abort();
}

void Connection::abort() {
  const linger none{1, 0};
  for (Endpoint* side : {&client_, &server_}) {
    if (side->fd) ::setsockopt(side->fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
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
