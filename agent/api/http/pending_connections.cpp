#include "api/http/pending_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace mycojobs::api {

void PendingConnections::add(Fd socket) {
  if (connections_.size() >= max_connections_) connections_.pop_front();
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(head_timeout_ms_);
  connections_.push_back(Connection{std::move(socket), {}, deadline, RequestReader(limits_), {}});
}

void PendingConnections::append_pollfds(std::vector<pollfd>& entries) const {
  for (const Connection& connection : connections_) entries.push_back({connection.socket.get(), POLLIN, 0});
}

bool PendingConnections::receive_head(Connection& connection) {
  const long received = receive_available(connection.socket.get(), connection.bytes);
  if (received <= 0) return received < 0 && (errno == EAGAIN || errno == EINTR);
  if (const auto head_bytes = connection.reader.parse_head(connection.bytes)) {
    connection.bytes.erase(0, *head_bytes);
  } else {
    connection.error = head_bytes.error();
  }
  return true;
}

std::vector<PendingConnections::Connection> PendingConnections::receive_heads(const pollfd* entries) {
  std::vector<Connection> ready;
  const auto now = std::chrono::steady_clock::now();
  for (auto connection = connections_.begin(); connection != connections_.end(); ++entries) {
    const bool is_open = (entries->revents == 0 || receive_head(*connection)) && now < connection->deadline;
    const bool is_head_finished = connection->error || connection->reader.has_head();
    if (is_head_finished) ready.push_back(std::move(*connection));
    connection = is_open && !is_head_finished ? std::next(connection) : connections_.erase(connection);
  }
  return ready;
}

int PendingConnections::get_poll_timeout_ms() const {
  if (connections_.empty()) return -1;
  const auto remaining =
      std::chrono::ceil<std::chrono::milliseconds>(connections_.front().deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(remaining.count(), 0, 60'000));
}

}  // namespace mycojobs::api
