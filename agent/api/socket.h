// Sockets of the server: an address to listen on, and one client's connection with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "api/http.h"
#include "api/request_reader.h"
#include "base/fd.h"

namespace mycojobs::api {

using Deadline = std::chrono::steady_clock::time_point;

struct Listening {
  Fd socket;
  std::uint16_t port = 0;
};
// Error conflict: the port is taken; denied: a low port; invalid: no such address here.
Result<Listening> open_listening(const ListenAddress&);
bool is_loopback_peer(int socket);
std::string network_of_peer(int socket);  // its address, of IPv6 the first 64 bits; empty: it is gone

// Reads and writes of one thread; whatever goes wrong or takes too long ends the connection.
class Connection {
 public:
  // ahead: what has been read of it already.
  explicit Connection(Fd socket, std::string ahead = {}) : socket_(std::move(socket)), ahead_(std::move(ahead)) {}

  void expect(std::uint32_t ms);  // Sets the deadline for the next read, from now on.
  // Same for a body, with a time limit for each part of it.
  void expect_body(std::uint32_t ms, std::uint32_t part_ms);
  void allow(std::uint32_t ms);  // Sets the deadline for the next write.
  bool wait_for_byte();          // until the deadline
  // Until the reader has all of it. False: the end, an error of the socket, or the deadline. Errors: the reader's.
  Result<bool> read_head(RequestReader&);
  Result<bool> read_body(RequestReader&, BodyShare&);
  bool write(std::string_view);  // all of it
  // The client is sent no more, and what it sends is thrown away until it ends or the deadline: it would not see an
  // answer if the connection was closed with something unread.
  void finish();
  bool broken() const { return broken_; }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  bool wait(short events, Deadline until) const;
  bool fill();  // false: the end, an error or the deadline

  Fd socket_;
  Deadline read_until_{}, write_until_{};
  std::uint32_t part_ms_ = 0;  // for the next part of a body
  bool broken_ = false;
  std::string ahead_;  // read, and not taken yet
};

// What has come on the socket, at most 16 KiB, behind the text. 0: the end; -1: errno.
long receive_some(int socket, std::string& onto);

}  // namespace mycojobs::api
