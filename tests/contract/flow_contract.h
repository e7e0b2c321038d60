// Fixture of the contract tests for flows: a flow store next to the job store, and shortcuts to create and read flows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store_contract.h"
#include "store/flow_store.h"

namespace mycojobs {

class FlowContract : public StoreContract {
 protected:
  void SetUp() override {
    StoreContract::SetUp();
    flows_ = backend_->stores().open_flows().value();
  }

  // Creates a complete flow of `jobs` jobs (of caller 12, ids from 1). The flow is not started.
  Id new_flow(std::uint32_t jobs, const std::string& name = "pipeline") {
    const FlowIds place = flows_->create(draft(jobs)).value();
    put(place, jobs, name);
    return place.flow;
  }
  void put(const FlowIds& place, std::uint32_t count, const std::string& name = "pipeline") {
    std::vector<Job> jobs;
    for (std::uint32_t i = 0; i < count; ++i) jobs.push_back(job(place.first_job + i));
    const auto put = flows_->put_jobs(1, place.flow, jobs);
    ASSERT_TRUE(put) << put.error().message;
    Flow record = flow(place, name);
    for (const Job& each : jobs) record.jobs.push_back(each.id);
    const auto whole = flows_->put_flow(record, "{}");
    ASSERT_TRUE(whole) << whole.error().message;
  }
  static FlowDraft draft(std::uint32_t jobs, std::string key = "", std::string fingerprint = "") {
    return {1, 12, jobs, std::move(key), std::move(fingerprint)};
  }
  static Flow flow(const FlowIds& place, const std::string& name = "pipeline") {
    Flow out;
    out.id = place.flow;
    out.caller_id = 12;
    out.context_id = 1;
    out.name = name;
    out.definition_hash = "abc";
    return out;
  }
  static FlowCommit commit(Id flow, std::uint64_t expected, std::uint32_t facts = 1) {
    FlowCommit out;
    out.context = 1;
    out.flow = flow;
    out.expected_revision = expected;
    for (std::uint32_t i = 0; i < facts; ++i) out.facts.push_back({0, 0, "went_on", i, ""});
    return out;
  }
  // Starts the flow and queues these jobs.
  std::uint64_t begin(Id flow, const std::vector<std::string>& jobs = {}) {
    FlowCommit first = commit(flow, 0);
    for (const std::string& each : jobs) first.dispatches.push_back({each, {}});
    const auto done = flows_->commit(first);
    EXPECT_TRUE(done) << done.error().message;
    return done.value_or(0);
  }
  FlowReadResult read(Id flow, std::optional<std::uint64_t> after = 0) {
    auto run = flows_->read(1, flow, after);
    EXPECT_TRUE(run) << run.error().message;
    return run ? std::move(*run) : FlowReadResult();
  }
  std::string events(Id flow) {
    std::string out;
    for (const FlowEventText& event : read(flow).events)
      out += (out.empty() ? "" : ", ") + event.kind + ' ' + event.key;
    return out;
  }
  std::vector<Id> due() { return flows_->due_flows(1, 100).value().first; }
  std::vector<Id> active() { return flows_->active_flows(1, 0, 100).value(); }
  FlowJobView view(const std::string& job_key) {
    const std::vector<std::string> one{job_key};
    return flows_->job_views(1, one).value().at(0);
  }
  std::string state(const std::string& job_key) { return view(job_key).state; }

  std::unique_ptr<FlowStore> flows_;
};

}  // namespace mycojobs
