// Methods that return views of a context: rights, overview, verification, pages of jobs, and waiting approvals.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "api/methods/flow_methods.h"
#include "api/methods/job_methods.h"
#include "base/version.h"
#include "service/context_service.h"

namespace mycojobs::api {
namespace views_methods {

using nlohmann::json;

constexpr std::size_t kMaxPage = 1000;
constexpr std::size_t kMaxFindings = 1000;

Result<json> rights(MethodCall& call) {
  MJ_TRY(may, service::rights(call.request_context_of(), call.store()));
  return json{{"actor", call.actor()},       {"operator", call.operator_context()},
              {"create", may.create},        {"read_all", may.read_all},
              {"read_own", may.read_own},    {"steer_all", may.steer_all},
              {"steer_own", may.steer_own},  {"administer", may.administer},
              {"context_id", call.context()}};
}

Result<json> overview(MethodCall& call) {
  MJ_TRY(view, service::overview(call.request_context_of(), call.store()));
  return to_json(view);
}

Result<json> verify(MethodCall& call) {
  MJ_TRY(flows, call.flows());
  MJ_TRY(deployments, call.worlds());
  MJ_TRY(objects, call.services().backends.open_objects());
  MJ_TRY(report, service::verify(call.request_context_of(), {call.store(), *objects, *flows, *deployments}));
  json findings = json::array();
  for (const Finding& each : report.findings) {
    if (findings.size() == kMaxFindings) break;
    findings.push_back(to_json(each));
  }
  return json{{"findings", std::move(findings)},
              {"found", report.findings.size()},
              {"jobs", report.jobs},
              {"facts", report.facts},
              {"queues", report.queues}};
}

// The result includes this process: it answers the call, but may report to load balancers that it is not ready.
Result<json> doctor(MethodCall& call) {
  MJ_TRY(flows, call.flows());
  const ApiSettings& settings = call.services().settings;
  const auto& own = settings.own_servers;
  const bool own_server = std::find(own.begin(), own.end(), call.context()) != own.end();
  MJ_TRY(checks, service::doctor(call.request_context_of(), call.store(), *flows, own_server, settings.wait_replicas));
  const std::string wrong = settings.health.why_not_ready();
  checks.push_back({"coordinator", "this one", wrong.empty() ? Verdict::ok : Verdict::missing,
                    "mycojobs " + std::string(kVersion) + (wrong.empty() ? ", ready" : ", not ready: " + wrong),
                    wrong.empty() ? "" : "check the log of the server"});
  json all = json::array();
  for (const Check& each : checks) all.push_back(to_json(each));
  return all;
}

// Returns the cursor for a page that begins with the jobs that changed at or before a time. The job index has
// microseconds.
std::string page_before(std::uint64_t until_ms) {
  return std::to_string(std::min<std::uint64_t>(until_ms, UINT32_MAX * 1000ULL) * 1000 + 999) + " 0";
}

// Returns the requested fields of jobs, and always the ids, key and status. Empty: all fields.
Result<std::set<std::string>> read_fields(const MethodCall& call) {
  std::set<std::string> fields;
  if (!call.has("fields")) return fields;
  for (const json& each : call.params().at("fields")) {
    if (!each.is_string()) return fail(Code::invalid, "fields: must be a list of texts");
    fields.insert(each.get<std::string>());
  }
  for (const char* always : {"id", "caller_id", "context_id", "key", "status"}) fields.insert(always);
  return fields;
}

json shown(const JobView& view, const std::set<std::string>& fields) {
  json job = to_json(view);
  if (fields.empty()) return job;
  for (auto each = job.begin(); each != job.end();)
    each = fields.contains(each.key()) ? std::next(each) : job.erase(each);
  return job;
}

Result<json> page(MethodCall& call) {
  MJ_TRY(fields, read_fields(call));
  JobFilter wanted;
  if (call.has("status")) {
    MJ_TRY(status, service::read_job_status(call.text("status")));
    wanted.status = status;
  }
  wanted.state = call.text("state");
  wanted.name = call.text("name");
  wanted.script_type = call.text("script_type");
  wanted.caller = call.named("caller_id");
  wanted.since_ms = call.number("since_ms", 0);
  wanted.after = call.text("after");
  if (wanted.after.empty() && call.has("until_ms")) wanted.after = page_before(call.number("until_ms", 0));
  const std::size_t limit = std::clamp<std::size_t>(call.number("limit", 50), 1, kMaxPage);
  MJ_TRY(slice, service::page_jobs(call.request_context_of(), call.store(), std::move(wanted), limit));
  json jobs = json::array();
  for (const JobView& view : slice.jobs) jobs.push_back(shown(view, fields));
  return json{{"jobs", std::move(jobs)}, {"after", slice.after}, {"looked_at", slice.looked_at}};
}

Result<json> history(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(moments, service::job_history(call.request_context_of(), call.store(), key));
  json all = json::array();
  for (const JobTimelineEntry& each : moments) all.push_back(to_json(each));
  return all;
}

Result<json> questions(MethodCall& call) {
  MJ_TRY(flows, call.flows());
  MJ_TRY(deployments, call.worlds());
  MJ_TRY(found, service::list_questions(call.request_context_of(), call.stores(*flows), *deployments, call.id("after"),
                                        &call.services().approvals));
  json all = json::array();
  for (const service::OpenQuestion& each : found.all) {
    json object{{"name", each.name},           {"pause", each.pause},     {"asks", each.asks},
                {"approvers", each.approvers}, {"answers", each.answers}, {"since_ms", each.since_ms},
                {"until_ms", each.until_ms}};
    if (each.workflow.empty()) {
      object["job"] = each.job_key;
      object["node"] = each.node;
    } else {
      MJ_TRY(key, parse_json(each.key));
      object["workflow"] = each.workflow;
      object["key"] = std::move(key);
    }
    if (each.flow != 0) {
      object["flow"] = each.flow;
      object["flow_name"] = each.flow_name;
    }
    all.push_back(std::move(object));
  }
  return json{{"questions", std::move(all)}, {"after", found.after}, {"truncated", found.truncated}};
}

json shown(const std::vector<PlanProblem>& problems) {
  json all = json::array();
  for (const PlanProblem& each : problems)
    all.push_back({{"path", each.path}, {"message", each.message}, {"line", each.line}, {"column", each.column}});
  return all;
}

Result<json> check_flow(MethodCall& call) {
  const service::FlowCheck read = service::check_flow(call.params().at("definition"));
  return json{{"ok", read.plan.has_value()},
              {"problems", shown(read.problems)},
              {"warnings", shown(read.warnings)},
              {"nodes", read.plan ? read.plan->nodes.size() : 0}};
}

}  // namespace views_methods

void add_view_methods(Services& s, std::vector<Method>& all) {
  using namespace views_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "whose job it is; absent: the caller's"};
  all.push_back(method(s, "context.rights", "list the rights of the caller", {context},
                       "Rights: for all records, and for records of its own", rights));
  all.push_back(method(s, "context.overview", "summarize a context: counts, queues, agents, the last minutes",
                       {context}, "Overview: numbers, queues, runners", overview));
  all.push_back(
      method(s, "context.verify",
             "check the invariants of jobs, objects, flows and workflows of a context, and the keys of actors",
             {context}, "Verified: findings, and numbers of checked records", verify));
  all.push_back(method(s, "context.doctor",
                       "check the Redis, the leader and the agents of a context, and name the remedy for each problem",
                       {context}, "[Check]: area, name, state, detail, remedy", doctor));
  all.push_back(method(s, "jobs.page", "list jobs page by page, latest change first",
                       {context,
                        {"status", "text", "only these"},
                        {"state", "text", "only jobs with this status or detail"},
                        {"name", "text", "only jobs whose name contains this text"},
                        {"script_type", "text", "only these"},
                        {"caller_id", "id", "only this actor's"},
                        {"since_ms", "unix_ms", "only jobs that changed since"},
                        {"until_ms", "unix_ms", "only jobs that changed until then"},
                        {"limit", "count", "maximum number (default 50, at most 1000)"},
                        {"fields", "texts", "only these of each job, beside its ids, key and status; absent: all"},
                        {"after", "text", "the value `after` of the preceding page; absent: the first page"}},
                       "JobsPage: jobs, after (empty: this is the last page), looked_at", page));
  all.push_back(method(s, "job.history", "read the history of a job, attempt by attempt",
                       {{"id", "key", "the job's id, or \"CALLER:ID\"", true}, context, caller},
                       "[JobMoment]: at_ms, kind, attempt, runner_id, due_ms, detail", history));
  all.push_back(method(s, "approval.list", "list approvals and pauses that wait for a person",
                       {context, {"after", "id", "only flows after this one"}},
                       "Questions: questions, after (0: there are no more)", questions));
  all.push_back(method(s, "flow.check", "report errors and probable mistakes in a definition; creates nothing",
                       {{"definition", "any", "a whole definition (docs/flows.md), or its text in YAML or JSON", true}},
                       "FlowCheck: ok, problems, warnings", check_flow));
}

}  // namespace mycojobs::api
