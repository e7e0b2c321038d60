// The records of nodes' jobs: what stands there from the beginning, and what a run adds when it queues one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/flow_run.h"

namespace mycojobs {

// The record of a node's job, as it is created. A node of kind each stands for its places there.
Job job_of(const Flow&, const FlowPlan&, std::uint32_t node);
// What is known only when a job is queued: what the flow hands over, and whom it reads.
class Dispatches {
 public:
  explicit Dispatches(const LoadedRun& run) : run_(run) {}
  FlowDispatch of(std::uint32_t node);

 private:
  const std::vector<std::string>& elements(std::uint32_t each);

  const LoadedRun& run_;
  std::map<std::uint32_t, std::vector<std::string>> elements_;
};

}  // namespace mycojobs
