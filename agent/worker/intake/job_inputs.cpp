#include "worker/intake/job_inputs.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/artifact_cache.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/job_validation.h"
#include "model/result_references.h"
#include "store/job_fields.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using Dependency = JobInputs::Dependency;

// Limits of the memory that the agent needs for the inputs of one job. Files are read into memory, and the disk of a
// job may be larger than the memory.
constexpr std::size_t kMaxRecordBytes = 32U << 20;  // a program receives each record twice, by name and by id
constexpr std::uint64_t kMaxFileBytes = 256ULL << 20;
constexpr std::size_t kMaxFiles = 10000;
// Limit of the kernel for NAME=VALUE with its NUL (MAX_ARG_STRLEN, execve(2)).
constexpr std::size_t kMaxVariableBytes = 128U << 10;

Result<Dependency> read_dependency(RecordStore& store, const Job& job, Id id, std::size_t& record_bytes) {
  static constexpr std::array<std::string_view, 5> kFieldNames = {"name", "result", "result_json", "artifacts",
                                                                  "runner_id"};
  Dependency dependency;
  dependency.id = id;
  auto fields = store.load_fields(job.context_id, job_key(job.caller_id, id),
                                  std::span(kFieldNames).first(job.inputs.empty() ? 3 : 5));
  if (!fields && fields.error().code == Code::not_found)
    return dependency;  // the record was deleted after its retention
  if (!fields) return fail(std::move(fields).error(), "inputs");
  for (const auto& [name, value] : *fields) record_bytes += value.size();
  if (record_bytes > kMaxRecordBytes) {
    return fail(Code::invalid, "inputs: the results and artifacts of the jobs that it depends on take more than " +
                                   std::to_string(kMaxRecordBytes) + " bytes: add jobs in between that join them");
  }
  Job record = decode<Job>(*fields).record;  // unreadable fields are ignored, since they are not a fault of this job
  dependency.name = std::move(record.name);
  dependency.result = std::move(record.result);
  dependency.result_json = std::move(record.result_json);
  dependency.artifacts_json = std::move(record.artifacts);
  dependency.holder = record.runner_id;
  return dependency;
}

using InputsByName = std::map<std::string, Dependency*, std::less<>>;

// Returns each dependency once: by its name, if no other dependency has this name or id, and otherwise by its id.
InputsByName index_by_name(std::vector<Dependency>& dependencies) {
  std::map<std::string, std::size_t> counts;
  for (const Dependency& dependency : dependencies) {
    ++counts[std::to_string(dependency.id)];
    ++counts[dependency.name];
  }
  InputsByName inputs;
  for (Dependency& dependency : dependencies) {
    const bool is_unique = !dependency.name.empty() && counts[dependency.name] == 1;
    inputs[is_unique ? dependency.name : std::to_string(dependency.id)] = &dependency;
  }
  return inputs;
}

std::string describe_artifact(const StoredArtifact& artifact, const std::string& job) {
  return "the artifact " + excerpt(artifact.name) + " of job " + excerpt(job);
}

// Returns the size of a regular file, or no value if there is none.
std::optional<std::uint64_t> read_size(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

// Returns the name of the dependency's folder in /job/inputs. The name of a job need not be a valid file name.
std::string get_folder_name(const std::string& name, Id id) {
  const bool is_plain = is_artifact_name(name) && name.find('/') == std::string::npos;
  return is_plain ? name : std::to_string(id);
}

class FileSelector {
 public:
  FileSelector(const InputsByName& inputs, JobFacts& facts, Id context, const std::vector<std::string>& store_names)
      : inputs_(inputs), facts_(facts), context_(context), store_names_(store_names) {}

  // Adds the files that an entry of `inputs` selects: "build" selects all files of the dependency with this name or id,
  // "build/dist/app" selects one. A name of a dependency can contain slashes.
  Result<void> add(const std::string& selector) {
    if (!used_selectors_.insert(selector).second) return {};
    if (used_selectors_.size() > kMaxFiles)
      return fail(Code::invalid, "inputs: has more than " + std::to_string(kMaxFiles) + " entries: name fewer");
    if (const auto job = inputs_.find(selector); job != inputs_.end()) return add_files(*job->second, selector, "");
    for (std::size_t slash = selector.find('/'); slash != std::string::npos; slash = selector.find('/', slash + 1)) {
      const auto job = inputs_.find(std::string_view(selector).substr(0, slash));
      if (job != inputs_.end()) return add_files(*job->second, job->first, selector.substr(slash + 1));
    }
    return fail(Code::invalid, "inputs: " + excerpt(selector) + " names no job that this one depends on (dependends)");
  }

  // Returns the selected files that are not on this host and can be fetched.
  std::vector<MissingInput> consume_missing() { return std::move(missing_); }

 private:
  // Checks a selected file. A file that is not on this host is listed if another runner has it.
  Result<void> check_file(const Dependency& job, const std::string& job_name, const StoredArtifact& artifact) {
    const auto describe = [&] { return describe_artifact(artifact, job_name); };
    const bool can_fetch = !store_names_.empty() && (job.holder.is_known() || !artifact.object_store.empty());
    if (can_fetch) ArtifactCache::delete_if_damaged(artifact.path, artifact.bytes);
    // The size in the record is not trusted, since the whole file will be read.
    const std::optional<std::uint64_t> bytes = read_size(artifact.path);
    if (bytes && bytes != artifact.bytes) {
      return fail(Code::invalid, "inputs: " + describe() + " is damaged on this host: " + artifact.path +
                                     " does not have the content of its record: run the job again");
    }
    if (bytes) ArtifactCache::mark_used_if_cached(artifact.path);
    MJ_CHECK(check_limits());
    if (artifact.bytes > facts_.granted_policy.file_bytes) {
      return fail(Code::invalid, "inputs: " + describe() + " has " + std::to_string(artifact.bytes) +
                                     " bytes, more than a file of the job may have (" +
                                     std::to_string(facts_.granted_policy.file_bytes) + "): increase policy.file_size");
    }
    if (bytes) return {};
    if (!can_fetch) {
      return fail(Code::invalid,
                  "inputs: " + describe() +
                      " is not on this host, and its record names no runner that has it: run the job again");
    }
    missing_.push_back({{context_,
                         job.holder,
                         job.job_key,
                         {artifact.sha256, artifact.bytes},
                         describe(),
                         artifact.object_store,
                         store_names_},
                        store_names_.front()});
    return {};
  }
  Result<void> add_files(Dependency& job, const std::string& job_name, const std::string& file_name) {
    if (!job.artifacts) job.artifacts = read_artifacts(job.artifacts_json, job.candidate_folders);
    bool has_match = file_name.empty();
    for (const StoredArtifact& artifact : *job.artifacts) {
      if (!file_name.empty() && artifact.name != file_name) continue;
      has_match = true;
      std::string folder = get_folder_name(job_name, job.id);
      if (!selected_files_.emplace(folder, artifact.name).second) continue;  // selected by another entry already
      // Each addition is limited, so that the sum cannot overflow.
      bytes_ += std::min(artifact.bytes, kMaxFileBytes + 1);
      MJ_CHECK(check_file(job, job_name, artifact));
      facts_.files.emplace_back(std::move(folder), artifact);
    }
    if (has_match) return {};
    return fail(Code::invalid, "inputs: job " + excerpt(job_name) + " stored no artifact " + excerpt(file_name));
  }
  Result<void> check_limits() const {
    if (selected_files_.size() > kMaxFiles) {
      return fail(Code::invalid, "inputs: more than " + std::to_string(kMaxFiles) +
                                     " artifacts: pack them in the jobs that store them, or request fewer");
    }
    if (bytes_ > kMaxFileBytes) {
      return fail(Code::invalid, "inputs: artifacts of more than " + std::to_string(kMaxFileBytes) +
                                     " bytes together are handed to no job: name fewer");
    }
    if (bytes_ <= facts_.granted_policy.disk_bytes) return {};
    return fail(Code::invalid, "inputs: " + std::to_string(bytes_) +
                                   " bytes of artifacts are more than the job's disk of " +
                                   std::to_string(facts_.granted_policy.disk_bytes) + ": increase policy.disk");
  }

  const InputsByName& inputs_;
  JobFacts& facts_;
  std::set<std::string_view> used_selectors_;
  std::set<std::pair<std::string, std::string>> selected_files_;
  const Id context_;
  const std::vector<std::string>& store_names_;
  std::vector<MissingInput> missing_;
  std::uint64_t bytes_ = 0;
};

// Adds the results and files that were received with the message of the job. The files belong to the job itself, and
// the coordinator that received them sends them to other hosts.
Result<void> add_remote_inputs(const Job& job, std::vector<Dependency>& dependencies) {
  if (job.remote_inputs.empty()) return {};
  MJ_TRY(remote_inputs, parse_remote_inputs(job.remote_inputs));
  for (RemoteInput& input : remote_inputs) {
    dependencies.push_back({input.id, std::move(input.name), std::move(input.result), std::move(input.result_json),
                            std::move(input.artifacts)});
  }
  return {};
}

}  // namespace

Result<JobInputs> JobInputs::read(RecordStore& store, const std::string& state_dir, const Job& job) {
  std::vector<Dependency> dependencies;
  std::size_t record_bytes = 0;
  for (const Id id : std::set<Id>(job.dependends.begin(), job.dependends.end())) {
    MJ_TRY(dependency, read_dependency(store, job, id, record_bytes));
    dependencies.push_back(std::move(dependency));
  }
  const std::size_t stored_count = dependencies.size();
  MJ_CHECK(add_remote_inputs(job, dependencies));
  if (state_dir.empty() || job.inputs.empty()) return JobInputs(job.context_id, std::move(dependencies));
  MJ_TRY(store_names, artifact_store_names(store, job.context_id));
  for (std::size_t i = 0; i < dependencies.size(); ++i) {
    Dependency& dependency = dependencies[i];
    dependency.job_key = i < stored_count ? job_key(job.caller_id, dependency.id) : redis_key(job);
    if (!dependency.artifacts_json.empty() && !dependency.holder.is_known()) {
      MJ_TRY(holder, find_received_files_holder(store, job.context_id, dependency.job_key));
      dependency.holder = std::move(holder);
    }
    dependency.candidate_folders = all_artifact_folders(state_dir, job.context_id, dependency.job_key, store_names);
  }
  JobInputs inputs(job.context_id, std::move(dependencies));
  inputs.store_names_ = std::move(store_names);
  return inputs;
}

Result<void> JobInputs::expand_references(Job& job) const {
  const FlowData flow = parse_flow_data(job);
  if (!flow.has_references()) return {};
  const auto flow_inputs = flow.values->value("inputs", nlohmann::json::object());
  const auto lookup = [&](const ResultReference& reference) -> Result<std::string> {
    if (reference.node == "inputs" && flow_inputs.is_object() && flow_inputs.contains(reference.key))
      return to_variable_text(flow_inputs.at(reference.key));
    for (const Dependency& dependency : dependencies_) {
      if (dependency.name != reference.node) continue;
      const auto value = dependency.result.find(reference.key);
      if (value != dependency.result.end()) return value->second;
      return fail(Code::invalid,
                  "the result of " + excerpt(reference.node) + " has no value " + excerpt(reference.key));
    }
    return fail(Code::invalid, "there is no result of " + excerpt(reference.node));
  };
  MJ_CHECK(mycojobs::expand_references(job, flow, lookup));
  for (const std::string& name : flow.expanded_variables) {
    const auto variable = job.env_vars.find(name);
    if (variable == job.env_vars.end() || name.size() + variable->second.size() + 2 <= kMaxVariableBytes) continue;
    return fail(Code::invalid, "env_vars: " + excerpt(name) + " has " + std::to_string(variable->second.size()) +
                                   " bytes with the values of its references, more than a program can receive: read "
                                   "the result in the script");
  }
  if (const auto problems = validate_script(job); !problems.empty()) return fail(Code::invalid, join(problems));
  return {};
}

Result<void> JobInputs::resolve(JobFacts& facts) {
  InputsByName inputs = index_by_name(dependencies_);
  for (const auto& [name, dependency] : inputs)
    facts.inputs[name] = {dependency->id, dependency->result, dependency->result_json};
  for (Dependency& dependency : dependencies_) {
    inputs[std::to_string(dependency.id)] = &dependency;  // files can be selected by name or by id
    dependency.artifacts.reset();                         // a fetch has changed the paths of the files
  }
  facts.files.clear();
  missing_.clear();
  FileSelector files(inputs, facts, context_, store_names_);
  for (const std::string& selector : facts.job.inputs) MJ_CHECK(files.add(selector));
  missing_ = files.consume_missing();
  if (missing_.empty()) return {};
  return fail(Code::not_found, "inputs: " + missing_.front().artifact.label + " is not on this host");
}

}  // namespace mycojobs
