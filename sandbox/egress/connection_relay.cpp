// The second half of a connection: bytes in both directions, and how it ends.
#include <sys/socket.h>

#include <cerrno>

#include "base/errno_text.h"
#include "sandbox/egress/connection.h"

namespace mycojobs::egress {
namespace {

constexpr std::size_t kPart = 32U << 10;  // one read; also what a direction may hold

constexpr std::uint32_t kBroken = EPOLLERR | EPOLLHUP;

bool try_again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

bool Connection::wants_more(const Lane& lane) const {
  if (lane.ended || !lane.pending.empty()) return false;
  return &lane != &up_ || request_.tunnel || !request_.body.done();
}

void Connection::relay(int fd, std::uint32_t events) {
  const bool of_client = fd == client_.fd.get();
  Lane& from = of_client ? up_ : down_;
  Lane& to = of_client ? down_ : up_;
  if ((events & (EPOLLOUT | kBroken)) != 0 && !to.pending.empty()) flush(to);
  if (state_ == State::relaying && (events & (EPOLLIN | kBroken)) != 0 && wants_more(from)) fill(from);
  if (state_ == State::relaying) update_waits();
}

void Connection::fill(Lane& lane) {
  const bool up = &lane == &up_;
  char part[kPart];
  const ssize_t size = ::recv((up ? client_ : server_).fd.get(), part, sizeof part, MSG_DONTWAIT);
  if (size < 0) {
    if (try_again(errno)) return;
    if (up || request_.tunnel || response_.complete()) return abort();
    return refuse(502, socks_failure, "the server broke the connection without an answer: " + errno_text(errno));
  }
  if (size == 0) {
    if (up && !request_.tunnel) return abort();  // half a body
    lane.ended = true;
    return pass_end_on(lane);
  }
  const std::string_view bytes(part, static_cast<std::size_t>(size));
  if (up ? take_up(bytes) : take_down(bytes)) flush(lane);
}

// False: the connection has ended, or is about to.
bool Connection::take_up(std::string_view bytes) {
  if (!request_.tunnel) {
    const auto own = request_.body.take(bytes);
    if (!own) {
      deny(400, socks_failure, own.error().message);
      return false;
    }
    bytes = bytes.substr(0, *own);
  }
  run_.bytes_up += bytes.size();
  up_.pending += bytes;
  return true;
}

bool Connection::take_down(std::string_view bytes) {
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

void Connection::flush(Lane& lane) {
  const bool up = &lane == &up_;
  if (!lane.pending.empty()) {
    const ssize_t size = ::send((up ? server_ : client_).fd.get(), lane.pending.data(), lane.pending.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0) {
      if (try_again(errno)) return;
      if (!up) return abort();
      // The server takes no more, but it may have said why before it closed: its answer is still passed on.
      lane.ended = lane.told = lane.broken = true;
      lane.pending = {};
      return down_.told ? abort() : void();
    }
    deadline_ = now_ + run_.times.idle_ms;
    lane.pending.erase(0, static_cast<std::size_t>(size));
    if (!lane.pending.empty()) return;
    std::string().swap(lane.pending);  // an idle connection holds no memory
  }
  pass_end_on(lane);
}

void Connection::pass_end_on(Lane& lane) {
  if (!lane.ended || lane.told || !lane.pending.empty()) return;
  if (!request_.tunnel) {  // the server's end
    if (!response_.complete()) return refuse(502, socks_failure, "the server closed without an answer");
    return start_draining();
  }
  lane.told = true;
  ::shutdown((&lane == &up_ ? server_ : client_).fd.get(), SHUT_WR);
  // What the job says to a server that is gone is read away, or the reset would take the server's last words with it.
  if (up_.told && down_.told) up_.broken ? start_draining() : close();
}

void Connection::start_draining() {
  wait(server_, 0);
  server_.fd.reset();
  up_ = {};
  down_.ended = true;
  down_.told = false;
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
  if (down_.pending.empty() && !down_.told) {
    ::shutdown(client_.fd.get(), SHUT_WR);
    down_.told = true;
  }
  if ((events & (EPOLLIN | kBroken)) != 0 && !up_.ended) {
    char part[kPart];
    const ssize_t size = ::recv(client_.fd.get(), part, sizeof part, MSG_DONTWAIT);
    if (size < 0 && !try_again(errno)) return close();
    if (size == 0) up_.ended = true;
  }
  if (up_.ended && down_.told) return close();
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

void Connection::wait(Side& side, std::uint32_t events) {
  if (!side.fd) return;
  // No memory to watch it: what nobody watches would never end.
  if (run_.poller.wait_for(side.fd.get(), id_, side.waits_for, events) != 0) abort();
}

void Connection::abort() {
  const linger none{1, 0};
  for (Side* side : {&client_, &server_}) {
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
