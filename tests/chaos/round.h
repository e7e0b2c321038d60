// One round of chaos: a Redis, agents, a client and a killer, until the deck of kills is empty; then quiet until every
// job has ended. One thread does it all, the witness has another.
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

// An agent as these tests run it: kLeaseUs, short grace, deliveries without end, small limits.
std::unique_ptr<Process> start_chaos_agent(const TempDir&, const std::string& url, int runner,
                                           const std::string& contexts, std::vector<std::string> environment = {});

// What is to be done to whom. with_agent: stop the launcher, and kill the agent above it while it is stopped.
struct Card {
  Component what;
  int signal;
  bool with_agent = false;
};
using Tally = std::map<std::pair<Component, int>, unsigned>;

struct RoundSettings {
  std::uint64_t seed = 0;
  bool fsync_always = false;
  std::int64_t pause_us = 380'000;  // between kills, on average
};

struct Stopped {
  ProcessSeen process;
  std::int64_t continue_us = 0;
};

struct AgentSlot {
  int runner = 0;
  std::unique_ptr<Process> process;
  std::int64_t start_us = 0;  // not before; while there is no process
};

class Round {
 public:
  Round(const TempDir& folder, const RoundSettings&);
  ~Round() { let_continue(true); }  // what is stopped could not see that its agent has gone
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // Empty: it went as it should. Otherwise what did not, one line each.
  std::vector<std::string> run();

  const Tally& tally() const { return tally_; }
  const std::deque<PlannedJob>& jobs() const { return workload_.jobs(); }
  // Jobs one of whose own processes was killed: they may end as they like.
  const std::set<JobName>& hits() const { return hits_; }
  // Of how many runs killed in their first instants it is not known whose they were.
  unsigned unnamed_hits() const { return unnamed_hits_; }
  const Witness& witness() const { return *witness_; }
  ProcessTree& tree() { return tree_; }
  RedisServer& redis() { return redis_; }
  PlainRedis& plain() { return workload_.plain(); }
  unsigned lost_tails() const { return lost_tails_; }  // an acknowledged write was gone after a kill of Redis
  std::int64_t settled_us() const { return settled_us_; }
  // TERM to all; what they answered that they should not have.
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
  void note(const std::string& act);  // into acts.txt of the folder, with the time as agents' logs have it
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
  std::vector<Stopped> stopped_;
  std::set<JobName> hits_;
  Tally tally_;
  std::vector<std::string> problems_;
  std::int64_t next_kill_us_ = 0, redis_start_us_ = 0, settled_us_ = 0;
  std::uint64_t mark_ = 0;  // a counter in Redis: what it had acknowledged last
  unsigned lost_tails_ = 0, unnamed_hits_ = 0;
};

}  // namespace mycojobs::test
