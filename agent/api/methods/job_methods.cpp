// The `job.` and `jobs.` methods, and the methods of a supervisor.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "api/methods/wait_methods.h"
#include "inspect/explain.h"
#include "model/codec.h"
#include "model/result_values.h"

namespace mycojobs::api {
namespace jobs_methods {

using nlohmann::json;

constexpr std::size_t kMaxListed = 1000;
constexpr std::uint32_t kLogWaitMs = 30'000;

bool has_ended(const Job& job) { return job.status == JobStatus::finished || job.status == JobStatus::error; }

}  // namespace jobs_methods

Result<Job> read_job(const json& object) {
  if (!object.is_object()) return fail(Code::invalid, "a job is an object");
  json fields = object;
  fields.erase("wait_ms");
  auto decoded = decode_json<Job>(fields);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

json status_of(const Job& job, const std::string& key) {
  return {{"key", key},
          {"id", job.id},
          {"caller_id", job.caller_id},
          {"context_id", job.context_id},
          {"status", to_string(job.status)},
          {"detail", job.detail},
          {"error", job.error},
          {"ended", jobs_methods::has_ended(job)},
          {"attempt", job.attempt},
          {"runner_id", job.runner_id},
          {"queued_ms", job.queued_ms},
          {"started_ms", job.started_ms},
          {"ended_ms", job.ended_ms}};
}

namespace jobs_methods {

// Loads the job that the parameters identify. Error `denied`: the caller may not read it.
Result<JobView> readable(MethodCall& call) {
  MJ_TRY(key, call.job_key());
  return service::find_job(call.request_context_of(), call.store(), Action::read, key);
}

json result_of(const Job& job, const std::string& key) {
  json object = status_of(job, key);
  const json whole = to_json(job);
  object["result"] = typed_values(job.result, job.result_json);
  for (const char* name : {"error_info", "usage", "artifacts", "artifacts_dropped", "layers", "receipt"}) {
    if (whole.contains(name)) object[name] = whole[name];
  }
  return object;
}

Result<json> create(MethodCall& call) {
  MJ_TRY(job, read_job(call.params()));
  MJ_TRY(stored, service::create_job(call.request_context_of(), call.store(), call.named("caller_id"), std::move(job)));
  return to_json(stored);
}

Result<json> create_many(MethodCall& call) {
  const json& list = call.params().at("jobs");
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto job = read_job(list[i]);
    if (!job) return fail(job.error(), "jobs[" + std::to_string(i) + "]");
    jobs.push_back(std::move(*job));
  }
  MJ_TRY(stored, service::create_jobs(call.request_context_of(), call.store(), call.named("caller_id"), std::move(jobs),
                                      call.flag("start")));
  json made = json::array();
  for (const Job& job : stored) made.push_back(to_json(job));
  return made;
}

// Queues a new job, or a job that job.create has stored. Returns its key.
Result<std::string> start_one(MethodCall& call) {
  if (call.has("script") || call.has("payload")) {
    MJ_TRY(job, read_job(call.params()));
    MJ_TRY(started,
           service::submit_job(call.request_context_of(), call.store(), call.named("caller_id"), std::move(job)));
    return redis_key(started);
  }
  if (!call.has("id")) return fail(Code::invalid, "id: is missing: name a job, or give a script and its script_type");
  MJ_TRY(key, call.job_key());
  MJ_CHECK(service::start_job(call.request_context_of(), call.store(), key));
  return key;
}

Result<json> start(MethodCall& call) {
  MJ_TRY(key, start_one(call));
  MJ_TRY(view, load_job(call.store(), call.context(), key));
  return status_of(view.job, key);
}

Result<json> run(MethodCall& call) {
  MJ_TRY(key, start_one(call));
  const std::uint64_t until = end_of_wait(call);
  std::uint32_t pause = 10;
  while (true) {
    MJ_TRY(view, load_job(call.store(), call.context(), key));
    if (has_ended(view.job) || call.services().clock.boot_ms() >= until) return result_of(view.job, key);
    MJ_CHECK(call.rest(pause));
    pause = std::min(pause * 2, 250U);
  }
}

Result<json> get(MethodCall& call) {
  MJ_TRY(view, readable(call));
  return to_json(view);
}

Result<json> status(MethodCall& call) {
  MJ_TRY(view, readable(call));
  return status_of(view.job, view.key);
}

Result<json> result(MethodCall& call) {
  MJ_TRY(view, readable(call));
  return result_of(view.job, view.key);
}

Result<json> logs(MethodCall& call) {
  MJ_TRY(view, readable(call));
  const std::size_t limit = std::clamp<std::size_t>(call.number("limit", 500), 1, kMaxListed);
  std::uint64_t after = call.number("after_seq", 0);
  const std::uint64_t until =
      call.services().clock.boot_ms() + std::min<std::uint64_t>(call.number("wait_ms", 0), kLogWaitMs);
  while (true) {
    MJ_TRY(page, call.store().logs(call.context(), view.key, after, limit, 0));
    if (!page.lines.empty() || page.ended || call.services().clock.boot_ms() >= until) {
      json lines = json::array();
      for (const Log& line : page.lines) lines.push_back(to_json(line)), after = line.seq;
      return json{{"lines", std::move(lines)}, {"ended", page.ended}, {"after_seq", after}};
    }
    MJ_CHECK(call.rest(100));
  }
}

Result<json> list(MethodCall& call) {
  service::ListJobs request;
  request.limit = std::clamp<std::size_t>(call.number("limit", 50), 1, kMaxListed);
  if (call.has("status")) {
    MJ_TRY(status, service::read_job_status(call.text("status")));
    request.wanted.status = status;
  }
  request.wanted.state = call.text("state");
  request.wanted.name = call.text("name");
  request.wanted.script_type = call.text("script_type");
  request.wanted.since_ms = call.number("since_ms", 0);
  MJ_TRY(found,
         service::list_jobs(call.request_context_of(), call.store(), request, [](std::uint64_t, std::uint64_t) {}));
  json all = json::array();
  for (const JobView& view : found.jobs) all.push_back(to_json(view));
  return all;
}

Result<json> explain_job(MethodCall& call) {
  MJ_TRY(view, readable(call));
  MJ_TRY(why, explain(call.store(), call.context(), view.key));
  return json{{"key", why.job_key},   {"state", why.state},       {"cause", why.cause},
              {"reason", why.reason}, {"evidence", why.evidence}, {"next", why.next}};
}

const Param kContext{"context_id", "id", "the context; absent: the server's first"};
const Param kCaller{"caller_id", "id", "owner of the job; default: the caller"};

std::vector<Param> job_fields(const char* id_type, const char* id_help) {
  return {
      {"id", id_type, id_help},
      kContext,
      kCaller,
      {"script", "text", "what is run"},
      {"payload", "text", "the same as script"},
      {"script_type", "text", "python, v, osis, sal or another executor's name"},
      {"executor", "text", "the same as script_type"},
      {"timeout", "seconds", "wall clock, 1 or more; absent: the operator's default"},
      {"retries", "count", "further attempts after a failure, 0 to 255"},
      {"env_vars", "variables", "of its environment"},
      {"prerequisites", "texts", "prerequisites of the job, such as file:/data/x, wait:30s"},
      {"dependends", "ids", "jobs of the same caller that must have finished"},
      {"depends", "ids", "the same as dependends"},
      {"depends_on", "ids", "the same as dependends"},
      {"name", "text", "name for display and for nodes of flows"},
      {"run_at_ms", "unix_ms", "earliest start, by the store's clock"},
      {"priority", "integer", "-100 to 100 (0); higher is taken first"},
      {"queue_timeout_ms", "ms", "longest wait in its queue; 0: any"},
      {"idempotency_key", "text", "the same key of the same caller returns the same record"},
      {"concurrency_key", "text", "jobs that share it run a few at a time"},
      {"concurrency_limit", "count", "how many with this concurrency_key run at one time (1)"},
      {"inputs", "texts", "requested artifacts of dependends: JOB NAME, or JOB NAME/ARTIFACT"},
      {"notify", "any", "receivers of the notification of its end: a list of addresses and targets (docs/notify.md)"},
      {"policy", "object", "policy that the job requests for its sandbox (docs/sandbox.md)"},
      {"traceparent", "text",
       "the trace that it belongs to; default: the trace of the request's header (docs/tracing.md)"}};
}

}  // namespace jobs_methods

void add_job_methods(Services& s, std::vector<Method>& all) {
  using namespace jobs_methods;
  const Param key{"id", "key", "the job's id, or \"CALLER:ID\"", true};
  const std::vector<Param> one{key, kContext, kCaller};
  const char* kEither = "of a job that job.create has written, or of the new one; absent: the next free one";
  const std::vector<Param> list_params{kContext,
                                       {"status", "text", "only these"},
                                       {"state", "text", "only jobs with this status or detail"},
                                       {"name", "text", "only jobs whose name contains this text"},
                                       {"script_type", "text", "only these"},
                                       {"since_ms", "unix_ms", "only jobs that changed since"},
                                       {"limit", "count", "maximum number (default 50, at most 1000)"}};
  const std::vector<Param> many{{"jobs", "jobs", "jobs as for job.create, at most 1000", true},
                                {"start", "boolean", "queue them, too"},
                                kContext,
                                kCaller};
  auto waits = job_fields("key", kEither);
  waits.push_back(wait_param());
  auto log_params = one;
  log_params.push_back({"after_seq", "count", "only lines after this one"});
  log_params.push_back({"limit", "count", "maximum number of lines (default 500, at most 1000)"});
  log_params.push_back({"wait_ms", "ms", "wait so long for the first one (0; 30000 at most)"});
  all.push_back(method(s, "job.create",
                       "write a job's record without queueing it: job.start queues it, a flow adopts it",
                       job_fields("id", "its id; absent: the next free one"), "Job: the job", create));
  all.push_back(method(s, "job.get", "read everything about a job", one, "Job: the job", get));
  all.push_back(method(s, "job.list", "list jobs, latest change first", list_params,
                       "[Job]: jobs without script and result", list));
  all.push_back(method(s, "job.start", "queue a job: one that was created, or a new one", job_fields("key", kEither),
                       "JobState: where it is", start));
  all.push_back(method(s, "job.run", "queue a job and wait for its end", waits,
                       "JobResult: where it is, and its result; ended is false if the wait was over first", run));
  all.push_back(method(s, "job.status", "read the state of a job", one, "JobState: where it is", status));
  all.push_back(
      method(s, "job.result", "read the result of a job", one, "JobResult: where it is, and its result", result));
  all.push_back(method(s, "job.logs", "read a job's log", log_params,
                       "LogPage: lines, ended (no line will follow), after_seq for the next call", logs));
  add_job_controls(s, one, all);
  all.push_back(method(s, "job.explain", "explain the state of a job", one,
                       "JobReason: state, cause, reason, evidence, next", explain_job));
  all.push_back(method(s, "jobs.create",
                       "write several jobs, or none if one is invalid; an error reports the number of written jobs",
                       many, "[Job]: the jobs", create_many));
  all.push_back(
      method(s, "jobs.list", "the same as job.list", list_params, "[Job]: jobs without script and result", list));
}

void add_supervisor_methods(Services& s, std::vector<Method>& all) {
  using namespace jobs_methods;
  constexpr std::string_view kJobs[] = {"job.run",  "job.start",  "job.status",  "job.result",
                                        "job.logs", "job.cancel", "jobs.create", "jobs.list"};
  std::vector<Method> from;
  add_job_methods(s, from);
  add_record_methods(s, from);
  for (Method& each : from) {
    if (each.name == "runner.create") each.name = "register_runner";
    if (each.name == "runner.list") each.name = "list_runners";
    const bool own = each.name == "register_runner" || each.name == "list_runners";
    if (own || std::find(std::begin(kJobs), std::end(kJobs), each.name) != std::end(kJobs))
      all.push_back(std::move(each));
  }
}

}  // namespace mycojobs::api
