// The jobs of a chaos run: their kinds, and a plan determined by the seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chaos/witness.h"

namespace mycojobs::test {

using Random = std::mt19937_64;
// Returns a number from 0 to count - 1.
std::size_t pick_index(Random&, std::size_t count);
std::int64_t pick_between(Random&, std::int64_t min, std::int64_t max);

struct JobKind {
  const char* name;
  unsigned weight;
  const char* script;  // appended to kReportStart
  std::vector<std::pair<std::string, std::string>> fields;
  // The expected end, "status detail", if no process of the job was killed.
  const char* end;
  bool cancelled = false;     // the client cancels the job at some time
  bool delayed = false;       // the job has a run_at_ms
  const char* attempt = "1";  // the attempt that ends the job
};
// Kinds of weight 0 are used only in groups of dependent jobs.
const std::vector<JobKind>& job_kinds();
const JobKind& find_job_kind(std::string_view name);

// Methods to submit a job. `record_first` and `key_first` use two commands, between which faults can happen.
enum class SubmitMethod { transaction, record_first, key_first, redis_cli, job_submit };

struct PlannedJob {
  const JobKind* kind = nullptr;
  int caller = 12;
  JobName name;       // id 0: `job submit` assigns the id
  std::string token;  // unique to the job: the idempotency key for `job submit`
  SubmitMethod method = SubmitMethod::transaction;
  std::vector<std::uint32_t> dependends;
  std::int64_t submit_us = 0, cancel_us = 0;  // CLOCK_BOOTTIME; cancel 0: never
  std::uint64_t run_at_ms = 0;                // set when the job is submitted
  bool attempted = false;                     // a submission may have been executed
  bool acknowledged = false;                  // Redis has confirmed the submission
  std::int64_t acknowledged_us = 0;
  bool ended = false;  // according to the record
  std::string key() const;
};

class Plan {
 public:
  explicit Plan(Random& random) : random_(random) {}
  // Returns one job, or a group of dependent jobs, which can be submitted in any order.
  std::vector<PlannedJob> plan_next(std::int64_t now_us);

 private:
  PlannedJob make_job(const JobKind&, int context, std::int64_t now_us);
  std::vector<PlannedJob> make_diamond(std::int64_t now_us);

  Random& random_;
  std::uint32_t next_id_ = 100000;  // `job submit` assigns lower ids
  unsigned last_token_ = 0;
};

std::string make_script(const JobKind&);

}  // namespace mycojobs::test
