// Records that stand in no queue: written once, by id or by the next free one.
#include "base/ids.h"
#include "domain/codec.h"
#include "store/job_fields.h"
#include "store/redis_store.h"

namespace mycojobs {
Result<CreatedRecord> RedisStore::create_record(Id context, const NewRecord& wanted) {
  Arguments arguments;
  arguments.add(wanted.prefix).add("mj:next:" + wanted.counter).add("").add("").add(std::uint64_t{wanted.id});
  arguments.add_list(wanted.fields);
  // Actors belong to no context: they are all that is written to database 0.
  if (context == 0 && wanted.prefix != "actor:") return fail(Code::invalid, "only actors live in context 0");
  MJ_TRY(redis, link(context));
  MJ_TRY(reply, redis->run(scripts::create_record, arguments));
  CreatedRecord made{std::string(reply.at(1).text()), reply.at(2).fields(), reply.at(0).text() != "new"};
  if (reply.at(0).text() == "used")
    return fail(Code::conflict, made.key + " was used before and its record was deleted; use another id");
  if (context != 0) MJ_CHECK(await_replicas(context));
  return made;
}

Result<Job> RedisStore::create_job(const Job& job) {
  MJ_TRY(fields, new_job_fields(job));
  fields.emplace_back("status", word(JobStatus::dispatched));
  fields.emplace_back("detail", "created");  // not lost from a queue: it was never meant to stand in one yet
  const std::string caller = std::to_string(job.caller_id);
  const std::string prefix = "job:" + caller + ":", counter = "mj:next:" + caller, names = "mj:idempotency:" + caller;
  Arguments arguments;
  arguments.add(prefix).add(counter).add(names).add(job.idempotency_key).add(std::uint64_t{job.id}).add_list(fields);
  MJ_TRY(reply, run(job.context_id, scripts::create_record, arguments));
  MJ_TRY(stored, accepted(reply.at(0).text(), std::string(reply.at(1).text()), reply.at(2).fields(), job));
  MJ_CHECK(await_replicas(job.context_id));
  return std::move(stored);
}

Result<Job> RedisStore::start_job(Id context, const std::string& job_key) {
  MJ_TRY(record, load(context, job_key));
  const std::string type(field_of(record, "script_type"));
  if (!is_script_type(type)) return fail(Code::invalid, job_key + ": its script_type names no queue");
  MJ_TRY(reply, run(context, scripts::start_job, Arguments().add(job_key).add(queue_key(type))));
  if (reply.at(0).text() == "missing")
    return fail(Code::not_found, job_key + " does not exist in context " + std::to_string(context));
  MJ_CHECK(await_replicas(context));
  return decode<Job>(reply.at(1).fields()).record;
}

}  // namespace mycojobs
