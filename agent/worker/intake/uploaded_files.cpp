#include "worker/intake/uploaded_files.h"

#include <sys/stat.h>

#include <utility>

#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/uploads/upload_folder.h"
#include "model/codec.h"
#include "model/file_holder.h"
#include "model/submitted_files.h"
#include "model/upload_limits.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

bool has_size(const std::string& path, std::uint64_t bytes) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && static_cast<std::uint64_t>(info.st_size) == bytes;
}

Result<void> check_limits(const JobFacts& facts, const std::string& name, std::uint64_t bytes,
                          std::uint64_t total_bytes) {
  const Policy& policy = facts.granted_policy;
  if (bytes > policy.file_bytes) {
    return fail(Code::invalid, "files: " + excerpt(name) + " has " + std::to_string(bytes) +
                                   " bytes, more than a file of the job may have (" +
                                   std::to_string(policy.file_bytes) + "): increase policy.file_size");
  }
  if (total_bytes > policy.disk_bytes) {
    return fail(Code::invalid, "files: " + std::to_string(total_bytes) + " bytes are more than the job's disk of " +
                                   std::to_string(policy.disk_bytes) + ": increase policy.disk");
  }
  if (total_bytes <= kMaxUploadedBytes) return {};
  return fail(Code::invalid, "files: uploads and inputs of more than " + std::to_string(kMaxUploadedBytes) +
                                 " bytes together are handed to no job: name fewer");
}

}  // namespace

UploadedFiles::UploadedFiles(const std::string& state_dir, const Job& job)
    : context_(job.context_id), job_key_(redis_key(job)), folder_(state_dir, job.context_id) {}

Result<UploadedFiles> UploadedFiles::read(RecordStore& store, const std::string& state_dir, const Job& job,
                                          const Fields& stored) {
  UploadedFiles files(state_dir, job);
  for (const auto& [name, value] : stored) {
    if (!name.starts_with(kUploadFieldPrefix)) continue;
    if (auto upload = parse_stored_upload(value))
      files.uploads_.emplace(name.substr(kUploadFieldPrefix.size()), std::move(*upload));
  }
  if (files.uploads_.empty()) return files;
  if (state_dir.empty()) {
    return fail(Code::unsupported,
                "files: the job has an uploaded file, and this agent has no folder for it: set state_dir");
  }
  MJ_TRY(store_names, artifact_store_names(store, job.context_id));
  if (store_names.empty()) return fail(Code::unavailable, "files: the store has no name for its folders yet");
  files.store_names_ = std::move(store_names);
  return files;
}

std::string UploadedFiles::find_path(const StoredUpload& upload, const std::string& sha256) const {
  for (const std::string& store : store_names_) {
    for (const std::string& path : {upload_folder(folder_, store, upload.id) + '/' + sha256,
                                    folder_.cache_folder(store, job_key_) + '/' + sha256}) {
      ArtifactCache::delete_if_damaged(path, upload.bytes);
      if (!has_size(path, upload.bytes)) continue;
      ArtifactCache::mark_used_if_cached(path);
      return path;
    }
  }
  return {};
}

Result<void> UploadedFiles::resolve(JobFacts& facts) {
  facts.uploads.clear();
  missing_.clear();
  if (is_empty()) return {};
  std::uint64_t total_bytes = 0;
  for (const auto& [job, artifact] : facts.files) total_bytes += artifact.bytes;
  for (const auto& [name, reference] : facts.job.submitted_files->uploads) {
    const auto upload = uploads_.find(reference.sha256);
    if (upload == uploads_.end()) continue;  // restore_submitted_files() has checked that each file has its field
    total_bytes += reference.bytes;
    MJ_CHECK(check_limits(facts, name, reference.bytes, total_bytes));
    StoredArtifact file;
    file.name = name;
    file.bytes = reference.bytes;
    file.sha256 = reference.sha256;
    file.path = find_path(upload->second, reference.sha256);
    if (file.path.empty()) {
      missing_.push_back({{context_,
                           parse_file_holder(upload->second.holder),
                           job_key_,
                           {reference.sha256, reference.bytes},
                           "the uploaded file " + excerpt(name)},
                          store_names_.front()});
    }
    facts.uploads.push_back(std::move(file));
  }
  if (missing_.empty()) return {};
  return fail(Code::not_found, "files: " + missing_.front().artifact.label + " is not on this host");
}

}  // namespace mycojobs
