// The launcher's connection to mycojobs-egress, which is started for the first run with an allow-list, and again after
// it has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/spawn.h"
#include "sandbox/frames.h"
#include "sandbox/launcher/event_loop.h"

namespace mycojobs::sandbox {

class EgressLink {
 public:
  using Warn = std::function<void(const std::string&)>;
  EgressLink(EventLoop&, Warn);
  ~EgressLink();
  // Sets the path of mycojobs-egress.
  void configure(std::string program) { program_ = std::move(program); }

  // Error: the proxy cannot be started, or accepts no more runs.
  Result<void> serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener);
  // True if the proxy that serves the run still exists. Without the proxy, the run has no network.
  bool serves(std::uint64_t run) const { return served_runs_.contains(run); }
  // Returns the refused connections so far, as lines for the job's log. The run continues with another job, whose
  // refusals are reported again.
  std::vector<std::string> consume_refused(std::uint64_t run);
  // Closes the run's connections. Returns the refused connections, as lines for the job's log.
  std::vector<std::string> close(std::uint64_t run);

 private:
  Result<void> start();
  void read_all();
  bool handle_frame(const RawFrame&);
  void stop();
  int send(std::string frame, Fd listener);
  int flush();

  EventLoop& loop_;
  Warn warn_;
  std::string program_;
  Child child_;
  Fd socket_, writable_;  // two descriptors of one socket, since both directions are watched
  EventLoop::Watch watch_ = 0, writable_watch_ = 0;
  struct PendingFrame {
    std::string frame;
    Fd listener;
  };
  std::deque<PendingFrame> unsent_;  // at most two per run, and one for each of its jobs with refusals
  std::unordered_map<std::uint64_t, std::vector<std::string>> refused_connections_;  // of all served runs
  std::unordered_set<std::uint64_t> served_runs_;  // runs that the current proxy serves
};

}  // namespace mycojobs::sandbox
