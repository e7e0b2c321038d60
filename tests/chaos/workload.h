// Jobs of all kinds that a client submits and cancels while faults happen.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "chaos/client.h"
#include "chaos/jobs.h"

namespace mycojobs::test {

class Workload {
 public:
  Workload(const TempDir&, const RedisServer&, Random&);

  // Plans another job if its time has come and `plan_more` is true. Then performs at most one action of the client, so
  // that the caller is not blocked for long.
  void run_once(bool plan_more);
  void add(PlannedJob job) { jobs_.push_back(std::move(job)); }
  // Returns true if every job is acknowledged and its record has an end.
  bool all_ended();
  // Called after a restart of the server: recently acknowledged jobs are checked, and the client submits lost jobs
  // again. Adds losses to `problems` unless `may_have_lost`.
  void recheck_acknowledged(bool may_have_lost, std::vector<std::string>& problems);

  const std::deque<PlannedJob>& jobs() const { return jobs_; }
  PlainRedis& plain_redis() { return client_.plain_redis(); }

 private:
  Random& random_;
  Client client_;
  Plan plan_;
  std::deque<PlannedJob> jobs_;
  std::int64_t next_us_ = 0;
};

}  // namespace mycojobs::test
