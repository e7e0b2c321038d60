// Sockets of the HTTP server: the listening socket, the socket of one client in plain text or with TLS, and its
// connection with deadlines.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/http/request_reader.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "net/tls.h"

namespace mycojobs::api {

struct ListenAddress {
  std::string host;
  std::uint16_t port = 0;
  bool loopback = false;
};
// Parses "127.0.0.1:9652", "[::1]:9652", "localhost:9652" or ":9652" (all addresses). Error: invalid, with the remedy.
Result<ListenAddress> parse_listen(const std::string& text);

struct ListeningSocket {
  Fd socket;
  std::uint16_t port = 0;
};
// Resolves the host again. Errors: conflict (the port is in use), denied (a privileged port), invalid (not an address
// of this host, or not the loopback address that parse_listen() has found), io.
Result<ListeningSocket> open_listening(const ListenAddress&);
bool is_loopback_peer(int socket);
std::string get_peer_network(int socket);  // see HttpRequest::network; empty: unknown

// The socket of one client, in plain text or with TLS. Used by one thread, except that another thread may call
// shutdown() on fd().
class ClientSocket {
 public:
  explicit ClientSocket(Fd socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }
  bool has_tls() const { return tls_ != nullptr; }

  // Prepares TLS as a server, before any byte was received. Errors: those of TlsStream::open().
  Result<void> start_tls(TlsContext&);
  // Continues the handshake without waiting, and returns true when it is complete. REQUIRES: has_tls(). Errors: those
  // of TlsStream::handshake().
  Result<bool> try_handshake() { return tls_->try_handshake(); }
  // Events of poll() after which try_handshake() or receive_available() can continue.
  short pending_events() const { return tls_ && tls_->needs_output() ? POLLOUT : POLLIN; }

  enum class ReceiveResult { bytes, nothing, end };  // end: the client has closed the connection, or an error
  // Appends at most 16 KiB of received bytes to `buffer` without waiting.
  ReceiveResult receive_available(std::string& buffer);
  // Returns true if bytes may be available that do not make the socket readable.
  bool has_buffered_input() const { return tls_ && tls_->has_buffered_input(); }
  // Sends all bytes. Returns false after an error or at the deadline.
  bool send_all(std::string_view, Deadline);
  void end_output();        // informs the client that no more bytes follow; does not wait
  bool discard_received();  // drops received bytes; returns false at the end of input. Only after end_output().
  void close();             // calls end_output(), and closes the socket

 private:
  Fd socket_;
  std::unique_ptr<TlsStream> tls_;  // null: plain text. Destroyed before socket_.
};

// A connection of one client. After an error or an exceeded deadline it cannot be used again. Not thread-safe, except
// that another thread may call shutdown() on fd().
class Connection {
 public:
  // buffered_input: bytes that have already been read from the socket.
  explicit Connection(ClientSocket socket, std::string buffered_input = {})
      : socket_(std::move(socket)), buffered_input_(std::move(buffered_input)) {}

  void set_read_timeout(std::uint32_t ms);  // sets the deadline of reads to `ms` from now
  // Sets the deadline of a body. part_timeout_ms: time limit for each part of the body.
  void set_body_timeouts(std::uint32_t ms, std::uint32_t part_timeout_ms);
  void set_write_timeout(std::uint32_t ms);  // sets the deadline of writes to `ms` from now
  // Waits until a byte can be read. Returns false if the client has closed the connection, after an error, or at the
  // deadline.
  bool wait_for_byte() { return !buffered_input_.empty() || receive_more(); }
  // The next two functions read until the head or body is complete. They return false at the end of input, after an
  // error of the socket, or at the deadline. Errors: those of RequestReader.
  Result<bool> read_head(RequestReader&);
  Result<bool> read_body(RequestReader&, const BodyMemoryCheck&);
  // Same, but passes each part of the body on. HttpRequest::body stays empty. Errors: also those of on_part.
  Result<bool> read_body_parts(RequestReader&, const std::function<Result<void>(std::string_view)>& on_part);
  bool write(std::string_view);  // writes all bytes; returns false after an error or at the deadline
  // Ends the output, then discards input until the client closes the connection or the deadline. Closing a connection
  // with unread input would reset it, and the client could lose the answer.
  void finish();
  // Returns whether the client has closed the connection; does not wait. Bytes of a next request are stored.
  bool is_closed_by_client();
  bool is_broken() const { return is_broken_; }
  int fd() const { return socket_.fd(); }
  void close() { socket_.close(); }
  ClientSocket release() { return std::move(socket_); }  // the connection must not be used any more

 private:
  // on_parsed: called after each parsed part.
  Result<bool> read_body(RequestReader&, const BodyMemoryCheck&, const std::function<Result<void>()>& on_parsed);
  bool wait_for_input() const;  // returns false after an error, or at the deadline
  // Reads into buffered_input_. Returns false at the end of input, after an error, or at the deadline.
  bool receive_more();

  ClientSocket socket_;
  Deadline read_deadline_{}, write_deadline_{};
  std::uint32_t part_timeout_ms_ = 0;  // for the next part of a body
  bool is_broken_ = false;
  std::string buffered_input_;  // bytes that were read but not consumed
};

}  // namespace mycojobs::api
