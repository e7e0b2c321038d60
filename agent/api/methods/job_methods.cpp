// Handlers and descriptions of the job.* and jobs.* RPC methods. A supervisor offers a subset of them, and two runner
// methods with different names.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/methods/job_methods.h"
#include "api/methods/wait_methods.h"
#include "inspect/explain.h"
#include "inspect/log_lines.h"
#include "model/codec.h"
#include "model/result_values.h"
#include "model/submitted_files.h"

namespace mycojobs::api {

using nlohmann::json;

namespace job_methods {

bool has_ended(const Job& job) { return job.status == JobStatus::finished || job.status == JobStatus::error; }

}  // namespace job_methods

Result<Job> parse_job(const json& object) {
  if (!object.is_object()) return fail(Code::invalid, "a job is an object");
  json fields = object;
  fields.erase("wait_ms");
  return decode_job_request(std::move(fields));
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
    if (const auto problem = service::validate_params(*service::find_request("job.create"), list[i]))
      return fail(Code::invalid, "jobs[" + std::to_string(i) + "]: " + problem->message);
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

// With `tail`, reads the log to its present end. After kMaxTailReadMs, only the lines of the store are read. With
// `since_ms`, reads at least to the first selected line, so that an empty answer never precedes stored lines.
constexpr std::uint64_t kMaxTailReadMs = 10000;
Result<json> handle_logs(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  const std::size_t limit = call.number("limit"), tail = call.number("tail");
  std::uint64_t after_seq = call.number("after_seq");
  const std::uint64_t deadline_ms = call.services().clock.boot_ms() + call.number("wait_ms");
  const std::uint64_t tail_deadline_ms = call.services().clock.boot_ms() + kMaxTailReadMs;
  LogSelection selection(call.number("since_ms"), tail == 0 ? LogSelection::kAllLines : tail);
  if (tail > 0) {
    MJ_TRY(start_seq, JobLogReader::find_last_lines(call.store(), call.context(), view.key, after_seq, tail));
    after_seq = start_seq;
  }
  json lines = json::array();
  while (true) {
    MJ_TRY(stored, call.services().logs.load(call.store(), call.context(), view.key, after_seq, limit, 0));
    // Disks and other hosts can be slow, so they are read without a backend.
    const bool has_gaps = stored.has_gaps();
    if (has_gaps) call.release_backend();
    using PendingLines = JobLogReader::PendingLines;
    const bool can_read_tail = call.services().clock.boot_ms() < tail_deadline_ms;
    const LogPage page = call.services().logs.complete(std::move(stored), tail == 0       ? PendingLines::end_page
                                                                          : can_read_tail ? PendingLines::report_missing
                                                                                          : PendingLines::skip_disks);
    if (has_gaps) MJ_CHECK(call.release_backend_and_sleep(0));  // ends the call if the server stops
    const bool has_more = !page.lines.empty() && !page.ended;
    for (const Log& line : page.lines) {
      after_seq = line.seq;
      selection.add_part(line);
    }
    if (tail > 0 && has_more) continue;
    for (const Log& line : selection.pop_selected()) lines.push_back(to_json(line));
    if (!lines.empty() || page.ended || (!has_more && call.services().clock.boot_ms() >= deadline_ms))
      return json{{"lines", std::move(lines)}, {"ended", page.ended}, {"after_seq", after_seq}};
    if (!has_more) MJ_CHECK(call.release_backend_and_sleep(100));
  }
}

Result<json> handle_list(MethodCall& call) {
  const service::ListJobs request{service::parse_job_filter(call), call.number("limit")};
  MJ_TRY(page, service::list_jobs(call.request_context(), call.store(), request, [](std::uint64_t, std::uint64_t) {}));
  json rows = json::array();
  for (const JobView& view : page.jobs) rows.push_back(to_json(view));
  return rows;
}

Result<json> handle_explain(MethodCall& call) {
  MJ_TRY(view, find_readable_job(call));
  MJ_TRY(explanation, explain(call.store(), call.context(), view.key));
  return to_json(explanation);
}

}  // namespace job_methods

void add_job_methods(Services& services, std::vector<Method>& methods) {
  using namespace job_methods;
  bind_methods(services,
               {{"job.create", handle_create},
                {"job.get", handle_get},
                {"job.list", handle_list},
                {"job.start", handle_start},
                {"job.run", handle_run},
                {"job.status", handle_status},
                {"job.result", handle_result},
                {"job.logs", handle_logs},
                {"job.explain", handle_explain},
                {"jobs.create", handle_create_many},
                {"jobs.list", handle_list}},
               methods);
  add_job_control_methods(services, methods);
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
