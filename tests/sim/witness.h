// Observes every fact of the journals and every simulated process, and reports violated invariants at once: an invalid
// fact, a process whose job is not live under its claim, two processes of one job, an end without a cause, a second end
// of the same life.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "jobs/dispatch_journal.h"
#include "world.h"

namespace mycojobs::sim {

class Witness {
 public:
  Witness(World&, std::vector<std::string> queues);

  void look();  // called after each step
  void began(const std::string& job, std::uint64_t epoch, const std::string& where);
  void ended(const std::string& job, std::uint64_t epoch, bool well);

  const FoldedJob& job(const std::string& key) { return jobs_[key]; }
  bool is_running(const std::string& job) const { return running_.contains(job); }
  std::size_t facts() const { return facts_; }
  std::size_t runs() const { return runs_; }
  Store& store() { return *store_; }  // without faults; its calls are not counted

 private:
  struct Process {
    std::uint64_t epoch = 0;
    std::string where;
  };
  void take(const std::string& queue, const Fact&);
  void check(const Fact&, const FoldedJob&);
  bool was_retired(const std::string& job);

  World& world_;
  std::unique_ptr<Store> store_;
  struct Head {
    std::uint64_t revision = 0;  // of the last fact that was read
    MemoryServer::Entries entries;
    bool is_new = false;
  };
  std::map<std::string, Head> heads_;  // by journal
  std::map<std::string, FoldedJob> jobs_;
  std::map<std::string, std::string> queue_of_;  // the queue whose journal contains the job's facts
  std::map<std::string, Process> running_;
  std::map<std::string, std::uint64_t> latest_epochs_;        // latest epoch of the processes, by job
  std::set<std::pair<std::string, std::uint64_t>> finished_;  // job and epoch of processes that succeeded
  std::uint64_t seen_writes_ = 0;
  bool facts_gone_ = false;  // whether facts have left a journal: retention removes jobs
  std::size_t facts_ = 0, runs_ = 0;
};

// Returns the violations that `verify` finds in an idle store; one pass suffices.
std::vector<std::string> violations(Store&);

}  // namespace mycojobs::sim
