// What is asked of the dispatch, from its beginning to its end, small enough to be stopped at every write.
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
  void (*play)(Stage&);  // what is asked, and what happens beside; agent 1 runs from the beginning
  std::vector<Id> jobs;  // that end
  bool retired = false;  // and leave
  Ms agent_starts = 0;
  StageSettings settings = {};
  bool bound = false;  // to agent 1: no other can do it
};
std::span<const Scenario> scenarios();
void PrintTo(const Scenario&, std::ostream*);

// One disturbance: of the call that can change anything and has this number, from 1.
struct Crash {
  std::uint64_t write = 0;
  Fate fate = Fate::fine;
};

struct Played {
  std::map<std::string, std::string> outcome;  // of each job: status, detail, result; of each message: its status
  std::uint64_t writes = 0;
  std::size_t crashes = 0;  // that were met
  std::string trouble;      // empty: all is as it must be, whatever the outcome
};
// other: the agent that was killed does not come back, another one on another host begins.
Played play(const Scenario&, const std::vector<Crash>&, bool other);

std::string shown(const std::vector<Crash>&);

}  // namespace mycojobs::sim
