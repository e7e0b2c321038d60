// Jobs of all kinds, handed over and cancelled by a client while the world is being broken.
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

  // Plans another job if its time has come and `more`; then at most one deed of the client, so that nobody waits long.
  void turn(bool more);
  void add(PlannedJob job) { jobs_.push_back(std::move(job)); }
  // Every job is acknowledged, and its record says that it has ended.
  bool all_ended();
  // The server was started again: what was acknowledged a moment ago is looked at, and completed by its client if the
  // server has lost it. Adds to `problems` what it may not have lost.
  void look_again(bool may_have_lost, std::vector<std::string>& problems);

  const std::deque<PlannedJob>& jobs() const { return jobs_; }
  PlainRedis& plain() { return client_.plain(); }

 private:
  Random& random_;
  Client client_;
  Plan plan_;
  std::deque<PlannedJob> jobs_;
  std::int64_t next_us_ = 0;
};

}  // namespace mycojobs::test
