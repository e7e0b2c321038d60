#include "flows/flow_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs {

namespace {

constexpr std::size_t kMaxRunAnomalies = 100, kMaxCachedPlans = 1000;

// Removes the fields that the scheduler does not read, since they can be long and the cache has many runs.
void clear_unused_fields(Flow& record) {
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
      return fail(Code::conflict,
                  name + " is still being created: repeat the request that creates it, or create another flow");
    }
    return fail(Code::invalid, name + ": definition_hash: is missing, so the definition of the flow is unknown; " +
                                   "delete it with `mycojobs flow delete`");
  }
  clear_unused_fields(record);
  return std::move(record);
}

Result<std::shared_ptr<const FlowPlan>> load_plan(FlowStore& store, Id context, const Flow& record, RunCache& cache) {
  if (auto cached_plan = cache.plan(context, record.definition_hash)) return cached_plan;
  const std::string subject =
      "flow " + std::to_string(record.id) + ": definition " + record.definition_hash.substr(0, 12);
  auto text = store.definition(context, record.definition_hash);
  if (!text && text.error().code == Code::not_found) {
    return fail(Code::invalid, subject + " is missing: create a flow with the same definition, which stores it again");
  }
  if (!text) return fail(text.error(), subject);
  auto plan = parse_stored_plan(*text, record.definition_hash);
  if (!plan) {
    return fail(Code::invalid, subject + " was changed or cannot be read (" + plan.error().message +
                                   "): create a flow with the same definition, which stores it again");
  }
  auto shared = std::make_shared<const FlowPlan>(std::move(*plan));
  cache.cache_plan(context, shared);
  return std::shared_ptr<const FlowPlan>(std::move(shared));
}

// Returns the checkpoint if it matches the plan and the revision that were read with it.
std::optional<RunState> restore_checkpoint(const FlowPlan& plan, const FlowReadResult& read) {
  if (read.checkpoint.empty()) return std::nullopt;
  auto state = restore(plan, read.checkpoint);
  if (!state || state->revision > read.revision) return std::nullopt;
  const bool is_contiguous =
      read.facts.empty() ? state->revision == read.revision : read.facts.front().revision == state->revision + 1;
  return is_contiguous ? std::move(state) : std::nullopt;
}

}  // namespace

Result<void> fold_facts(FlowStore& store, Id context, Id flow, LoadedRun& run, FlowReadResult& read) {
  for (;;) {
    for (const RunFact& fact : read.facts) {
      if (fact.revision > run.state.revision) fold(*run.plan, run.state, fact);
    }
    for (std::string& anomaly : read.anomalies) {
      if (run.anomalies.size() < kMaxRunAnomalies) run.anomalies.push_back(std::move(anomaly));
    }
    if (!read.has_more) break;
    const std::uint64_t last_revision = read.facts.empty() ? run.state.revision : read.facts.back().revision;
    MJ_TRY(next_page, store.read(context, flow, last_revision));
    const bool has_only_invalid_facts = next_page.facts.empty() && next_page.has_more;
    read = std::move(next_page);
    if (has_only_invalid_facts) break;  // The page holds no valid facts.
  }
  // Entries that are not valid facts still count as revisions.
  run.state.revision = std::max(run.state.revision, read.revision);
  return {};
}

Result<LoadedRun> load_run(FlowStore& store, Id context, Id flow, RunCache& cache) {
  FlowReadResult read;
  return load_run(store, context, flow, cache, read);
}

Result<LoadedRun> load_run(FlowStore& store, Id context, Id flow, RunCache& cache, FlowReadResult& read) {
  MJ_TRY(page, store.read(context, flow, std::nullopt));
  read = std::move(page);
  LoadedRun run;
  MJ_TRY(record, read_record(flow, read.record));
  run.record = std::move(record);
  run.record.id = flow;
  run.record.context_id = context;
  MJ_TRY(plan, load_plan(store, context, run.record, cache));
  run.plan = std::move(plan);
  if (run.record.jobs.size() != run.plan->nodes.size()) {
    return fail(Code::invalid, "flow " + std::to_string(flow) + ": jobs: " + std::to_string(run.record.jobs.size()) +
                                   " ids for the " + std::to_string(run.plan->nodes.size()) +
                                   " nodes of its definition: another client changed the record; `mycojobs doctor "
                                   "--rebuild` repairs records where possible");
  }
  if (auto state = restore_checkpoint(*run.plan, read)) {
    run.state = std::move(*state);
    run.checkpoint_revision = run.state.revision;
  } else {
    run.state = initial_state(*run.plan);
    if (read.facts.empty() ? read.revision > 0 : read.facts.front().revision != 1) {
      MJ_TRY(whole_journal, store.read(context, flow, 0));
      whole_journal.record = std::move(read.record);
      read = std::move(whole_journal);
    }
  }
  MJ_CHECK(fold_facts(store, context, flow, run, read));
  return run;
}

std::string node_job_key(const LoadedRun& run, std::uint32_t node) {
  return job_key(run.record.caller_id, run.record.jobs.at(node));
}

std::optional<std::uint32_t> find_node_of_job(const LoadedRun& run, std::string_view key) {
  const std::string prefix = "job:" + std::to_string(run.record.caller_id) + ":";
  std::uint64_t id = 0;
  if (!key.starts_with(prefix) || !parse_u64(key.substr(prefix.size()), id)) return std::nullopt;
  const auto& jobs = run.record.jobs;
  // Job ids are consecutive in most flows.
  if (!jobs.empty() && id >= jobs.front() && id - jobs.front() < jobs.size() && jobs[id - jobs.front()] == id) {
    return static_cast<std::uint32_t>(id - jobs.front());
  }
  const auto match = std::find(jobs.begin(), jobs.end(), id);
  if (match == jobs.end()) return std::nullopt;
  return static_cast<std::uint32_t>(match - jobs.begin());
}

ResultValues parse_recorded_result(const std::string& result, const std::string& json_keys) {
  const auto parsed = parse_json(result);
  if (!parsed) return {};
  ResultValues values = parse_result_values(*parsed);
  const auto keys = parse_json(json_keys.empty() ? "[]" : json_keys);
  for (const auto& key : keys && keys->is_array() ? *keys : nlohmann::json::array()) {
    if (key.is_string()) values.json.push_back(key.get<std::string>());
  }
  return values;
}

std::vector<FlowNode> build_flow_nodes(const LoadedRun& run) {
  std::vector<FlowNode> nodes;
  nodes.reserve(run.plan->nodes.size());
  for (std::size_t i = 0; i < run.plan->nodes.size(); ++i) {
    if (has_not_started(*run.plan, run.state, static_cast<std::uint32_t>(i))) continue;
    const PlanNode& plan_node = run.plan->nodes[i];
    FlowNode node;
    node.id = run.record.jobs.at(i);
    node.name = plan_node.name;
    for (const std::uint32_t need : plan_node.needs) {
      if (!has_not_started(*run.plan, run.state, need)) node.depends.push_back(run.record.jobs.at(need));
    }
    node.prerequisites = plan_node.gates;
    const auto& job_prerequisites = run.plan->job_at(static_cast<std::uint32_t>(i)).prerequisites;
    if (plan_node.kind == NodeKind::job)
      node.prerequisites.insert(node.prerequisites.end(), job_prerequisites.begin(), job_prerequisites.end());
    node.supervisor_url = plan_node.supervisor_url;
    node.node_status = run.state.nodes.at(i).status;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::string flow_nodes_json(const LoadedRun& run) {
  auto list = nlohmann::json::array();
  for (const FlowNode& node : build_flow_nodes(run)) list.push_back(to_json(node));
  return dump_json(list);
}

void read_job_result(const PlanNode& node, const std::string& result, JobObserved& observed) {
  if (result.empty()) return;
  TextMap values = parse_recorded_result(result, "").texts;
  observed.result_bytes = result_bytes(values);
  for (const std::string& key : node.watched_keys) {
    if (auto match = values.find(key); match != values.end()) observed.values[key] = std::move(match->second);
  }
}

std::pair<Id, std::string> parse_parent(const Flow& record) {
  const std::string_view text = record.parent;
  const auto blank = std::min(text.find(' '), text.size());
  std::uint64_t flow = 0;
  if (!text.starts_with("flow:") || !parse_u64(text.substr(5, blank - 5), flow) || flow > UINT32_MAX) return {0, ""};
  return {static_cast<Id>(flow), std::string(text.substr(std::min(blank + 1, text.size())))};
}

std::optional<LoadedRun> RunCache::pop_cached_run(Id context, Id flow) {
  auto node = runs_.extract({context, flow});
  if (node.empty()) return std::nullopt;
  nodes_ -= static_cast<std::uint32_t>(node.mapped().state.nodes.size());
  return std::move(node.mapped());
}

void RunCache::cache_run(Id context, Id flow, LoadedRun run) {
  const auto size = static_cast<std::uint32_t>(run.state.nodes.size());
  (void)pop_cached_run(context, flow);
  // Any run can be evicted, since it is loaded again from its checkpoint.
  while (!runs_.empty() && nodes_ + size > max_nodes_) {
    const auto [evicted_context, evicted_flow] = runs_.begin()->first;
    (void)pop_cached_run(evicted_context, evicted_flow);
  }
  nodes_ += size;
  runs_.emplace(std::pair{context, flow}, std::move(run));
}

void RunCache::clear_runs() {
  runs_.clear();
  nodes_ = 0;
}

std::shared_ptr<const FlowPlan> RunCache::plan(Id context, const std::string& hash) const {
  const auto match = plans_.find({context, hash});
  return match == plans_.end() ? nullptr : match->second;
}

void RunCache::cache_plan(Id context, std::shared_ptr<const FlowPlan> plan) {
  if (plans_.size() >= kMaxCachedPlans) plans_.clear();
  std::string hash = plan->hash;
  plans_.insert_or_assign({context, std::move(hash)}, std::move(plan));
}

}  // namespace mycojobs
