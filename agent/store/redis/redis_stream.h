// The byte stream of a connection to Redis: a plain TCP or Unix socket, or TLS over TCP. Nothing here blocks beyond its
// deadline, and no write raises SIGPIPE. Used by one thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "net/tls.h"

namespace mycojobs {

struct RedisEndpoint;

class RedisStream {
 public:
  RedisStream() = default;  // not connected
  ~RedisStream() { close(); }
  RedisStream(RedisStream&&) noexcept = default;
  RedisStream& operator=(RedisStream&&) noexcept = default;
  RedisStream(const RedisStream&) = delete;
  RedisStream& operator=(const RedisStream&) = delete;

  // Resolves the host, connects to the first address that accepts, and completes the TLS handshake if the endpoint uses
  // TLS. Errors: unavailable, denied (a certificate), those of TlsContext::load(); the message names the endpoint.
  // REQUIRES: tls is not null if the endpoint uses TLS.
  static Result<RedisStream> connect(const RedisEndpoint&, const std::shared_ptr<TlsContext>& tls, Deadline);
  void close();

  bool is_connected() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  // The errors of the next functions are unavailable, or denied (the server rejects the client certificate). Their
  // messages do not name the endpoint.
  Result<void> send_all(std::string_view bytes, Deadline);
  Result<std::size_t> receive(std::span<char> buffer, Deadline);  // waits for at least one byte
  // Receives without waiting. 0: no data yet; a readable TLS socket may have only a part of a record, or no data at
  // all.
  Result<std::size_t> receive_available(std::span<char> buffer);
  // Returns true if data can be received without the socket being readable.
  bool has_buffered_input() const { return tls_ && tls_->has_buffered_input(); }
  // Returns true if the server has closed the connection, or has sent data. REQUIRES: no reply is outstanding, so that
  // data is an error, too. Session tickets and other messages of TLS are processed.
  bool is_closed_or_has_data();
  bool is_closed_by_peer() const { return is_closed_by_peer_; }  // the last error was the end of the connection
  std::optional<TlsState> tls_state() const;

 private:
  Result<void> start_tls(const RedisEndpoint&, TlsContext&, Deadline);

  Fd socket_;
  std::unique_ptr<TlsStream> tls_;  // null for a plain socket
  bool is_closed_by_peer_ = false;
};

}  // namespace mycojobs
