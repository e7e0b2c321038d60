// Sockets of the HTTP server: the listening socket, and the connection of one client with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "api/http/http_server.h"
#include "api/http/request_reader.h"
#include "base/fd.h"

namespace mycojobs::api {

using Deadline = std::chrono::steady_clock::time_point;

struct ListeningSocket {
  Fd socket;
  std::uint16_t port = 0;
};
// Errors: conflict (the port is in use), denied (a privileged port), invalid (not an address of this host), io.
Result<ListeningSocket> open_listening(const ListenAddress&);
bool is_loopback_peer(int socket);
std::string network_of_peer(int socket);  // the peer's address; IPv6: its first 64 bits; empty: unknown

// A connection of one client. After an error or an exceeded deadline it cannot be used again. Not thread-safe, except
// that another thread may call shutdown() on fd().
class Connection {
 public:
  // ahead: bytes that were already read from the socket.
  explicit Connection(Fd socket, std::string ahead = {}) : socket_(std::move(socket)), ahead_(std::move(ahead)) {}

  void expect(std::uint32_t ms);  // sets the deadline of reads to `ms` from now
  // Same for a body. part_ms: time limit for each part of the body.
  void expect_body(std::uint32_t ms, std::uint32_t part_ms);
  void allow(std::uint32_t ms);  // sets the deadline of writes to `ms` from now
  bool wait_for_byte();          // false: the client has closed the connection, an error, or the deadline
  // Read until the head or body is complete. Return false at the end of input, after an error of the socket, or at the
  // deadline. Errors: those of RequestReader.
  Result<bool> read_head(RequestReader&);
  Result<bool> read_body(RequestReader&, BodyMemoryBudget&);
  bool write(std::string_view);  // writes all bytes; false: an error or the deadline
  // Ends the output, then reads and discards input until the client ends or the deadline. If the connection were closed
  // with unread input, it would be reset, and the client could lose the answer.
  void finish();
  bool broken() const { return broken_; }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  bool wait(short events, Deadline until) const;
  bool fill();  // reads into ahead_; false: end of input, error, or deadline

  Fd socket_;
  Deadline read_until_{}, write_until_{};
  std::uint32_t part_ms_ = 0;  // for the next part of a body
  bool broken_ = false;
  std::string ahead_;  // bytes that were read but not consumed
};

// Appends at most 16 KiB of received bytes to `onto`. Does not block. Returns their number; 0: end of input; -1: error
// in errno.
long receive_some(int socket, std::string& onto);

}  // namespace mycojobs::api
