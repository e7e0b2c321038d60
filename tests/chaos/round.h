// One round of chaos: jobs run while planned signals (KILL and STOP) are sent to random processes of agents and to
// Redis. After the last signal, the round waits without faults until all jobs have ended. Not thread-safe; the witness
// has a thread of its own.
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

// A signal to a random process of a component. If `also_kills_agent`, the agent of that process is killed as well.
struct PlannedSignal {
  Component component;
  int signal;
  bool also_kills_agent = false;
};
using SignalCounts = std::map<std::pair<Component, int>, unsigned>;

struct RoundSettings {
  std::uint64_t seed = 0;
  bool fsync_always = false;
  std::int64_t pause_us = 380'000;  // average time between two signals
};

struct StoppedProcess {
  ObservedProcess process;
  std::int64_t continue_us = 0;  // boot time at which SIGCONT is sent
};

struct AgentSlot {
  int runner = 0;
  std::unique_ptr<Process> process;
  std::int64_t start_us = 0;  // earliest start time while there is no process
};

class ChaosRound {
 public:
  ChaosRound(const TempDir& folder, const RoundSettings&);
  ~ChaosRound() { resume_stopped(true); }  // stopped processes cannot detect the end of their agent
  ChaosRound(const ChaosRound&) = delete;
  ChaosRound& operator=(const ChaosRound&) = delete;

  // Returns one line per problem; empty on success.
  std::vector<std::string> run();

  const SignalCounts& signal_counts() const { return signal_counts_; }
  const std::deque<PlannedJob>& jobs() const { return workload_.jobs(); }
  // Jobs of which a process was killed. These jobs may have any end.
  const std::set<JobName>& jobs_with_killed_process() const { return jobs_with_killed_process_; }
  // Number of killed processes without a name of a job, so the job is unknown.
  unsigned unidentified_kill_count() const { return unidentified_kill_count_; }
  const Witness& witness() const { return *witness_; }
  ProcessTree& tree() { return tree_; }
  RedisServer& redis() { return redis_; }
  PlainRedis& plain_redis() { return workload_.plain_redis(); }
  unsigned lost_tail_count() const { return lost_tail_count_; }  // a kill of Redis lost an acknowledged write
  std::int64_t settled_us() const { return settled_us_; }
  // Sends TERM to all agents. Returns unexpected exit codes and messages.
  std::vector<std::string> stop_agents();

 private:
  void plan_signals();
  void run_faults();
  void run_once(bool faults);
  void wait_until_settled();
  void restart_ended_agents(bool at_once);
  void send_next_signal();
  bool signal_redis(const PlannedSignal&);
  bool signal_matching_process(const PlannedSignal&);
  void record_killed_job(const ObservedProcess& victim, const std::vector<ObservedProcess>& processes);
  void resume_stopped(bool at_once);
  void log_action(
      const std::string& action);  // appends to acts.txt in the folder, with the time format of the agents' logs
  void check_after_redis_restart();
  void write_mark();

  const TempDir& folder_;
  RoundSettings settings_;
  Random random_;
  ProcessTree tree_;
  RedisServer redis_;
  Workload workload_;
  std::unique_ptr<Witness> witness_;
  std::vector<AgentSlot> agents_;
  std::deque<PlannedSignal> planned_signals_;
  std::vector<StoppedProcess> stopped_processes_;
  std::set<JobName> jobs_with_killed_process_;
  SignalCounts signal_counts_;
  std::vector<std::string> problems_;
  std::int64_t next_signal_us_ = 0, settled_us_ = 0;
  std::int64_t redis_restart_due_us_ = 0;  // boot time of the planned restart; 0 while Redis runs
  std::uint64_t mark_ = 0;                 // a counter in Redis: the last acknowledged value
  unsigned lost_tail_count_ = 0, unidentified_kill_count_ = 0;
};

}  // namespace mycojobs::test
