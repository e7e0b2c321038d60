// Checks that a store holds the reliability invariants of every job. Works on a live or a stopped store. Read-only. A
// mismatch is read again, each job in one atomic step and once more after a pause, so that jobs that change during the
// read give no findings.
//
// Not checked: members of indexes that name neither a record nor a claim, a lease or a fact (the store interface does
// not list them; they are dropped when they are met); and jobs that wait for other jobs, unless a first read shows a
// problem (a rebuild reads each of them completely).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "inspect/invariants.h"
#include "store/store.h"

namespace mycojobs {

using ProgressCallback = std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

// The jobs of a context and their histories from the journals, for verify() and rebuild(). The store may change during
// the read; read_new_facts() reads the changes.
struct KeyInventory {
  std::vector<QueueInfo> queues;
  std::unordered_map<std::string, JobHistory> jobs;
  std::vector<std::pair<std::string, std::string>> stray_entries;  // queue and an entry that names no job
  std::vector<std::pair<std::string, std::uint64_t>> stray_facts;  // queue and the revision of a fact that names no job
  std::vector<std::uint64_t> last_revisions;  // by queue index: revision up to which the journal was read
  std::uint64_t fact_count = 0;               // number of facts that were read
  std::uint64_t start_ms = 0;                 // time of the store

  std::string queue_name(std::uint32_t queue) const;         // "" for kNoQueue
  std::uint32_t queue_index(const std::string& name) const;  // kNoQueue if the queue was not listed
  // Returns the queue whose journal contains the facts of the job.
  std::string get_queue(const JobHistory&, const JobStoreState&) const;
  // is_complete: store_state contains the number of queue entries of the job. Otherwise the number is taken
  // from the earlier read of the lists.
  JobInspection make_inspection(const JobStoreState&, const JobHistory&, const FactListDifference&,
                                bool is_complete) const;
};
Result<KeyInventory> read_key_inventory(Store&, Id context, const ProgressCallback&);
// Reads the facts that were added to the journal of a queue after the last read.
Result<void> read_more_facts(Store&, Id context, std::uint32_t queue, KeyInventory&, const ProgressCallback&);
// Reads the lists of the queues again.
Result<void> read_entries(Store&, Id context, KeyInventory&, const ProgressCallback&);

// Adds the facts that the claim lists and that were written after the last read to the history, so that the history
// matches the state exactly. Returns the differences between the list and the history. check_unlisted: also checks
// whether unlisted facts still exist. If one of them is missing, the history is cleared and read again from the claim,
// because the job was retired.
Result<FactListDifference> read_new_facts(Store&, Id context, const KeyInventory&, const JobStoreState&,
                                          bool check_unlisted, JobHistory&);

// Finds problems in groups of jobs: jobs that wait for other jobs, jobs that share the slots of a concurrency key, and
// jobs of one message. Each group is counted over all jobs, and a mismatch is counted again before it is reported.
class JobGroups {
 public:
  JobGroups(Store& store, Id context, KeyInventory& inventory)
      : store_(store), context_(context), inventory_(inventory) {}

  void add_job(const JobStoreState&);
  // Returns the jobs that wait for an ended job, according to the jobs that were added.
  std::vector<std::string> find_waiting_for_ended() const;
  // `pause` waits between two reads.
  Result<std::vector<Finding>> check(const std::function<void()>& pause);

 private:
  // Returns the jobs that a parked job waits for; empty if the job is not parked.
  const std::vector<std::string>& get_awaited_jobs(const std::string& job) const;
  // Jobs that have not ended, by their relation to the slots of their concurrency key.
  struct Slots {
    std::uint32_t occupied = 0;
    std::uint32_t candidates = 0;  // jobs that will receive a slot: queued, or pushed by another client
    std::uint32_t limit = 0;       // smallest limit of a held job
    std::map<std::string, std::vector<std::uint64_t>> held;  // held jobs with the revisions of their facts
    std::vector<std::string> members;
    bool has_unused_slots() const { return !held.empty() && candidates == 0 && occupied < limit; }
  };
  using SlotsByKey = std::map<std::string, Slots>;

  static void add_slots(const JobStoreState&, SlotsByKey&);
  Result<SlotsByKey> count_slots(const SlotsByKey& slots);
  Result<std::vector<std::string>> read_new_jobs();
  Result<std::vector<Finding>> check_slots(const std::function<void()>& pause);
  Result<std::vector<Finding>> check_messages(const std::function<void()>& pause);
  // Returns "" if the mark of the message agrees with its jobs.
  Result<std::string> check_message_mark(const std::string& message, const std::vector<std::string>& jobs);
  std::vector<std::vector<std::string>> find_cycles() const;
  Result<std::vector<Finding>> check_cycles();
  Result<std::vector<JobStoreState>> read_job_states(const std::vector<std::string>& jobs);

  Store& store_;
  const Id context_;
  KeyInventory& inventory_;
  std::unordered_map<std::string, std::vector<std::string>> waits_;  // by parked job: the jobs that it waits for
  SlotsByKey slots_;
  std::map<std::string, std::vector<std::string>> messages_;  // by message: jobs of the message that have not ended
};

// A message that is not at the place stored in its mark; read in one step.
struct MessageProblem {
  MessageStoreState store_state;
  std::vector<MessageFinding> findings;
};
Result<std::vector<MessageProblem>> read_message_states(Store&, Id context);

struct VerifyReport {
  std::vector<Finding> findings;  // sorted by subject; the cause is first within a subject
  std::uint64_t jobs = 0, facts = 0, queues = 0;
};

// Errors: those of the store. Uses about 300 bytes of memory for each job and 8 for each fact.
Result<VerifyReport> verify(Store&, Id context, const ProgressCallback&);

}  // namespace mycojobs
