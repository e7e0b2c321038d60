#include "sandbox/egress/run.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

namespace mycojobs::egress {
namespace {

constexpr int kMaxEventsPerIteration = 16;
constexpr int kMaxAcceptsPerIteration = 8;

int socket_option(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

bool is_listener(int fd) {
  const int domain = socket_option(fd, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && socket_option(fd, SO_TYPE) == SOCK_STREAM &&
         socket_option(fd, SO_ACCEPTCONN) == 1;
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

void ProxiedRun::process_events(std::uint64_t now_ms, std::size_t max_connections) {
  epoll_event events[kMaxEventsPerIteration];
  const int count = ::epoll_wait(state_.poller.fd(), events, kMaxEventsPerIteration, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t id = Poller::connection_id(events[i]);
    if (id == Poller::kListenerId) {
      accept(now_ms, max_connections);
      continue;
    }
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second->on_event(Poller::watched_fd(events[i]), events[i].events, now_ms);
    if (found->second->is_closed()) connections_.erase(found);
  }
  update_listener(max_connections);
}

void ProxiedRun::on_time(std::uint64_t now_ms, std::size_t max_connections) {
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    entry->second->on_time(now_ms);
    entry = entry->second->is_closed() ? connections_.erase(entry) : std::next(entry);
  }
  is_paused_ = false;
  accept_count_ = 0;
  update_listener(max_connections);
}

void ProxiedRun::accept(std::uint64_t now_ms, std::size_t max_connections) {
  for (int i = 0; i < kMaxAcceptsPerIteration && connections_.size() < max_connections; ++i) {
    if (accept_count_ >= kMaxAcceptsPerInterval) {
      is_paused_ = true;
      return;
    }
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      is_paused_ = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
    ++accept_count_;
    do {
      ++next_id_;
    } while (next_id_ == Poller::kListenerId || connections_.contains(next_id_));
    auto connection = std::make_unique<Connection>(state_, next_id_, std::move(client), now_ms);
    if (!connection->is_closed()) connections_.emplace(next_id_, std::move(connection));
  }
}

void ProxiedRun::update_listener(std::size_t max_connections) {
  const bool should_listen = !is_paused_ && connections_.size() < max_connections;
  const std::uint32_t events = should_listen ? static_cast<std::uint32_t>(EPOLLIN) : 0U;
  if (state_.poller.set_events(listener_.get(), Poller::kListenerId, listener_events_, events) != 0) is_paused_ = true;
}

}  // namespace mycojobs::egress
