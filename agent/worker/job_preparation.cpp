#include "worker/job_preparation.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <span>

#include "base/ids.h"
#include "base/log.h"
#include "domain/codec.h"
#include "domain/trace_context.h"
#include "domain/utf8.h"
#include "worker/artifact_folder.h"
#include "worker/artifacts.h"
#include "worker/lanes.h"
#include "worker/stages.h"
#include "worker/warm_key.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kLongestMs =
    10ULL * 365 * 24 * 3600 * 1000;  // of a run: what a clock can hold, and more than any

// A field that no run needs may hold what it likes: another client wrote it, and the end will overwrite it.
bool is_needed(std::string_view field) {
  static constexpr std::string_view kNeeded[] = {"id",      "caller_id", "context_id", "script",        "script_type",
                                                 "timeout", "retries",   "env_vars",   "prerequisites", "dependends",
                                                 "name",    "flow_id",   "inputs",     "given"};
  const std::string_view name = field.substr(0, field.find_first_of(".["));
  return std::find(std::begin(kNeeded), std::end(kNeeded), name) != std::end(kNeeded);
}

bool is_of_policy(const FieldProblem& problem) {
  return problem.field == "policy" || problem.field.starts_with("policy.");
}

// What a job gets from those that it depends on.

struct Dependency {
  Id id = 0;
  std::string name;
  TextMap result;
  std::vector<std::string> result_json;
  std::string artifacts_json;
  std::string folder = {};  // of one that ran elsewhere: where its files are on this host
  std::optional<std::vector<StoredArtifact>> artifacts = {};  // read when the first of them is asked for
};

// What the agent holds at once for one job. Files are read into its memory, and a job's disk may be larger than that.
constexpr std::size_t kMostRecordBytes = 32U << 20;  // to a program twice, by name and by id
constexpr std::uint64_t kMostFileBytes = 256ULL << 20;
constexpr std::size_t kMostFiles = 10000;

Result<Dependency> read_dependency(RecordStore& store, const Job& job, Id id, std::size_t& record_bytes) {
  static constexpr std::array<std::string_view, 4> kWanted = {"name", "result", "result_json", "artifacts"};
  Dependency out;
  out.id = id;
  auto fields = store.load_fields(job.context_id, job_key(job.caller_id, id),
                                  std::span(kWanted).first(job.inputs.empty() ? 3 : 4));
  if (!fields && fields.error().code == Code::not_found) return out;  // past its retention
  if (!fields) return fail(std::move(fields).error(), "inputs");
  for (const auto& [name, value] : *fields) record_bytes += value.size();
  if (record_bytes > kMostRecordBytes) {
    return fail(Code::invalid, "inputs: the results and artifacts of the jobs that it depends on take more than " +
                                   std::to_string(kMostRecordBytes) + " bytes: put joining jobs in between");
  }
  Job record = decode<Job>(*fields).record;  // what is unreadable in it is left out: it is not this job's fault
  out.name = std::move(record.name);
  out.result = std::move(record.result);
  out.result_json = std::move(record.result_json);
  out.artifacts_json = std::move(record.artifacts);
  return out;
}

using Called = std::map<std::string, Dependency*, std::less<>>;

// What each is called, once: its name, if no other has it as its name or id; else its id.
Called names_of(std::vector<Dependency>& all) {
  std::map<std::string, std::size_t> times;
  for (const Dependency& each : all) {
    ++times[std::to_string(each.id)];
    ++times[each.name];
  }
  Called called;
  for (Dependency& each : all) {
    const bool by_name = !each.name.empty() && times[each.name] == 1;
    called[by_name ? each.name : std::to_string(each.id)] = &each;
  }
  return called;
}

Called names_and_ids_of(std::vector<Dependency>& all) {
  Called called = names_of(all);
  for (Dependency& each : all) called[std::to_string(each.id)] = &each;
  return called;
}

// What a record says is not to be believed: as many bytes are read as the file has.
Result<void> check_file(const StoredArtifact& artifact, const std::string& job) {
  const std::string which = "inputs: the artifact " + shown(artifact.name) + " of job " + shown(job);
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(artifact.path, unknown)) {
    return fail(Code::invalid, which +
                                   " is not on this host: let the operator give all agents one state_dir for "
                                   "contexts/ (a shared file system), or run both jobs on one host");
  }
  const std::uint64_t bytes = std::filesystem::file_size(artifact.path, unknown);
  if (!unknown && bytes == artifact.bytes) return {};
  return fail(Code::invalid,
              which + " is damaged on this host: " + artifact.path + " has not the bytes of its record: run it again");
}

// In /job/inputs. A job may have a name that is no file's.
std::string folder_of(const std::string& called, Id id) {
  const bool plain = is_artifact_name(called) && called.find('/') == std::string::npos;
  return plain ? called : std::to_string(id);
}

class Files {
 public:
  Files(const Called& called, const std::string& state_dir, JobFacts& facts)
      : called_(called), state_dir_(state_dir), facts_(facts) {}

  // "build" or "build/dist/app": of the dependency `build`, by name or id. A name may have slashes in it.
  Result<void> add(const std::string& wanted) {
    if (!asked_.insert(wanted).second) return {};
    if (asked_.size() > kMostFiles)
      return fail(Code::invalid, "inputs: has more than " + std::to_string(kMostFiles) + " entries: name fewer");
    if (const auto job = called_.find(wanted); job != called_.end()) return add_from(*job->second, wanted, "");
    for (std::size_t slash = wanted.find('/'); slash != std::string::npos; slash = wanted.find('/', slash + 1)) {
      const auto job = called_.find(std::string_view(wanted).substr(0, slash));
      if (job != called_.end()) return add_from(*job->second, job->first, wanted.substr(slash + 1));
    }
    return fail(Code::invalid, "inputs: " + shown(wanted) + " names no job that this one depends on (dependends)");
  }

 private:
  Result<void> add_from(Dependency& job, const std::string& called, const std::string& name) {
    if (!job.artifacts) {
      job.artifacts = read_artifacts(job.artifacts_json, facts_.job.context_id, state_dir_);
      for (StoredArtifact& each : *job.artifacts) {
        if (!job.folder.empty()) each.path = job.folder + '/' + each.sha256;
      }
    }
    bool any = name.empty();
    for (const StoredArtifact& artifact : *job.artifacts) {
      if (!name.empty() && artifact.name != name) continue;
      any = true;
      std::string folder = folder_of(called, job.id);
      if (!there_.emplace(folder, artifact.name).second) continue;  // once, however often it was asked for
      MJ_CHECK(check_file(artifact, called));
      bytes_ += artifact.bytes;
      facts_.files.emplace_back(std::move(folder), artifact);
      MJ_CHECK(check_sum());
    }
    if (any) return {};
    return fail(Code::invalid, "inputs: job " + shown(called) + " left no artifact " + shown(name));
  }
  Result<void> check_sum() const {
    if (there_.size() > kMostFiles) {
      return fail(Code::invalid, "inputs: more than " + std::to_string(kMostFiles) +
                                     " artifacts: let the jobs that leave them pack them, or name fewer");
    }
    if (bytes_ > kMostFileBytes) {
      return fail(Code::invalid, "inputs: artifacts of more than " + std::to_string(kMostFileBytes) +
                                     " bytes together are handed to no job: name fewer");
    }
    if (bytes_ <= facts_.granted.disk_bytes) return {};
    return fail(Code::invalid, "inputs: " + std::to_string(bytes_) +
                                   " bytes of artifacts are more than the job's disk of " +
                                   std::to_string(facts_.granted.disk_bytes) + ": ask for more, policy.disk");
  }

  const Called& called_;
  const std::string& state_dir_;
  JobFacts& facts_;
  std::set<std::string_view> asked_;
  std::set<std::pair<std::string, std::string>> there_;
  std::uint64_t bytes_ = 0;  // of files on this host: no sum of them is too large for it
};

// What came with the message that brought the job: its files are the job's own, and no other job's by their hash.
Result<void> add_given(RecordStore& store, const std::string& state_dir, const Job& job, std::vector<Dependency>& all) {
  if (job.given.empty()) return {};
  MJ_TRY(given, read_given(job.given));
  std::string folder;
  if (!state_dir.empty()) {
    MJ_TRY(name, artifact_store_name(store, job.context_id));
    folder = ArtifactFolder(state_dir, job.context_id).job(name, redis_key(job));
  }
  for (GivenInput& each : given) {
    all.push_back({each.id, std::move(each.name), std::move(each.result), std::move(each.result_json),
                   std::move(each.artifacts), folder});
  }
  return {};
}

}  // namespace

Result<void> gather_inputs(RecordStore& store, const std::string& state_dir, JobFacts& facts) {
  const Job& job = facts.job;
  if (job.dependends.empty() && job.inputs.empty() && job.given.empty()) return {};
  std::vector<Dependency> all;
  std::size_t record_bytes = 0;
  for (const Id id : std::set<Id>(job.dependends.begin(), job.dependends.end())) {
    MJ_TRY(dependency, read_dependency(store, job, id, record_bytes));
    all.push_back(std::move(dependency));
  }
  MJ_CHECK(add_given(store, state_dir, job, all));
  const Called called = names_and_ids_of(all);
  for (const auto& [name, dependency] : names_of(all))
    facts.inputs[name] = {dependency->id, dependency->result, dependency->result_json};
  Files files(called, state_dir, facts);
  for (const std::string& wanted : job.inputs) MJ_CHECK(files.add(wanted));
  return {};
}

namespace {

// What one context does to a plugin is no matter of another's.
void choose_lane(Start& start, const Executor& executor, const JobFacts& facts) {
  start.finish_waits = executor.finish_may_wait();
  if (executor.may_wait()) {
    start.lane = std::string(executor.name()) + ' ' + std::to_string(facts.job.context_id);
  } else if (!facts.files.empty()) {
    start.lane = disk_lane(start.context);
  }
}

}  // namespace

JobPreparation::JobPreparation(const WorkerSettings& settings, const std::vector<const Executor*>& executors,
                               const Clock& clock)
    : settings_(settings), clock_(clock), secrets_(settings.secrets, clock), warm_secret_(random_bytes(32)) {
  for (const Executor* executor : executors) {
    for (const std::string& type : executor->script_types()) by_type_.emplace(type, executor);
  }
}

// Null: nowhere to keep them. The job runs all the same.
std::shared_ptr<ArtifactQueue> JobPreparation::artifacts_of(RecordStore& store, const ClaimRef& claim) {
  if (settings_.state_dir.empty()) return nullptr;
  std::string& store_name = store_names_[claim.context];
  if (store_name.empty()) {
    auto found = artifact_store_name(store, claim.context);
    if (!found) {
      log(LogLevel::error, "worker", "{}: its artifacts will not be kept: {}",
          in_trace(claim.job_key, claim.traceparent), found.error().message);
      return nullptr;
    }
    store_name = std::move(*found);
  }
  return std::make_shared<ArtifactQueue>(
      make_run_artifacts(settings_.state_dir, claim.context, store_name, claim.job_key, settings_.max_artifact_bytes));
}

Result<Job> JobPreparation::read_job(const Claimed& claimed) const {
  auto [job, problems] = decode<Job>(claimed.record);
  std::erase_if(problems, [](const FieldProblem& problem) { return !is_needed(problem.field); });
  for (FieldProblem& problem : validate(job)) problems.push_back(std::move(problem));
  if (!problems.empty()) {
    const bool only_policy = std::all_of(problems.begin(), problems.end(), is_of_policy);
    return fail(only_policy ? Code::denied : Code::invalid, join(problems));
  }
  if (redis_key(job) != claimed.ref.job_key) {
    return fail(Code::invalid, "id: the record says " + redis_key(job) + ", its key is " + claimed.ref.job_key);
  }
  if (job.context_id != claimed.ref.context) {
    return fail(Code::invalid, "context_id: the record says " + std::to_string(job.context_id) +
                                   ", it lies in context " + std::to_string(claimed.ref.context));
  }
  return std::move(job);
}

Result<const Executor*> JobPreparation::executor_of(const Job& job, const Claimed& claimed) const {
  const auto executor = by_type_.find(job.script_type);
  if (executor != by_type_.end()) return executor->second;
  return fail(Code::invalid, "script_type: no executor of runner " + std::to_string(settings_.runner.id) + " runs \"" +
                                 job.script_type + "\" (entry of " + claimed.queue + ")");
}

std::shared_ptr<const std::string> JobPreparation::grant_of(const StagedRuns& staged) {
  constexpr std::size_t kMostGrants = 8;
  for (const Grant& each : grants_) {
    if (each.policy == staged.policy && each.lowered == staged.lowered) return each.text;
  }
  Grant grant{staged.policy, staged.lowered,
              std::make_shared<const std::string>(grant_members(staged.policy, staged.lowered))};
  auto text = grant.text;
  if (grants_.size() < kMostGrants) {
    grants_.push_back(std::move(grant));
  } else {
    grants_[oldest_grant_] = std::move(grant);
    oldest_grant_ = (oldest_grant_ + 1) % kMostGrants;
  }
  return text;
}

Result<Start> JobPreparation::prepare(RecordStore& store, Claimed& claimed, std::uint64_t fence_boot_ms,
                                      RunNumber run) {
  MJ_TRY(job, read_job(claimed));
  MJ_TRY(executor, executor_of(job, claimed));
  const Executor& runs_it = *executor;
  const Ceiling ceiling = settings_.ceilings.of(claimed.ref.context);
  const std::uint64_t seconds = job.timeout.value_or(static_cast<std::uint32_t>(settings_.default_timeout_s));
  const std::uint64_t timeout_ms = std::min(seconds * 1000, kLongestMs);
  MJ_TRY(staged,
         stage_runs(runs_it, settings_.defaults, read_policy(job.policy, "policy").request, &ceiling, timeout_ms));
  Start start;
  start.run = run;
  start.context = job.context_id;
  start.caller = job.caller_id;
  start.calls_objects = runs_it.calls_objects();
  start.specs = std::move(staged.specs);
  for (RunSpec& spec : start.specs) {
    spec.context = claimed.ref.context;
    if (settings_.kill_on_lease_lost) spec.fence_boot_ms = fence_boot_ms;
  }
  const std::uint64_t wall_ms = start.specs.back().limits.wall_ms;
  // The policy ends it before: its end must not speak of the job's own timeout.
  if (wall_ms < seconds * 1000) job.timeout.reset();
  start.deadline_boot_ms = clock_.boot_ms() + timeout_ms;
  start.output_bytes = staged.policy.output_bytes;
  start.output_kill = staged.policy.output_kill;
  start.attempt = claimed.attempt;
  start.retries = job.retries;
  JobFacts facts;
  facts.job = std::move(job);
  // What the script traces is below its run, if that is told.
  if (const auto context = parse_traceparent(facts.job.traceparent);
      context && context->sampled && settings_.traces->wanted())
    facts.job.traceparent = child_of(*context, claimed.ref.claim_id, "run");
  facts.deadline_unix_ms = clock_.unix_ms() + wall_ms;
  facts.max_result_bytes = settings_.max_result_bytes;
  facts.max_artifact_bytes = settings_.max_artifact_bytes;
  facts.grant = grant_of(staged);
  facts.granted = std::move(staged.policy);
  MJ_TRY(secrets, secrets_.values(claimed.ref.context, facts.granted.secrets));
  start.redactor = secrets.empty() ? secrets_.redactor(start.context) : secrets_.redactor_of_values(start.context);
  facts.secrets = std::move(secrets);
  if (Warm& warm = start.specs.back().warm; warm.runs > 0) {
    give_warm_key(warm, facts, warm_secret_);
    start.warm_secrets = facts.secrets;
  }
  MJ_CHECK(gather_inputs(store, settings_.state_dir, facts));
  start.artifacts = artifacts_of(store, claimed.ref);
  choose_lane(start, runs_it, facts);
  start.queue = claimed.queue;
  if (start.lane.empty()) {
    MJ_TRY(conversation, runs_it.begin(facts, start.artifacts.get()));
    start.conversation = std::move(conversation);
    start.claim = std::move(claimed.ref);
    return start;
  }
  start.claim = std::move(claimed.ref);
  start.begin = [&runs_it, about = std::make_shared<const JobFacts>(std::move(facts)), sink = start.artifacts] {
    return runs_it.begin(*about, sink.get());
  };
  return start;
}

}  // namespace mycojobs
