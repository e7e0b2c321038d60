// The steps of the dispatch protocol with a real store. Each step is one change, which must be executed
// completely or not at all.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "store/store.h"
#include "store/workflow_store.h"

namespace mycojobs::test {

struct Step {
  std::string name;
  // Can be called again after the error `unavailable`. Error `internal`: the reply of the store was unexpected.
  std::function<Result<void>()> execute;
};

// The steps must run in this order. Their jobs have caller 12 and context 1. The stores must outlive the object.
class ProtocolSteps {
 public:
  ProtocolSteps(Store&, WorkflowStore&);
  const std::vector<Step>& all() const { return steps_; }

 private:
  void add_job_steps();
  void add_failure_steps();
  void add_dependency_steps();
  void add_limit_steps();
  void add_operator_steps();
  void add_message_steps();
  void add_deployment_steps();
  void add_retirement_steps();

  void add(std::string name, std::function<Result<void>()> execute);
  void submit(Job);
  void claim(Id expected, std::uint32_t lease_ms = 60000);  // 0: expects no job
  void end(Id, const std::string& detail, std::optional<std::uint64_t> retry_after_ms = std::nullopt);
  void report(const std::string& name, Id, std::function<Report(const ClaimRef&)> make);
  void tick(const std::string& name, TickRequest, std::uint32_t TickReply::*expected);

  void post(const std::string& name, PostRules);
  void commit(const std::string& name, std::function<void(DeploymentCommit&)> change);

  Store& store_;
  WorkflowStore& deployments_;
  std::map<Id, ClaimRef> claims_;
  std::vector<Step> steps_;
};

}  // namespace mycojobs::test
