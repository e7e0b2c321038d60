// Queues and dead letters. Errors and thread-safety: store/store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// An entry of the list of dead letters.
struct DeadLetter {
  std::string id;                      // id of the entry in the list
  std::string job_key, queue, reason;  // reason: no_record, wrong_type, bad_record, crash_loop, too_large, ...
  std::uint64_t at_ms = 0;
};

// State of a queue.
struct QueueInfo {
  std::string queue;              // key of the queue
  std::uint64_t length = 0;       // entries of the list
  std::uint64_t prioritised = 0;  // entries outside the list: jobs with a priority
  bool paused = false;
  std::uint64_t journal_head = 0;  // revision of the latest fact, or 0 if there is no fact
  std::uint64_t facts = 0;         // number of facts in the journal
  std::uint64_t horizon_ms = 0;    // facts of jobs that ended before this time may have been removed
  std::string wrong_type = {};     // type of another client's value at the key, if it is not a list: "string"
};

// Queues to be included in a survey.
struct KnownQueues {
  std::vector<std::string> journals;         // keys of queues with a journal
  std::set<std::string, std::less<>> types;  // script types that runners serve
};

// Counts of a context, read in one step.
struct Survey {
  struct Queue {
    std::string queue;         // key of the queue
    std::uint64_t length = 0;  // including jobs with a priority
    // Waiting time of the next job. It is 0 if the queue is empty, and nullopt if the job's record has no time.
    std::optional<std::uint64_t> waiting_ms;
    bool paused = false;
  };
  std::vector<Queue> queues;
  std::uint64_t live = 0, delayed = 0, prerequisites = 0, ended = 0;  // numbers of jobs
  std::uint64_t dead_letters = 0, active_flows = 0, outbox = 0, inbox = 0;
};

// Queues and dead letters.
class QueueStore {
 public:
  explicit QueueStore(StoreConnection& connection) : connection_(connection) {}

  Result<std::vector<QueueInfo>> queues(Id context);  // queues with entries, facts or a pause; by name
  // Pauses or resumes a queue. Returns true if this call changed the state; of several concurrent calls only one does.
  Result<bool> set_queue_paused(Id context, const std::string& queue, bool paused);
  // Cancels at most max jobs of the queue, in queue order. Returns the number of removed entries.
  Result<std::uint32_t> purge_queue(Id context, const std::string& queue, std::uint32_t max);
  Result<std::vector<std::string>> queue_entries(Id context, const std::string& queue, std::uint64_t from,
                                                 std::uint32_t max);  // index 0 is claimed next
  Result<std::uint64_t> queue_length(Id context, const std::string& queue);
  // Reports at most 10,000 queues (an arbitrary subset) and the types of 1,000 runners. The cost grows with their
  // number.
  Result<KnownQueues> known_queues(Id context);
  // Returns the script types that runners of the context serve, at most 10 s old; empty if they could not be read yet.
  // All classes over the same connection share the result, which the next call may change.
  const std::set<std::string, std::less<>>& served_types(Id context);
  // Counts the entries of these queues, at most kMaxSurveyedQueues, and of all other indexes.
  static constexpr std::size_t kMaxSurveyedQueues = 250;
  Result<Survey> survey(Id context, std::span<const std::string> queues);
  Result<std::vector<DeadLetter>> dead_letters(Id context, std::size_t max);
  // Removes a dead letter. With requeue, its job runs again; if there is no record or never was, its entry is pushed
  // onto its queue again. Errors: those of SubmitStore::requeue(); not_found.
  Result<void> resolve_dead_letter(Id context, const std::string& id, bool requeue);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
