// Sockets of the HTTP server: the listening socket, and the connection of one client with deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "api/http/request_reader.h"
#include "base/fd.h"
#include "base/result.h"

namespace mycojobs::api {

using Deadline = std::chrono::steady_clock::time_point;

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
// Errors: conflict (the port is in use), denied (a privileged port), invalid (not an address of this host), io.
Result<ListeningSocket> open_listening(const ListenAddress&);
bool is_loopback_peer(int socket);
std::string get_peer_network(int socket);  // see HttpRequest::network; empty: unknown

// A connection of one client. After an error or an exceeded deadline it cannot be used again. Not thread-safe, except
// that another thread may call shutdown() on fd().
class Connection {
 public:
  // buffered_input: bytes that have already been read from the socket.
  explicit Connection(Fd socket, std::string buffered_input = {})
      : socket_(std::move(socket)), buffered_input_(std::move(buffered_input)) {}

  void set_read_timeout(std::uint32_t ms);  // sets the deadline of reads to `ms` from now
  // Sets the deadline of a body. part_timeout_ms: time limit for each part of the body.
  void set_body_timeouts(std::uint32_t ms, std::uint32_t part_timeout_ms);
  void set_write_timeout(std::uint32_t ms);  // sets the deadline of writes to `ms` from now
  // Waits until a byte can be read. Returns false if the client has closed the connection, after an error, or at the
  // deadline.
  bool wait_for_byte();
  // The next two functions read until the head or body is complete. They return false at the end of input, after an
  // error of the socket, or at the deadline. Errors: those of RequestReader.
  Result<bool> read_head(RequestReader&);
  Result<bool> read_body(RequestReader&, const BodyMemoryCheck&);
  bool write(std::string_view);  // writes all bytes; returns false after an error or at the deadline
  // Shuts down the output, then discards input until the client closes the connection or the deadline. Closing a
  // connection with unread input would reset it, and the client could lose the answer.
  void finish();
  bool is_broken() const { return is_broken_; }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  bool wait(short events, Deadline deadline) const;
  // Reads into buffered_input_. Returns false at the end of input, after an error, or at the deadline.
  bool receive_more();

  Fd socket_;
  Deadline read_deadline_{}, write_deadline_{};
  std::uint32_t part_timeout_ms_ = 0;  // for the next part of a body
  bool is_broken_ = false;
  std::string buffered_input_;  // bytes that were read but not consumed
};

// Appends at most 16 KiB of received bytes to `buffer` without blocking. Returns their number, 0 at the end of input,
// or -1 after an error (errno).
long receive_available(int socket, std::string& buffer);

}  // namespace mycojobs::api
