// Checks every fact of the journals and every simulated process, and reports violated invariants immediately: an
// invalid fact, a process whose job is not live under its claim, two processes of one job, an end without a cause, a
// second end of the same life.
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

class InvariantChecker {
 public:
  InvariantChecker(World&, std::vector<std::string> queues);

  void check_new_facts();  // called after each step
  void on_process_started(const std::string& job, std::uint64_t epoch, const std::string& host);
  void on_process_ended(const std::string& job, std::uint64_t epoch, bool succeeded);

  const FoldedJob& job(const std::string& key) { return jobs_[key]; }  // the state that the facts describe
  bool is_running(const std::string& job) const { return running_processes_.contains(job); }
  std::size_t fact_count() const { return fact_count_; }
  std::size_t run_count() const { return run_count_; }
  Store& store() { return *store_; }  // without faults; its calls are not counted

 private:
  struct Process {
    std::uint64_t epoch = 0;
    std::string host;
  };
  void process_fact(const std::string& queue, const Fact&);
  void check_fact(const Fact&, const FoldedJob&);
  bool was_retired(const std::string& job);

  World& world_;
  std::unique_ptr<Store> store_;
  struct JournalPosition {
    std::uint64_t revision = 0;  // of the last fact that was read
    MemoryServer::Entries entries;
    bool is_new = false;
  };
  std::map<std::string, JournalPosition> journals_;  // by queue
  std::map<std::string, FoldedJob> jobs_;
  std::map<std::string, std::string> queue_by_job_;  // the queue whose journal contains the job's facts
  std::map<std::string, Process> running_processes_;
  std::map<std::string, std::uint64_t> latest_epochs_;               // latest epoch of the processes, by job
  std::set<std::pair<std::string, std::uint64_t>> successful_runs_;  // job and epoch of processes that succeeded
  std::uint64_t checked_writes_ = 0;
  bool are_facts_missing_ = false;  // retention has removed facts from a journal
  std::size_t fact_count_ = 0, run_count_ = 0;
};

// Returns the violations that `verify` finds in an idle store; one pass suffices.
std::vector<std::string> find_violations(Store&);

}  // namespace mycojobs::sim
