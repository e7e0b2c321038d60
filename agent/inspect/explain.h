// Explains the state of a job: one reason, its evidence, and the next action. inspect_job() only reads; explain()
// decides from the result and has no side effects. Each cause is a row of causes(), which the manual repeats.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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
nlohmann::json to_json(const Explanation&);

struct CauseRow {
  std::string_view state, cause, meaning;
};
std::span<const CauseRow> causes();

// A job and everything that it may wait for, as read from the store.
struct JobSituation {
  Id context = 1;
  std::uint32_t database = 1;  // database of the context
  JobStoreState job;           // includes the positions in queues
  std::string queue;           // key of the job's queue; empty if the record has no script type
  bool is_queue_paused = false;
  std::uint64_t queue_length = 0;    // number of entries in the list of the queue
  std::uint64_t priority_count = 0;  // number of jobs with a priority, which are in an index instead of the list
  // Number of entries of the list before the job. No value if the list does not contain the job.
  std::optional<std::uint64_t> entries_ahead;
  std::vector<RunnerInfo> runners;  // runners of the context, including dead runners
  // Set by the caller: the instance of the runner that claimed the job has ended, with all of its processes.
  bool has_owner_ended = false;
  bool coordinator_checks_prerequisites = false;  // otherwise the agents check them
  std::vector<JobStoreState> dependencies;        // the jobs that this job waits for
  // Jobs that wait for each other, starting from this job; the last job is listed twice.
  std::vector<std::string> cycle;
  std::vector<std::string> slot_owners;  // running jobs with the concurrency key of the job
  std::optional<DeadLetter> dead_letter;
  std::vector<std::string> anomalies;  // recorded anomalies that mention the job
  // Whether the job is missing in the context and exists in database 0. Clients that select no database write there.
  bool is_in_database_0 = false;
};

// Reads the data for explain(). Repeats the read, a few times at most, until the job is unchanged at the end of the
// read, so that the parts are consistent. Errors: those of the store. A missing job is not an error.
Result<JobSituation> inspect_job(Store&, Id context, const std::string& job_key);
Explanation explain(const JobSituation&);
Result<Explanation> explain(Store&, Id context, const std::string& job_key);

// Pairs of a job and the jobs that it waits for.
using WaitGraph = std::vector<std::pair<std::string, std::vector<std::string>>>;
// Returns the path from `start` to the first job that it reaches twice, for example a, b, c, b. Returns an empty path
// if there is no cycle.
std::vector<std::string> find_cycle(const WaitGraph&, const std::string& start);

// Returns the time of the server of this context.
Result<std::uint64_t> store_now_ms(Store&, Id context);

}  // namespace mycojobs
