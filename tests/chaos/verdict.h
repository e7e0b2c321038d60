// Properties of the whole system after all jobs have ended, for any combination of kills.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "chaos/client.h"
#include "chaos/jobs.h"
#include "chaos/witness.h"

namespace mycojobs::test {

// The data of one job in Redis.
struct StoredJob {
  struct Fact {
    std::string revision, kind;
    std::uint64_t epoch = 0;
  };
  std::map<std::string, std::string> record, claim;
  // logged by its runs: epoch, and CLOCK_BOOTTIME in microseconds
  std::vector<std::pair<std::uint64_t, std::int64_t>> start_lines;
  unsigned log_ends = 0;
  std::vector<Fact> facts;  // from the journal of its queue
  std::string to_text() const;
  std::string end() const;  // "status detail"
};

struct Verdict {
  unsigned jobs = 0, runs = 0;        // runs: as observed by the witness
  unsigned lost = 0;                  // acknowledged, but without exactly one end
  unsigned ended_twice = 0;           // more than one accepted end
  unsigned overlaps = 0;              // two attempts of one job alive at the same time
  unsigned outlived_end = 0;          // a process of a job was alive after the job's end was published
  std::vector<std::string> problems;  // one line per problem of these or other kinds
};

struct Evidence {
  const std::deque<PlannedJob>& jobs;
  const std::set<JobName>& jobs_with_killed_process;
  unsigned unidentified_kill_count = 0;  // number of further jobs whose process was killed, but whose ids are unknown
  const std::map<JobName, std::vector<Lifetime>>& lifetimes;
  // Redis lost acknowledged writes with appendfsync everysec, possibly including a cancellation or another request
  bool tail_lost = false;
  bool wall_clock_jumped = false;  // the clock of Redis jumped, so stored times are not checked
};
Verdict make_verdict(const Evidence&, const RedisServer&);

}  // namespace mycojobs::test
