// The job records of flow nodes: the fields that are written when a flow is created, and those that are added when a
// job is queued.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "flows/flow_run.h"

namespace mycojobs {

// Returns the record of the job of a node at creation. A node of kind `each` represents its elements.
Job make_node_job(const Flow&, const FlowPlan&, std::uint32_t node);
// Builds the fields that are known only when a job is queued: results of earlier nodes and artifacts of dependencies.
class DispatchFieldBuilder {
 public:
  explicit DispatchFieldBuilder(const LoadedRun& run) : run_(run) {}
  FlowDispatch build(std::uint32_t node);

 private:
  const std::vector<std::string>& get_cached_elements(std::uint32_t each);

  const LoadedRun& run_;
  std::map<std::uint32_t, std::vector<std::string>> elements_;
};

}  // namespace mycojobs
