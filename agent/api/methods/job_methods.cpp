// Handlers and descriptions of the job.* and jobs.* RPC methods. A supervisor offers a subset of them, and two runner
// methods with different names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "api/methods/wait_methods.h"
#include "inspect/explain.h"
#include "model/codec.h"
#include "model/result_values.h"

namespace mycojobs::api {

using nlohmann::json;

namespace job_methods {

constexpr std::size_t kMaxRows = 1000;
constexpr std::uint32_t kMaxLogWaitMs = 30'000;

bool has_ended(const Job& job) { return job.status == JobStatus::finished || job.status == JobStatus::error; }

}  // namespace job_methods

Result<Job> parse_job(const json& object) {
  if (!object.is_object()) return fail(Code::invalid, "a job is an object");
  json fields = object;
  fields.erase("wait_ms");
  auto decoded = decode_json<Job>(fields);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

json job_state_to_json(const Job& job, const std::string& key) {
  return {{"key", key},
          {"id", job.id},
          {"caller_id", job.caller_id},
          {"context_id", job.context_id},
          {"status", to_string(job.status)},
          {"detail", job.detail},
          {"error", job.error},
          {"ended", job_methods::has_ended(job)},
          {"attempt", job.attempt},
          {"runner_id", job.runner_id},
          {"queued_ms", job.queued_ms},
          {"started_ms", job.started_ms},
          {"ended_ms", job.ended_ms}};
}

namespace job_methods {

// Loads the job that the parameters `id` and `caller_id` identify. Errors: invalid, not_found, denied (the caller
// cannot read the job).
Result<JobView> find_readable_job(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  return service::find_job(call.request_context(), call.store(), Action::read, key);
}

json job_result_to_json(const Job& job, const std::string& key) {
  json object = job_state_to_json(job, key);
  const json record = to_json(job);
  object["result"] = to_typed_json(job.result, job.result_json);
  for (const char* name : {"error_info", "usage", "artifacts", "artifacts_dropped", "layers", "receipt"}) {
    if (record.contains(name)) object[name] = record[name];
  }
  return object;
}

Result<json> handle_create(MethodCall& call) {
  MJ_TRY(job, parse_job(call.params()));
  MJ_TRY(stored,
         service::create_job(call.request_context(), call.store(), call.optional_id("caller_id"), std::move(job)));
  return to_json(stored);
}

Result<json> handle_create_many(MethodCall& call) {
  const json& list = call.params().at("jobs");
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto job = parse_job(list[i]);
    if (!job) return fail(job.error(), "jobs[" + std::to_string(i) + "]");
    jobs.push_back(std::move(*job));
  }
  MJ_TRY(stored, service::create_jobs(call.request_context(), call.store(), call.optional_id("caller_id"),
                                      std::move(jobs), call.flag("start")));
  json rows = json::array();
  for (const Job& job : stored) rows.push_back(to_json(job));
  return rows;
}

// Queues a new job if the call has a script, otherwise the job that job.create has stored. Returns the job's key.
Result<std::string> queue_new_or_stored_job(MethodCall& call) {
  if (call.has_param("script") || call.has_param("payload")) {
    MJ_TRY(job, parse_job(call.params()));
    MJ_TRY(started,
           service::submit_job(call.request_context(), call.store(), call.optional_id("caller_id"), std::move(job)));
    return redis_key(started);
  }
  if (!call.has_param("id"))
    return fail(Code::invalid, "id: is missing: name a job, or give a script and its script_type");
  MJ_TRY(key, call.job_key());
  MJ_CHECK(service::start_job(call.request_context(), call.store(), key));
  return key;
}

Result<json> handle_start(MethodCall& call) {
  MJ_TRY(key, queue_new_or_stored_job(call));
  MJ_TRY(view, load_job(call.store(), call.context(), key));
  return job_state_to_json(view.job, key);
}

Result<json> handle_run(MethodCall& call) {
  MJ_TRY(key, queue_new_or_stored_job(call));
  const std::uint64_t deadline_ms = get_wait_deadline(call);
  std::uint32_t pause_ms = 10;
  while (true) {
    MJ_TRY(view, load_job(call.store(), call.context(), key));
    if (has_ended(view.job) || call.services().clock.boot_ms() >= deadline_ms) return job_result_to_json(view.job, key);
    MJ_CHECK(call.release_backend_and_sleep(pause_ms));
    pause_ms = std::min(pause_ms * 2, 250U);
  }
}

Result<json> handle_get(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  return to_json(view);
}

Result<json> handle_status(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  return job_state_to_json(view.job, view.key);
}

Result<json> handle_result(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  return job_result_to_json(view.job, view.key);
}

Result<json> handle_logs(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  const std::size_t limit = std::clamp<std::size_t>(call.number("limit", 500), 1, kMaxRows);
  std::uint64_t after_seq = call.number("after_seq", 0);
  const std::uint64_t deadline_ms =
      call.services().clock.boot_ms() + std::min<std::uint64_t>(call.number("wait_ms", 0), kMaxLogWaitMs);
  while (true) {
    MJ_TRY(page, call.store().logs(call.context(), view.key, after_seq, limit, 0));
    if (!page.lines.empty() || page.ended || call.services().clock.boot_ms() >= deadline_ms) {
      json lines = json::array();
      for (const Log& line : page.lines) lines.push_back(to_json(line)), after_seq = line.seq;
      return json{{"lines", std::move(lines)}, {"ended", page.ended}, {"after_seq", after_seq}};
    }
    MJ_CHECK(call.release_backend_and_sleep(100));
  }
}

Result<json> handle_list(MethodCall& call) {
  service::ListJobs request;
  request.limit = std::clamp<std::size_t>(call.number("limit", 50), 1, kMaxRows);
  if (call.has_param("status")) {
    MJ_TRY(status, service::parse_job_status(call.text("status")));
    request.filter.status = status;
  }
  request.filter.state = call.text("state");
  request.filter.name = call.text("name");
  request.filter.script_type = call.text("script_type");
  request.filter.since_ms = call.number("since_ms", 0);
  MJ_TRY(page, service::list_jobs(call.request_context(), call.store(), request, [](std::uint64_t, std::uint64_t) {}));
  json rows = json::array();
  for (const JobView& view : page.jobs) rows.push_back(to_json(view));
  return rows;
}

Result<json> handle_explain(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  MJ_TRY(explanation, explain(call.store(), call.context(), view.key));
  return json{{"key", explanation.job_key},   {"state", explanation.state},       {"cause", explanation.cause},
              {"reason", explanation.reason}, {"evidence", explanation.evidence}, {"next", explanation.next_action}};
}

const Param kContextParam{"context_id", "id", "the context; absent: the server's first"};
const Param kCallerParam{"caller_id", "id", "owner of the job; default: the caller"};

std::vector<Param> job_fields(const char* id_type, const char* id_help) {
  return {
      {"id", id_type, id_help},
      kContextParam,
      kCallerParam,
      {"script", "text", "script to run"},
      {"payload", "text", "the same as script"},
      {"script_type", "text", "python, v, osis, sal or another executor's name"},
      {"executor", "text", "the same as script_type"},
      {"timeout", "seconds", "maximum run time, 1 or more; default: set by the operator"},
      {"retries", "count", "further attempts after a failure, 0 to 255"},
      {"env_vars", "variables", "environment variables"},
      {"prerequisites", "texts", "prerequisites of the job, such as file:/data/x, wait:30s"},
      {"dependends", "ids", "jobs of the same caller that must have finished"},
      {"depends", "ids", "the same as dependends"},
      {"depends_on", "ids", "the same as dependends"},
      {"name", "text", "name for display and for nodes of flows"},
      {"run_at_ms", "unix_ms", "earliest start, in the time of the store"},
      {"priority", "integer", "-100 to 100 (default 0); jobs with a higher priority are claimed first"},
      {"queue_timeout_ms", "ms", "maximum wait in the queue; 0: no limit"},
      {"idempotency_key", "text", "the same key of the same caller returns the same record"},
      {"concurrency_key", "text", "at most concurrency_limit jobs with the same key run at the same time"},
      {"concurrency_limit", "count", "maximum number of running jobs with this concurrency_key (default 1)"},
      {"inputs", "texts", "requested artifacts of dependends: JOB NAME, or JOB NAME/ARTIFACT"},
      {"notify", "any", "receivers of the notification of its end: a list of addresses and targets (docs/notify.md)"},
      {"policy", "object", "policy that the job requests for its sandbox (docs/sandbox.md)"},
      {"traceparent", "text",
       "the trace that it belongs to; default: the trace of the request's header (docs/tracing.md)"}};
}

}  // namespace job_methods

void add_job_methods(Services& services, std::vector<Method>& methods) {
  using namespace job_methods;
  const Param key{"id", "key", "the job's id, or \"CALLER:ID\"", true};
  const std::vector<Param> job_params{key, kContextParam, kCallerParam};
  const char* id_help = "id of a job that job.create has written, or of the new job; default: the next free id";
  const std::vector<Param> list_params{kContextParam,
                                       {"status", "text", "only jobs with this status"},
                                       {"state", "text", "only jobs with this status or detail"},
                                       {"name", "text", "only jobs whose name contains this text"},
                                       {"script_type", "text", "only jobs of this type"},
                                       {"since_ms", "unix_ms", "only jobs that changed since"},
                                       {"limit", "count", "maximum number (default 50, at most 1000)"}};
  const std::vector<Param> create_params{{"jobs", "jobs", "jobs as for job.create, at most 1000", true},
                                         {"start", "boolean", "also queue the jobs"},
                                         kContextParam,
                                         kCallerParam};
  auto run_params = job_fields("key", id_help);
  run_params.push_back(wait_param());
  auto log_params = job_params;
  log_params.push_back({"after_seq", "count", "only lines after this one"});
  log_params.push_back({"limit", "count", "maximum number of lines (default 500, at most 1000)"});
  log_params.push_back({"wait_ms", "ms", "maximum wait for the first line (default 0, at most 30000)"});
  methods.push_back(make_method(services, "job.create",
                                "write a job's record without queueing it: job.start queues it, a flow adopts it",
                                job_fields("id", "its id; absent: the next free one"), "Job: the job", handle_create));
  methods.push_back(
      make_method(services, "job.get", "read everything about a job", job_params, "Job: the job", handle_get));
  methods.push_back(make_method(services, "job.list", "list jobs, latest change first", list_params,
                                "[Job]: jobs without script and result", handle_list));
  methods.push_back(make_method(services, "job.start", "queue a job: one that was created, or a new one",
                                job_fields("key", id_help), "JobState: where it is", handle_start));
  methods.push_back(make_method(services, "job.run", "queue a job and wait for its end", run_params,
                                "JobResult: where it is, and its result; ended is false if the wait was over first",
                                handle_run));
  methods.push_back(make_method(services, "job.status", "read the state of a job", job_params, "JobState: where it is",
                                handle_status));
  methods.push_back(make_method(services, "job.result", "read the result of a job", job_params,
                                "JobResult: where it is, and its result", handle_result));
  methods.push_back(make_method(services, "job.logs", "read a job's log", log_params,
                                "LogPage: lines, ended (no line will follow), after_seq for the next call",
                                handle_logs));
  add_job_control_methods(services, job_params, methods);
  methods.push_back(make_method(services, "job.explain", "explain the state of a job", job_params,
                                "JobReason: state, cause, reason, evidence, next", handle_explain));
  methods.push_back(
      make_method(services, "jobs.create",
                  "write several jobs, or none if one is invalid; an error reports the number of written jobs",
                  create_params, "[Job]: the jobs", handle_create_many));
  methods.push_back(make_method(services, "jobs.list", "the same as job.list", list_params,
                                "[Job]: jobs without script and result", handle_list));
}

void add_supervisor_methods(Services& services, std::vector<Method>& methods) {
  using namespace job_methods;
  constexpr std::string_view kJobMethods[] = {"job.run",  "job.start",  "job.status",  "job.result",
                                              "job.logs", "job.cancel", "jobs.create", "jobs.list"};
  std::vector<Method> candidates;
  add_job_methods(services, candidates);
  add_record_methods(services, candidates);
  for (Method& method : candidates) {
    if (method.name == "runner.create") method.name = "register_runner";
    if (method.name == "runner.list") method.name = "list_runners";
    const bool is_runner_method = method.name == "register_runner" || method.name == "list_runners";
    if (is_runner_method ||
        std::find(std::begin(kJobMethods), std::end(kJobMethods), method.name) != std::end(kJobMethods))
      methods.push_back(std::move(method));
  }
}

}  // namespace mycojobs::api
