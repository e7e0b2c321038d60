#include <algorithm>

#include "base/ids.h"
#include "coordinator/progress_parts.h"
#include "domain/codec.h"

namespace mycojobs {
namespace {

// What a driver of the flow never asks the record for; others may be long, and there may be many runs in memory.
void strip(Flow& record) {
  record.nodes = {};
  record.result = {};
  record.result_json = {};
  record.unknown = {};
  record.definition = {};
}

Result<Flow> read_record(Id flow, const Fields& fields) {
  if (fields.empty()) return fail(Code::not_found, "flow " + std::to_string(flow) + " does not exist");
  auto decoded = decode<Flow>(fields);
  Flow& record = decoded.record;
  const std::string name = "flow " + std::to_string(flow);
  for (const FieldProblem& problem : decoded.problems) {
    if (problem.field == "jobs" || problem.field == "caller_id")
      return fail(Code::invalid, name + ": " + problem.message);
  }
  if (record.definition_hash.empty()) {
    if (record.detail == "creating") {
      return fail(Code::conflict, name + " is still being created: its creator has to go on, or create another one");
    }
    return fail(Code::invalid, name + ": definition_hash: is missing: nothing says what the flow is to do; " +
                                   "`mycojobs flow delete` it");
  }
  strip(record);
  return std::move(record);
}

Result<std::shared_ptr<const FlowPlan>> read_plan_of(FlowStore& store, Id context, const Flow& record,
                                                     RunCache& cache) {
  if (auto known = cache.plan(context, record.definition_hash)) return known;
  const std::string what = "flow " + std::to_string(record.id) + ": definition " + record.definition_hash.substr(0, 12);
  auto text = store.definition(context, record.definition_hash);
  if (!text && text.error().code == Code::not_found) {
    return fail(Code::invalid, what + " is missing: create a flow of the same definition, which stores it again");
  }
  if (!text) return fail(text.error(), what);
  auto plan = plan_of_text(*text, record.definition_hash);
  if (!plan) {
    return fail(Code::invalid, what + " was changed or cannot be read (" + plan.error().message +
                                   "): create a flow of the same definition, which stores it again");
  }
  auto shared = std::make_shared<const FlowPlan>(std::move(*plan));
  cache.keep_plan(context, shared);
  return std::shared_ptr<const FlowPlan>(std::move(shared));
}

// A checkpoint that fits what was read with it.
std::optional<RunState> usable(const FlowPlan& plan, const RunRead& read) {
  if (read.checkpoint.empty()) return std::nullopt;
  auto state = restore(plan, read.checkpoint);
  if (!state || state->revision > read.revision) return std::nullopt;
  const bool joins =
      read.facts.empty() ? state->revision == read.revision : read.facts.front().revision == state->revision + 1;
  return joins ? std::move(state) : std::nullopt;
}

}  // namespace

Result<void> fold_facts(FlowStore& store, Id context, Id flow, LoadedRun& run, RunRead& read) {
  for (;;) {
    for (const RunFact& fact : read.facts) {
      if (fact.revision > run.state.revision) fold(*run.plan, run.state, fact);
    }
    for (std::string& each : read.anomalies) {
      if (run.anomalies.size() < 100) run.anomalies.push_back(std::move(each));
    }
    if (!read.more) break;
    const std::uint64_t last = read.facts.empty() ? run.state.revision : read.facts.back().revision;
    MJ_TRY(next, store.read(context, flow, last));
    const bool stuck = next.facts.empty() && next.more;
    read = std::move(next);
    if (stuck) break;  // a page of entries that are no facts
  }
  // Entries that are no facts count as revisions all the same.
  run.state.revision = std::max(run.state.revision, read.revision);
  return {};
}

Result<LoadedRun> load_run(FlowStore& store, Id context, Id flow, RunCache& cache) {
  RunRead read;
  return load_run(store, context, flow, cache, read);
}

Result<LoadedRun> load_run(FlowStore& store, Id context, Id flow, RunCache& cache, RunRead& read) {
  MJ_TRY(first, store.read(context, flow, std::nullopt));
  read = std::move(first);
  LoadedRun run;
  MJ_TRY(record, read_record(flow, read.record));
  run.record = std::move(record);
  run.record.id = flow;
  run.record.context_id = context;
  MJ_TRY(plan, read_plan_of(store, context, run.record, cache));
  run.plan = std::move(plan);
  if (run.record.jobs.size() != run.plan->nodes.size()) {
    return fail(Code::invalid, "flow " + std::to_string(flow) + ": jobs: " + std::to_string(run.record.jobs.size()) +
                                   " ids for the " + std::to_string(run.plan->nodes.size()) +
                                   " nodes of its definition: somebody changed the record; `mycojobs doctor --rebuild` "
                                   "mends what it can");
  }
  if (auto state = usable(*run.plan, read)) {
    run.state = std::move(*state);
    run.checkpoint_at = run.state.revision;
  } else {
    run.state = fresh(*run.plan);
    if (read.facts.empty() ? read.revision > 0 : read.facts.front().revision != 1) {
      MJ_TRY(all, store.read(context, flow, 0));
      all.record = std::move(read.record);
      read = std::move(all);
    }
  }
  MJ_CHECK(fold_facts(store, context, flow, run, read));
  return run;
}

std::string node_job_key(const LoadedRun& run, std::uint32_t node) {
  return job_key(run.record.caller_id, run.record.jobs.at(node));
}

std::optional<std::uint32_t> node_of_job(const LoadedRun& run, std::string_view key) {
  const std::string prefix = "job:" + std::to_string(run.record.caller_id) + ":";
  std::uint64_t id = 0;
  if (!key.starts_with(prefix) || !parse_u64(key.substr(prefix.size()), id)) return std::nullopt;
  const auto& jobs = run.record.jobs;
  // Ids are mostly one after the other.
  if (!jobs.empty() && id >= jobs.front() && id - jobs.front() < jobs.size() && jobs[id - jobs.front()] == id) {
    return static_cast<std::uint32_t>(id - jobs.front());
  }
  const auto found = std::find(jobs.begin(), jobs.end(), id);
  if (found == jobs.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - jobs.begin());
}

}  // namespace mycojobs
