#include "worker/job_inputs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/utf8.h"
#include "worker/artifacts.h"

namespace mycojobs {
namespace {

struct Dependency {
  Id id = 0;
  std::string name;
  TextMap result;
  std::vector<StoredArtifact> artifacts;
};

Result<Dependency> read_dependency(Store& store, const std::string& state_dir, const Job& job, Id id) {
  static constexpr std::array<std::string_view, 3> kWanted = {"name", "result", "artifacts"};
  Dependency out;
  out.id = id;
  auto fields = store.load_fields(job.context_id, job_key(job.caller_id, id), kWanted);
  if (!fields && fields.error().code == Code::not_found) return out;  // past its retention
  if (!fields) return fail(std::move(fields).error(), "inputs");
  Job record = decode<Job>(*fields).record;  // what is unreadable in it is left out: it is not this job's fault
  out.name = std::move(record.name);
  out.result = std::move(record.result);
  out.artifacts = read_artifacts(record.artifacts, job.context_id, state_dir);
  return out;
}

bool is_unique(const std::vector<Dependency>& all, const std::string& name) {
  return !name.empty() &&
         std::count_if(all.begin(), all.end(), [&](const Dependency& each) { return each.name == name; }) == 1;
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

// Once, however often it was asked for.
void add_file(std::string folder, const StoredArtifact& artifact, JobFacts& facts) {
  const bool there = std::any_of(facts.files.begin(), facts.files.end(), [&](const auto& file) {
    return file.first == folder && file.second.name == artifact.name;
  });
  if (!there) facts.files.emplace_back(std::move(folder), artifact);
}

// "build" or "build/dist/app": of the dependency `build`, by name or id.
Result<void> add_files(const std::vector<Dependency>& all, const std::string& wanted, JobFacts& facts) {
  for (const Dependency& each : all) {
    for (const std::string& called : {is_unique(all, each.name) ? each.name : std::string(), std::to_string(each.id)}) {
      if (called.empty() || (wanted != called && !wanted.starts_with(called + '/'))) continue;
      const std::string name = wanted.size() > called.size() ? wanted.substr(called.size() + 1) : "";
      bool any = name.empty();
      for (const StoredArtifact& artifact : each.artifacts) {
        if (!name.empty() && artifact.name != name) continue;
        MJ_CHECK(check_file(artifact, called));
        add_file(folder_of(called, each.id), artifact, facts);
        any = true;
      }
      if (any) return {};
      return fail(Code::invalid, "inputs: job " + shown(called) + " left no artifact " + shown(name));
    }
  }
  return fail(Code::invalid, "inputs: " + shown(wanted) + " names no job that this one depends on (dependends)");
}

}  // namespace

std::vector<StoredArtifact> read_artifacts(const std::string& json, Id context, const std::string& state_dir) {
  std::vector<StoredArtifact> out;
  const auto values = parse_json(json.empty() ? "{}" : json);
  if (!values || !values->is_object()) return out;
  for (const auto& [name, about] : values->items()) {
    const bool known = about.is_object() && about.contains("sha256") && about["sha256"].is_string() &&
                       about.contains("bytes") && about["bytes"].is_number_unsigned();
    if (!known) continue;
    const auto sha256 = about["sha256"].get<std::string>();
    const bool is_hash = sha256.size() == 64 && sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (is_hash && is_artifact_name(name))
      out.push_back({name, sha256, about["bytes"].get<std::uint64_t>(), object_path(state_dir, context, sha256)});
  }
  return out;
}

Result<void> gather_inputs(Store& store, const std::string& state_dir, JobFacts& facts) {
  const Job& job = facts.job;
  if (job.dependends.empty() && job.inputs.empty()) return {};
  std::vector<Dependency> all;
  for (const Id id : job.dependends) {
    MJ_TRY(dependency, read_dependency(store, state_dir, job, id));
    all.push_back(std::move(dependency));
  }
  for (const Dependency& each : all) {
    facts.inputs[std::to_string(each.id)] = each.result;
    if (is_unique(all, each.name)) facts.inputs[each.name] = each.result;
  }
  std::uint64_t bytes = 0;  // of files on this host: no sum of them is too large for it
  for (const std::string& wanted : job.inputs) MJ_CHECK(add_files(all, wanted, facts));
  for (const auto& [from, artifact] : facts.files) bytes += artifact.bytes;
  if (bytes > facts.granted.disk_bytes) {
    return fail(Code::invalid, "inputs: " + std::to_string(bytes) +
                                   " bytes of artifacts are more than the job's disk of " +
                                   std::to_string(facts.granted.disk_bytes) + ": ask for more, policy.disk");
  }
  return {};
}

}  // namespace mycojobs
