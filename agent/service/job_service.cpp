#include "service/job_service.h"

#include <algorithm>

#include "base/parse.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/prerequisite.h"
#include "model/submitted_files.h"
#include "security/sender_check.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxNewJobs = 1000;
constexpr std::string_view kProgressFields[] = {"id",      "caller_id", "context_id", "status",     "detail",  "error",
                                                "attempt", "runner_id", "queued_ms",  "started_ms", "ended_ms"};

// Returns whether this runner belongs to the caller.
Result<bool> is_runner_of(const RequestContext& caller, Store& store, Id runner) {
  Runner record;
  record.id = runner;
  constexpr std::string_view kOwnerField[] = {"actor_id"};
  auto fields = store.load_fields(caller.context, redis_key(record), kOwnerField);
  if (!fields && fields.error().code == Code::not_found) return false;
  MJ_CHECK(fields);
  return decode<Runner>(*fields).record.actor_id == caller.actor;
}

// Checks the right to create jobs and returns the owner of the new jobs.
Result<Id> check_job_creation(const RequestContext& caller, Store& store, std::optional<Id> owner_id) {
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "jobs"}));
  return resolve_owner(caller, owner_id);
}

Result<Job> load_job_progress(const RequestContext& caller, Store& store, const std::string& key) {
  MJ_TRY(fields, store.load_fields(caller.context, key, kProgressFields));
  return decode<Job>(fields).record;
}

// Returns the current fields of a job, or `old_job` if the job was deleted in the meantime.
Result<Job> reload_job(const RequestContext& caller, Store& store, const std::string& key, Job old_job) {
  auto job = load_job_progress(caller, store, key);
  if (!job && job.error().code == Code::not_found) return old_job;
  return job;
}

Job make_placeholder_job(const RequestContext& caller, const std::string& key) {
  Job job;
  std::uint64_t id = 0;
  (void)parse_u64(std::string_view(key).substr(key.rfind(':') + 1), id);
  job.id = static_cast<Id>(id);
  job.caller_id = parse_job_caller(key);
  job.context_id = caller.context;
  return job;
}

// Rejects prerequisites and inputs that can never be satisfied. The prerequisites that an agent may check are a setting
// of its operator (prerequisites.allow) and are not known here.
Result<void> check_prerequisites(const Job& job) {
  for (const std::string& text : job.prerequisites) {
    const auto condition = parse_condition(text, {});
    if (!condition && condition.error().code == Code::invalid) return fail(condition.error(), "prerequisites");
  }
  if (job.inputs.empty() || !job.dependends.empty()) return {};
  return fail(Code::invalid,
              "inputs: " + excerpt(job.inputs.front()) + " names no job that this one depends on (dependends)");
}

}  // namespace

Result<void> check_new_job(const RequestContext& caller, Job& job, Id owner) {
  MJ_CHECK(fill_and_check_sender(job, {owner, caller.context}));
  if (job.traceparent.empty()) job.traceparent = caller.traceparent;
  const bool needs_id = job.id == 0;
  if (needs_id) job.id = UINT32_MAX;  // validate() requires an id
  const auto problems = validate(job);
  if (needs_id) job.id = 0;
  if (!problems.empty()) return fail(Code::invalid, join(problems));
  if (!job.unknown.empty()) return fail(Code::invalid, job.unknown.front().first + ": no field of a job");
  MJ_CHECK(check_file_contents(job));
  MJ_CHECK(check_prerequisites(job));
  return check_script(caller, job.script);
}

namespace {

// Same as add_jobs(), after the check of rights. extra_fields: further fields of each record, which clients
// cannot write.
Result<void> add_jobs_for_owner(const RequestContext& caller, Store& store, Id owner, std::span<Job> jobs,
                                bool is_queued, NewJobs& created, const Fields& extra_fields = {}) {
  const bool has_policy = std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return !job.policy.empty(); });
  auto limits = has_policy ? get_job_limits(caller, store) : get_job_limits(caller);
  if (!limits) return tl::unexpected<Error>(std::move(limits).error());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto result = check_new_job(caller, jobs[i], owner);
    if (result) result = mycojobs::check_policy(jobs[i], *limits);
    if (!result) {
      created.rejected = NewJobs::RejectedJob{i, std::move(result).error()};
      return {};
    }
    jobs[i].unknown = extra_fields;
  }
  while (created.jobs.size() < jobs.size()) {
    const std::size_t first_index = created.jobs.size();
    MJ_TRY(batch, store.submit_batch(jobs.subspan(first_index), is_queued));
    if (batch.rejected) {
      created.rejected = NewJobs::RejectedJob{first_index + batch.rejected->index, std::move(batch.rejected->error)};
      return {};
    }
    for (std::size_t i = 0; i < batch.jobs.size(); ++i) {
      Job& job = batch.jobs[i];
      // A job with an id may have been created before, outside of queues.
      if (is_queued && batch.existed[i] && jobs[first_index + i].id != 0) {
        MJ_TRY(started, store.start_job(caller.context, redis_key(job)));
        job = std::move(started);
      }
      created.jobs.push_back(std::move(job));
      created.existed.push_back(batch.existed[i]);
    }
  }
  return {};
}

// Returns a new job with the fields that the submitter of the original job wrote. The idempotency key is left out,
// since it identifies the first job, and so is the trace, which has ended. Unknown fields: see check_restart().
Job copy_job_request(const Job& original) {
  Job job;
  job.script = original.script;
  job.script_type = original.script_type;
  job.name = original.name;
  job.timeout = original.timeout;
  job.retries = original.retries;
  job.env_vars = original.env_vars;
  job.args = original.args;
  job.stdin_description = original.stdin_description;
  job.file_descriptions = original.file_descriptions;
  job.prerequisites = original.prerequisites;
  job.dependends = original.dependends;
  job.inputs = original.inputs;
  job.run_at_ms = original.run_at_ms;
  job.priority = original.priority;
  job.queue_timeout_ms = original.queue_timeout_ms;
  job.concurrency_key = original.concurrency_key;
  job.concurrency_limit = original.concurrency_limit;
  job.policy = original.policy;
  job.notify = original.notify;
  return job;
}

// Refuses jobs that must not be restarted: jobs that have not ended, jobs of a flow, effects of a workflow (executed
// once), and jobs for a remote supervisor (the new job would run on this host).
Result<void> check_restart(const JobView& view) {
  const Job& job = view.job;
  if (!view.problems.empty()) return fail(Code::invalid, view.key + ": " + view.problems.front());
  if (job.status != JobStatus::finished && job.status != JobStatus::error)
    return fail(Code::conflict, view.key + " has not ended: only an ended job can run again");
  if (job.flow_id != 0) return fail(Code::conflict, view.key + " is run by its flow: see mycojobs flow replay");
  for (const auto& [name, value] : job.unknown) {
    if (value.empty()) continue;
    if (name == "effect_of")
      return fail(Code::conflict, view.key + " is an effect of a workflow, which runs each effect once");
    if (name == "supervisor_url")
      return fail(Code::conflict, view.key + " was for a supervisor (supervisor_url): submit it again to run it here");
  }
  return {};
}

}  // namespace

Result<void> add_jobs(const RequestContext& caller, Store& store, std::optional<Id> owner_id, std::span<Job> jobs,
                      bool queued, NewJobs& created) {
  MJ_TRY(owner, check_job_creation(caller, store, owner_id));
  return add_jobs_for_owner(caller, store, owner, jobs, queued, created);
}

namespace {

Result<Job> add_job(const RequestContext& caller, Store& store, std::optional<Id> owner_id, Job job, bool queued) {
  NewJobs created;
  MJ_CHECK(add_jobs(caller, store, owner_id, std::span(&job, 1), queued, created));
  if (created.rejected) return tl::unexpected<Error>(std::move(created.rejected->error));
  return std::move(created.jobs.at(0));
}

}  // namespace

Result<Job> create_job(const RequestContext& caller, Store& store, std::optional<Id> owner_id, Job job) {
  return add_job(caller, store, owner_id, std::move(job), false);
}

Result<std::vector<Job>> create_jobs(const RequestContext& caller, Store& store, std::optional<Id> owner_id,
                                     std::vector<Job> jobs, bool queued) {
  if (jobs.size() > kMaxNewJobs)
    return fail(Code::too_large,
                "jobs: " + std::to_string(jobs.size()) + " are over the limit of " + std::to_string(kMaxNewJobs));
  NewJobs created;
  const auto result = add_jobs(caller, store, owner_id, jobs, queued, created);
  if (result && !created.rejected) return std::move(created.jobs);
  Error error = created.rejected ? std::move(created.rejected->error) : result.error();
  if (!created.jobs.empty())
    error.message += "; " + count_with_noun(created.jobs.size(), "job") + " before it are written";
  if (!created.rejected) return tl::unexpected<Error>(std::move(error));
  return fail(error, "jobs[" + std::to_string(created.rejected->index) + "]");
}

Result<Job> submit_job(const RequestContext& caller, Store& store, std::optional<Id> owner_id, Job job) {
  return add_job(caller, store, owner_id, std::move(job), true);
}

Result<Job> start_job(const RequestContext& caller, Store& store, const std::string& key) {
  MJ_CHECK(inspect_job(caller, store, Action::steer, key));
  constexpr std::string_view kPolicyFields[] = {"script_type", "policy"};
  MJ_TRY(policy_fields, store.load_fields(caller.context, key, kPolicyFields));
  MJ_CHECK(check_policy(caller, store, decode<Job>(policy_fields).record));
  return store.start_job(caller.context, key);
}

Result<void> check_job_permission(const RequestContext& caller, Store& store, Action action, const std::string& key,
                                  Id runner) {
  // The owner is read from the key, since a client can write any value into the field of the record.
  Resource resource{.name = "job " + key.substr(4), .creator = parse_job_caller(key)};
  if (runner != 0 && action == Action::read && !caller.is_operator) {
    MJ_TRY(is_runner_owner, is_runner_of(caller, store, runner));
    resource.runs_here = is_runner_owner;
  }
  return check_permission(caller, store, action, resource);
}

Result<JobView> find_job(const RequestContext& caller, Store& store, Action action, const std::string& key) {
  auto view = load_job(store, caller.context, key);
  if (!view && !is_absent(view.error())) return view;
  MJ_CHECK(check_job_permission(caller, store, action, key, view ? view->job.runner_id : 0));
  return view;
}

Result<Job> inspect_job(const RequestContext& caller, Store& store, Action action, const std::string& key) {
  auto job = load_job_progress(caller, store, key);
  if (!job && !is_absent(job.error())) return job;
  MJ_CHECK(check_job_permission(caller, store, action, key, job ? job->runner_id : 0));
  return job;
}

// The claim decides whether the job runs, since another client may have changed or deleted the record.
Result<Job> cancel_job(const RequestContext& caller, Store& store, const std::string& key) {
  auto old_job = inspect_job(caller, store, Action::steer, key);
  if (!old_job && old_job.error().code != Code::not_found) return old_job;
  MJ_CHECK(store.cancel(caller.context, key));
  MJ_TRY(job, reload_job(caller, store, key, old_job ? std::move(*old_job) : make_placeholder_job(caller, key)));
  const std::vector<std::string> keys{key};
  MJ_TRY(states, store.job_states(caller.context, keys, false));
  if (states.front().claim.state == kJobStateLive) job.status = JobStatus::started;
  return job;
}

Result<Job> retry_job(const RequestContext& caller, Store& store, const std::string& key) {
  MJ_TRY(old_job, inspect_job(caller, store, Action::steer, key));
  MJ_CHECK(store.requeue(caller.context, key));
  return reload_job(caller, store, key, std::move(old_job));
}

Result<Job> restart_job(const RequestContext& caller, Store& store, const std::string& key,
                        const std::optional<std::string>& idempotency_key) {
  MJ_CHECK(check_key("idempotency_key", idempotency_key));
  MJ_TRY(view, find_job(caller, store, Action::steer, key));
  MJ_CHECK(check_restart(view));
  if (idempotency_key && *idempotency_key == view.job.idempotency_key)
    return fail(Code::conflict, "idempotency_key: is that of " + key + " itself; use another one");
  Job job = copy_job_request(view.job);
  MJ_CHECK(load_submitted_files(store, caller.context, key, job));
  job.idempotency_key = idempotency_key.value_or("");
  const Fields origin_fields{{"restart_of", key},
                             {"restarted_by", caller.is_operator ? "operator" : std::to_string(caller.actor)}};
  NewJobs created;
  MJ_CHECK(add_jobs_for_owner(caller, store, parse_job_caller(key), std::span(&job, 1), true, created, origin_fields));
  if (created.rejected) return tl::unexpected<Error>(std::move(created.rejected->error));
  return std::move(created.jobs.at(0));
}

Result<void> delete_job(const RequestContext& caller, Store& store, const std::string& key) {
  MJ_CHECK(check_job_permission(caller, store, Action::administer, key, 0));
  return store.delete_record(caller.context, key);
}

Result<AnsweredJob> answer_job(const RequestContext& caller, Store& store, const AnswerJob& request) {
  MJ_TRY(old_job, inspect_job(caller, store, Action::answer, request.key));
  if (!is_approval_name(request.name)) {
    return fail(Code::invalid,
                "name: " + excerpt(request.name) +
                    " is not a valid name of an approval: use 1 to 64 letters, digits, '.', '_' and '-'");
  }
  MJ_CHECK(check_length("comment", request.comment, kMaxComment));
  const PrerequisiteAnswer answer{request.name, request.approved, caller.actor, request.comment};
  MJ_TRY(is_changed, store.answer_prerequisite(caller.context, request.key, answer));
  MJ_TRY(job, reload_job(caller, store, request.key, std::move(old_job)));
  return AnsweredJob{is_changed, std::move(job)};
}

JobFilter parse_job_filter(const RequestParams& params) {
  JobFilter filter;
  filter.status = parse<JobStatus>(params.text("status"));
  filter.state = params.text("state");
  filter.name = params.text("name");
  filter.script_type = params.text("script_type");
  filter.caller = params.optional_id("caller_id");
  filter.since_ms = params.number("since_ms");
  return filter;
}

Result<JobsSlice> page_jobs(const RequestContext& caller, Store& store, JobFilter filter, std::size_t limit) {
  MJ_TRY(visible_owner, find_listable_actor(caller, store));
  if (visible_owner) {
    if (filter.caller && *filter.caller != *visible_owner) return JobsSlice{};
    filter.caller = visible_owner;
  }
  return mycojobs::page_jobs(store, caller.context, std::move(filter), limit);
}

Result<std::vector<JobTimelineEntry>> read_job_history(const RequestContext& caller, Store& store,
                                                       const std::string& key) {
  MJ_CHECK(inspect_job(caller, store, Action::read, key));
  return mycojobs::read_job_history(store, caller.context, key);
}

Result<JobList> list_jobs(const RequestContext& caller, Store& store, const ListJobs& request,
                          const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  JobQuery query;
  query.filter = request.filter;
  query.limit = request.limit;
  query.max_scanned = kMaxJobChecks;
  MJ_TRY(visible_owner, find_listable_actor(caller, store));
  if (visible_owner) {
    if (query.filter.caller && *query.filter.caller != *visible_owner) return JobList{};
    query.filter.caller = visible_owner;
  }
  return mycojobs::list_jobs(store, caller.context, query, progress);
}

}  // namespace mycojobs::service
