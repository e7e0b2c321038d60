// One run: its listener, its connections and its share of the proxy.
#pragma once

#include <memory>
#include <unordered_map>

#include "sandbox/egress/connection.h"

namespace mycojobs::egress {

inline constexpr std::size_t kMaxConnections = 64;  // per run; further connections wait in the listener's queue
// New connections of a run between two calls of on_time(). At four calls a second this limits a run to 256 connections
// a second: the ports that the kernel reserves for a minute after each (TIME_WAIT) stay below the host's 28000 ports
// per destination.
inline constexpr std::size_t kMaxAcceptsPerInterval = 64;

class ProxiedRun {
 public:
  // REQUIRES: the poller of `state` is valid. Error: invalid, the descriptor is not a TCP listener.
  static Result<std::unique_ptr<ProxiedRun>> start(ProxyRunState, Fd listener);
  ~ProxiedRun();  // resets every connection

  int poll_fd() const { return state_.poller.fd(); }
  ProxyRunState& state() { return state_; }
  // Processes a bounded number of events. At most `max_connections` connections are open at a time.
  void process_events(std::uint64_t now_ms, std::size_t max_connections);
  void on_time(std::uint64_t now_ms, std::size_t max_connections);
  bool needs_timer() const { return is_paused_ || !connections_.empty(); }

 private:
  ProxiedRun(ProxyRunState state, Fd listener) : state_(std::move(state)), listener_(std::move(listener)) {}
  void accept(std::uint64_t now_ms, std::size_t max_connections);
  void update_listener(std::size_t max_connections);

  ProxyRunState state_;
  Fd listener_;
  std::uint32_t listener_events_ = 0;
  bool is_paused_ = false;        // no connections are accepted until on_time(): too many accepts, or a shortage
  std::size_t accept_count_ = 0;  // since the last on_time()
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace mycojobs::egress
