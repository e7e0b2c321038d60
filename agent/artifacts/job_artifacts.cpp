#include "artifacts/job_artifacts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "artifacts/artifact_file.h"
#include "artifacts/artifact_folder.h"
#include "base/errno_text.h"
#include "base/parse.h"
#include "base/random.h"
#include "store/keys.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr int kLinkLockTimeoutMs = 2000;  // Processes that delete files hold the lock for some milliseconds.

bool is_store_name(std::string_view name) { return is_hex(name, 24); }

// Creates the object with the content of this file. An existing object is not replaced, since a concurrent run that
// links the existing object would then have a link to a file that is no longer in the folder of the objects.
Result<void> create_object(const CompleteFile& file, const std::string& object_path) {
  if (::link(file.path.c_str(), object_path.c_str()) == 0) return {};
  struct stat info {};
  if (errno != EEXIST) return fail(Code::io, errno_text(errno));
  if (::stat(object_path.c_str(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) == file.bytes) return {};
  // The object has another size, so a loss of power has damaged it. It is replaced atomically.
  if (::rename(file.path.c_str(), object_path.c_str()) == 0) return {};
  return fail(Code::io, errno_text(errno));
}

}  // namespace

Result<void> link_artifact(const CompleteFile& file, const std::string& object_path, const std::string& link_path) {
  MJ_CHECK(create_object(file, object_path));
  (void)::unlink(link_path.c_str());  // An earlier attempt may have left a link to an object that was deleted.
  if (::link(object_path.c_str(), link_path.c_str()) == 0) return {};
  // If the object has the maximum number of links, this file replaces the object.
  if (errno != EMLINK || ::rename(file.path.c_str(), object_path.c_str()) != 0 ||
      ::link(object_path.c_str(), link_path.c_str()) != 0)
    return fail(Code::io, errno_text(errno));
  return {};
}

namespace {

class RunArtifactsImpl final : public RunArtifacts {
 public:
  RunArtifactsImpl(const std::string& state_dir, Id context, std::string store_name, std::string job_key,
                   std::uint64_t max_bytes, ArtifactQuota quota)
      : folder_(state_dir, context),
        store_name_(std::move(store_name)),
        job_key_(std::move(job_key)),
        max_bytes_(max_bytes),
        remaining_bytes_(max_bytes),
        quota_(quota) {}

  void set_redactor(std::shared_ptr<const Redactor> redactor) override { redactor_ = std::move(redactor); }
  void set_reserved_name(const std::string& name) override { reserved_name_ = name; }
  void release_reserved_name() override {
    if (reserved_name_.empty()) return;
    if (file_) drop_incomplete();
    reserved_name_.clear();
    remaining_bytes_ = max_bytes_;
  }
  bool open(const std::string& received_name, bool is_executable) override;
  void write(std::string_view bytes) override;
  void close() override;
  std::vector<std::string> consume_notes() override { return std::exchange(notes_, {}); }
  std::string finish() override;
  void report_dropped(const DroppedArtifact&) override;
  std::vector<DroppedArtifact> dropped() const override { return dropped_list_.all(); }

 private:
  // These functions drop the current artifact. They return false, so that open() can return the result.
  bool drop_file(DropReason, const std::string& explanation, std::uint64_t limit = 0);
  bool drop_for_disk_error(const std::string& verb, const Error& error) {
    return drop_file(DropReason::disk, "this host cannot " + verb + " it: " + error.message);
  }
  bool drop_over_limit() {
    return drop_file(DropReason::bytes,
                     "all artifacts of a job together may have " + std::to_string(max_bytes_) +
                         " bytes: store less, or ask the operator to raise job.max_artifact_bytes",
                     max_bytes_);
  }
  bool drop_incomplete() { return drop_file(DropReason::incomplete, "it ended in the middle"); }
  std::string find_name_problem(const std::string& name) const;
  bool drop_over_quota(ArtifactUsage::QuotaResult quota_result) {
    const bool is_caller = quota_result == ArtifactUsage::QuotaResult::caller_full;
    const std::uint64_t limit = is_caller ? quota_.caller_bytes : quota_.context_bytes;
    return drop_file(is_caller ? DropReason::caller_quota : DropReason::context_quota,
                     std::string(is_caller ? "its caller" : "its context") + " may have artifacts of " +
                         std::to_string(limit) +
                         " bytes on this host: delete jobs that have some, or let the operator " + "raise quota." +
                         (is_caller ? "caller" : "context") + "_artifact_bytes",
                     limit);
  }
  Result<void> create_file();
  Result<void> reserve_quota(const ArtifactUsage&, const std::string& job_folder);
  void release_unlinked(const ArtifactUsage&, const std::string& job_folder) const;

  ArtifactFolder folder_;
  std::string store_name_, job_key_;
  std::uint64_t max_bytes_, remaining_bytes_;
  ArtifactQuota quota_;
  std::shared_ptr<const Redactor> redactor_;
  std::optional<Spool> spool_;
  std::string name_;           // Name of the current artifact.
  std::string reserved_name_;  // Name that the job cannot use.
  bool is_executable_ = false;
  std::optional<ArtifactFile> file_;
  std::map<std::string, CompleteFile> complete_files_;
  std::set<std::string, std::less<>> folder_names_;  // All folders in the names of complete_files_.
  std::size_t opened_count_ = 0, dropped_count_ = 0;
  std::vector<std::string> notes_;
  DroppedArtifacts dropped_list_;
};

bool RunArtifactsImpl::drop_file(DropReason reason, const std::string& explanation, std::uint64_t limit) {
  constexpr std::size_t kMaxNotes = 20;
  file_.reset();
  dropped_list_.add({name_, reason, limit});
  if (++dropped_count_ <= kMaxNotes) notes_.push_back("artifact " + excerpt(name_, 200) + ": not kept: " + explanation);
  if (dropped_count_ == kMaxNotes + 1)
    notes_.emplace_back("further artifacts were not stored; their reasons are omitted");
  return false;
}

std::string RunArtifactsImpl::find_name_problem(const std::string& name) const {
  if (const std::string problem = find_artifact_name_problem(name); !problem.empty()) return problem;
  if (!reserved_name_.empty() && (name + '/').starts_with(reserved_name_ + '/'))
    return "this name is that of the log of the job";
  if (complete_files_.contains(name)) return "another one has its name";
  if (folder_names_.contains(name)) return "its name is the name of a folder with other artifacts";
  for (std::size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    if (complete_files_.contains(name.substr(0, slash))) return "the name of its folder is that of a file";
  }
  return {};
}

Result<void> RunArtifactsImpl::create_file() {
  if (store_name_.empty())
    return fail(Code::io, "the name of the store is unknown; the log of the agent has the reason");
  if (!spool_) {
    MJ_CHECK(folder_.create(store_name_));
    MJ_TRY(spool, Spool::make(folder_.spool_folder()));
    spool_.emplace(std::move(spool));
  }
  MJ_TRY(file, ArtifactFile::create(spool_->path() + '/' + std::to_string(opened_count_), redactor_.get()));
  file_.emplace(std::move(file));
  return {};
}

// The name is redacted, since it can contain a secret too.
bool RunArtifactsImpl::open(const std::string& received_name, bool is_executable) {
  if (file_) drop_incomplete();
  name_ = redactor_ ? redactor_->redact(received_name) : received_name;
  if (const std::string problem = find_name_problem(name_); !problem.empty())
    return drop_file(DropReason::name, problem);
  const std::size_t max_artifacts = kMaxArtifacts - (reserved_name_.empty() ? 0 : 1);
  if (opened_count_ >= max_artifacts) {
    return drop_file(DropReason::files, "a job may leave " + std::to_string(max_artifacts) + " files: pack them",
                     max_artifacts);
  }
  ++opened_count_;
  is_executable_ = is_executable;
  if (auto create_result = create_file(); !create_result) return drop_for_disk_error("write", create_result.error());
  return true;
}

void RunArtifactsImpl::report_dropped(const DroppedArtifact& received) {
  DroppedArtifact dropped = received;
  if (redactor_) dropped.name = redactor_->redact(dropped.name);
  dropped_list_.add(std::move(dropped));
}

void RunArtifactsImpl::write(std::string_view bytes) {
  if (!file_) return;
  if (bytes.size() > remaining_bytes_) {
    drop_over_limit();
    return;
  }
  remaining_bytes_ -= bytes.size();  // Bytes of dropped artifacts count as well, since they were written too.
  if (auto write_result = file_->write(bytes); !write_result) {
    drop_for_disk_error("write", write_result.error());
  } else if (file_->redaction_growth() > remaining_bytes_) {
    drop_over_limit();  // A redaction mark can be longer than the secret, so the text can exceed the limit.
  }
}

void RunArtifactsImpl::close() {
  if (!file_) return;
  remaining_bytes_ -= std::min(remaining_bytes_, file_->redaction_growth());
  auto complete_file = file_->finish();
  if (!complete_file) {
    drop_for_disk_error("write", complete_file.error());
    return;
  }
  file_.reset();
  for (std::size_t slash = name_.find('/'); slash != std::string::npos; slash = name_.find('/', slash + 1))
    folder_names_.insert(name_.substr(0, slash));
  complete_file->is_executable = is_executable_;
  complete_files_.emplace(name_, std::move(*complete_file));
}

// Reserves quota for the new files, and drops files that exceed the quota. Content that is already in the folder of the
// job, from an earlier attempt or under another name, needs no quota.
Result<void> RunArtifactsImpl::reserve_quota(const ArtifactUsage& usage, const std::string& job_folder) {
  std::vector<std::string> hashes;
  std::vector<std::uint64_t> sizes;
  for (const auto& [name, file] : complete_files_) {
    const bool is_new = ::access((job_folder + '/' + file.sha256).c_str(), F_OK) != 0;
    if (!is_new || std::find(hashes.begin(), hashes.end(), file.sha256) != hashes.end()) continue;
    hashes.push_back(file.sha256);
    sizes.push_back(file.bytes);
  }
  if (sizes.empty()) return {};
  MJ_TRY(results, usage.reserve(parse_job_caller(job_key_), sizes, quota_));
  std::map<std::string, ArtifactUsage::QuotaResult, std::less<>> rejected_hashes;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] != ArtifactUsage::QuotaResult::accepted) rejected_hashes[hashes[i]] = results[i];
  }
  for (auto file = complete_files_.begin(); file != complete_files_.end();) {
    const auto position = rejected_hashes.find(file->second.sha256);
    if (position == rejected_hashes.end()) {
      ++file;
      continue;
    }
    name_ = file->first;
    drop_over_quota(position->second);
    file = complete_files_.erase(file);
  }
  return {};
}

// Releases the quota of files that were not linked. Files with the same hash share one reservation.
void RunArtifactsImpl::release_unlinked(const ArtifactUsage& usage, const std::string& job_folder) const {
  std::map<std::string_view, std::uint64_t> unlinked_bytes;
  for (const auto& [name, file] : complete_files_) {
    if (::access((job_folder + '/' + file.sha256).c_str(), F_OK) != 0)
      unlinked_bytes[file.sha256] = accounted_artifact_bytes(file.bytes);
  }
  std::uint64_t total_bytes = 0;
  for (const auto& [sha256, bytes] : unlinked_bytes) total_bytes += bytes;
  // After an error ArtifactCleanup corrects the count.
  (void)usage.release_bytes(parse_job_caller(job_key_), total_bytes);
}

std::string RunArtifactsImpl::finish() {
  if (file_) drop_incomplete();
  if (complete_files_.empty()) {
    spool_.reset();
    return {};
  }
  const std::string job_folder = folder_.job_folder(store_name_, job_key_);
  const auto lock = folder_.lock(false, kLinkLockTimeoutMs);
  std::string problem;
  if (!lock) problem = "the folder is locked by another agent: " + folder_.path() + "/lock";
  if (lock && ::mkdir(job_folder.c_str(), 0700) != 0 && errno != EEXIST)
    problem = job_folder + ": " + errno_text(errno);
  // Updates the modification time of the folder, so that a process that is about to delete the folder notices the
  // change.
  if (problem.empty() && ::utimensat(AT_FDCWD, job_folder.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0)
    problem = job_folder + ": " + errno_text(errno);
  const ArtifactUsage usage(folder_, store_name_);
  if (problem.empty()) {
    if (auto reserve_result = reserve_quota(usage, job_folder); !reserve_result)
      problem = reserve_result.error().message;
  }
  std::map<std::string_view, Result<void>> link_results;  // By hash, since files with the same content share one link.
  nlohmann::json artifacts_json = nlohmann::json::object();
  for (const auto& [name, file] : complete_files_) {
    name_ = name;
    if (!problem.empty()) {
      drop_file(DropReason::disk, problem);
      continue;
    }
    const auto [result, is_new] = link_results.try_emplace(file.sha256);
    if (is_new)
      result->second =
          link_artifact(file, folder_.objects_folder() + '/' + file.sha256, job_folder + '/' + file.sha256);
    if (!result->second) {
      drop_for_disk_error("keep", result->second.error());
      continue;
    }
    artifacts_json[name] = {{"sha256", file.sha256}, {"bytes", file.bytes}, {"text", file.is_text}};
    if (file.is_executable) artifacts_json[name]["executable"] = true;
  }
  if (problem.empty()) release_unlinked(usage, job_folder);
  complete_files_.clear();
  spool_.reset();
  return artifacts_json.empty() ? std::string() : dump_json(artifacts_json);
}

}  // namespace

std::string object_path(const std::string& state_dir, Id context, const std::string& sha256) {
  return ArtifactFolder(state_dir, context).objects_folder() + '/' + sha256;
}

std::vector<std::string> artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                          const std::vector<std::string>& store_names) {
  std::vector<std::string> folders;
  for (const std::string& name : store_names)
    folders.push_back(ArtifactFolder(state_dir, context).job_folder(name, job_key));
  return folders;
}

std::vector<std::string> all_artifact_folders(const std::string& state_dir, Id context, const std::string& job_key,
                                              const std::vector<std::string>& store_names) {
  std::vector<std::string> folders = artifact_folders(state_dir, context, job_key, store_names);
  for (const std::string& name : store_names)
    folders.push_back(ArtifactFolder(state_dir, context).cache_folder(name, job_key));
  return folders;
}

Result<Fd> open_job_file(const std::string& folder, const FileContent& file) {
  const std::string path = folder + '/' + file.sha256;
  Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP)) return Fd();
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  if (!S_ISREG(info.st_mode) || static_cast<std::uint64_t>(info.st_size) != file.bytes) return Fd();
  return fd;
}

Result<std::string> read_file_piece(int fd, std::uint64_t offset, std::size_t bytes) {
  std::string piece(bytes, '\0');
  for (std::size_t position = 0; position < piece.size();) {
    const ssize_t count =
        ::pread(fd, piece.data() + position, piece.size() - position, static_cast<off_t>(offset + position));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(Code::io, count < 0 ? errno_text(errno) : "is too short");
    position += static_cast<std::size_t>(count);
  }
  return piece;
}

std::vector<StoredArtifact> read_artifacts(const std::string& json, const std::vector<std::string>& folders) {
  const auto is_regular_file = [](const std::string& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  std::vector<StoredArtifact> artifacts;
  for (ListedArtifact& artifact : read_artifact_list(json)) {
    std::string path;
    for (const std::string& folder : folders) {
      if (path.empty() || !is_regular_file(path)) path = folder + '/' + artifact.sha256;
    }
    artifacts.push_back({std::move(artifact.name), std::move(artifact.sha256), artifact.bytes, std::move(path),
                         artifact.executable, std::move(artifact.object_store)});
  }
  return artifacts;
}

Result<std::vector<std::string>> artifact_store_names(RecordStore& store, Id context) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto fields = store.load(context, kArtifactsKey);
    if (!fields && fields.error().code != Code::not_found) return tl::unexpected<Error>(std::move(fields).error());
    std::vector<std::string> store_names;
    if (fields) {
      for (const auto& [name, value] : *fields) {
        if (is_store_name(name)) store_names.push_back(name);
      }
    }
    std::sort(store_names.begin(), store_names.end());
    if (!store_names.empty()) return store_names;
    MJ_CHECK(store.save(context, kArtifactsKey, {{random_hex(12), "1"}}));
  }
  return fail(Code::internal, std::string(kArtifactsKey) + ": files written there are lost immediately");
}

Result<std::string> artifact_store_name(RecordStore& store, Id context) {
  MJ_TRY(store_names, artifact_store_names(store, context));
  return store_names.front();
}

std::unique_ptr<RunArtifacts> make_run_artifacts(const std::string& state_dir, Id context,
                                                 const std::string& store_name, const std::string& job_key,
                                                 std::uint64_t max_bytes, ArtifactQuota quota) {
  if (state_dir.empty()) return nullptr;
  return std::make_unique<RunArtifactsImpl>(state_dir, context, store_name, job_key, max_bytes, quota);
}

}  // namespace mycojobs
