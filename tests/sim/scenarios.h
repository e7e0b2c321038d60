// Complete uses of the dispatch, small enough to inject a fault at every write.
#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "stage.h"

namespace mycojobs::sim {

struct Scenario {
  const char* name;
  void (*play)(Stage&);          // queues the requests and other events; agent 1 runs from the start
  std::vector<Id> jobs;          // jobs that must end
  bool must_be_retired = false;  // the jobs must also be retired
  Ms agent_start_ms = 0;
  StageSettings settings = {};
  bool needs_first_agent = false;  // only agent 1 can run the job
};
std::span<const Scenario> scenarios();
void PrintTo(const Scenario&, std::ostream*);

// A fault at the writing call with this number, from 1.
struct Crash {
  std::uint64_t write = 0;
  CallFault fault = CallFault::none;
};

struct CrashRunResult {
  std::map<std::string, std::string> outcome;  // status, detail and result by job; status by message
  std::uint64_t writes = 0;
  std::size_t crashes = 0;  // number of faults that occurred
  std::string violation;    // empty if no invariant was violated
};
// use_other_agent: the killed agent is not restarted; instead, an agent on another host starts.
CrashRunResult play(const Scenario&, const std::vector<Crash>&, bool use_other_agent);

std::string to_text(const std::vector<Crash>&);

}  // namespace mycojobs::sim
