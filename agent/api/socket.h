// Sockets of the server: an address to listen on, and one client's connection with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "api/http.h"
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

// Reads and writes of one thread; whatever goes wrong or takes too long ends the connection.
class Connection {
 public:
  explicit Connection(Fd socket) : socket_(std::move(socket)) {}

  void expect(std::uint32_t ms, std::size_t bytes);  // from now: so long, and so many bytes, for what is read next
  void allow(std::uint32_t ms);                      // for what is written next
  bool wait_for_byte();                              // until the deadline
  long read(char* into, std::size_t size);           // 0: the end; -1: an error, a deadline or a limit
  long write(const char* from, std::size_t size);    // all of it, or -1
  bool broken() const { return broken_; }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

 private:
  bool wait(short events, Deadline until) const;
  long fail() {
    broken_ = true;
    return -1;
  }

  Fd socket_;
  Deadline read_until_{}, write_until_{};
  std::size_t bytes_left_ = 0;
  bool broken_ = false;
  char buffer_[16384];
  std::size_t at_ = 0, filled_ = 0;
};

}  // namespace mycojobs::api
