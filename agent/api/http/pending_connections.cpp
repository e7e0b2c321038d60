#include "api/http/pending_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/log.h"

namespace mycojobs::api {

void PendingConnections::add(Fd socket, std::string network) {
  const auto is_of_network = [&](const Connection& connection) { return connection.network == network; };
  const auto network_count = std::count_if(connections_.begin(), connections_.end(), is_of_network);
  if (!network.empty() && network_count >= std::max(1U, max_connections_ / 4)) {
    connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_of_network));
  } else if (connections_.size() >= max_connections_) {
    connections_.pop_front();
  }
  Connection connection{
      ClientSocket(std::move(socket)), {}, deadline_after(head_timeout_ms_), RequestReader(limits_), {}};
  connection.is_established = tls_ == nullptr;
  connection.network = std::move(network);
  connections_.push_back(std::move(connection));
}

void PendingConnections::append_pollfds(std::vector<pollfd>& entries) const {
  for (const Connection& connection : connections_)
    entries.push_back({connection.socket.fd(), connection.socket.pending_events(), 0});
}

PendingConnections::Progress PendingConnections::advance(Connection& connection) {
  if (!connection.is_established) {
    const Progress progress = advance_handshake(connection);
    if (progress != Progress::complete || connection.lacks_tls) return progress;
    connection.is_established = true;
  }
  return receive_head(connection);
}

PendingConnections::Progress PendingConnections::advance_handshake(Connection& connection) {
  constexpr char kHandshakeRecord = 0x16;  // first byte of a TLS connection
  if (!connection.socket.has_tls()) {
    char byte = 0;
    const ssize_t received = ::recv(connection.socket.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Progress::incomplete;
    if (received <= 0) return Progress::failed;
    connection.lacks_tls = byte != kHandshakeRecord;
    if (connection.lacks_tls) return Progress::complete;
    if (const auto started = connection.socket.start_tls(*tls_); !started) {
      log(LogLevel::warn, "api", "TLS: {}", started.error().message);
      return Progress::failed;
    }
  }
  const auto is_complete = connection.socket.try_handshake();
  if (is_complete) return *is_complete ? Progress::complete : Progress::incomplete;
  log(LogLevel::debug, "api", "TLS handshake of {}: {}", get_peer_network(connection.socket.fd()),
      is_complete.error().message);
  return Progress::failed;
}

PendingConnections::Progress PendingConnections::receive_head(Connection& connection) {
  do {
    const auto received = connection.socket.receive_available(connection.bytes);
    if (received == ClientSocket::ReceiveResult::end) return Progress::failed;
    if (received == ClientSocket::ReceiveResult::nothing) return Progress::incomplete;
    if (const auto head_bytes = connection.reader.parse_head(connection.bytes)) {
      connection.bytes.erase(0, *head_bytes);
    } else {
      connection.error = head_bytes.error();
    }
    if (connection.error || connection.reader.has_head()) return Progress::complete;
  } while (connection.socket.has_buffered_input());
  return Progress::incomplete;
}

std::vector<PendingConnections::Connection> PendingConnections::receive_heads(const pollfd* entries) {
  std::vector<Connection> ready;
  const auto now = std::chrono::steady_clock::now();
  for (auto connection = connections_.begin(); connection != connections_.end(); ++entries) {
    const Progress progress = entries->revents == 0 ? Progress::incomplete : advance(*connection);
    if (progress == Progress::complete) ready.push_back(std::move(*connection));
    const bool remains = progress == Progress::incomplete && now < connection->deadline;
    connection = remains ? std::next(connection) : connections_.erase(connection);
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
