// One round of chaos: a Redis, agents, a client and a killer run until the deck of kills is empty. Then the round waits
// without faults until all jobs have ended. Uses one thread, and another for the witness.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chaos/process_tree.h"
#include "chaos/witness.h"
#include "chaos/workload.h"
#include "e2e/world.h"

namespace mycojobs::test {

inline constexpr int kAgents = 3;
inline constexpr std::int64_t kLeaseUs = 2'000'000;

// Starts an agent with the settings of these tests: lease kLeaseUs, a short grace, unlimited deliveries, small limits.
std::unique_ptr<Process> start_chaos_agent(const TempDir&, const std::string& url, int runner,
                                           const std::string& contexts, std::vector<std::string> environment = {});

// A planned signal. with_agent: stop the launcher, and kill its agent while it is stopped.
struct Card {
  Component what;
  int signal;
  bool with_agent = false;
};
using Tally = std::map<std::pair<Component, int>, unsigned>;

struct RoundSettings {
  std::uint64_t seed = 0;
  bool fsync_always = false;
  std::int64_t pause_us = 380'000;  // average time between kills
};

struct PausedProcess {
  ProcessSeen process;
  std::int64_t continue_us = 0;
};

struct AgentSlot {
  int runner = 0;
  std::unique_ptr<Process> process;
  std::int64_t start_us = 0;  // earliest start time while there is no process
};

class Round {
 public:
  Round(const TempDir& folder, const RoundSettings&);
  ~Round() { let_continue(true); }  // stopped processes could not detect the end of their agent
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // Returns one line per problem; empty on success.
  std::vector<std::string> run();

  const Tally& tally() const { return tally_; }
  const std::deque<PlannedJob>& jobs() const { return workload_.jobs(); }
  // Jobs of which a process was killed. These jobs may have any end.
  const std::set<JobName>& hits() const { return hits_; }
  // Number of runs that were killed before they had a name, so their jobs are unknown.
  unsigned unnamed_hits() const { return unnamed_hits_; }
  const Witness& witness() const { return *witness_; }
  ProcessTree& tree() { return tree_; }
  RedisServer& redis() { return redis_; }
  PlainRedis& plain() { return workload_.plain(); }
  unsigned lost_tails() const { return lost_tails_; }  // a kill of Redis lost an acknowledged write
  std::int64_t settled_us() const { return settled_us_; }
  // Sends TERM to all agents. Returns unexpected exit codes and messages.
  std::vector<std::string> stop_agents();

 private:
  void deal();
  void play();
  void one_turn(bool faults);
  void settle();
  void keep_agents(bool at_once);
  void kill_something();
  bool kill_redis(const Card&);
  bool kill_process(const Card&);
  void mark_hit(const ProcessSeen& victim, const std::vector<ProcessSeen>& all);
  void let_continue(bool at_once);
  void note(const std::string& act);  // appends to acts.txt in the folder, with the time format of the agents' logs
  void look_after_redis_started();
  void mark_time();

  const TempDir& folder_;
  RoundSettings settings_;
  Random random_;
  ProcessTree tree_;
  RedisServer redis_;
  Workload workload_;
  std::unique_ptr<Witness> witness_;
  std::vector<AgentSlot> agents_;
  std::deque<Card> deck_;
  std::vector<PausedProcess> stopped_;
  std::set<JobName> hits_;
  Tally tally_;
  std::vector<std::string> problems_;
  std::int64_t next_kill_us_ = 0, redis_start_us_ = 0, settled_us_ = 0;
  std::uint64_t mark_ = 0;  // a counter in Redis: the last acknowledged value
  unsigned lost_tails_ = 0, unnamed_hits_ = 0;
};

}  // namespace mycojobs::test
