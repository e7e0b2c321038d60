#include "worker/intake/job_inputs.h"

#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "artifacts/job_artifacts.h"
#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using Dependency = JobInputs::Dependency;

// Limits of the memory that the agent needs for the inputs of one job. Files are read into memory, and the disk of a
// job may be larger than the memory.
constexpr std::size_t kMaxRecordBytes = 32U << 20;  // a program receives each record twice, by name and by id
constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kMaxFiles = 10000;

Result<Dependency> read_dependency(RecordStore& store, const Job& job, Id id, std::size_t& record_bytes) {
  static constexpr std::array<std::string_view, 4> kWanted = {"name", "result", "result_json", "artifacts"};
  Dependency out;
  out.id = id;
  auto fields = store.load_fields(job.context_id, job_key(job.caller_id, id),
                                  std::span(kWanted).first(job.inputs.empty() ? 3 : 4));
  if (!fields && fields.error().code == Code::not_found) return out;  // deleted after its retention
  if (!fields) return fail(std::move(fields).error(), "inputs");
  for (const auto& [name, value] : *fields) record_bytes += value.size();
  if (record_bytes > kMaxRecordBytes) {
    return fail(Code::invalid, "inputs: the results and artifacts of the jobs that it depends on take more than " +
                                   std::to_string(kMaxRecordBytes) + " bytes: add jobs in between that join them");
  }
  Job record = decode<Job>(*fields).record;  // unreadable fields are ignored, since they are not a fault of this job
  out.name = std::move(record.name);
  out.result = std::move(record.result);
  out.result_json = std::move(record.result_json);
  out.artifacts_json = std::move(record.artifacts);
  return out;
}

using InputsByName = std::map<std::string, Dependency*, std::less<>>;

// Returns each dependency once: by its name, if no other dependency has this name or id, and otherwise by its id.
InputsByName names_of(std::vector<Dependency>& all) {
  std::map<std::string, std::size_t> times;
  for (const Dependency& each : all) {
    ++times[std::to_string(each.id)];
    ++times[each.name];
  }
  InputsByName called;
  for (Dependency& each : all) {
    const bool by_name = !each.name.empty() && times[each.name] == 1;
    called[by_name ? each.name : std::to_string(each.id)] = &each;
  }
  return called;
}

// The size in the record is not trusted, since the whole file will be read.
Result<void> check_file(const StoredArtifact& artifact, const std::string& job) {
  const std::string which = "inputs: the artifact " + excerpt(artifact.name) + " of job " + excerpt(job);
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(artifact.path, unknown)) {
    return fail(Code::invalid, which +
                                   " is not on this host: let the operator give all agents one state_dir for "
                                   "contexts/ (a shared file system), or run both jobs on one host");
  }
  const std::uint64_t bytes = std::filesystem::file_size(artifact.path, unknown);
  if (!unknown && bytes == artifact.bytes) return {};
  return fail(Code::invalid, which + " is damaged on this host: " + artifact.path +
                                 " does not have the content of its record: run the job again");
}

// Returns the name of the dependency's folder in /job/inputs. The name of a job need not be a valid file name.
std::string folder_of(const std::string& called, Id id) {
  const bool plain = is_artifact_name(called) && called.find('/') == std::string::npos;
  return plain ? called : std::to_string(id);
}

class Files {
 public:
  Files(const InputsByName& called, JobFacts& facts) : called_(called), facts_(facts) {}

  // Adds the files that an entry of `inputs` selects: "build" selects all files of the dependency with this name or id,
  // "build/dist/app" selects one. A name of a dependency can contain slashes.
  Result<void> add(const std::string& wanted) {
    if (!asked_.insert(wanted).second) return {};
    if (asked_.size() > kMaxFiles)
      return fail(Code::invalid, "inputs: has more than " + std::to_string(kMaxFiles) + " entries: name fewer");
    if (const auto job = called_.find(wanted); job != called_.end()) return add_from(*job->second, wanted, "");
    for (std::size_t slash = wanted.find('/'); slash != std::string::npos; slash = wanted.find('/', slash + 1)) {
      const auto job = called_.find(std::string_view(wanted).substr(0, slash));
      if (job != called_.end()) return add_from(*job->second, job->first, wanted.substr(slash + 1));
    }
    return fail(Code::invalid, "inputs: " + excerpt(wanted) + " names no job that this one depends on (dependends)");
  }

 private:
  Result<void> add_from(Dependency& job, const std::string& called, const std::string& name) {
    if (!job.artifacts) {
      job.artifacts = read_artifacts(job.artifacts_json, job.folders);
    }
    bool any = name.empty();
    for (const StoredArtifact& artifact : *job.artifacts) {
      if (!name.empty() && artifact.name != name) continue;
      any = true;
      std::string folder = folder_of(called, job.id);
      if (!there_.emplace(folder, artifact.name).second) continue;  // selected by another entry already
      MJ_CHECK(check_file(artifact, called));
      bytes_ += artifact.bytes;
      facts_.files.emplace_back(std::move(folder), artifact);
      MJ_CHECK(check_sum());
    }
    if (any) return {};
    return fail(Code::invalid, "inputs: job " + excerpt(called) + " stored no artifact " + excerpt(name));
  }
  Result<void> check_sum() const {
    if (there_.size() > kMaxFiles) {
      return fail(Code::invalid, "inputs: more than " + std::to_string(kMaxFiles) +
                                     " artifacts: pack them in the jobs that store them, or request fewer");
    }
    if (bytes_ > kMaxFileBytes) {
      return fail(Code::invalid, "inputs: artifacts of more than " + std::to_string(kMaxFileBytes) +
                                     " bytes together are handed to no job: name fewer");
    }
    if (bytes_ <= facts_.granted.disk_bytes) return {};
    return fail(Code::invalid, "inputs: " + std::to_string(bytes_) +
                                   " bytes of artifacts are more than the job's disk of " +
                                   std::to_string(facts_.granted.disk_bytes) + ": increase policy.disk");
  }

  const InputsByName& called_;
  JobFacts& facts_;
  std::set<std::string_view> asked_;
  std::set<std::pair<std::string, std::string>> there_;
  std::uint64_t bytes_ = 0;  // cannot overflow, since the files exist on this host
};

// Adds the results and files that arrived with the message of the job. The files belong to the job itself.
Result<void> add_given(const Job& job, std::vector<Dependency>& all) {
  if (job.given.empty()) return {};
  MJ_TRY(given, parse_remote_inputs(job.given));
  for (RemoteInput& each : given) {
    all.push_back({each.id, std::move(each.name), std::move(each.result), std::move(each.result_json),
                   std::move(each.artifacts)});
  }
  return {};
}

}  // namespace

Result<JobInputs> JobInputs::read(RecordStore& store, const std::string& state_dir, const Job& job) {
  std::vector<Dependency> all;
  std::size_t record_bytes = 0;
  for (const Id id : std::set<Id>(job.dependends.begin(), job.dependends.end())) {
    MJ_TRY(dependency, read_dependency(store, job, id, record_bytes));
    all.push_back(std::move(dependency));
  }
  const std::size_t dependends = all.size();
  MJ_CHECK(add_given(job, all));
  if (state_dir.empty() || job.inputs.empty()) return JobInputs(std::move(all));
  MJ_TRY(store_names, artifact_store_names(store, job.context_id));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string key = i < dependends ? job_key(job.caller_id, all[i].id) : redis_key(job);
    all[i].folders = artifact_folders(state_dir, job.context_id, key, store_names);
  }
  return JobInputs(std::move(all));
}

Result<void> JobInputs::find(JobFacts& facts) {
  InputsByName called = names_of(all_);
  for (const auto& [name, dependency] : called)
    facts.inputs[name] = {dependency->id, dependency->result, dependency->result_json};
  for (Dependency& each : all_) called[std::to_string(each.id)] = &each;  // files can be selected by name or by id
  Files files(called, facts);
  for (const std::string& wanted : facts.job.inputs) MJ_CHECK(files.add(wanted));
  return {};
}

}  // namespace mycojobs
