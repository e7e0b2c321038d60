// Explains the state of a job: one reason, its evidence, and the next action. inspect_job() only reads; explain()
// decides from the result and has no side effects. Each cause is a row of causes(), which the manual repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/store.h"

namespace mycojobs {

struct Explanation {
  std::string job_key;
  std::string state;                  // state of the job; with `cause`, identifies a row of causes()
  std::string cause;                  // identifier for programs
  std::string reason;                 // the cause as a sentence about this job
  std::vector<std::string> evidence;  // one line each
  std::string next_action;            // commands are in `...`
};

struct CauseRow {
  std::string_view state, cause, meaning;
};
std::span<const CauseRow> causes();

// A job and everything that it may wait for, as read from the store.
struct JobSituation {
  Id context = 1;
  JobStoreState job;  // includes the positions in queues
  std::string queue;  // key of its queue; empty: the record has no script type
  bool queue_paused = false;
  std::uint64_t queue_length = 0;              // entries of the list
  std::uint64_t priority_count = 0;            // jobs with a priority, which are not in the list but in an index
  std::optional<std::uint64_t> entries_ahead;  // entries of the list before the job; no value: not found in the list
  std::vector<RunnerInfo> runners;             // runners of the context, including dead runners
  bool owner_ended = false;         // the caller has seen that the claiming instance and all its processes have ended
  bool coordinator_checks = false;  // the coordinator checks prerequisites instead of the agents
  std::vector<JobStoreState> dependencies;  // the jobs that this job waits for
  // Jobs that wait for each other, starting from this job; the last job is listed twice.
  std::vector<std::string> cycle;
  std::vector<std::string> slot_owners;  // running jobs with the concurrency key of the job
  std::optional<DeadLetter> dead_letter;
  std::vector<std::string> anomalies;  // recorded anomalies that mention the job
  // Set if the context has no such job but database 0 has, where clients write that do not select a database.
  bool in_database_0 = false;
};

// Reads the data for explain(). Repeats the read, a few times at most, until the job is unchanged at the end of the
// read, so that the parts are consistent. Errors: those of the store. A missing job is not an error.
Result<JobSituation> inspect_job(Store&, Id context, const std::string& job_key);
Explanation explain(const JobSituation&);
Result<Explanation> explain(Store&, Id context, const std::string& job_key);

// Pairs of a job and the jobs that it waits for. find_cycle() returns the path from `start` into the first cycle: a, b,
// c, b. The result is empty without a cycle.
using Waits = std::vector<std::pair<std::string, std::vector<std::string>>>;
std::vector<std::string> find_cycle(const Waits&, const std::string& start);

// Returns the time of the server of this context.
Result<std::uint64_t> store_now_ms(Store&, Id context);

}  // namespace mycojobs
