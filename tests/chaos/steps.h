// The dispatch protocol step by step over a real store: each step one change, which must happen whole or not at all.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mycojobs/store.h"
#include "mycojobs/workflows.h"

namespace mycojobs::test {

struct Step {
  std::string name;
  // May be called again after an error that says `unavailable`. Error internal: the store did not answer as expected.
  std::function<Result<void>()> take;
};

// In this order; the jobs are of caller 12 in context 1. The stores must outlive it.
class Steps {
 public:
  Steps(Store&, WorkflowStore&);
  const std::vector<Step>& all() const { return steps_; }

 private:
  void one_job();
  void failures();
  void dependents();
  void limits();
  void operators();
  void messages();
  void worlds();
  void retirement();

  void add(std::string name, std::function<Result<void>()> take);
  void submit(Job);
  void claim(Id expected, std::uint32_t lease_ms = 60000);  // 0: nothing that may run
  void end(Id, const std::string& detail, std::optional<std::uint64_t> retry_after_ms = std::nullopt);
  void report(const std::string& name, Id, std::function<Report(const ClaimRef&)> make);
  void tick(const std::string& name, TickRequest, std::uint32_t TickReply::*expected);

  void post(const std::string& name, PostRules);
  void commit(const std::string& name, std::function<void(WorldCommit&)> change);

  Store& store_;
  WorkflowStore& worlds_;
  std::map<Id, ClaimRef> claims_;
  std::vector<Step> steps_;
};

}  // namespace mycojobs::test
