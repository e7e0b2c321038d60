// Why a job is where it is: one reason, what shows it, and what to do next. look_at() reads and changes nothing;
// explain() judges and is pure. Every cause that it can name is a row of causes(), which the manual repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct Explanation {
  std::string job_key;
  std::string state;                  // where the job is; with `cause` a row of causes()
  std::string cause;                  // one word for programs
  std::string reason;                 // the same as a sentence about this job
  std::vector<std::string> evidence;  // one line each
  std::string next;                   // what to do now; commands in `...`
};

struct CauseRow {
  std::string_view state, cause, meaning;
};
std::span<const CauseRow> causes();

// What is known about a job and what it waits for.
struct Situation {
  Id context = 1;
  JobPlaces job;      // with its positions
  std::string queue;  // key of its queue; empty: its record names no script type
  bool queue_paused = false;
  std::uint64_t queue_length = 0;      // entries of the list
  std::uint64_t prioritised = 0;       // jobs with a priority, which stand beside it
  std::optional<std::uint64_t> ahead;  // entries of the list that come before it; nothing: it was not met there
  std::vector<RunnerInfo> runners;     // of the context, dead ones included
  bool owner_gone = false;  // who asks has seen that the instance that claimed it is gone, with all its processes
  bool coordinator_looks = false;        // after prerequisites, in place of the agents
  std::vector<JobPlaces> awaited;        // the jobs that it is parked on
  std::vector<std::string> cycle;        // jobs that wait for one another: from this one; the last stands twice
  std::vector<std::string> slot_takers;  // jobs that run under its concurrency key
  std::optional<DeadLetter> dead_letter;
  std::vector<std::string> anomalies;  // recorded lines that name it
  // Where the context knows nothing of it: it stands in database 0, in which clients write that choose none.
  bool in_database_0 = false;
};

// Reads until two looks at the job agree, so that the parts fit together. Errors of the store; a job that does not
// exist is none.
Result<Situation> look_at(Store&, Id context, const std::string& job_key);
Explanation explain(const Situation&);
Result<Explanation> explain(Store&, Id context, const std::string& job_key);

// Which jobs each waits for. The path from `start` into the first circle: a, b, c, b. Empty: there is none.
using Waits = std::vector<std::pair<std::string, std::vector<std::string>>>;
std::vector<std::string> find_cycle(const Waits&, const std::string& start);

// The store's clock, of this context's server.
Result<std::uint64_t> store_now_ms(Store&, Id context);

}  // namespace mycojobs
