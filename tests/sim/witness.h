// Sees every fact of the journals as it is written, and every simulated process, and complains at once about what must
// not be: facts that do not fit, a process whose job is not live under its claim, two processes of one job, an end
// that nothing ended so, a life that ends twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "domain/dispatch_journal.h"
#include "world.h"

namespace mycojobs::sim {

class Witness {
 public:
  Witness(World&, std::vector<std::string> queues);

  void look();  // after each step
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
  std::map<std::string, Head> heads_;  // of the journals
  std::map<std::string, FoldedJob> jobs_;
  std::map<std::string, std::string> queue_of_;  // the queue whose journal tells of a job
  std::map<std::string, Process> running_;
  std::map<std::string, std::uint64_t> latest_epochs_;        // of processes
  std::set<std::pair<std::string, std::uint64_t>> finished_;  // job, epoch of processes that ended well
  std::uint64_t seen_writes_ = 0;
  bool facts_gone_ = false;  // from a journal: retention takes jobs away
  std::size_t facts_ = 0, runs_ = 0;
};

// What `verify` finds of a store in which nothing moves: one look is enough. Violations only.
std::vector<std::string> violations(Store&);

}  // namespace mycojobs::sim
