// Whether a store holds what reliability promises of every job: the invariants checker, over a live or a stopped store.
// Reads, changes nothing. What looks wrong is looked at again, each job in one atomic step and once more after a pause,
// so that jobs that move while it reads are no findings.
//
// Not seen: members of indexes that name neither a record nor a claim, a lease or a fact (the port does not list them;
// they are dropped when they are met); of jobs that wait for others, what does not look wrong at first sight (a rebuild
// looks at each of them as a whole).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "domain/invariants.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

// What a context's journals say of its jobs, and which jobs there are: the reading that verify and rebuild share.
// Reads a store while it is at work: what was read may have changed since, which catch_up() looks at again.
using Progress = std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)>;

struct Census {
  std::vector<QueueInfo> queues;
  std::unordered_map<std::string, JobHistory> jobs;
  std::vector<std::pair<std::string, std::string>> stray_entries;  // queue, entry: names of no job
  std::vector<std::pair<std::string, std::uint64_t>> stray_facts;  // queue, revision: name no job
  std::vector<std::uint64_t> read_to;  // of each queue: up to which revision its journal was read
  std::uint64_t facts = 0;
  std::uint64_t began_ms = 0;  // by the store's clock

  std::string queue_name(std::uint32_t queue) const;                // "" for none
  std::uint32_t queue_index(const std::string& name) const;         // kNoQueue if it was not there then
  std::string queue_of(const JobHistory&, const JobPlaces&) const;  // whose journal tells of the job
  // whole: the places come of a whole look; else its entries are those that were read with the lists.
  JobSight sight(const JobPlaces&, const JobHistory&, const Listing&, bool whole) const;
};
Result<Census> take_census(Store&, Id context, const Progress&);
// Reads what the journal of a queue has got since.
Result<void> read_on(Store&, Id context, std::uint32_t queue, Census&, const Progress&);
// Reads anew what the lists of the queues hold.
Result<void> read_entries(Store&, Id context, Census&, const Progress&);

// Takes the facts that its claim lists and that were written since into the history, which is then that of `places`
// exactly. again: also looks whether facts that are not listed are still there; retired ones are forgotten.
Result<Listing> catch_up(Store&, Id context, const Census&, const JobPlaces& places, bool again, JobHistory&);

// The beginning of the keys that hold something about a job or a message: "<job key>" (its claim), "<message key>".
std::string own_prefix(std::string_view of);

// What is wrong between jobs: those that wait for others, that share the slots of a concurrency key, that came with one
// message. Each is counted over all jobs, and what looks wrong is counted again.
class JobGroups {
 public:
  JobGroups(Store& store, Id context, Census& census) : store_(store), context_(context), census_(census) {}

  void note(const JobPlaces&);
  std::vector<std::string> wait_for_ended() const;  // jobs that are parked on one that has ended, as it seems
  // Waits as long as `pause` does between two looks.
  Result<std::vector<Finding>> judge(const std::function<void()>& pause);

 private:
  // Jobs that a parked job waits for; none if it is not parked.
  const std::vector<std::string>& waits_of(const std::string& job) const;
  // Jobs that have not ended, by how they stand to the slots of their concurrency key.
  struct Slots {
    std::uint32_t taken = 0;
    std::uint32_t comers = 0;  // on their way to a slot: queued, or pushed by another client
    std::uint32_t limit = 0;   // the smallest that a held one asks for
    std::map<std::string, std::vector<std::uint64_t>> held;  // and the revisions of their facts
    std::vector<std::string> members;
    bool wrong() const { return !held.empty() && comers == 0 && taken < limit; }
  };
  using SlotsByKey = std::map<std::string, Slots>;

  static void note_slots(const JobPlaces&, SlotsByKey&);
  Result<SlotsByKey> count_slots(const SlotsByKey& of);
  Result<std::vector<std::string>> newcomers();
  Result<std::vector<Finding>> judge_slots(const std::function<void()>& pause);
  Result<std::vector<Finding>> judge_messages(const std::function<void()>& pause);
  // "" if the mark of the message agrees with its jobs.
  Result<std::string> message_trouble(const std::string& message, const std::vector<std::string>& jobs);
  std::vector<std::vector<std::string>> circles() const;
  Result<std::vector<Finding>> judge_circles();
  Result<std::vector<JobPlaces>> places_of(const std::vector<std::string>& jobs);

  Store& store_;
  const Id context_;
  Census& census_;
  std::unordered_map<std::string, std::vector<std::string>> waits_;
  SlotsByKey slots_;
  std::map<std::string, std::vector<std::string>> messages_;  // jobs of each that have not ended
};

// Messages that do not stand where their marks say, each seen in one step.
struct MessageTrouble {
  MessagePlaces places;
  std::vector<MessageFinding> findings;
};
Result<std::vector<MessageTrouble>> look_at_messages(Store&, Id context);

struct VerifyReport {
  std::vector<Finding> findings;  // by subject, of one subject the cause first
  std::uint64_t jobs = 0, facts = 0, queues = 0;
};

// Errors of the store. Takes about 300 bytes a job and 8 a fact.
Result<VerifyReport> verify(Store&, Id context, const Progress&);

}  // namespace mycojobs
