// One connection of a job, from its first byte to its end.
//
//   reading --whole request--> resolving --each address judged--> connecting --> relaying --both sides ended--> closed
//      |                           |                                  |             |
//      '-------- refused ----------'----------------------------------'             '-- plain HTTP: answer sent --.
//                   v                                                                                             v
//               draining --------------------------------------------------------------------------------------> closed
//
// draining: the answer goes out. What the job still sends is read and dropped, or a reset would take the answer with
// it.
//
// A tunnel (CONNECT, SOCKS5) ends when both sides have ended; each side's end is passed on by itself. A plain
// HTTP request has one answer and closes. Whatever breaks ends both sides by a reset, so that nobody takes half for
// whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "sandbox/egress/http.h"
#include "sandbox/egress/judge.h"
#include "sandbox/egress/poller.h"
#include "sandbox/egress/resolver.h"

namespace mycojobs::egress {

// Milliseconds. header: from the first byte to the whole request, however slowly it comes.
struct Times {
  std::uint64_t header_ms = 10000, connect_ms = 10000, idle_ms = 300000, drain_ms = 2000;
};

// What the connections of a run share.
struct RunState {
  Judge judge;
  Resolver& resolver;
  Times times;
  Poller poller;
  std::uint64_t connections = 0, bytes_up = 0, bytes_down = 0, denied = 0;
  std::uint32_t reported = 0;  // of what the job was denied: report_denied writes no more than kMaxDenied
  std::function<void(const std::string&)> report_denied;
};

class Connection {
 public:
  // `id` is its own among those of the run, and never 0. Times are CLOCK_MONOTONIC milliseconds.
  Connection(RunState&, std::uint32_t id, Fd client, std::uint64_t now);
  ~Connection();
  Connection(const Connection&) = delete;
  void on_event(int fd, std::uint32_t events, std::uint64_t now);  // reads at most kPart bytes
  void on_time(std::uint64_t now);                                 // call a few times a second
  void abort();                                                    // both sides are reset
  bool closed() const { return state_ == State::closed; }

 private:
  enum class State { reading, resolving, connecting, relaying, draining, closed };
  enum class Language { unknown, http, socks };
  struct Side {
    Fd fd;
    std::uint32_t waits_for = 0;
  };
  struct Lane {              // one direction
    std::string pending;     // read but not yet written; while it has something, nothing more is read
    bool ended = false;      // the reader has seen the end
    bool passed_on = false;  // and the other side has been shut
    bool broken = false;     // the other side takes no more
  };

  void read_request();
  bool read_http();
  bool read_socks();
  void ask(HostPort target);
  void take_answer();
  void connect_next();
  void connected();
  void refuse(int status, std::uint8_t socks_reply, const std::string& why);
  void deny(int status, std::uint8_t socks_reply, const std::string& why);

  void relay(int fd, std::uint32_t events);
  void fill(Lane&);
  bool take_up(std::string_view);
  bool take_down(std::string_view);
  void flush(Lane&);
  void pass_end_on(Lane&);
  bool wants_more(const Lane&) const;
  void start_draining();
  void drain(std::uint32_t events);
  void update_waits();
  void wait(Side&, std::uint32_t events);
  void close();

  RunState& run_;
  const std::uint32_t id_;
  State state_ = State::reading;
  Language language_ = Language::unknown;
  std::uint64_t now_, deadline_;
  Side client_, server_;
  std::string input_;  // of the job, until its request is whole; then what is of its body and not whole yet
  HttpRequestParser parser_{kMaxHeadBytes, true};
  bool greeted_ = false;
  RequestHead request_;
  std::unique_ptr<Lookup> lookup_;
  std::map<int, std::uint32_t> lookup_waits_;
  std::vector<IpAddress> candidates_;  // judged; the last is tried next
  std::uint64_t attempt_ms_ = 0;
  std::string last_failure_;
  Lane up_, down_;
  ResponseHead response_;
};

}  // namespace mycojobs::egress
