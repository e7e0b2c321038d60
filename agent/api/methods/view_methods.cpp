// Methods that return views of a context: rights, overview, verification, pages of jobs, and waiting approvals.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "api/methods/flow_methods.h"
#include "api/methods/job_methods.h"
#include "base/version.h"
#include "service/context_service.h"
#include "text/json.h"

namespace mycojobs::api {
namespace view_methods {

using nlohmann::json;

constexpr std::size_t kMaxFindings = 1000;

Result<json> rights(MethodCall& call) {
  MJ_TRY(rights, service::get_rights(call.request_context(), call.store()));
  return json{{"actor", call.actor()},
              {"operator", call.is_operator()},
              {"create", rights.can_create},
              {"read_all", rights.can_read_all},
              {"read_own", rights.can_read_own},
              {"steer_all", rights.can_steer_all},
              {"steer_own", rights.can_steer_own},
              {"administer", rights.can_administer},
              {"context_id", call.context()}};
}

Result<json> overview(MethodCall& call) {
  MJ_TRY(view, service::read_overview(call.request_context(), call.store()));
  return to_json(view);
}

Result<json> verify(MethodCall& call) {
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(workflows, call.open_workflow_store());
  MJ_TRY(objects, call.services().backends.open_objects());
  MJ_TRY(report, service::verify(call.request_context(), {call.store(), *objects, *flows, *workflows}));
  json findings = json::array();
  for (const Finding& finding : report.findings) {
    if (findings.size() == kMaxFindings) break;
    findings.push_back(to_json(finding));
  }
  return json{{"findings", std::move(findings)},
              {"found", report.findings.size()},
              {"jobs", report.jobs},
              {"facts", report.facts},
              {"queues", report.queues}};
}

// The result includes this process, which can answer calls while /readyz reports that it is not ready.
Result<json> doctor(MethodCall& call) {
  MJ_TRY(flows, call.open_flow_store());
  const ApiSettings& settings = call.services().settings;
  const auto& contexts_with_own_redis = settings.contexts_with_own_redis;
  const bool has_own_server = std::find(contexts_with_own_redis.begin(), contexts_with_own_redis.end(),
                                        call.context()) != contexts_with_own_redis.end();
  MJ_TRY(checks,
         service::run_doctor(call.request_context(), call.store(), *flows, has_own_server, settings.wait_replicas));
  const std::string not_ready_reason = settings.health.get_not_ready_reason();
  checks.push_back({"coordinator", "this one", not_ready_reason.empty() ? CheckStatus::ok : CheckStatus::error,
                    "mycojobs " + std::string(kVersion) +
                        (not_ready_reason.empty() ? ", ready" : ", not ready: " + not_ready_reason),
                    not_ready_reason.empty() ? "" : "check the log of the server"});
  json rows = json::array();
  for (const Check& check : checks) rows.push_back(to_json(check));
  return rows;
}

// Returns the cursor of a page that begins with the jobs that changed at or before `until_ms`. Cursors contain
// microseconds and the last job.
std::string make_cursor(std::uint64_t until_ms) {
  return std::to_string(std::min<std::uint64_t>(until_ms, UINT32_MAX * 1000ULL) * 1000 + 999) + " 0";
}

// Returns the names of the requested fields, and of the fields that each job in the result has: ids, key and status. An
// empty set means all fields.
Result<std::set<std::string>> read_fields(const MethodCall& call) {
  std::set<std::string> fields;
  if (!call.has_param("fields")) return fields;
  for (const json& field : call.params().at("fields")) {
    if (!field.is_string()) return fail(Code::invalid, "fields: must be a list of texts");
    fields.insert(field.get<std::string>());
  }
  for (const char* field : {"id", "caller_id", "context_id", "key", "status"}) fields.insert(field);
  return fields;
}

json job_to_json(const JobView& view, const std::set<std::string>& fields) {
  json job = to_json(view);
  if (fields.empty()) return job;
  for (auto it = job.begin(); it != job.end();) it = fields.contains(it.key()) ? std::next(it) : job.erase(it);
  return job;
}

Result<json> page(MethodCall& call) {
  MJ_TRY(fields, read_fields(call));
  JobFilter filter = service::parse_job_filter(call);
  filter.cursor = call.text("after");
  if (filter.cursor.empty() && call.has_param("until_ms")) filter.cursor = make_cursor(call.number("until_ms"));
  MJ_TRY(page, service::page_jobs(call.request_context(), call.store(), std::move(filter), call.number("limit")));
  json jobs = json::array();
  for (const JobView& view : page.jobs) jobs.push_back(job_to_json(view, fields));
  return json{{"jobs", std::move(jobs)}, {"after", page.after}, {"looked_at", page.rows_read}};
}

Result<json> history(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  MJ_TRY(entries, service::read_job_history(call.request_context(), call.store(), key));
  json rows = json::array();
  for (const JobTimelineEntry& entry : entries) rows.push_back(to_json(entry));
  return rows;
}

Result<json> questions(MethodCall& call) {
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(workflows, call.open_workflow_store());
  MJ_TRY(page, service::list_questions(call.request_context(), call.make_flow_stores(*flows), *workflows,
                                       call.id("after"), &call.services().approvals));
  json rows = json::array();
  for (const service::OpenQuestion& question : page.questions) {
    json object{{"name", question.name},           {"pause", question.is_pause},     {"asks", question.text},
                {"approvers", question.approvers}, {"answers", question.can_answer}, {"since_ms", question.since_ms},
                {"until_ms", question.until_ms}};
    if (question.workflow.empty()) {
      object["job"] = question.job_key;
      object["node"] = question.node;
    } else {
      MJ_TRY(key, parse_json(question.key));
      object["workflow"] = question.workflow;
      object["key"] = std::move(key);
    }
    if (question.flow != 0) {
      object["flow"] = question.flow;
      object["flow_name"] = question.flow_name;
    }
    rows.push_back(std::move(object));
  }
  return json{{"questions", std::move(rows)}, {"after", page.after}, {"truncated", page.truncated}};
}

Result<json> check_flow(MethodCall& call) {
  const service::FlowCheck check = service::check_flow(call.params().at("definition"));
  return json{{"ok", check.plan.has_value()},
              {"problems", service::to_json(check.problems)},
              {"warnings", service::to_json(check.warnings)},
              {"nodes", check.plan ? check.plan->nodes.size() : 0}};
}

}  // namespace view_methods

void add_view_methods(Services& services, std::vector<Method>& methods) {
  using namespace view_methods;
  bind_methods(services,
               {{"context.rights", rights},
                {"context.overview", overview},
                {"context.verify", verify},
                {"context.doctor", doctor},
                {"jobs.page", page},
                {"job.history", history},
                {"approval.list", questions},
                {"flow.check", check_flow}},
               methods);
}

}  // namespace mycojobs::api
