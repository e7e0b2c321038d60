// RedisStore: submission and lists of jobs, time-driven work, prerequisites, journals and indexes, repairs, and notices
// of ends.
#include <algorithm>
#include <array>
#include <set>

#include "base/parse.h"
#include "model/codec.h"
#include "model/prerequisite.h"
#include "store/job_fields.h"
#include "store/keys.h"
#include "store/redis/redis_store.h"
#include "store/redis/store_metrics.h"
#include "store/redis/store_spans.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

constexpr std::size_t kMaxStepJobs = 256, kMaxStepBytes = 4U << 20, kMaxStepTexts = 32768;

// A job that is being submitted.
struct SubmittedJob {
  Fields fields;
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
    for (const auto& [name, value] : *fields) bytes += name.size() + value.size();
    texts += 2 * fields->size();
    step.jobs.push_back({std::move(*fields), submission_queue(job), {}, {}});
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

Result<NewJobs> RedisStore::submit_batch(std::span<const Job> jobs, bool queued) {
  NewJobs result;
  if (jobs.empty()) return result;
  const Id context = jobs[0].context_id;
  SubmitStep step = select_step(jobs);
  result.rejected = std::move(step.rejected);
  for (SubmittedJob& job : step.jobs) job.span = begin_submission(traces(), job.fields);
  while (!result.rejected) {
    Arguments arguments;
    arguments.add(std::uint64_t{jobs[0].caller_id}).add(queued ? "1" : "0").add(std::uint64_t{step.jobs.size()});
    add_quota(arguments);
    for (std::size_t i = 0; i < step.jobs.size(); ++i) {
      const SubmittedJob& job = step.jobs[i];
      arguments.add(std::uint64_t{jobs[i].id}).add(job.queue).add(job.accepted_key).add(jobs[i].idempotency_key);
      arguments.add_list(job.fields);
    }
    MJ_TRY(reply, run(context, scripts::submit, arguments));
    const std::string_view status = reply.at(0).text();
    if (status == "wrong") {
      result.rejected = NewJobs::RejectedJob{reply.at(1).number() - 1, redis_error(reply.at(2).text())};
    } else if (status == "there") {
      result.rejected = accept_existing(reply.at(1), jobs, step);
    } else {
      for (std::size_t i = 0; i < step.jobs.size(); ++i) {
        result.existed.push_back(!step.jobs[i].accepted_key.empty());
        if (!result.existed[i])
          end_submission(traces(), step.jobs[i].span,
                         job_key(jobs[0].caller_id, static_cast<Id>(reply.at(3 + i).at(0).number())));
        result.jobs.push_back(result.existed[i] ? std::move(step.jobs[i].stored_job)
                                                : decode_stored_job(std::move(step.jobs[i]), reply.at(3 + i), reply));
      }
      break;
    }
  }
  if (!result.rejected) MJ_CHECK(await_replicas(context));
  const bool has_only_built_in_types =
      std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return built_in_types().contains(job.script_type); });
  count_submitted(metrics(), jobs, result,
                  has_only_built_in_types || !metrics().is_enabled() ? kNoTypeNames : served_types(context));
  return result;
}

Result<Job> RedisStore::submit(const Job& job) { return to_single_job(submit_batch(std::span(&job, 1), true)); }
Result<Job> RedisStore::create_job(const Job& job) { return to_single_job(submit_batch(std::span(&job, 1), false)); }

Result<void> RedisStore::cancel(Id context, const std::string& job_key) {
  MJ_TRY(reply, run(context, scripts::cancel, Arguments{job_key}));
  if (reply.text() == "missing")
    return fail(Code::not_found, job_key + " does not exist in context " + std::to_string(context));
  return {};
}

Result<CreatedRecord> RedisStore::create_record(Id context, const NewRecord& request) {
  Arguments arguments;
  arguments.add(request.prefix).add(kNextIdKey + request.counter).add(std::uint64_t{request.id});
  arguments.add_list(request.fields);
  add_quota(arguments);
  // Actors are the only records without a context, so nothing else is written to database 0.
  if (context == 0 && request.prefix != "actor:") return fail(Code::invalid, "only actors live in context 0");
  if (context == 0 && !field_of(request.fields, "pubkey").empty()) MJ_CHECK(index_actors(""));
  MJ_TRY(redis, link(context));
  MJ_TRY(reply, redis->run(scripts::create_record, arguments));
  CreatedRecord result{std::string(reply.at(1).text()), reply.at(2).fields(), reply.at(0).text() != "new"};
  if (reply.at(0).text() == "taken") return key_conflict_error();
  if (reply.at(0).text() == "used")
    return fail(Code::conflict, result.key + " was used before and its record was deleted; use another id");
  if (context != 0) MJ_CHECK(await_replicas(context));
  return result;
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

// Lists and counts of jobs.

namespace {

constexpr std::uint32_t kMaxScannedJobs = 1000;  // scanned jobs in one step of the server

// Queues that are always included, since they may contain jobs of other clients before an agent has served the context.
constexpr std::array<std::string_view, 6> kBuiltInQueues = {"queue:python", "queue:osis",   "queue:sal",
                                                            "queue:v",      "queue:native", "queue:rust"};

std::vector<ListedJob> parse_listed_jobs(const Reply& rows) {
  std::vector<ListedJob> out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Reply row = rows.at(i);
    out.push_back(
        {std::string(row.at(0).text()), row.at(1).number(), std::string(row.at(2).text()), row.at(3).fields()});
  }
  return out;
}

}  // namespace

Result<JobsPage> RedisStore::jobs(Id context, const JobFilter& request) {
  std::string score;
  std::uint64_t skip = 0;
  if (!request.cursor.empty()) {
    const std::size_t blank = request.cursor.find(' ');
    std::uint64_t number = 0;
    score = request.cursor.substr(0, blank);
    if (blank == std::string::npos || !parse_u64(score, number) || !parse_u64(request.cursor.substr(blank + 1), skip))
      return fail(Code::invalid, "after: is not a value that a page of jobs returned");
  }
  Arguments arguments;
  arguments.add(std::uint64_t{std::clamp(request.max_scanned, 1U, kMaxScannedJobs)})
      .add(std::uint64_t{std::max(request.max_jobs, 1U)})
      .add(score)
      .add(skip);
  arguments.add(std::min<std::uint64_t>(request.since_ms, UINT32_MAX * 1000ULL) * 1000);
  arguments.add(request.status ? to_string(*request.status) : std::string_view()).add(request.state).add(request.name);
  arguments.add(request.script_type).add(request.caller ? std::to_string(*request.caller) : std::string());
  arguments.add(std::uint64_t{kBuiltInQueues.size()});
  for (const std::string_view queue : kBuiltInQueues) arguments.add(queue);
  MJ_TRY(reply, run(context, scripts::job_list, arguments));
  JobsPage page;
  page.rows_read = reply.at(0).number();
  if (!reply.at(1).text().empty())
    page.next_cursor = std::string(reply.at(1).text()) + ' ' + std::to_string(reply.at(2).number());
  page.jobs = parse_listed_jobs(reply.at(3));
  page.unprocessed_jobs = parse_listed_jobs(reply.at(4));
  return page;
}

// Sets next_job to the job that waits longer: the next job of the list, or the next job with a priority. A time of 0 is
// unknown.
static QueueTally parse_tally(const Reply& row) {
  QueueTally queue{std::string(row.at(0).text()), row.at(1).number(), row.at(2).number(), row.at(3).number() == 1,
                   std::string(row.at(4).text()), row.at(5).number()};
  const std::uint64_t priority_since_ms = row.at(7).number();
  const bool is_older =
      priority_since_ms != 0 && (queue.next_waiting_since_ms == 0 || priority_since_ms < queue.next_waiting_since_ms);
  if (!row.at(6).text().empty() && (queue.next_job.empty() || is_older)) {
    queue.next_job = row.at(6).text();
    queue.next_waiting_since_ms = priority_since_ms;
  }
  return queue;
}

Result<Tally> RedisStore::tally(Id context, std::uint64_t slot_ms, std::uint32_t slots) {
  Arguments arguments;
  arguments.add(slot_ms).add(std::uint64_t{slots}).add(std::uint64_t{kBuiltInQueues.size()});
  for (const std::string_view queue : kBuiltInQueues) arguments.add(queue);
  MJ_TRY(reply, run(context, scripts::tally, arguments));
  Tally out;
  static constexpr std::pair<std::string_view, std::uint64_t Tally::*> kNumbers[] = {
      {"now_ms", &Tally::now_ms},
      {"changed_us", &Tally::changed_us},
      {"jobs", &Tally::jobs},
      {"running", &Tally::running},
      {"delayed", &Tally::delayed},
      {"prerequisites", &Tally::prerequisites},
      {"held", &Tally::held},
      {"missing", &Tally::missing},
      {"ended", &Tally::ended},
      {"dead", &Tally::dead_letters},
      {"anomalies", &Tally::anomalies},
      {"refusals", &Tally::refusals},
      {"notices", &Tally::notices},
      {"outbox", &Tally::outbox},
      {"inbox", &Tally::inbox},
      {"flows", &Tally::flows},
      {"flows_active", &Tally::active_flows}};
  const Reply numbers = reply.at(0), ends = reply.at(1), queues = reply.at(2);
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    for (const auto& [name, member] : kNumbers) {
      if (name == numbers.at(i).text()) out.*member = numbers.at(i + 1).number();
    }
  }
  for (std::size_t i = 0; i < ends.size(); ++i) out.ended_per_slot.push_back(ends.at(i).number());
  for (std::size_t i = 0; i < queues.size(); ++i) out.queues.push_back(parse_tally(queues.at(i)));
  return out;
}

// Time-driven work, prerequisites, journals, indexes and repairs.

namespace {

constexpr std::size_t kMaxJobStatesBatch = 64, kMaxRevisionsBatch = 256;

std::uint32_t parse_small_number(const std::string& text) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(parse_whole_number(text), UINT32_MAX));
}
std::vector<std::uint64_t> parse_numbers(const std::string& text) {
  std::vector<std::uint64_t> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    out.push_back(parse_whole_number(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

// Returns true for a condition that the flow of a job checks itself.
bool is_gate(std::string_view condition) {
  return condition.starts_with("approval:") || condition.starts_with("signal:") || condition.starts_with("flow:");
}

// A field of mj:claim:<job key> and its member of ClaimView.
struct ClaimField {
  std::string_view name;
  void (*read)(ClaimView&, const std::string&);
};
constexpr ClaimField kClaimFields[] = {
    {"state", [](ClaimView& c, const std::string& t) { c.state = t; }},
    {"claim_id", [](ClaimView& c, const std::string& t) { c.claim_id = t; }},
    {"token", [](ClaimView& c, const std::string& t) { c.token_hash = t; }},
    {"queue", [](ClaimView& c, const std::string& t) { c.queue = t; }},
    {"instance", [](ClaimView& c, const std::string& t) { c.instance = t; }},
    {"reason", [](ClaimView& c, const std::string& t) { c.reason = t; }},
    {"status", [](ClaimView& c, const std::string& t) { c.status = t; }},
    {"detail", [](ClaimView& c, const std::string& t) { c.detail = t; }},
    {"end", [](ClaimView& c, const std::string& t) { c.end_digest = t; }},
    {"message", [](ClaimView& c, const std::string& t) { c.message = t; }},
    {"flow", [](ClaimView& c, const std::string& t) { c.flow = t; }},
    {"ckey", [](ClaimView& c, const std::string& t) { c.concurrency_key = t; }},
    {"idem", [](ClaimView& c, const std::string& t) { c.idempotency_key = t; }},
    {"epoch", [](ClaimView& c, const std::string& t) { c.epoch = parse_whole_number(t); }},
    {"lease_ms", [](ClaimView& c, const std::string& t) { c.lease_ms = parse_whole_number(t); }},
    {"until_ms", [](ClaimView& c, const std::string& t) { c.lease_until_ms = parse_whole_number(t); }},
    {"ended_ms", [](ClaimView& c, const std::string& t) { c.ended_ms = parse_whole_number(t); }},
    {"waiting_since", [](ClaimView& c, const std::string& t) { c.waiting_since_ms = parse_whole_number(t); }},
    {"attempt", [](ClaimView& c, const std::string& t) { c.attempt = parse_small_number(t); }},
    {"deliveries", [](ClaimView& c, const std::string& t) { c.deliveries = parse_small_number(t); }},
    {"runner", [](ClaimView& c, const std::string& t) { c.runner = parse_small_number(t); }},
    {"cancel", [](ClaimView& c, const std::string&) { c.cancel_requested = true; }},
    {"leftover", [](ClaimView& c, const std::string&) { c.has_stale_entry = true; }},
    {"revs", [](ClaimView& c, const std::string& t) { c.revisions = parse_numbers(t); }},
};

ClaimView parse_claim(const Fields& fields) {
  ClaimView claim;
  claim.exists = !fields.empty();
  for (const auto& [name, value] : fields) {
    for (const ClaimField& field : kClaimFields) {
      if (field.name == name) field.read(claim, value);
    }
  }
  return claim;
}

void verify_end(EndedJob& job, const ClaimView& claim, bool is_system_end_unchanged) {
  if (claim.state.empty()) {
    const Job record = decode<Job>(job.fields).record;
    job.ended = record.status == JobStatus::finished || record.status == JobStatus::error;
    job.status = to_string(record.status);
    job.detail = record.detail;
    job.idempotency_key = record.idempotency_key;
    job.runner = record.runner_id;
    return;
  }
  job.ended = claim.state == kJobStateEnded;
  job.status = claim.status;
  job.detail = claim.detail;
  job.claim_id = claim.claim_id;
  job.idempotency_key = claim.idempotency_key;
  job.runner = claim.runner;
  const bool was_ended_by_system = claim.claim_id.empty();
  // A claim that was rebuilt from the journal has no digest of an end that the system wrote. Such a record counts as
  // unchanged, with the status and detail of the claim.
  const bool has_no_digest = claim.end_digest.empty();
  if (has_no_digest && !(was_ended_by_system && claim.status == kJobStatusError)) return;
  const bool is_unchanged = was_ended_by_system
                                ? has_no_digest || is_system_end_unchanged
                                : compute_end_digest(extract_end_fields(job.fields)) == claim.end_digest;
  job.record_state = is_unchanged ? EndedJob::RecordState::unchanged : EndedJob::RecordState::changed;
}

// Names in store/scripts/repair.lua, in the order of the enums.
constexpr std::string_view kFixNames[] = {"delete_claim", "set_claim", "drop_claim", "set_record", "enter",
                                          "leave",        "lease",     "enqueue",    "finish",     "restore"};
constexpr std::string_view kIndexNames[] = {"",        "jobs",  "leases",   "delayed", "prerequisites", "ended",
                                            "overdue", "queue", "priority", "slots",   "held",          "waits"};

JobStoreState parse_job_state(const std::string& job_key, const Reply& reply) {
  JobStoreState job;
  job.job_key = job_key;
  job.record_type = reply.at(0).text();
  job.record = reply.at(1).fields();
  job.claim_type = reply.at(2).text();
  job.claim_fields = reply.at(3).fields();
  job.claim = parse_claim(job.claim_fields);
  for (const auto& [name, value] : reply.at(4).fields()) {
    if (name == "queue") job.claim.queue = value;
    if (name == "now_ms") job.now_ms = parse_whole_number(value);
    if (name == "lease_until_ms") job.lease_until_ms = parse_whole_number(value);
    if (name == "due_ms") job.due_ms = parse_whole_number(value);
    if (name == "check_ms") job.check_ms = parse_whole_number(value);
    if (name == "in_ended") job.in_ended_index = true;
    if (name == "in_jobs") job.in_job_index = true;
    if (name == "missing") job.awaits_record = true;
    if (name == "in_priority") job.in_priority_index = true;
    if (name == "takes_slot") job.occupies_slot = true;
    if (name == "held") job.is_held = true;
    if (name == "held_by") job.held_by_keys.push_back(value);
    if (name == "slot") job.slot_keys.push_back(value);
    if (name == "limited") job.has_limit = true;
    if (name == "slot_free") job.has_free_slot = true;
    if (name == "wait_until_ms") job.wait_until_ms = parse_whole_number(value);
    if (name == "updated_s") job.updated_s = parse_whole_number(value);
    if (name == "seen") job.digest = value;
    if (name == "in_queue") job.queue_entry_count = parse_small_number(value);
    if (name == "log_ended") job.log_ended = true;
  }
  const Reply waits = reply.at(5);
  for (std::size_t i = 0; i < waits.size(); ++i) job.awaited_jobs.emplace_back(waits.at(i).text());
  const Reply awaited = reply.at(6);
  for (std::size_t i = 0; i + 4 < awaited.size(); i += 5) {
    const auto is_set = [&](std::size_t offset) { return awaited.at(i + offset).text() == "1"; };
    job.dependencies.push_back({std::string(awaited.at(i).text()), is_set(1), is_set(2), is_set(3), is_set(4)});
  }
  return job;
}

}  // namespace

Result<TickReply> RedisStore::tick(Id context, const TickRequest& request) {
  Arguments arguments;
  arguments.add(std::uint64_t{request.missing_wait_ms}).add(request.retention_ms).add(request.retention_count);
  arguments.add(std::uint64_t{std::max(request.max_entries, 1U)});
  add_quota(arguments);
  MJ_TRY(reply, run(context, scripts::tick, arguments));
  TickReply out;
  out.queued = static_cast<std::uint32_t>(reply.at(0).number());
  out.woken_dependents = static_cast<std::uint32_t>(reply.at(1).number());
  out.missing_records = static_cast<std::uint32_t>(reply.at(2).number());
  out.timed_out = static_cast<std::uint32_t>(reply.at(3).number());
  out.retired = static_cast<std::uint32_t>(reply.at(4).number());
  out.has_more = reply.at(5).number() == 1;
  out.next_due_ms = reply.at(6).number();
  count_tick(metrics(), context, out);
  return out;
}

Result<std::vector<AwaitedPrerequisites>> RedisStore::due_prerequisites(Id context, std::uint32_t max,
                                                                        std::uint32_t redelivery_delay_ms,
                                                                        CheckerRole role) {
  Arguments arguments;
  arguments.add(std::uint64_t{max}).add(std::uint64_t{redelivery_delay_ms});
  MJ_TRY(reply, run(context, scripts::prerequisites_due,
                    arguments.add(role == CheckerRole::coordinator ? "coordinator" : "agent")));
  std::vector<AwaitedPrerequisites> out;
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const Reply entry = reply.at(i);
    // A list that cannot be parsed is returned as one condition, which the checker then rejects.
    const std::string text(entry.at(1).text());
    const Job job = decode<Job>({{"prerequisites", text}}).record;
    const bool is_valid = !job.prerequisites.empty();
    AwaitedPrerequisites awaited{std::string(entry.at(0).text()),
                                 is_valid ? job.prerequisites : std::vector<std::string>{text}, entry.at(2).number()};
    const bool is_flow_job = entry.at(3).text() == "1";
    const Reply approvals = entry.at(4);
    std::erase_if(awaited.conditions, [&](const std::string& condition) {
      if (is_flow_job && is_gate(condition)) return true;  // checked by the flow before it dispatched the job
      for (std::size_t n = 0; n < approvals.size(); ++n) {
        if (condition == "approval:" + std::string(approvals.at(n).text())) return true;
      }
      return false;
    });
    awaited.coordinator_checks = role == CheckerRole::agent && entry.at(5).text() == "1";
    out.push_back(std::move(awaited));
  }
  return out;
}

Result<void> RedisStore::complete_prerequisites(Id context, const std::string& job_key,
                                                const std::string& failure_reason) {
  MJ_CHECK(run(context, scripts::prerequisites_settled, Arguments{job_key, failure_reason}));
  return {};
}

namespace {

// Parses an entry of a journal.
Fact parse_fact(const Reply& entry) {
  Fact fact;
  const std::string id(entry.at(0).text());
  fact.revision = parse_whole_number(id.substr(0, id.find('-')));
  for (auto& [name, value] : entry.at(1).fields()) {
    if (name == "f") {
      fact.kind = std::move(value);
    } else if (name == "j") {
      fact.job_key = std::move(value);
    } else if (name == "at") {
      fact.at_ms = parse_whole_number(value);
    } else {
      fact.fields.emplace_back(std::move(name), std::move(value));
    }
  }
  return fact;
}

}  // namespace

Result<std::vector<Fact>> RedisStore::journal(Id context, const std::string& queue, std::uint64_t after_revision,
                                              std::uint32_t max) {
  const std::string key = kQueueJournalKey + queue;
  const std::string first = std::to_string(after_revision + 1) + "-0";
  Arguments arguments{"XRANGE", key, first, "+", "COUNT"};
  auto reply = command(context, arguments.add(std::uint64_t{std::max(max, 1U)}));
  if (!reply) return fail(std::move(reply).error(), key);
  std::vector<Fact> facts;
  for (std::size_t i = 0; i < reply->size(); ++i) facts.push_back(parse_fact(reply->at(i)));
  return facts;
}

Result<std::vector<Fact>> RedisStore::journal_at(Id context, const std::string& queue,
                                                 std::span<const std::uint64_t> revisions) {
  std::vector<Fact> facts;
  for (std::size_t at = 0; at < revisions.size(); at += kMaxRevisionsBatch) {
    const auto batch = revisions.subspan(at, std::min(kMaxRevisionsBatch, revisions.size() - at));
    Arguments arguments{queue};
    arguments.add(std::uint64_t{batch.size()});
    for (const std::uint64_t revision : batch) arguments.add(revision);
    MJ_TRY(reply, run(context, scripts::journal_at, arguments));
    for (std::size_t i = 0; i < reply.size(); ++i) facts.push_back(parse_fact(reply.at(i)));
  }
  return facts;
}

Result<EndedJob> RedisStore::ended_job(Id context, const std::string& job_key) {
  auto reply = run(context, scripts::ended_job, Arguments{job_key}.add(kMaxLoadBytes));
  if (!reply) return fail(std::move(reply).error(), job_key);
  MJ_CHECK(check_load_reply(*reply, context, job_key));
  EndedJob job;
  job.fields = reply->at(1).fields();
  verify_end(job, parse_claim(reply->at(2).fields()), reply->at(3).number() == 1);
  return job;
}

Result<std::vector<JobStoreState>> RedisStore::job_states(Id context, std::span<const std::string> job_keys,
                                                          bool with_positions) {
  std::vector<JobStoreState> out;
  while (out.size() < job_keys.size()) {
    const auto batch = job_keys.subspan(out.size(), std::min(kMaxJobStatesBatch, job_keys.size() - out.size()));
    Arguments arguments{with_positions ? "1" : "0"};
    arguments.add(std::uint64_t{batch.size()});
    for (const std::string& key : batch) arguments.add(key);
    MJ_TRY(reply, run(context, scripts::places, arguments));
    for (std::size_t i = 0; i < batch.size(); ++i) out.push_back(parse_job_state(batch[i], reply.at(i)));
  }
  return out;
}

Result<bool> RedisStore::repair(Id context, const std::string& job_key, const Repair& repair) {
  Arguments arguments{job_key, repair.inspection_digest, repair.queue};
  arguments.add(repair.journal_head).add(std::uint64_t{repair.fixes.size()});
  for (const JobFix& fix : repair.fixes) {
    arguments.add(kFixNames[static_cast<std::size_t>(fix.kind)]).add(kIndexNames[static_cast<std::size_t>(fix.index)]);
    arguments.add(fix.argument).add(fix.score).add_list(fix.fields);
  }
  MJ_TRY(reply, run(context, scripts::repair, arguments));
  return reply.number() == 1;
}

Result<bool> RedisStore::answer_prerequisite(Id context, const std::string& job_key, const PrerequisiteAnswer& answer) {
  // The name becomes part of a field name, and of a text that the script searches in the record.
  if (!is_approval_name(answer.name)) return fail(Code::invalid, "name: is not a valid name of an approval");
  const std::string comment_suffix = answer.comment.empty() ? "" : ": " + answer.comment;
  const std::string line = "approval:" + answer.name + " was given by " + std::to_string(answer.actor) + comment_suffix;
  const std::string reason =
      answer.approved ? ""
                      : "approval:" + answer.name + " was rejected by " + std::to_string(answer.actor) + comment_suffix;
  MJ_TRY(reply, run(context, scripts::prerequisite_answer, Arguments{job_key, answer.name, line, reason}));
  const std::string status(reply.text());
  if (status == "ok") return true;
  if (status == "again" || (status == "met" && answer.approved)) return false;
  if (status == "missing") return fail(Code::not_found, job_key + " does not exist");
  if (status == "over") return fail(Code::conflict, job_key + " has ended");
  if (status == "met") return fail(Code::conflict, job_key + " waits no longer: its prerequisites were met");
  if (status == "early")
    return fail(Code::conflict,
                job_key + " waits in its queue, and no agent has checked it yet: answer after the check");
  if (status == "unasked")
    return fail(Code::not_found, job_key + " does not wait for approval:" + answer.name + "; `mycojobs job explain " +
                                     job_key.substr(4) + "` shows the reason");
  return fail(Code::conflict, job_key + " is a job of flow " + status + ": `mycojobs flow approve " + status + " " +
                                  answer.name + "`, or `mycojobs flow reject " + status + " " + answer.name + "`");
}

Result<bool> answer_prerequisite(Store& store, Id context, const std::string& job_key,
                                 const PrerequisiteAnswer& answer) {
  auto* redis = dynamic_cast<RedisStore*>(&store);
  if (redis == nullptr) return fail(Code::unsupported, "this store does not accept answers");
  return redis->answer_prerequisite(context, job_key, answer);
}

// Notices of ends.

namespace {

// Splits a text at a separator.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// Parses an entry of mj:notices. Returns nullopt if it is malformed, that is, another client has written it.
std::optional<Notice> parse_notice(std::string_view entry) {
  const auto parts = split(entry, ' ');
  std::uint64_t attempts = 0;
  Notice notice;
  notice.entry = entry;
  if (parts.size() < 4 || parts.size() > 5) return std::nullopt;
  notice.record_key = parts[0];
  const bool is_valid_key = is_job_key(notice.record_key) || is_flow_key(notice.record_key);
  if (!is_valid_key || !parse_u64(parts[1], notice.ended_us) || !parse_u64(parts[3], attempts) || attempts > UINT16_MAX)
    return std::nullopt;
  notice.finished = parts[2] == to_string(JobStatus::finished);
  notice.attempts = static_cast<std::uint32_t>(attempts);
  if (parts.size() == 5) {
    for (const auto digest : split(parts[4], ',')) notice.reached_targets.emplace_back(digest);
  }
  return notice;
}

std::string format_notice(const Notice& notice, const NoticeResult::Retry& retry) {
  const auto& reached = retry.reached_targets;
  std::string entry = notice.record_key + " " + std::to_string(notice.ended_us) + " " +
                      (notice.finished ? "finished " : "error ") +
                      std::to_string(notice.attempts + (retry.counts_as_attempt ? 1 : 0));
  for (std::size_t i = 0; i < reached.size(); ++i) entry += (i == 0 ? " " : ",") + reached[i];
  return entry;
}

}  // namespace

Result<DueNotices> RedisStore::due_notices(Id context, std::uint32_t max, std::uint32_t redelivery_delay_ms) {
  Arguments arguments;
  MJ_TRY(reply,
         run(context, scripts::notices_due, arguments.add(std::uint64_t{max}).add(std::uint64_t{redelivery_delay_ms})));
  DueNotices due;
  due.next_ms = reply.at(1).number();
  const Reply entries = reply.at(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string_view entry = entries.at(i).text();
    if (auto notice = parse_notice(entry)) {
      due.notices.push_back(std::move(*notice));
    } else {
      Notice invalid_notice;
      invalid_notice.entry = entry;
      MJ_CHECK(complete_notice(
          context, invalid_notice,
          {std::nullopt, std::string(kNoticesKey) + ": " + excerpt(entry) + " is not a notice; it was dropped"}));
    }
  }
  return due;
}

Result<void> RedisStore::complete_notice(Id context, const Notice& notice, const NoticeResult& result) {
  Arguments arguments;
  arguments.add(notice.entry).add(result.retry ? format_notice(notice, *result.retry) : std::string());
  arguments.add(result.retry ? result.retry->delay_ms : 0).add(result.permanent_error).add(notice.record_key);
  MJ_CHECK(run(context, scripts::settle_notice, arguments));
  return {};
}

}  // namespace mycojobs
