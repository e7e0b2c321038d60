#include "worker/intake/job_preparation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "artifacts/job_artifacts.h"
#include "base/log.h"
#include "base/random.h"
#include "executors/run_specs.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/submitted_files.h"
#include "model/trace_context.h"
#include "store/job_fields.h"
#include "worker/intake/job_inputs.h"
#include "worker/intake/uploaded_files.h"
#include "worker/intake/warm_key.h"

namespace mycojobs {
namespace {

// Maximum time limit of a run, so that no time on a clock overflows.
constexpr std::uint64_t kMaxTimeoutMs = 10ULL * 365 * 24 * 3600 * 1000;

// Returns whether a run needs the field. Fields that no run needs may have invalid values: another client has written
// them, and the end of the job overwrites them. Fields that determine when a job may run are needed: without them it is
// unknown whether the job may run now.
bool is_needed(std::string_view field) {
  // clang-format off
  static constexpr std::string_view kNeeded[] = {
      "id", "caller_id", "context_id", "script", "script_type", "timeout", "retries", "env_vars", "args", "stdin",
      "files", "prerequisites", "dependends", "name", "flow_id", "inputs", "given", "run_at_ms", "queue_timeout_ms",
      "concurrency_limit"};
  // clang-format on
  const std::string_view name = field.substr(0, field.find_first_of(".["));
  return std::find(std::begin(kNeeded), std::end(kNeeded), name) != std::end(kNeeded);
}

bool is_policy_problem(const FieldProblem& problem) {
  return problem.field == "policy" || problem.field.starts_with("policy.");
}

// The strand is named after executor and context, so that a context which blocks a plugin does not delay other
// contexts.
void choose_strand(JobStart& start, const Executor& executor, const JobFacts& facts) {
  const Job& job = facts.job;
  start.can_block_in_finish = executor.can_block_in_finish();
  if (executor.can_block() || executor.can_block_for(facts)) {
    start.strand = std::string(executor.name()) + ' ' + std::to_string(job.context_id);
  } else if (!job.inputs.empty() || has_submitted_files(job)) {
    start.strand = disk_strand_name(start.context);
  }
}

ExportedRun describe_run(const ClaimedJob& claimed, const Job& job, Id runner) {
  const ClaimRef& claim = claimed.ref;
  return {claim.job_key, claim.context,   job.flow_id,    runner,
          job.name,      claimed.attempt, claim.claim_id, job.traceparent};
}

using ConversationResult = Result<std::unique_ptr<Conversation>>;

// The files that a job receives.
struct ReceivedFiles {
  JobInputs inputs;
  UploadedFiles uploads;
  Fields contents;  // of the job's own files; moved into the facts by the first successful call

  std::vector<MissingInput> list_missing() const {
    std::vector<MissingInput> missing = inputs.missing();
    missing.insert(missing.end(), uploads.missing().begin(), uploads.missing().end());
    return missing;
  }
};

ConversationResult create_conversation(ReceivedFiles& files, const Executor& executor, JobFacts& facts,
                                       ArtifactQueue* artifacts) {
  MJ_CHECK(files.inputs.resolve(facts));
  if (has_submitted_files(facts.job) && facts.job.submitted_files == nullptr)
    MJ_CHECK(restore_submitted_files(facts.job, std::move(files.contents)));
  MJ_CHECK(files.uploads.resolve(facts));
  return executor.begin(facts, artifacts);
}

// Creates the conversation now, or sets JobStart::create_conversation to create it on the strand of the job.
Result<void> set_conversation(JobStart& start, const Executor& executor, ReceivedFiles files, JobFacts facts) {
  choose_strand(start, executor, facts);
  if (start.strand.empty()) {
    MJ_TRY(conversation, create_conversation(files, executor, facts, start.artifacts.get()));
    start.conversation = std::move(conversation);
    return {};
  }
  const auto shared_files = std::make_shared<ReceivedFiles>(std::move(files));
  if (!facts.job.inputs.empty() || !shared_files->uploads.is_empty())
    start.list_missing_inputs = [shared_files] { return shared_files->list_missing(); };
  start.create_conversation = [&executor, facts = std::make_shared<JobFacts>(std::move(facts)), shared_files,
                               sink = start.artifacts] {
    return create_conversation(*shared_files, executor, *facts, sink.get());
  };
  return {};
}

}  // namespace

bool serves_script_type(const WorkerSettings& settings, const std::string& script_type) {
  const auto& types = settings.script_types;
  return types.empty() || std::find(types.begin(), types.end(), script_type) != types.end();
}

JobPreparation::JobPreparation(const WorkerSettings& settings, const std::vector<const Executor*>& executors,
                               const SecretWatcher& secrets, const Clock& clock)
    : settings_(settings),
      ceilings_(std::make_shared<const Ceilings>(settings.ceilings)),
      clock_(clock),
      secrets_(secrets),
      warm_secret_(random_bytes(32)) {
  for (const Executor* executor : executors) {
    for (const std::string& type : executor->script_types()) {
      if (serves_script_type(settings, type)) executors_by_type_.emplace(type, executor);
    }
  }
}

// Returns null if there is no folder for artifacts; the job runs anyway. If the name of the store cannot be read, the
// artifacts are dropped, which the end of the job reports.
std::shared_ptr<ArtifactQueue> JobPreparation::create_artifact_queue(RecordStore& store, const ClaimRef& claim) {
  if (settings_.state_dir.empty()) return nullptr;
  std::string& store_name = store_names_[claim.context];
  if (store_name.empty()) {
    auto name = artifact_store_name(store, claim.context);
    if (!name) {
      log(LogLevel::error, "worker", "{}: its artifacts will not be kept: {}",
          append_trace_id(claim.job_key, claim.traceparent), name.error().message);
    } else {
      store_name = std::move(*name);
    }
  }
  return std::make_shared<ArtifactQueue>(
      make_run_artifacts(settings_.state_dir, claim.context, store_name, claim.job_key, settings_.max_artifact_bytes,
                         {settings_.caller_artifact_bytes, settings_.context_artifact_bytes}));
}

std::shared_ptr<LogSpool> JobPreparation::create_log_spool(const ClaimedJob& claimed, const Policy& policy) const {
  constexpr std::size_t kMaxJobQueuedBytes = 4U << 20, kMinJobQueuedBytes = 256U << 10;
  // The store has the complete output of a job that is killed for more.
  if (policy.output_kill && !policy.log_full) return nullptr;
  const auto store_name = store_names_.find(claimed.ref.context);
  if (store_name == store_names_.end() || store_name->second.empty()) return nullptr;
  LogSpool::Settings settings;
  settings.state_dir = settings_.state_dir;
  settings.context = claimed.ref.context;
  settings.store_name = store_name->second;
  settings.job_key = claimed.ref.job_key;
  settings.run = claimed.epoch;
  settings.log_base = claimed.log_base;
  settings.max_bytes = policy.log_bytes;
  settings.quota = {settings_.caller_artifact_bytes, settings_.context_artifact_bytes};
  settings.max_queued_bytes =
      std::clamp(kMaxLogQueueBytes / std::max(settings_.slots, 1U), kMinJobQueuedBytes, kMaxJobQueuedBytes);
  settings.all_queued_bytes = log_queue_bytes_;
  settings.has_archive = policy.log_full;
  settings.max_archive_bytes = settings_.max_artifact_bytes;
  return std::make_shared<LogSpool>(std::move(settings));
}

void JobPreparation::add_sinks(RecordStore& store, const ClaimedJob& claimed, const JobFacts& facts, JobStart& start) {
  start.artifacts = create_artifact_queue(store, claimed.ref);
  if (start.artifacts && facts.granted_policy.log_full) start.artifacts->set_reserved_name(LogSpool::kArchiveName);
  if (const auto& log_export = settings_.log_export)
    start.exported_log = log_export->make_sink(describe_run(claimed, facts.job, settings_.runner.id));
  start.log_spool = create_log_spool(claimed, facts.granted_policy);
}

Result<Job> JobPreparation::read_job(const ClaimedJob& claimed) const {
  auto [job, problems] = decode<Job>(claimed.record);
  std::erase_if(problems, [](const FieldProblem& problem) { return !is_needed(problem.field); });
  for (FieldProblem& problem : validate(job)) problems.push_back(std::move(problem));
  if (!problems.empty()) {
    const bool only_policy = std::all_of(problems.begin(), problems.end(), is_policy_problem);
    return fail(only_policy ? Code::denied : Code::invalid, join(problems));
  }
  if (redis_key(job) != claimed.ref.job_key) {
    return fail(Code::invalid, "id: the record names " + redis_key(job) + ", its key is " + claimed.ref.job_key);
  }
  if (job.context_id != claimed.ref.context) {
    return fail(Code::invalid, "context_id: the record names " + std::to_string(job.context_id) +
                                   ", but the record is stored in context " + std::to_string(claimed.ref.context));
  }
  return std::move(job);
}

Result<const Executor*> JobPreparation::find_executor(const Job& job, const ClaimedJob& claimed) const {
  const auto executor = executors_by_type_.find(job.script_type);
  if (executor != executors_by_type_.end()) return executor->second;
  const bool is_served = serves_script_type(settings_, job.script_type);
  const std::string reason = is_served ? "no executor of runner " : "the setting script_types of runner ";
  const std::string verb = is_served ? " runs \"" : " does not name \"";
  return fail(Code::invalid, "script_type: " + reason + std::to_string(settings_.runner.id) + verb + job.script_type +
                                 "\" (entry of " + claimed.queue + ")");
}

std::shared_ptr<const std::string> JobPreparation::get_grant_json(const StagedRuns& staged) {
  constexpr std::size_t kMaxGrants = 8;
  for (const Grant& grant : grants_) {
    if (grant.policy == staged.policy && grant.lowered == staged.lowered) return grant.json;
  }
  Grant grant{staged.policy, staged.lowered,
              std::make_shared<const std::string>(format_grant_members(staged.policy, staged.lowered))};
  auto json = grant.json;
  if (grants_.size() < kMaxGrants) {
    grants_.push_back(std::move(grant));
  } else {
    grants_[oldest_grant_] = std::move(grant);
    oldest_grant_ = (oldest_grant_ + 1) % kMaxGrants;
  }
  return json;
}

Result<JobStart> JobPreparation::prepare(RecordStore& store, ClaimedJob& claimed, std::uint64_t fence_boot_ms,
                                         RunNumber run) {
  MJ_TRY(job, read_job(claimed));
  MJ_TRY(executor, find_executor(job, claimed));
  const Ceiling ceiling = ceilings_.now()->get(claimed.ref.context);
  const std::uint64_t seconds = job.timeout.value_or(static_cast<std::uint32_t>(settings_.default_timeout_s));
  const std::uint64_t timeout_ms = std::min(seconds * 1000, kMaxTimeoutMs);
  MJ_TRY(staged,
         stage_runs(*executor, settings_.defaults, read_policy(job.policy, "policy").request, &ceiling, timeout_ms));
  JobStart start;
  start.run = run;
  start.context = job.context_id;
  start.caller = job.caller_id;
  start.executor = executor;
  start.uses_object_store = executor->uses_object_store();
  start.specs = std::move(staged.specs);
  for (RunSpec& spec : start.specs) spec.context = claimed.ref.context;
  for (RunSpec& spec : start.specs) spec.fence_boot_ms = settings_.kill_on_lease_lost ? fence_boot_ms : 0;
  const RunSpec& last_spec = start.specs.back();
  start.folders = list_job_folders(last_spec.grants, find_file_owner(settings_.files, last_spec.context));
  const std::uint64_t wall_ms = last_spec.limits.wall_ms;
  // The policy ends the job before its own timeout, so the end of the job must not mention the timeout.
  if (wall_ms < seconds * 1000) job.timeout.reset();
  start.deadline_boot_ms = clock_.boot_ms() + timeout_ms;
  start.output_bytes = staged.policy.output_bytes;
  start.output_kill = staged.policy.output_kill;
  start.artifacts_optional = staged.policy.artifacts_optional;
  start.attempt = claimed.attempt;
  start.retries = job.retries;
  JobFacts facts;
  facts.job = std::move(job);
  // Spans of the script are children of the span of its run, if that is recorded.
  if (const auto context = parse_traceparent(facts.job.traceparent);
      context && context->sampled && settings_.traces->is_enabled())
    facts.job.traceparent = make_child_traceparent(*context, claimed.ref.claim_id, "run");
  facts.deadline_unix_ms = clock_.unix_ms() + wall_ms;
  facts.max_result_bytes = settings_.max_result_bytes;
  facts.max_artifact_bytes = settings_.max_artifact_bytes;
  facts.grant_json = get_grant_json(staged);
  facts.granted_policy = std::move(staged.policy);
  // Read once, so that the redactor knows the values that the job gets.
  const auto context_secrets = secrets_.get(start.context);
  MJ_TRY(secrets, context_secrets->get_secrets(facts.granted_policy.secrets));
  start.redactor = context_secrets->get_redactor(secrets);
  facts.secrets = std::move(secrets);
  MJ_TRY(stored_files, load_stored_files(store, start.context, claimed.ref.job_key, facts.job));
  MJ_TRY(uploads, UploadedFiles::read(store, settings_.state_dir, facts.job, stored_files));
  MJ_TRY(inputs, JobInputs::read(store, settings_.state_dir, facts.job));
  MJ_CHECK(inputs.expand_references(facts.job));  // before the key of a warm process, which contains the variables
  if (WarmReuse& warm = start.specs.back().warm; warm.runs > 0) {
    assign_warm_key(warm, facts, warm_secret_);
    start.warm_secrets = facts.secrets;
  }
  add_sinks(store, claimed, facts, start);
  MJ_CHECK(set_conversation(start, *executor, {std::move(inputs), std::move(uploads), std::move(stored_files)},
                            std::move(facts)));
  start.queue = claimed.queue;
  start.claim = std::move(claimed.ref);
  return start;
}

}  // namespace mycojobs
