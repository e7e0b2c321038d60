// One job: its listener, its connections, its share of the proxy.
#pragma once

#include <memory>
#include <unordered_map>

#include "sandbox/egress/connection.h"

namespace mycojobs::egress {

inline constexpr std::size_t kMaxConnections = 64;  // of a run; more wait in the listener's queue
// New ones of a run between two calls of on_time(). At four a second this is 256 connections a second: the ports that
// the kernel keeps for a minute after each (TIME_WAIT) stay below the 28000 that the host has for one destination.
inline constexpr std::size_t kMaxAccepts = 64;

class Run {
 public:
  // The poller of `state` is whole. Error: invalid, the descriptor is no TCP listener.
  static Result<std::unique_ptr<Run>> start(RunState, Fd listener);
  ~Run();  // resets every connection

  int poll_fd() const { return state_.poller.fd(); }
  RunState& state() { return state_; }
  // Does a bounded piece of what is ready. `limit`: connections that it may have now.
  void turn(std::uint64_t now, std::size_t limit);
  void on_time(std::uint64_t now, std::size_t limit);
  bool needs_time() const { return paused_ || !connections_.empty(); }

 private:
  Run(RunState state, Fd listener) : state_(std::move(state)), listener_(std::move(listener)) {}
  void accept(std::uint64_t now, std::size_t limit);
  void update_listener(std::size_t limit);

  RunState state_;
  Fd listener_;
  std::uint32_t listener_waits_for_ = 0;
  bool paused_ = false;      // too many at once, or no descriptor or memory for another: tried again when time passes
  std::size_t accepts_ = 0;  // since on_time()
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace mycojobs::egress
