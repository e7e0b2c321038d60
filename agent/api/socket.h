// Sockets of the server: an address to listen on, and one client's connection with deadlines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/http.h"
#include "api/request_head.h"
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
  // ahead: what has been read of it already.
  explicit Connection(Fd socket, std::string ahead = {}) : socket_(std::move(socket)), ahead_(std::move(ahead)) {}

  void expect(std::uint32_t ms, std::size_t bytes);  // from now: so long, and so many bytes, for what is read next
  void allow(std::uint32_t ms);                      // for what is written next
  bool wait_for_byte();                              // until the deadline
  // Reads until the head is there, and leaves it to be read. Its length; 0: the end. Errors: invalid (it is no head),
  // too_large, unavailable (its time is over).
  Result<std::size_t> wait_for_head();
  std::string_view ahead() const { return std::string_view(ahead_).substr(at_); }  // read, and not taken yet
  void watch_chunks() { chunks_.emplace(); }       // what is read from now on is a chunked body
  bool misframed() const { return misframed_; }    // it was none
  long read(char* into, std::size_t size);         // 0: the end; -1: an error, a deadline or a limit
  long write(const char* from, std::size_t size);  // all of it, or -1
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
  long fill();  // 0: the end; -1: an error or the deadline

  bool broken_ = false, misframed_ = false;
  std::string ahead_;
  std::size_t at_ = 0;  // so much of it has been taken
  std::optional<ChunkFraming> chunks_;
};

}  // namespace mycojobs::api
