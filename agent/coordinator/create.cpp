#include "coordinator/create.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "coordinator/progress_parts.h"
#include "domain/codec.h"
#include "domain/flow_inputs.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

// One call of the store, which everybody waits for.
constexpr std::size_t kJobsAtOnce = 100, kBytesAtOnce = 1U << 20;

Result<void> put_jobs(FlowStore& store, const Flow& flow, const std::vector<Job>& jobs) {
  std::size_t from = 0, bytes = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    bytes += jobs[i].script.size();
    if (i + 1 < jobs.size() && i + 1 - from < kJobsAtOnce && bytes < kBytesAtOnce) continue;
    MJ_CHECK(store.put_jobs(flow.context_id, flow.id, std::span(jobs).subspan(from, i + 1 - from)));
    from = i + 1;
    bytes = 0;
  }
  return {};
}

std::string fingerprint(const FlowPlan& plan, const TextMap& env_vars, const std::string& parent) {
  return sha256_hex(plan.hash + dump_json(nlohmann::json(env_vars)) + parent);
}

// The record as it will be, from a place and a plan. jobs: ids by node.
Flow record_of(const FlowPlan& plan, const NewFlow& asked, Id id, std::vector<Id> jobs) {
  Flow flow;
  flow.id = id;
  flow.caller_id = asked.caller;
  flow.context_id = asked.context;
  flow.jobs = std::move(jobs);
  flow.env_vars = asked.env_vars;
  flow.env_vars.insert(plan.env_vars.begin(), plan.env_vars.end());
  flow.name = plan.name;
  flow.detail = "new";
  flow.definition_hash = plan.hash;
  flow.parent = asked.parent;
  flow.notify = asked.notify.empty() ? plan.notify : asked.notify;
  if (!plan.values.empty()) flow.unknown.emplace_back("inputs", dump_json(inputs_json(plan)));
  LoadedRun run;
  run.record = flow;
  run.plan = std::make_shared<const FlowPlan>(plan);
  run.state = fresh(plan);
  flow.nodes = nodes_of(run);
  return flow;
}

// Nothing: it is not complete yet.
Result<std::optional<Flow>> complete(FlowStore& store, Id context, Id flow) {
  MJ_TRY(read, store.read(context, flow, std::nullopt));
  auto decoded = decode<Flow>(read.record);
  if (read.record.empty() || decoded.record.detail == "creating") return std::optional<Flow>();
  return std::optional(std::move(decoded.record));
}

Result<void> check(const NewFlow& asked) {
  if (asked.context == 0) return fail(Code::invalid, "context_id: is missing or 0: give the context of the flow");
  if (asked.caller == 0) return fail(Code::invalid, "caller_id: is missing or 0: give the actor who starts it");
  if (asked.idempotency_key.size() > 255) {
    return fail(Code::invalid, "idempotency_key: is longer than 255 bytes: give a hash of it");
  }
  return {};
}

}  // namespace

Result<FlowPlan> plan_of_jobs(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                              const nlohmann::json& nodes) {
  MJ_TRY(definition, definition_of_jobs(name, env_vars, jobs, nodes));
  PlanRead read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, join(read.problems));
  return std::move(*read.plan);
}

Result<Flow> put_all(FlowStore& store, const FlowPlan& plan, const NewFlow& asked, Id id, std::vector<Job> jobs) {
  std::vector<Id> ids;
  for (const Job& job : jobs) ids.push_back(job.id);
  Flow flow = record_of(plan, asked, id, std::move(ids));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string& url = plan.nodes.at(i).supervisor_url;
    if (!url.empty()) jobs[i].unknown.emplace_back("supervisor_url", url);
    jobs[i].flow_id = id;
  }
  MJ_CHECK(put_jobs(store, flow, jobs));
  MJ_CHECK(store.put_flow(flow, plan.canonical));
  return flow;
}

Result<Flow> create_flow(FlowStore& store, const FlowPlan& plan, const NewFlow& asked) {
  MJ_CHECK(check(asked));
  if (!plan.missing.empty()) return fail(Code::invalid, missing_inputs(plan));
  FlowDraft draft;
  draft.context = asked.context;
  draft.caller = asked.caller;
  draft.jobs = static_cast<std::uint32_t>(plan.nodes.size());
  draft.idempotency_key = asked.idempotency_key;
  draft.fingerprint = fingerprint(plan, asked.env_vars, asked.parent);
  MJ_TRY(place, store.create(draft));
  if (place.existed) {
    MJ_TRY(there, complete(store, asked.context, place.flow));
    if (there) return std::move(*there);
  }
  std::vector<Id> ids(plan.nodes.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = place.first_job + static_cast<Id>(i);
  Flow flow = record_of(plan, asked, place.flow, std::move(ids));
  std::vector<Job> jobs;
  jobs.reserve(plan.nodes.size());
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    if (!plan.nodes[i].each) jobs.push_back(job_of(flow, plan, i));  // the others with their first dispatch
  }
  MJ_CHECK(put_jobs(store, flow, jobs));
  MJ_CHECK(store.put_flow(flow, plan.canonical));
  return flow;
}

Result<Flow> create_flow_of_jobs(FlowStore& store, const Flow& wanted, const std::vector<Job>& jobs,
                                 const nlohmann::json& nodes) {
  NewFlow asked;
  asked.context = wanted.context_id;
  asked.caller = wanted.caller_id;
  asked.env_vars = wanted.env_vars;
  asked.notify = wanted.notify;
  MJ_CHECK(check(asked));
  MJ_TRY(plan, plan_of_jobs(wanted.name, wanted.env_vars, jobs, nodes));
  FlowDraft draft;
  draft.context = asked.context;
  draft.caller = asked.caller;
  MJ_TRY(place, store.create(draft));
  return put_all(store, plan, asked, place.flow, jobs);
}

Result<Flow> replay_flow(FlowStore& store, RunCache& cache, Id context, Id flow, Id caller, bool allow_irreversible) {
  MJ_TRY(run, load_run(store, context, flow, cache));
  for (std::uint32_t i = 0; i < run.plan->nodes.size() && !allow_irreversible; ++i) {
    if (!run.plan->nodes[i].irreversible) continue;
    const NodeStatus status = run.state.nodes[i].status;
    bool done = status == NodeStatus::completed;
    if (!done && !is_terminal(status)) {
      // It may have ended a moment ago.
      const std::vector<std::string> keys{node_job_key(run, i)};
      MJ_TRY(views, store.jobs(context, keys));
      done = !views.empty() && views[0].state == "ended" && views[0].status == word(JobStatus::finished);
    }
    if (done) {
      return fail(Code::conflict, "flow " + std::to_string(flow) + ": node " + run.plan->nodes[i].name +
                                      " is irreversible and has completed: allow it (--allow-irreversible) to run it "
                                      "again in a new flow");
    }
  }
  NewFlow again;
  again.context = context;
  again.caller = caller;
  again.env_vars = run.record.env_vars;
  again.notify = run.record.notify;
  return create_flow(store, *run.plan, again);
}

}  // namespace mycojobs
