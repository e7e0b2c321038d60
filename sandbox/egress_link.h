// The launcher's end of mycojobs-egress: started when the first run with an allow-list comes, and again if it ended.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "base/spawn.h"
#include "mycojobs/result.h"
#include "sandbox/frames.h"
#include "sandbox/loop.h"

namespace mycojobs::sandbox {

class EgressLink {
 public:
  using Warn = std::function<void(const std::string&)>;
  EgressLink(Loop&, Warn);
  ~EgressLink();
  // program: its path.
  void configure(std::string program) { program_ = std::move(program); }

  // Error: it cannot be started, or takes no more runs.
  Result<void> serve(std::uint64_t run, const std::vector<std::string>& allow, const Fd& listener);
  // Whether the proxy that was given the run is still there: its network ends with it.
  bool serves(std::uint64_t run) const { return served_.contains(run); }
  // Lines for the job's log: what was refused until now. The run goes on, with another job, whose refusals are new
  // lines.
  std::vector<std::string> take_refused(std::uint64_t run);
  // Ends what the run still has outside. Returns lines for the job's log: what was refused.
  std::vector<std::string> close(std::uint64_t run);

 private:
  Result<void> start();
  void read_all();
  bool obey(const RawFrame&);
  void stop();
  int send(std::string frame, Fd listener);
  int flush();

  Loop& loop_;
  Warn warn_;
  std::string program_;
  Child child_;
  Fd socket_, writable_;  // two names for one socket, since both ways are waited for
  Loop::Watch watch_ = 0, writable_watch_ = 0;
  struct Unsent {
    std::string frame;
    Fd listener;
  };
  std::deque<Unsent> unsent_;  // at most two a run, and one for each job of it that was refused something
  std::unordered_map<std::uint64_t, std::vector<std::string>> refused_;  // of the runs that were served
  std::unordered_set<std::uint64_t> served_;                             // by this proxy
};

}  // namespace mycojobs::sandbox
