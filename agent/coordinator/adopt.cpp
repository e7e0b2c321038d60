// Flows that another client has written as records, with a plain HSET: seed 001.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/create.h"
#include "coordinator/progress_parts.h"
#include "domain/codec.h"
#include "domain/notify.h"
#include "store/redis_flows.h"

namespace mycojobs {
namespace {

// Whatever is wrong names the record and its field.
tl::unexpected<Error> wrong(const std::string& record, const std::string& what) {
  return fail(Code::invalid, record + ": " + what);
}

// Fields of ours that a plain client does not write and that say nothing of what the flow is.
bool is_of_seed(std::string_view field) {
  static constexpr auto kFields = std::to_array<std::string_view>(
      {"id", "caller_id", "context_id", "jobs", "env_vars", "result", "status", "created_at", "updated_at", "name"});
  return std::any_of(kFields.begin(), kFields.end(), [&](std::string_view each) {
    return field == each || (field.starts_with(each) && (field[each.size()] == '[' || field[each.size()] == '.'));
  });
}

Result<void> check_flow(const Decoded<Flow>& read, Id context, Id flow) {
  const std::string name = "flow:" + std::to_string(flow);
  const Flow& record = read.record;
  for (const FieldProblem& problem : read.problems) {
    if (is_of_seed(problem.field)) return wrong(name, problem.message);
  }
  if (record.id != 0 && record.id != flow)
    return wrong(name, "id: is " + std::to_string(record.id) + ", and its key says " + std::to_string(flow));
  if (record.caller_id == 0) return wrong(name, "caller_id: is missing: set it to the actor whose flow it is");
  if (record.context_id != 0 && record.context_id != context) {
    return wrong(name, "context_id: is " + std::to_string(record.context_id) + ", and it stands in context " +
                           std::to_string(context));
  }
  if (record.status != FlowStatus::dispatched) {
    return wrong(name, "status: is " + std::string(word(record.status)) +
                           ": a flow that is to be started says dispatched; write it anew under another id");
  }
  if (record.jobs.empty()) return wrong(name, "jobs: is empty: list the ids of its jobs, as in [2001,2002]");
  if (record.jobs.size() > kMaxFlowNodes)
    return wrong(name, "jobs: are over " + std::to_string(kMaxFlowNodes) + ": make several flows of it");
  if (const auto problems = read_notify(record.notify, "notify").problems; !problems.empty())
    return wrong(name, problems.front().message);
  std::set<Id> seen;
  for (const Id job : record.jobs) {
    if (!seen.insert(job).second) return wrong(name, "jobs: " + std::to_string(job) + " is named twice");
  }
  return {};
}

Result<Job> read_job(Store& store, const Flow& flow, std::size_t index) {
  const std::string key = job_key(flow.caller_id, flow.jobs[index]);
  auto fields = store.load(flow.context_id, key);
  if (!fields && fields.error().code == Code::not_found) {
    return wrong(redis_key(flow), "jobs[" + std::to_string(index) + "]: there is no record " + key +
                                      ": write it before the flow is started");
  }
  if (!fields) return fail(fields.error(), key);
  auto read = decode<Job>(*fields);
  if (!read.problems.empty()) return wrong(key, read.problems.front().message);
  Job& job = read.record;
  if (job.id == 0) job.id = flow.jobs[index];
  if (job.caller_id == 0) job.caller_id = flow.caller_id;
  if (job.context_id == 0) job.context_id = flow.context_id;
  if (redis_key(job) != key) return wrong(key, "id, caller_id: are of " + redis_key(job) + ", and not of its key");
  if (job.context_id != flow.context_id) {
    return wrong(key, "context_id: is " + std::to_string(job.context_id) + ", and its flow stands in context " +
                          std::to_string(flow.context_id));
  }
  if (job.flow_id != 0 && job.flow_id != flow.id)
    return wrong(key, "flow_id: is " + std::to_string(job.flow_id) + ", of another flow");
  if (const auto problems = validate(job); !problems.empty()) return wrong(key, problems.front().message);
  return std::move(job);
}

}  // namespace

Result<void> adopt_flow(FlowStore& flows, Store& store, Id context, Id id) {
  MJ_TRY(read, flows.read(context, id, kRecordAlone));
  if (read.record.empty()) return {};  // whoever starts it says so
  auto decoded = decode<Flow>(read.record);
  Flow& flow = decoded.record;
  if (!flow.definition_hash.empty()) return {};
  MJ_TRY(places, flows.places(context, id));
  const bool ours = !places.state.empty() && places.state != "creating";
  if (ours) return {};
  if (auto sound = check_flow(decoded, context, id); !sound) {
    // One that create() has begun has none of this yet.
    return flow.detail == "creating" ? Result<void>() : std::move(sound);
  }
  flow.id = id;
  flow.context_id = context;
  if (flow.name.empty()) flow.name = "flow" + std::to_string(id);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < flow.jobs.size(); ++i) {
    MJ_TRY(job, read_job(store, flow, i));
    jobs.push_back(std::move(job));
  }
  auto plan = plan_of_jobs(flow.name, flow.env_vars, jobs, nlohmann::json::object());
  if (!plan) return fail(plan.error(), redis_key(flow));
  MJ_TRY(going_on, adopt_flow_record(flows, context, id, flow.caller_id));
  if (!going_on) return {};
  NewFlow asked;
  asked.context = context;
  asked.caller = flow.caller_id;
  asked.env_vars = flow.env_vars;
  asked.notify = flow.notify;
  auto made = put_all(flows, *plan, asked, id, std::move(jobs));
  if (!made && made.error().code == Code::conflict) return wrong(redis_key(flow), "jobs: " + made.error().message);
  MJ_CHECK(made);
  return {};
}

}  // namespace mycojobs
