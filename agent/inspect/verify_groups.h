// What is wrong between jobs: those that wait for others, that share the slots of a concurrency key, that came with one
// message. Each is counted over all jobs, and what looks wrong is counted again.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "domain/invariants.h"
#include "inspect/verify_facts.h"

namespace mycojobs {

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

}  // namespace mycojobs
