#include "store/submit_store.h"

#include <algorithm>
#include <set>

#include "model/codec.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/queue_store.h"
#include "store/record_store.h"
#include "store/redis/redis_connection.h"
#include "store/redis/store_connection.h"
#include "store/redis/store_metrics.h"
#include "store/redis/store_spans.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxStepJobs = 256, kMaxStepBytes = 4U << 20, kMaxStepTexts = 32768;

// A job that is being submitted.
struct SubmittedJob {
  Fields fields;
  Fields files;  // new_job_files()
  std::string queue;
  std::string accepted_key;       // key of an existing job with the same content, or empty
  Job stored_job;                 // the existing job, if accepted_key is set
  std::optional<Span> span = {};  // span of the submission
};

struct SubmitStep {
  std::vector<SubmittedJob> jobs;
  std::optional<NewJobs::RejectedJob> rejected;
};

// Selects as many jobs, from the first, as one step can contain: all have the same caller and context, all or none of
// them have an id, and no id or idempotency key occurs twice.
SubmitStep select_step(std::span<const Job> jobs) {
  SubmitStep step;
  std::set<std::string_view> idempotency_keys;
  std::set<Id> ids;
  std::size_t bytes = 0, texts = 0;
  for (const Job& job : jobs) {
    const bool is_same_group = job.caller_id == jobs[0].caller_id && job.context_id == jobs[0].context_id &&
                               (job.id == 0) == (jobs[0].id == 0);
    const bool has_capacity = step.jobs.size() < kMaxStepJobs && bytes < kMaxStepBytes && texts < kMaxStepTexts;
    if (!is_same_group || !has_capacity) break;
    if (job.id != 0 && !ids.insert(job.id).second) break;
    if (!job.idempotency_key.empty() && !idempotency_keys.insert(job.idempotency_key).second) break;
    auto fields = new_job_fields(job);
    if (!fields) {
      step.rejected = NewJobs::RejectedJob{step.jobs.size(), std::move(fields).error()};
      break;
    }
    Fields files = new_job_files(job);
    for (const Fields* list : {&*fields, &files}) {
      for (const auto& [name, value] : *list) bytes += name.size() + value.size();
      texts += 2 * list->size();
    }
    step.jobs.push_back({std::move(*fields), std::move(files), submission_queue(job), {}, {}});
  }
  return step;
}

// Returns the job as the script has stored it, from its reply.
Job decode_stored_job(SubmittedJob&& job, const Reply& id_and_detail, const Reply& answer) {
  Fields& record = job.fields;
  const std::string detail(id_and_detail.at(1).text());
  record.emplace_back("id", id_and_detail.at(0).text());
  record.emplace_back("status", to_string(JobStatus::dispatched));
  record.emplace_back("created_at", answer.at(1).text());
  record.emplace_back("updated_at", answer.at(1).text());
  if (detail != "created") record.emplace_back("queued_ms", answer.at(2).text());
  record.emplace_back("detail", detail);
  return decode<Job>(record).record;
}

// Marks the jobs that exist already as accepted. Returns an error if one of them has other content than the request.
std::optional<NewJobs::RejectedJob> accept_existing(const Reply& existing, std::span<const Job> request,
                                                    SubmitStep& step) {
  for (std::size_t i = 0; i < existing.size(); ++i) {
    const Reply row = existing.at(i);
    const std::size_t index = row.at(0).number() - 1;
    if (index >= step.jobs.size()) return NewJobs::RejectedJob{0, {Code::internal, "redis: submit names no job of it"}};
    const std::string key(row.at(2).text());
    auto stored = check_created_record(row.at(1).text(), key, row.at(3).fields(), request[index]);
    if (!stored) return NewJobs::RejectedJob{index, std::move(stored).error()};
    step.jobs[index].accepted_key = key;
    step.jobs[index].stored_job = std::move(*stored);
  }
  return std::nullopt;
}

Result<Job> to_single_job(Result<NewJobs> result) {
  if (!result) return tl::unexpected<Error>(std::move(result).error());
  if (result->rejected) return tl::unexpected<Error>(std::move(result->rejected->error));
  return std::move(result->jobs.at(0));
}

}  // namespace

Result<NewJobs> SubmitStore::submit_batch(std::span<const Job> jobs, bool queued) {
  NewJobs result;
  if (jobs.empty()) return result;
  const Id context = jobs[0].context_id;
  SubmitStep step = select_step(jobs);
  result.rejected = std::move(step.rejected);
  for (SubmittedJob& job : step.jobs) job.span = begin_submission(connection_.traces(), job.fields);
  while (!result.rejected) {
    Arguments arguments;
    arguments.add(std::uint64_t{jobs[0].caller_id}).add(queued ? "1" : "0").add(std::uint64_t{step.jobs.size()});
    connection_.add_quota(arguments);
    for (std::size_t i = 0; i < step.jobs.size(); ++i) {
      const SubmittedJob& job = step.jobs[i];
      arguments.add(std::uint64_t{jobs[i].id}).add(job.queue).add(job.accepted_key).add(jobs[i].idempotency_key);
      arguments.add_list(job.fields).add_list(job.files);
    }
    MJ_TRY(reply, connection_.run(context, scripts::submit, arguments));
    const std::string_view status = reply.at(0).text();
    if (status == "wrong") {
      result.rejected = NewJobs::RejectedJob{reply.at(1).number() - 1, redis_error(reply.at(2).text())};
    } else if (status == "there") {
      result.rejected = accept_existing(reply.at(1), jobs, step);
    } else {
      for (std::size_t i = 0; i < step.jobs.size(); ++i) {
        result.existed.push_back(!step.jobs[i].accepted_key.empty());
        if (!result.existed[i])
          end_submission(connection_.traces(), step.jobs[i].span,
                         job_key(jobs[0].caller_id, static_cast<Id>(reply.at(3 + i).at(0).number())));
        result.jobs.push_back(result.existed[i] ? std::move(step.jobs[i].stored_job)
                                                : decode_stored_job(std::move(step.jobs[i]), reply.at(3 + i), reply));
      }
      break;
    }
  }
  if (!result.rejected) MJ_CHECK(connection_.await_replicas(context));
  const bool has_only_built_in_types =
      std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return built_in_types().contains(job.script_type); });
  count_submitted(connection_.metrics(), jobs, result,
                  has_only_built_in_types || !connection_.metrics().is_enabled()
                      ? kNoTypeNames
                      : QueueStore(connection_).served_types(context));
  return result;
}

Result<Job> SubmitStore::submit(const Job& job) { return to_single_job(submit_batch(std::span(&job, 1), true)); }

Result<Job> SubmitStore::create_job(const Job& job) { return to_single_job(submit_batch(std::span(&job, 1), false)); }

Result<Job> SubmitStore::start_job(Id context, const std::string& job_key) {
  MJ_TRY(record, RecordStore(connection_).load(context, job_key));
  const std::string type(field_of(record, "script_type"));
  if (!is_script_type(type)) return fail(Code::invalid, job_key + ": its script_type names no queue");
  MJ_TRY(reply, connection_.run(context, scripts::start_job, Arguments().add(job_key).add(queue_key(type))));
  if (reply.at(0).text() == "missing")
    return fail(Code::not_found, job_key + " does not exist in context " + std::to_string(context));
  MJ_CHECK(connection_.await_replicas(context));
  return decode<Job>(reply.at(1).fields()).record;
}

Result<void> SubmitStore::cancel(Id context, const std::string& job_key) {
  MJ_TRY(reply, connection_.run(context, scripts::cancel, Arguments{job_key}));
  if (reply.text() == "missing")
    return fail(Code::not_found, job_key + " does not exist in context " + std::to_string(context));
  return {};
}

Result<void> SubmitStore::requeue(Id context, const std::string& job_key) {
  MJ_TRY(reply, connection_.run(context, scripts::requeue, Arguments{job_key}));
  if (reply.text() == "missing") return fail(Code::not_found, job_key + " does not exist");
  if (!reply.text().empty()) return fail(Code::conflict, job_key + " " + std::string(reply.text()));
  return {};
}

}  // namespace mycojobs
