#include "service/job_service.h"

#include <algorithm>

#include "base/parse.h"
#include "model/codec.h"
#include "model/prerequisite.h"
#include "security/sender_check.h"
#include "store/keys.h"
#include "store/redis/redis_store.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxNewJobs = 1000;
constexpr std::string_view kWhere[] = {"id",      "caller_id", "context_id", "status",     "detail",  "error",
                                       "attempt", "runner_id", "queued_ms",  "started_ms", "ended_ms"};

// Returns whether this runner belongs to the caller.
Result<bool> is_runner_of(const RequestContext& by, Store& store, Id runner) {
  Runner wanted;
  wanted.id = runner;
  constexpr std::string_view kActor[] = {"actor_id"};
  auto fields = store.load_fields(by.context, redis_key(wanted), kActor);
  if (!fields && fields.error().code == Code::not_found) return false;
  MJ_CHECK(fields);
  return decode<Runner>(*fields).record.actor_id == by.actor;
}

// Checks the right to create jobs and returns the owner of the new jobs.
Result<Id> owner_of_jobs(const RequestContext& by, Store& store, std::optional<Id> named) {
  MJ_CHECK(check_permission(by, store, Action::create, {.name = "jobs"}));
  return resource_owner(by, named);
}

Result<Job> where_it_is(const RequestContext& by, Store& store, const std::string& key) {
  MJ_TRY(fields, store.load_fields(by.context, key, kWhere));
  return decode<Job>(fields).record;
}

// Returns the current fields of a job, or `before` if the job was deleted in the meantime.
Result<Job> afterwards(const RequestContext& by, Store& store, const std::string& key, Job before) {
  auto now = where_it_is(by, store, key);
  if (!now && now.error().code == Code::not_found) return before;
  return now;
}

Job job_without_record(const RequestContext& by, const std::string& key) {
  Job job;
  std::uint64_t id = 0;
  (void)parse_u64(std::string_view(key).substr(key.rfind(':') + 1), id);
  job.id = static_cast<Id>(id);
  job.caller_id = caller_of_job(key);
  job.context_id = by.context;
  return job;
}

// Rejects prerequisites and inputs that can never be satisfied. The prerequisites that an agent may check are a setting
// of its operator (prerequisites.allow) and are not known here.
Result<void> check_what_it_waits_for(const Job& job) {
  for (const std::string& text : job.prerequisites) {
    const auto condition = parse_condition(text, {});
    if (!condition && condition.error().code == Code::invalid) return fail(condition.error(), "prerequisites");
  }
  if (job.inputs.empty() || !job.dependends.empty()) return {};
  return fail(Code::invalid,
              "inputs: " + excerpt(job.inputs.front()) + " names no job that this one depends on (dependends)");
}

}  // namespace

Result<void> check_new_job(const RequestContext& by, Job& job, Id owner) {
  MJ_CHECK(apply_sender(job, {owner, by.context}));
  if (job.traceparent.empty()) job.traceparent = by.traceparent;
  const bool allocates = job.id == 0;
  if (allocates) job.id = UINT32_MAX;  // validate() requires an id
  const auto problems = validate(job);
  if (allocates) job.id = 0;
  if (!problems.empty()) return fail(Code::invalid, join(problems));
  if (!job.unknown.empty()) return fail(Code::invalid, job.unknown.front().first + ": no field of a job");
  MJ_CHECK(check_what_it_waits_for(job));
  return check_script(by, job.script);
}

namespace {

// Same as add_jobs(), after the check of rights. more: further fields of each record, which clients cannot write.
Result<void> add_jobs_of(const RequestContext& by, Store& store, Id owner, std::span<Job> jobs, bool queued,
                         NewJobs& made, const Fields& more = {}) {
  const bool any_policy = std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return !job.policy.empty(); });
  auto limits = any_policy ? limits_of(by, store) : limits_of(by);
  if (!limits) return tl::unexpected<Error>(std::move(limits).error());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto checked = check_new_job(by, jobs[i], owner);
    if (checked) checked = mycojobs::check_policy(jobs[i], *limits);
    if (!checked) {
      made.refused = NewJobs::RejectedJob{i, std::move(checked).error()};
      return {};
    }
    jobs[i].unknown = more;
  }
  while (made.jobs.size() < jobs.size()) {
    const std::size_t before = made.jobs.size();
    MJ_TRY(some, store.submit_some(jobs.subspan(before), queued));
    if (some.refused) {
      made.refused = NewJobs::RejectedJob{before + some.refused->index, std::move(some.refused->error)};
      return {};
    }
    for (std::size_t i = 0; i < some.jobs.size(); ++i) {
      Job& job = some.jobs[i];
      // A job with an id may have been created before, outside of queues.
      if (queued && some.existed[i] && jobs[before + i].id != 0) {
        MJ_TRY(started, store.start_job(by.context, redis_key(job)));
        job = std::move(started);
      }
      made.jobs.push_back(std::move(job));
      made.existed.push_back(some.existed[i]);
    }
  }
  return {};
}

// Returns a new job with the fields that the submitter of this job wrote. The idempotency key is left out, since it
// identifies the first job, and so is the trace, which has ended. Unknown fields: see check_restart().
Job with_same_request(const Job& of) {
  Job job;
  job.script = of.script;
  job.script_type = of.script_type;
  job.name = of.name;
  job.timeout = of.timeout;
  job.retries = of.retries;
  job.env_vars = of.env_vars;
  job.prerequisites = of.prerequisites;
  job.dependends = of.dependends;
  job.inputs = of.inputs;
  job.run_at_ms = of.run_at_ms;
  job.priority = of.priority;
  job.queue_timeout_ms = of.queue_timeout_ms;
  job.concurrency_key = of.concurrency_key;
  job.concurrency_limit = of.concurrency_limit;
  job.policy = of.policy;
  job.notify = of.notify;
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

Result<void> add_jobs(const RequestContext& by, Store& store, std::optional<Id> named, std::span<Job> jobs, bool queued,
                      NewJobs& made) {
  MJ_TRY(owner, owner_of_jobs(by, store, named));
  return add_jobs_of(by, store, owner, jobs, queued, made);
}

namespace {

Result<Job> add_job(const RequestContext& by, Store& store, std::optional<Id> named, Job job, bool queued) {
  NewJobs made;
  MJ_CHECK(add_jobs(by, store, named, std::span(&job, 1), queued, made));
  if (made.refused) return tl::unexpected<Error>(std::move(made.refused->error));
  return std::move(made.jobs.at(0));
}

}  // namespace

Result<Job> create_job(const RequestContext& by, Store& store, std::optional<Id> named, Job job) {
  return add_job(by, store, named, std::move(job), false);
}

Result<std::vector<Job>> create_jobs(const RequestContext& by, Store& store, std::optional<Id> named,
                                     std::vector<Job> jobs, bool queued) {
  if (jobs.size() > kMaxNewJobs)
    return fail(Code::too_large,
                "jobs: " + std::to_string(jobs.size()) + " are over the limit of " + std::to_string(kMaxNewJobs));
  NewJobs made;
  const auto added = add_jobs(by, store, named, jobs, queued, made);
  if (added && !made.refused) return std::move(made.jobs);
  Error error = made.refused ? std::move(made.refused->error) : added.error();
  if (!made.jobs.empty()) error.message += "; " + count_with_noun(made.jobs.size(), "job") + " before it are written";
  if (!made.refused) return tl::unexpected<Error>(std::move(error));
  return fail(error, "jobs[" + std::to_string(made.refused->index) + "]");
}

Result<Job> submit_job(const RequestContext& by, Store& store, std::optional<Id> named, Job job) {
  return add_job(by, store, named, std::move(job), true);
}

Result<Job> start_job(const RequestContext& by, Store& store, const std::string& key) {
  MJ_CHECK(inspect_job(by, store, Action::steer, key));
  constexpr std::string_view kAsks[] = {"script_type", "policy"};
  MJ_TRY(asks, store.load_fields(by.context, key, kAsks));
  MJ_CHECK(check_policy(by, store, decode<Job>(asks).record));
  return store.start_job(by.context, key);
}

Result<void> may_with_job(const RequestContext& by, Store& store, Action action, const std::string& key, Id runner) {
  // The owner is read from the key, since a client can write any value into the field of the record.
  Resource thing{.name = "job " + key.substr(4), .maker = caller_of_job(key)};
  if (runner != 0 && action == Action::read && !by.is_operator) {
    MJ_TRY(runs, is_runner_of(by, store, runner));
    thing.runs_here = runs;
  }
  return check_permission(by, store, action, thing);
}

Result<JobView> find_job(const RequestContext& by, Store& store, Action action, const std::string& key) {
  auto view = load_job(store, by.context, key);
  if (!view && !is_absent(view.error())) return view;
  MJ_CHECK(may_with_job(by, store, action, key, view ? view->job.runner_id : 0));
  return view;
}

Result<Job> inspect_job(const RequestContext& by, Store& store, Action action, const std::string& key) {
  auto job = where_it_is(by, store, key);
  if (!job && !is_absent(job.error())) return job;
  MJ_CHECK(may_with_job(by, store, action, key, job ? job->runner_id : 0));
  return job;
}

// The claim decides whether the job runs, since another client may have changed or deleted the record.
Result<Job> cancel_job(const RequestContext& by, Store& store, const std::string& key) {
  auto before = inspect_job(by, store, Action::steer, key);
  if (!before && before.error().code != Code::not_found) return before;
  MJ_CHECK(store.cancel(by.context, key));
  MJ_TRY(job, afterwards(by, store, key, before ? std::move(*before) : job_without_record(by, key)));
  const std::vector<std::string> keys{key};
  MJ_TRY(places, store.job_states(by.context, keys, false));
  if (places.front().claim.state == "live") job.status = JobStatus::started;
  return job;
}

Result<Job> retry_job(const RequestContext& by, Store& store, const std::string& key) {
  MJ_TRY(before, inspect_job(by, store, Action::steer, key));
  MJ_CHECK(store.requeue(by.context, key));
  return afterwards(by, store, key, std::move(before));
}

Result<Job> restart_job(const RequestContext& by, Store& store, const std::string& key,
                        const std::optional<std::string>& idempotency_key) {
  MJ_CHECK(check_key("idempotency_key", idempotency_key));
  MJ_TRY(view, find_job(by, store, Action::steer, key));
  MJ_CHECK(check_restart(view));
  if (idempotency_key && *idempotency_key == view.job.idempotency_key)
    return fail(Code::conflict, "idempotency_key: is that of " + key + " itself; use another one");
  Job job = with_same_request(view.job);
  job.idempotency_key = idempotency_key.value_or("");
  const Fields who{{"restart_of", key}, {"restarted_by", by.is_operator ? "operator" : std::to_string(by.actor)}};
  NewJobs made;
  MJ_CHECK(add_jobs_of(by, store, caller_of_job(key), std::span(&job, 1), true, made, who));
  if (made.refused) return tl::unexpected<Error>(std::move(made.refused->error));
  return std::move(made.jobs.at(0));
}

Result<void> delete_job(const RequestContext& by, Store& store, const std::string& key) {
  MJ_CHECK(may_with_job(by, store, Action::administer, key, 0));
  return store.delete_record(by.context, key);
}

Result<AnsweredJob> answer_job(const RequestContext& by, Store& store, const AnswerJob& request) {
  MJ_TRY(before, inspect_job(by, store, Action::answer, request.key));
  if (!is_approval_name(request.name)) {
    return fail(Code::invalid,
                "name: " + excerpt(request.name) +
                    " is not a valid name of an approval: use 1 to 64 letters, digits, '.', '_' and '-'");
  }
  MJ_CHECK(check_length("comment", request.comment, kMaxComment));
  const PrerequisiteAnswer answer{request.name, request.approved, by.actor, request.comment};
  MJ_TRY(changed, answer_prerequisite(store, by.context, request.key, answer));
  MJ_TRY(job, afterwards(by, store, request.key, std::move(before)));
  return AnsweredJob{changed, std::move(job)};
}

Result<JobStatus> read_job_status(const std::string& word) {
  if (const auto status = parse<JobStatus>(word)) return *status;
  return fail(Code::invalid, "status: " + excerpt(word) +
                                 " is not one of dispatched, waiting_for_prerequisites, started, error, finished");
}

Result<JobsSlice> page_jobs(const RequestContext& by, Store& store, JobFilter wanted, std::size_t limit) {
  MJ_TRY(only, listable_actor(by, store));
  if (only) {
    if (wanted.caller && *wanted.caller != *only) return JobsSlice{};
    wanted.caller = only;
  }
  return mycojobs::page_jobs(store, by.context, std::move(wanted), limit);
}

Result<std::vector<JobTimelineEntry>> job_history(const RequestContext& by, Store& store, const std::string& key) {
  MJ_CHECK(inspect_job(by, store, Action::read, key));
  return mycojobs::job_history(store, by.context, key);
}

Result<JobList> list_jobs(const RequestContext& by, Store& store, const ListJobs& request,
                          const std::function<void(std::uint64_t done, std::uint64_t of)>& progress) {
  JobQuery query;
  query.wanted = request.wanted;
  query.limit = request.limit;
  query.max_scanned = kMaxJobChecks;
  MJ_TRY(only, listable_actor(by, store));
  if (only) query.wanted.caller = only;
  return mycojobs::list_jobs(store, by.context, query, progress);
}

}  // namespace mycojobs::service
