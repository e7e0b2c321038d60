// The jobs of a chaos run: kinds, and a plan that the seed decides.
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
// One of 0 to count - 1.
std::size_t pick(Random&, std::size_t count);
std::int64_t between(Random&, std::int64_t least, std::int64_t most);

struct Kind {
  const char* name;
  unsigned weight;
  const char* script;  // after kIntroduce
  std::vector<std::pair<std::string, std::string>> fields;
  // Its end, "status detail", if nothing was done to its own processes.
  const char* end;
  bool cancelled = false;     // somebody cancels it at some time
  bool delayed = false;       // it has a run_at_ms
  const char* attempt = "1";  // that ends it
};
// Weight 0: used in groups that depend on each other only.
const std::vector<Kind>& kinds();
const Kind& kind(std::string_view name);

// How a client hands a job over. record_first, key_first: two commands, between which anything may happen.
enum class Way { transaction, record_first, key_first, redis_cli, job_submit };

struct PlannedJob {
  const Kind* kind = nullptr;
  int caller = 12;
  JobName name;       // id 0: `job submit` allocates it
  std::string token;  // what only this job has: its idempotency key for `job submit`
  Way way = Way::transaction;
  std::vector<std::uint32_t> dependends;
  std::int64_t submit_us = 0, cancel_us = 0;  // CLOCK_BOOTTIME; cancel 0: never
  std::uint64_t run_at_ms = 0;                // written when it is submitted
  bool attempted = false;                     // a submission may have happened
  bool acknowledged = false;                  // Redis has said so
  std::int64_t acknowledged_us = 0;
  bool ended = false;  // its record says so
  std::string key() const;
};

class Plan {
 public:
  explicit Plan(Random& random) : random_(random) {}
  // One job, or a few that depend on each other in the order in which they are to be submitted: any.
  std::vector<PlannedJob> next(std::int64_t now_us);

 private:
  PlannedJob one(const Kind&, int context, std::int64_t now_us);
  std::vector<PlannedJob> group(std::int64_t now_us);

  Random& random_;
  std::uint32_t next_id_ = 100000;  // below: ids that `job submit` allocates
  unsigned serial_ = 0;
};

std::string script_of(const Kind&);

}  // namespace mycojobs::test
