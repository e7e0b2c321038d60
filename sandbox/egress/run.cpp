#include "sandbox/egress/run.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

namespace mycojobs::egress {
namespace {

constexpr int kEventsATurn = 16;
constexpr int kAcceptsATurn = 8;

int option_of(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

bool is_listener(int fd) {
  const int domain = option_of(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && option_of(fd, SO_TYPE) == SOCK_STREAM &&
         option_of(fd, SO_ACCEPTCONN) == 1;
}

}  // namespace

Result<std::unique_ptr<ProxiedRun>> ProxiedRun::start(ProxyRunState state, Fd listener) {
  if (!is_listener(listener.get())) return fail(Code::invalid, "the descriptor is not a TCP listener");
  const int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return fail(Code::io, "the listener cannot be made non-blocking");
  }
  std::unique_ptr<ProxiedRun> run(new ProxiedRun(std::move(state), std::move(listener)));
  run->update_listener(1);
  return run;
}

ProxiedRun::~ProxiedRun() {
  for (auto& [id, connection] : connections_) connection->abort();
}

void ProxiedRun::turn(std::uint64_t now, std::size_t limit) {
  epoll_event events[kEventsATurn];
  const int count = ::epoll_wait(state_.poller.fd(), events, kEventsATurn, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t id = Poller::id_of(events[i]);
    if (id == Poller::kNobody) {
      accept(now, limit);
      continue;
    }
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second->on_event(Poller::fd_of(events[i]), events[i].events, now);
    if (found->second->closed()) connections_.erase(found);
  }
  update_listener(limit);
}

void ProxiedRun::on_time(std::uint64_t now, std::size_t limit) {
  for (auto each = connections_.begin(); each != connections_.end();) {
    each->second->on_time(now);
    each = each->second->closed() ? connections_.erase(each) : std::next(each);
  }
  paused_ = false;
  accepts_ = 0;
  update_listener(limit);
}

void ProxiedRun::accept(std::uint64_t now, std::size_t limit) {
  for (int i = 0; i < kAcceptsATurn && connections_.size() < limit; ++i) {
    if (accepts_ >= kMaxAccepts) {
      paused_ = true;
      return;
    }
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      paused_ = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
    ++accepts_;
    do {
      ++next_id_;
    } while (next_id_ == Poller::kNobody || connections_.contains(next_id_));
    auto connection = std::make_unique<Connection>(state_, next_id_, std::move(client), now);
    if (!connection->closed()) connections_.emplace(next_id_, std::move(connection));
  }
}

void ProxiedRun::update_listener(std::size_t limit) {
  const bool wants = !paused_ && connections_.size() < limit;
  const std::uint32_t events = wants ? static_cast<std::uint32_t>(EPOLLIN) : 0U;
  if (state_.poller.wait_for(listener_.get(), Poller::kNobody, listener_waits_for_, events) != 0) paused_ = true;
}

}  // namespace mycojobs::egress
