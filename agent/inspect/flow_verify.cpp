#include "inspect/flow_verify.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <string_view>
#include <thread>

#include "base/ids.h"
#include "inspect/flow_look.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxKeys = 10000000;
constexpr std::size_t kJobsAtOnce = 200;
constexpr int kFlowLooks = 3;  // what every one of them finds lasts
constexpr int kTries = 20;     // of a look at a flow that moves all the time
constexpr std::chrono::milliseconds kFlowPause{100};

// Flows with a mark or a journal.
Result<std::set<Id>> flows_of(Store& store, Id context) {
  std::set<Id> flows;
  for (const std::string_view prefix : {"mj:flow:", "mj:run:"}) {
    MJ_TRY(keys, store.keys(context, prefix, kMaxKeys));
    for (const std::string& key : keys) {
      std::uint64_t id = 0;  // other names are another client's
      if (parse_u64(std::string_view(key).substr(prefix.size()), id) && id > 0 && id <= UINT32_MAX) {
        flows.insert(static_cast<Id>(id));
      }
    }
  }
  return flows;
}

Result<FlowLook> still_look(FlowStore& flows, Store& store, Id context, Id flow) {
  for (int attempt = 0;; ++attempt) {
    MJ_TRY(look, look_at_run(flows, store, context, flow));
    if (!look.moved || attempt == kTries) return std::move(look);
    std::this_thread::sleep_for(kFlowPause);
  }
}

// A flow and its jobs may move between the steps of a look.
Result<FlowLook> lasting_look(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(look, still_look(flows, store, context, flow));
  for (int again = 1; again < kFlowLooks && !look.findings.empty(); ++again) {
    std::this_thread::sleep_for(kFlowPause);
    const std::vector<FlowFinding> before = std::move(look.findings);
    MJ_TRY(next, still_look(flows, store, context, flow));
    look = std::move(next);
    std::erase_if(look.findings, [&](const FlowFinding& each) {
      return std::none_of(before.begin(), before.end(),
                          [&](const FlowFinding& other) { return other.rule == each.rule && other.text == each.text; });
    });
  }
  return std::move(look);
}

// Planned jobs that no flow will ever queue. known: jobs of flows that were looked at.
Result<std::vector<std::string>> orphans(FlowStore& flows, Store& store, Id context,
                                         const std::set<std::string>& known) {
  constexpr std::string_view kClaims = "mj:claim:";
  MJ_TRY(keys, store.keys(context, "mj:claim:job:", kMaxKeys));
  std::vector<std::string> some, planned;
  const auto look = [&]() -> Result<void> {
    MJ_TRY(views, flows.jobs(context, some));
    for (const FlowJobView& job : views) {
      if (job.state == "planned") planned.push_back(job.job_key);
    }
    some.clear();
    return {};
  };
  for (const std::string& key : keys) {
    std::string job = key.substr(kClaims.size());
    if (!known.contains(job)) some.push_back(std::move(job));
    if (some.size() == kJobsAtOnce) MJ_CHECK(look());
  }
  if (!some.empty()) MJ_CHECK(look());
  std::vector<std::string> out;
  MJ_TRY(places, store.places(context, planned, false));
  for (const JobPlaces& job : places) {
    const auto blank = job.claim.flow.find(' ');
    std::uint64_t flow = 0;
    const bool named = blank != std::string::npos &&
                       parse_u64(std::string_view(job.claim.flow).substr(blank + 1), flow) && flow > 0 &&
                       flow <= UINT32_MAX;
    if (job.claim.state != "planned") continue;
    FlowPlaces of;
    if (named) {
      auto found = flows.places(context, static_cast<Id>(flow));
      if (!found && found.error().code == Code::invalid) continue;  // which was said of that flow
      if (!found) return fail(std::move(found).error(), job.job_key);
      of = *found;
    }
    // A flow that is being created, or that was not to be read, has them still.
    if (of.state.empty() || of.state == "ended") out.push_back(job.job_key);
  }
  return out;
}

// What a look asks for, done: the fixes of the store in one step, then a commit that dispatches jobs once more. Error
// conflict: the flow has moved.
Result<void> mend_flow(FlowStore& flows, Id context, Id flow, const FlowLook& look) {
  FlowRepair repair{look.revision, look.state, {}};
  FlowCommit again;
  again.context = context;
  again.flow = flow;
  again.expected_revision = look.revision;
  again.due_ms = 0;
  for (const FlowFinding& each : look.findings) {
    for (const FlowFix& fix : each.fixes) {
      if (fix.kind == FlowFix::Kind::dispatch) {
        again.dispatch.push_back({fix.job, {}});
      } else {
        repair.fixes.push_back(fix);
      }
    }
  }
  if (!repair.fixes.empty()) MJ_CHECK(flows.repair(context, flow, repair));
  if (!again.dispatch.empty()) MJ_CHECK(flows.commit(again));
  return {};
}

Result<void> rebuild_flow(FlowStore& flows, Store& store, Id context, Id flow, bool dry_run,
                          std::set<std::string>& known, std::vector<std::string>& differences) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    MJ_TRY(look, lasting_look(flows, store, context, flow));
    known.insert(look.jobs.begin(), look.jobs.end());
    std::vector<std::string> mended;
    for (const FlowFinding& each : look.findings) {
      if (!look.known) mended.push_back(each.text + " (cannot be mended)");
      if (look.known && !each.fixes.empty()) mended.push_back(each.text);
    }
    const Result<void> done = dry_run || !look.known ? Result<void>() : mend_flow(flows, context, flow, look);
    if (!done && done.error().code == Code::conflict) continue;
    if (!done) return fail(done.error(), "flow:" + std::to_string(flow));
    std::move(mended.begin(), mended.end(), std::back_inserter(differences));
    return {};
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_flows(FlowStore& flows, Store& store, Id context) {
  std::vector<Finding> findings;
  std::set<std::string> known;
  MJ_TRY(all, flows_of(store, context));
  for (const Id flow : all) {
    MJ_TRY(look, lasting_look(flows, store, context, flow));
    known.insert(look.jobs.begin(), look.jobs.end());
    std::move(look.findings.begin(), look.findings.end(), std::back_inserter(findings));
  }
  MJ_TRY(lost, orphans(flows, store, context, known));
  for (const std::string& job : lost) {
    findings.push_back(finding("flow-orphan", job, job + " is planned, and its flow is gone or has ended"));
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_flows(FlowStore& flows, Store& store, Id context, bool dry_run) {
  std::vector<std::string> differences;
  std::set<std::string> known;
  MJ_TRY(all, flows_of(store, context));
  for (const Id flow : all) MJ_CHECK(rebuild_flow(flows, store, context, flow, dry_run, known, differences));
  MJ_TRY(lost, orphans(flows, store, context, known));
  for (const std::string& job : lost) {
    differences.push_back(job + ": it is planned, and its flow is gone or has ended: cancelled");
    if (!dry_run) MJ_CHECK(store.cancel(context, job));
  }
  return differences;
}

}  // namespace mycojobs
