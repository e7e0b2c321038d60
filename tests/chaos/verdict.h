// What must hold of the whole system once every job has ended, whatever was killed in between.
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

// What Redis holds of one job.
struct Ledger {
  struct Fact {
    std::string revision, kind;
    std::uint64_t epoch = 0;
  };
  std::map<std::string, std::string> record, claim;
  std::vector<std::pair<std::uint64_t, std::int64_t>> begins;  // logged by its runs: epoch, CLOCK_BOOTTIME in us
  unsigned log_ends = 0;
  std::vector<Fact> facts;  // of its queue's journal
  std::string shown() const;
  std::string end() const;  // "status detail"
};

struct Verdict {
  unsigned jobs = 0, runs = 0;        // runs: as the witness saw them
  unsigned lost = 0;                  // acknowledged, and not at one end
  unsigned doubled = 0;               // more than one accepted end
  unsigned overlaps = 0;              // two attempts of one job alive at one time
  unsigned outlived = 0;              // a process of a job was alive after its end had been published
  std::vector<std::string> problems;  // one line each, of the above and of what else is not as it should be
};

struct Evidence {
  const std::deque<PlannedJob>& jobs;
  const std::set<JobName>& hits;
  unsigned unnamed_hits = 0;  // so many further jobs were hit: nobody knows which
  const std::map<JobName, std::vector<Life>>& lives;
  bool tail_lost = false;  // Redis lost acknowledged writes with appendfsync everysec: an order may have been forgotten
  bool wall_clock_jumped = false;  // of Redis: its moments say nothing
};
Verdict judge(const Evidence&, const RedisServer&);

}  // namespace mycojobs::test
