// One connection of a job, from its first byte to its end.
//
//   reading --whole request--> resolving --addresses allowed--> connecting --> relaying --both sides ended--> closed
//      |                           |                               |             |
//      '-------- refused ----------'-------------------------------'             '-- plain HTTP: response sent --.
//                   v                                                                                            v
//               draining -------------------------------------------------------------------------------------> closed
//
// In the state `draining` the response is sent. Further data of the job is read and discarded; otherwise a reset would
// discard the response.
//
// A tunnel (CONNECT, SOCKS5) ends when both sides have ended; the end of each side is forwarded separately. A plain
// HTTP request has one response, after which the connection is closed. After an error both sides are reset, so that
// neither side accepts partial data as complete. Single-threaded, as all classes of the proxy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "sandbox/egress/allow_list_checker.h"
#include "sandbox/egress/http.h"
#include "sandbox/egress/poller.h"
#include "sandbox/egress/resolver.h"

namespace mycojobs::egress {

// `header_ms` limits the time from the first byte to the whole request, regardless of its speed.
struct Timeouts {
  std::uint64_t header_ms = 10000, connect_ms = 10000, idle_ms = 300000, drain_ms = 2000;
};

// State that the connections of a run share.
struct ProxyRunState {
  AllowListChecker checker;
  Resolver& resolver;
  Timeouts timeouts;
  Poller poller;
  std::uint64_t connections = 0, bytes_up = 0, bytes_down = 0, denied = 0;
  std::uint32_t reported_denials = 0;  // at most kMaxDenied
  std::function<void(const std::string&)> report_denied;
};

class Connection {
 public:
  // `id` is unique in the run and never 0. `now_ms` is a time of CLOCK_MONOTONIC.
  Connection(ProxyRunState&, std::uint32_t id, Fd client, std::uint64_t now_ms);
  ~Connection();
  Connection(const Connection&) = delete;
  void on_event(int fd, std::uint32_t events, std::uint64_t now_ms);  // reads at most kBufferBytes bytes
  void on_time(std::uint64_t now_ms);                                 // must be called a few times per second
  void abort();                                                       // resets both sides
  bool is_closed() const { return state_ == State::closed; }

 private:
  enum class State { reading, resolving, connecting, relaying, draining, closed };
  enum class Protocol { unknown, http, socks };
  struct Endpoint {
    Fd fd;
    std::uint32_t watched_events = 0;
  };
  struct RelayDirection {
    std::string pending;            // read but not yet written; no further reads while it is not empty
    bool has_ended = false;         // end of the source was read
    bool is_end_forwarded = false;  // the end was forwarded to the destination
    bool is_broken = false;         // the destination accepts no more data
  };

  void read_request();
  bool read_http();
  bool read_socks();
  void resolve_target(HostPort target);
  void use_addresses();
  void connect_next();
  void on_connected();
  void refuse(int status, std::uint8_t socks_reply, const std::string& reason);
  void deny(int status, std::uint8_t socks_reply, const std::string& reason);

  void relay(int fd, std::uint32_t events);
  void fill(RelayDirection&);
  bool read_upstream(std::string_view);
  bool read_downstream(std::string_view);
  void flush(RelayDirection&);
  void forward_shutdown(RelayDirection&);
  bool should_read(const RelayDirection&) const;
  void start_draining();
  void drain(std::uint32_t events);
  void update_events();
  void watch(Endpoint&, std::uint32_t events);
  void close();

  ProxyRunState& run_;
  const std::uint32_t id_;
  State state_ = State::reading;
  Protocol protocol_ = Protocol::unknown;
  std::uint64_t now_ms_, deadline_ms_;
  Endpoint client_, server_;
  std::string input_;  // the incomplete request, and later the incomplete part of its body
  HttpRequestParser parser_{kMaxHeadBytes, true};
  bool is_greeted_ = false;
  RequestHead request_;
  std::unique_ptr<Lookup> lookup_;
  std::map<int, std::uint32_t> lookup_waits_;
  std::vector<IpAddress> candidates_;  // allowed addresses; the last one is tried next
  std::uint64_t attempt_timeout_ms_ = 0;
  std::string last_failure_;
  RelayDirection upstream_, downstream_;
  ResponseHead response_;
};

}  // namespace mycojobs::egress
