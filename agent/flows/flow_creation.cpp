#include "flows/flow_creation.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/sha256.h"
#include "flows/flow_plan.h"
#include "flows/node_job.h"
#include "flows/plan_limits.h"
#include "jobs/state_machines.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/notify_targets.h"
#include "text/json.h"

namespace mycojobs {

namespace {

// Limits of one call of the store, since Redis serves no other client during the call.
constexpr std::size_t kMaxJobsBatch = 25, kMaxBytesBatch = 1U << 20;

Result<void> store_jobs(FlowStore& store, const Flow& flow, const std::vector<Job>& jobs) {
  std::size_t first = 0, bytes = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    bytes += jobs[i].script.size();
    if (i + 1 < jobs.size() && i + 1 - first < kMaxJobsBatch && bytes < kMaxBytesBatch) continue;
    MJ_CHECK(store.put_jobs(flow.context_id, flow.id, std::span(jobs).subspan(first, i + 1 - first)));
    first = i + 1;
    bytes = 0;
  }
  return {};
}

// Returns a hash of the content of a flow: the same request gives the same fingerprint. `extra_content` is the parent
// of the flow, or the ids of its existing jobs.
std::string compute_fingerprint(const FlowPlan& plan, const TextMap& env_vars, const std::string& extra_content) {
  return sha256_hex(plan.hash + dump_json(nlohmann::json(env_vars)) + extra_content);
}

// Returns the initial record of a flow. `jobs` has the ids of the jobs, by node.
Flow make_flow(const FlowPlan& plan, const NewFlow& request, Id id, std::vector<Id> jobs) {
  Flow flow;
  flow.id = id;
  flow.caller_id = request.caller;
  flow.context_id = request.context;
  flow.jobs = std::move(jobs);
  flow.env_vars = request.env_vars;
  flow.env_vars.insert(plan.env_vars.begin(), plan.env_vars.end());
  flow.name = plan.name;
  flow.detail = "new";
  flow.definition_hash = plan.hash;
  flow.parent = request.parent;
  flow.notify = request.notify.empty() ? plan.notify : request.notify;
  flow.traceparent = request.traceparent;
  if (!plan.values.empty()) flow.unknown.emplace_back("inputs", dump_json(inputs_to_json(plan)));
  if (!request.effect_of.empty()) flow.unknown.emplace_back("effect_of", request.effect_of);
  LoadedRun run;
  run.record = flow;
  run.plan = std::make_shared<const FlowPlan>(plan);
  run.state = initial_state(plan);
  flow.nodes = build_flow_nodes(run);
  return flow;
}

// Returns the record of the flow, or no value if its creation is not complete.
Result<std::optional<Flow>> find_complete_flow(FlowStore& store, Id context, Id flow) {
  MJ_TRY(stored_run, store.read(context, flow, std::nullopt));
  auto decoded = decode<Flow>(stored_run.record);
  if (stored_run.record.empty() || decoded.record.detail == "creating") return std::optional<Flow>();
  return std::optional(std::move(decoded.record));
}

Result<void> check_new_flow(const NewFlow& request) {
  if (request.context == 0) return fail(Code::invalid, "context_id: is missing or 0: give the context of the flow");
  if (request.caller == 0)
    return fail(Code::invalid, "caller_id: is missing or 0: give the id of the actor that starts the flow");
  if (request.idempotency_key.size() > 255) {
    return fail(Code::invalid, "idempotency_key: is longer than 255 bytes: use a hash of the key");
  }
  return {};
}

// Returns the plan of a flow of existing jobs, from their records and `nodes`.
Result<FlowPlan> make_plan_of_jobs(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                                   const nlohmann::json& nodes) {
  MJ_TRY(definition, build_definition(name, env_vars, jobs, nodes));
  ParsedPlan parsed = read_plan(definition);
  if (!parsed.plan) return fail(Code::invalid, join(parsed.problems));
  return std::move(*parsed.plan);
}

// Writes the jobs, the definition and the record of a flow of existing jobs. Returns the record.
Result<Flow> store_flow_of_jobs(FlowStore& store, const FlowPlan& plan, const NewFlow& request, Id id,
                                std::vector<Job> jobs) {
  std::vector<Id> ids;
  for (const Job& job : jobs) ids.push_back(job.id);
  Flow flow = make_flow(plan, request, id, std::move(ids));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string& url = plan.nodes.at(i).supervisor_url;
    if (!url.empty()) {
      std::erase_if(jobs[i].unknown, [](const auto& field) { return field.first == "supervisor_url"; });
      jobs[i].unknown.emplace_back("supervisor_url", url);
    }
    jobs[i].flow_id = id;
  }
  MJ_CHECK(store_jobs(store, flow, jobs));
  MJ_CHECK(store.put_flow(flow, plan.canonical));
  return flow;
}

}  // namespace

Result<Flow> create_flow(FlowStore& store, const FlowPlan& plan, const NewFlow& request) {
  MJ_CHECK(check_new_flow(request));
  if (!plan.missing.empty()) return fail(Code::invalid, describe_missing_inputs(plan));
  FlowDraft draft;
  draft.context = request.context;
  draft.caller = request.caller;
  draft.job_count = static_cast<std::uint32_t>(plan.nodes.size());
  draft.idempotency_key = request.idempotency_key;
  draft.fingerprint = compute_fingerprint(plan, request.env_vars, request.parent);
  MJ_TRY(created, store.create(draft));
  if (created.existed) {
    MJ_TRY(existing, find_complete_flow(store, request.context, created.flow));
    if (existing) return std::move(*existing);
  }
  std::vector<Id> ids(plan.nodes.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = created.first_job + static_cast<Id>(i);
  Flow flow = make_flow(plan, request, created.flow, std::move(ids));
  std::vector<Job> jobs;
  jobs.reserve(plan.nodes.size());
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    // Jobs of `each` elements are written at their first dispatch.
    if (!plan.nodes[i].each_node) jobs.push_back(make_node_job(flow, plan, i));
  }
  MJ_CHECK(store_jobs(store, flow, jobs));
  MJ_CHECK(store.put_flow(flow, plan.canonical));
  return flow;
}

Result<Flow> create_flow_of_jobs(FlowStore& store, const std::string& name, const NewFlow& request,
                                 const std::vector<Job>& jobs, const nlohmann::json& nodes) {
  MJ_CHECK(check_new_flow(request));
  MJ_TRY(plan, make_plan_of_jobs(name, request.env_vars, jobs, nodes));
  std::string ids;
  for (const Job& job : jobs) ids += ' ' + std::to_string(job.id);
  FlowDraft draft;
  draft.context = request.context;
  draft.caller = request.caller;
  draft.fingerprint = compute_fingerprint(plan, request.env_vars, ids);
  // Without a key of the caller, the content is the key, so that a repeated call finds a creation that was interrupted.
  const bool has_key = !request.idempotency_key.empty();
  draft.idempotency_key = has_key ? request.idempotency_key : "jobs " + draft.fingerprint;
  MJ_TRY(created, store.create(draft));
  if (created.existed) {
    MJ_TRY(existing, find_complete_flow(store, request.context, created.flow));
    if (existing && has_key) return std::move(*existing);
    if (existing) {
      draft.idempotency_key.clear();
      MJ_TRY(new_created, store.create(draft));
      created = new_created;
    }
  }
  return store_flow_of_jobs(store, plan, request, created.flow, jobs);
}

namespace {

// Searches a run and the runs of its child flows, at any depth, for a completed irreversible node.
class IrreversibleSearch {
 public:
  explicit IrreversibleSearch(FlowStore& store) : store_(store) {}
  // Returns a description of the first such node ("node c: flow 2: node pay is irreversible and has completed"), or an
  // empty text. A child flow without a record counts as one that completed its irreversible nodes.
  Result<std::string> find(const LoadedRun& run);
  // As find(), for the child flows that this node has started. The text begins with the node: "node c: flow 2: ...".
  Result<std::string> find_in_children(const LoadedRun& run, std::uint32_t node);

 private:
  Result<bool> has_completed(const LoadedRun& run, std::uint32_t node);
  Result<std::string> find_in_child(Id context, Id child);
  Result<std::vector<Id>> children_of_node(const LoadedRun& run, std::uint32_t node);
  static bool contains_irreversible_node(const FlowPlan& plan);
  static bool child_contains_irreversible_node(const PlanNode& node);

  FlowStore& store_;
  RunCache cache_;
};

bool IrreversibleSearch::child_contains_irreversible_node(const PlanNode& node) {
  if (node.kind != NodeKind::flow) return false;
  const auto definition = parse_json(node.child, kMaxDefinitionBytes);
  const ParsedPlan parsed = definition ? read_plan(*definition) : ParsedPlan();
  return parsed.plan && contains_irreversible_node(*parsed.plan);
}

bool IrreversibleSearch::contains_irreversible_node(const FlowPlan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(),
                     [](const PlanNode& node) { return node.irreversible || child_contains_irreversible_node(node); });
}

// The end of a job may not have been applied to its flow yet.
Result<bool> IrreversibleSearch::has_completed(const LoadedRun& run, std::uint32_t node) {
  const NodeStatus status = run.state.nodes[node].status;
  if (status == NodeStatus::completed || is_terminal(status)) return status == NodeStatus::completed;
  const std::vector<std::string> keys{node_job_key(run, node)};
  MJ_TRY(views, store_.job_views(run.record.context_id, keys));
  return !views.empty() && views[0].state == kJobStateEnded && views[0].status == to_string(JobStatus::finished);
}

// A node that was retried has started several children; the state of the run names the latest one only.
Result<std::vector<Id>> IrreversibleSearch::children_of_node(const LoadedRun& run, std::uint32_t node) {
  std::set<Id> children;
  if (run.state.nodes[node].child != 0) children.insert(run.state.nodes[node].child);
  for (std::uint64_t revision = 0;;) {
    MJ_TRY(page, store_.read(run.record.context_id, run.record.id, revision));
    for (const RunFact& fact : page.facts) {
      revision = fact.revision;
      if (fact.kind != "child_started" || fact.node != node) continue;
      const auto details = parse_json(fact.data_json);
      if (!details || !details->is_object()) continue;
      const auto flow = details->find("flow");
      if (flow != details->end() && flow->is_number_unsigned()) children.insert(flow->get<Id>());
    }
    if (!page.has_more || page.facts.empty()) return std::vector<Id>(children.begin(), children.end());
  }
}

Result<std::string> IrreversibleSearch::find_in_child(Id context, Id child) {
  const std::string name = "flow " + std::to_string(child);
  auto run = load_run(store_, context, child, cache_);
  if (!run && run.error().code == Code::not_found)
    return name + " was deleted, and its definition has an irreversible node that may have completed";
  if (!run && run.error().code == Code::conflict) return std::string();  // the child was never started
  if (!run) return tl::unexpected<Error>(std::move(run).error());
  MJ_TRY(match, find(*run));
  return match.empty() ? match : name + ": " + match;
}

Result<std::string> IrreversibleSearch::find(const LoadedRun& run) {
  for (std::uint32_t i = 0; i < run.plan->nodes.size(); ++i) {
    const PlanNode& node = run.plan->nodes[i];
    if (node.irreversible) {
      MJ_TRY(completed, has_completed(run, i));
      if (completed) return "node " + node.name + " is irreversible and has completed";
    }
    MJ_TRY(match, find_in_children(run, i));
    if (!match.empty()) return match;
  }
  return std::string();
}

Result<std::string> IrreversibleSearch::find_in_children(const LoadedRun& run, std::uint32_t node) {
  const PlanNode& plan_node = run.plan->nodes[node];
  if (!child_contains_irreversible_node(plan_node)) return std::string();
  MJ_TRY(children, children_of_node(run, node));
  for (const Id child : children) {
    MJ_TRY(match, find_in_child(run.record.context_id, child));
    if (!match.empty()) return "node " + plan_node.name + ": " + match;
  }
  return std::string();
}

Error irreversible_error(const LoadedRun& run, const std::string& match, const char* new_run) {
  return {Code::conflict, "flow " + std::to_string(run.record.id) + ": " + match +
                              ": use --allow-irreversible to run the node again in " + new_run};
}

}  // namespace

Result<void> check_retry(FlowStore& store, const LoadedRun& run) {
  for (std::uint32_t i = 0; i < run.plan->nodes.size(); ++i) {
    const NodeStatus status = run.state.nodes[i].status;
    if (status != NodeStatus::failed && status != NodeStatus::cancelled) continue;  // a retry does not reset this node
    MJ_TRY(match, IrreversibleSearch(store).find_in_children(run, i));
    if (!match.empty()) return tl::unexpected<Error>(irreversible_error(run, match, "a new child flow"));
  }
  return {};
}

Result<Flow> replay_flow(FlowStore& store, const LoadedRun& run, const ReplayOptions& replay) {
  const Id context = run.record.context_id;
  if (!replay.allow_irreversible) {
    MJ_TRY(match, IrreversibleSearch(store).find(run));
    if (!match.empty()) return tl::unexpected<Error>(irreversible_error(run, match, "a new flow"));
  }
  NewFlow request;
  request.context = context;
  request.caller = run.record.caller_id;
  request.traceparent = replay.traceparent;
  request.env_vars = run.record.env_vars;
  request.notify = run.record.notify;
  return create_flow(store, *run.plan, request);
}

// Adoption of flows that another client has written as records.

namespace {

// Returns the error for a problem in a record that a client has written. `record` is its key, and `problem` begins with
// the name of the field.
tl::unexpected<Error> record_error(const std::string& record, const std::string& problem) {
  return fail(Code::invalid, record + ": " + problem);
}

// Returns whether the field defines the flow. Plain clients do not write the other fields, so their problems are
// ignored.
bool is_client_field(std::string_view field) {
  static constexpr auto kFields = std::to_array<std::string_view>(
      {"id", "caller_id", "context_id", "jobs", "env_vars", "result", "status", "created_at", "updated_at", "name"});
  return std::any_of(kFields.begin(), kFields.end(), [&](std::string_view name) {
    return field == name || (field.starts_with(name) && (field[name.size()] == '[' || field[name.size()] == '.'));
  });
}

Result<void> check_flow(const DecodeResult<Flow>& decoded, Id context, Id flow) {
  const std::string name = "flow:" + std::to_string(flow);
  const Flow& record = decoded.record;
  for (const FieldProblem& problem : decoded.problems) {
    if (is_client_field(problem.field)) return record_error(name, problem.message);
  }
  if (record.id != 0 && record.id != flow)
    return record_error(
        name, "id: is " + std::to_string(record.id) + ", but the key of the record has the id " + std::to_string(flow));
  if (record.caller_id == 0) return record_error(name, "caller_id: is missing: set it to the id of the flow's owner");
  if (record.context_id != 0 && record.context_id != context) {
    return record_error(name, "context_id: is " + std::to_string(record.context_id) +
                                  ", but the record is stored in context " + std::to_string(context));
  }
  if (record.status != FlowStatus::dispatched) {
    return record_error(
        name, "status: is " + std::string(to_string(record.status)) +
                  ": a flow can only be started with the status dispatched; write the record again under another id");
  }
  if (record.jobs.empty()) return record_error(name, "jobs: is empty: list the ids of its jobs, as in [2001,2002]");
  if (record.jobs.size() > kMaxFlowNodes)
    return record_error(name,
                        "jobs: are over " + std::to_string(kMaxFlowNodes) + ": split the flow into several flows");
  if (const auto problems = parse_notify(record.notify, "notify").problems; !problems.empty())
    return record_error(name, problems.front().message);
  std::set<Id> job_ids;
  for (const Id job : record.jobs) {
    if (!job_ids.insert(job).second) return record_error(name, "jobs: " + std::to_string(job) + " is listed twice");
  }
  return {};
}

Result<Job> read_job(Store& store, const Flow& flow, std::size_t index, const JobLimits& limits) {
  const std::string key = job_key(flow.caller_id, flow.jobs[index]);
  auto fields = store.load(flow.context_id, key);
  if (!fields && fields.error().code == Code::not_found) {
    return record_error(redis_key(flow), "jobs[" + std::to_string(index) + "]: there is no record " + key +
                                             ": write the record before you start the flow");
  }
  if (!fields) return fail(fields.error(), key);
  auto decoded = decode<Job>(*fields);
  if (!decoded.problems.empty()) return record_error(key, decoded.problems.front().message);
  Job& job = decoded.record;
  if (job.id == 0) job.id = flow.jobs[index];
  if (job.caller_id == 0) job.caller_id = flow.caller_id;
  if (job.context_id == 0) job.context_id = flow.context_id;
  if (redis_key(job) != key)
    return record_error(key, "id, caller_id: name " + redis_key(job) + ", but the record has another key");
  if (job.context_id != flow.context_id) {
    return record_error(key, "context_id: is " + std::to_string(job.context_id) +
                                 ", but its flow is stored in context " + std::to_string(flow.context_id));
  }
  if (job.flow_id != 0 && job.flow_id != flow.id)
    return record_error(key, "flow_id: is " + std::to_string(job.flow_id) + ", which is another flow");
  if (const auto problems = validate(job); !problems.empty()) return record_error(key, problems.front().message);
  if (auto checked = check_script(job.script, limits.max_script_bytes); !checked) return fail(checked.error(), key);
  // The ceiling of the remote host limits a job that runs there.
  const bool is_remote = std::any_of(job.unknown.begin(), job.unknown.end(), [](const auto& field) {
    return field.first == "supervisor_url" && !field.second.empty();
  });
  if (is_remote) return std::move(job);
  if (auto checked = check_policy(job, limits); !checked) return fail(checked.error(), key);
  return std::move(job);
}

}  // namespace

Result<void> adopt_flow(FlowStore& flows, Store& store, const JobLimits& limits, Id id) {
  const Id context = limits.ceiling.context;
  MJ_TRY(stored_run, flows.read(context, id, kMaxFlowRevision));
  if (stored_run.record.empty()) return {};  // starting the flow reports the missing record
  auto decoded = decode<Flow>(stored_run.record);
  Flow& flow = decoded.record;
  if (!flow.definition_hash.empty()) return {};
  MJ_TRY(indexes, flows.read_index_entries(context, id));
  const bool is_adopted = !indexes.state.empty() && indexes.state != kFlowStateCreating;
  if (is_adopted) return {};
  if (auto checked = check_flow(decoded, context, id); !checked) {
    // create() has started to write this record, so its fields may be missing.
    return flow.detail == "creating" ? Result<void>() : std::move(checked);
  }
  flow.id = id;
  flow.context_id = context;
  if (flow.name.empty()) flow.name = "flow" + std::to_string(id);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < flow.jobs.size(); ++i) {
    MJ_TRY(job, read_job(store, flow, i, limits));
    jobs.push_back(std::move(job));
  }
  auto plan = make_plan_of_jobs(flow.name, flow.env_vars, jobs, nlohmann::json::object());
  if (!plan) return fail(plan.error(), redis_key(flow));
  MJ_TRY(was_adopted, flows.adopt(context, id, flow.caller_id));
  if (!was_adopted) return {};
  NewFlow request;
  request.context = context;
  request.caller = flow.caller_id;
  request.env_vars = flow.env_vars;
  request.notify = flow.notify;
  auto stored = store_flow_of_jobs(flows, *plan, request, id, std::move(jobs));
  if (!stored && stored.error().code == Code::conflict)
    return record_error(redis_key(flow), "jobs: " + stored.error().message);
  MJ_CHECK(stored);
  return {};
}

}  // namespace mycojobs
