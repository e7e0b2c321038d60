#include "artifacts/local_artifact_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "artifacts/artifact_cleanup.h"
#include "artifacts/artifact_folder.h"
#include "artifacts/artifact_usage.h"
#include "artifacts/inbound_quota.h"
#include "artifacts/job_artifacts.h"
#include "artifacts/transfer/background_fetches.h"
#include "artifacts/transfer/holder_name.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "store/keys.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderLockTimeoutMs = 2000;
constexpr std::uint64_t kExpiryIntervalMs = 5000;
constexpr std::uint32_t kFetchWaitMs = 200;  // maximum wait for a file of another host in one call

// Makes an error from errno. Its code is unavailable, so that the sender tries again: the host may be able to write
// later.
tl::unexpected<Error> make_unavailable_error(const std::string& path) {
  return fail(Code::unavailable, path + ": " + errno_text(errno));
}

std::optional<std::uint64_t> read_file_size(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

std::optional<std::uint64_t> read_file_size(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

Result<void> write_all(int fd, std::string_view bytes, std::uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno != EINTR) return make_unavailable_error(path);
    if (written > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
  }
  return {};
}

Result<std::string> compute_hash(int fd, const std::string& path) {
  Sha256 hash;
  std::array<char, 65536> buffer{};
  for (std::uint64_t offset = 0;;) {
    const ssize_t size = ::pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return make_unavailable_error(path);
    if (size == 0) return hash.hex();
    hash.update({buffer.data(), static_cast<std::size_t>(size)});
    offset += static_cast<std::uint64_t>(size);
  }
}

// Keeps the folder locked. The destructor updates the modification times of the job folders: a process that deletes
// files waits for the lock and then notices that the folders have changed.
class RetainedFolders final : public ArtifactStore::RetainedFiles {
 public:
  RetainedFolders(Fd lock, std::string holder) : lock_(std::move(lock)), holder_(std::move(holder)) {}
  ~RetainedFolders() override {
    for (const std::string& folder : job_folders_) (void)update_modification_time(folder);
  }
  std::string holder() const override { return holder_; }
  Result<void> add(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return make_unavailable_error(path);
    MJ_CHECK(update_modification_time(path));
    job_folders_.push_back(path);
    return {};
  }

 private:
  static Result<void> update_modification_time(const std::string& path) {
    return ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0 ? Result<void>()
                                                                                  : make_unavailable_error(path);
  }
  Fd lock_;
  const std::string holder_;
  std::vector<std::string> job_folders_;
};

class LocalArtifactStore final : public ArtifactStore {
 public:
  LocalArtifactStore(std::string state_dir, const Clock& clock, std::uint64_t cleanup_interval_ms,
                     std::uint64_t max_incoming_bytes, std::optional<ArtifactCache::Limits> cache_limits,
                     std::shared_ptr<ArtifactFetcher> fetcher)
      : clock_(clock),
        state_dir_(std::move(state_dir)),
        cleanup_interval_ms_(cleanup_interval_ms),
        cache_limits_(cache_limits),
        quota_(state_dir_, max_incoming_bytes) {
    if (fetcher) fetches_ = std::make_unique<BackgroundFetches>(std::move(fetcher), clock_);
  }

  Result<std::string> read_file(RecordStore& store, Id context, const std::string& job_key, const FileContent& file,
                                std::uint64_t offset, std::size_t max_bytes) override {
    MJ_TRY(store_names, artifact_store_names(store, context));
    Fd fd = open_file(store_names, context, job_key, file);
    if (!fd) {
      MJ_TRY(problem, find_problem(store, context, store_names, job_key, file, kFetchWaitMs));
      fd = open_file(store_names, context, job_key, file);  // a small file arrives during the wait
      if (!fd) return tl::unexpected<Error>(problem);
    }
    const auto size = std::min<std::uint64_t>(max_bytes, file.bytes - std::min(file.bytes, offset));
    auto piece = read_file_piece(fd.get(), offset, static_cast<std::size_t>(size));
    if (!piece) return fail(Code::not_found, "an artifact of " + job_key + " cannot be read on this host");
    return piece;
  }

  Result<bool> has_files(RecordStore& store, Id context, const std::string& job_key,
                         const std::vector<FileContent>& files) override {
    MJ_TRY(store_names, artifact_store_names(store, context));
    bool can_read_all = true;
    for (const FileContent& file : files) {
      if (open_file(store_names, context, job_key, file)) continue;
      MJ_TRY(problem, find_problem(store, context, store_names, job_key, file, 0));
      can_read_all = can_read_all && problem.code == Code::io;
    }
    return can_read_all;
  }

  std::optional<std::uint64_t> received_bytes(Id context, const InboundBundleId& bundle,
                                              const FileContent& file) const override {
    if (read_file_size(file_path(context, bundle, file)) == file.bytes) return file.bytes;
    if (file.bytes == 0) return std::nullopt;  // reserve_files() has not completed: it also completes empty files.
    return read_file_size(part_path(context, bundle, file));
  }

  Result<void> reserve_files(RecordStore& store, Id context, const InboundBundleId& bundle,
                             const std::vector<FileContent>& files) override {
    MJ_TRY(store_name, artifact_store_name(store, context));
    if (auto create_result = ArtifactFolder(state_dir_, context).create(store_name); !create_result)
      return fail(Code::unavailable, create_result.error().message);
    std::vector<FileContent> new_files;
    for (const FileContent& file : files)
      if (!received_bytes(context, bundle, file)) new_files.push_back(file);
    const auto lock = quota_.reserve_space(context, bundle, new_files);
    if (!lock) return tl::unexpected<Error>(lock.error());
    for (const std::string& folder : {incoming_folder(context), bundle_folder(context, bundle)})
      if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return make_unavailable_error(folder);
    // The first file is created last. Callers check the first file first, so that after a crash in this loop they
    // reserve the space again.
    for (auto file = new_files.rbegin(); file != new_files.rend(); ++file) {
      const std::string path = part_path(context, bundle, *file);
      if (!Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)))
        return make_unavailable_error(path);
      if (file->bytes == 0) MJ_CHECK(add_piece(context, bundle, *file, 0, ""));
    }
    return {};
  }

  std::uint64_t sender_limit() const override { return quota_.sender_limit(); }

  Result<std::uint64_t> add_piece(Id context, const InboundBundleId& bundle, const FileContent& file,
                                  std::uint64_t offset, std::string_view piece) override {
    const std::string path = file_path(context, bundle, file), part_file_path = part_path(context, bundle, file);
    if (read_file_size(path) == file.bytes) return file.bytes;
    const Fd fd(::open(part_file_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return fail(Code::not_found, "no job waits for this file");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return fail(Code::unavailable, "the file is written just now");
    // The size is read by name as well, since the file may have been completed after it was opened.
    const auto current_size = read_file_size(part_file_path);
    if (!current_size || current_size != read_file_size(fd.get()))
      return fail(Code::unavailable, "the file was written just now");
    if (offset <= *current_size && offset + piece.size() > *current_size) {
      piece.remove_prefix(static_cast<std::size_t>(*current_size - offset));
      if (*current_size + piece.size() > file.bytes) return reject_file(fd.get(), "is longer than its recorded size");
      MJ_CHECK(write_all(fd.get(), piece, *current_size, part_file_path));
    }
    const std::uint64_t new_size = read_file_size(fd.get()).value_or(0);
    if (new_size > file.bytes) return reject_file(fd.get(), "is longer than its recorded size");
    if (new_size < file.bytes) return new_size;
    MJ_TRY(hash, compute_hash(fd.get(), part_file_path));
    if (hash != file.sha256) return reject_file(fd.get(), "does not have the hash of its record");
    if (::rename(part_file_path.c_str(), path.c_str()) != 0) return make_unavailable_error(path);
    return new_size;
  }

  Result<std::unique_ptr<RetainedFiles>> retain_files(RecordStore& store, Id context, const InboundBundleId& bundle,
                                                      const std::vector<JobFiles>& job_files) override {
    const ArtifactFolder folder(state_dir_, context);
    MJ_TRY(store_name, artifact_store_name(store, context));
    auto lock = folder.lock(false, kFolderLockTimeoutMs);
    if (!lock) return fail(Code::unavailable, folder.path() + "/lock is held by another process");
    MJ_TRY(holder, find_or_create_holder_name(folder));
    auto retained_folders = std::make_unique<RetainedFolders>(std::move(*lock), std::move(holder));
    for (const JobFiles& job : job_files) {
      if (job.files.empty()) continue;
      const std::string job_folder = folder.job_folder(store_name, job.job_key);
      // The files are checked before the folder is created: after an error the caller repeats the call with other
      // jobs, and no folders of the first jobs must remain.
      MJ_TRY(files, find_complete_files(context, bundle, job, job_folder));
      MJ_CHECK(retained_folders->add(job_folder));
      const ArtifactUsage usage(folder, store_name);
      if (auto link_result = link_files(files, folder, job_folder, usage, parse_job_caller(job.job_key)); !link_result)
        return fail(Code::unavailable, "an artifact for " + job.job_key + ": " + link_result.error().message);
    }
    return std::unique_ptr<RetainedFiles>(std::move(retained_folders));
  }

  void remove_bundle(Id context, const InboundBundleId& bundle) override {
    std::error_code ignored_error;
    fs::remove_all(bundle_folder(context, bundle), ignored_error);
  }

  Result<std::uint64_t> clean_up(RecordStore& store, Id context) override {
    delete_expired_bundles();
    const auto context_cleanup = find_context_cleanup(context);
    const std::lock_guard lock(context_cleanup->mutex);
    MJ_TRY(next_ms, context_cleanup->cleanup.run_step(store, context));
    return std::min(next_ms, kExpiryIntervalMs);
  }

 private:
  std::string incoming_folder(Id context) const { return ArtifactFolder(state_dir_, context).path() + "/incoming"; }
  std::string bundle_folder(Id context, const InboundBundleId& bundle) const {
    return incoming_folder(context) + '/' + InboundQuota::folder_name(bundle);
  }
  std::string file_path(Id context, const InboundBundleId& bundle, const FileContent& file) const {
    return bundle_folder(context, bundle) + '/' + InboundQuota::file_name(file);
  }
  std::string part_path(Id context, const InboundBundleId& bundle, const FileContent& file) const {
    return file_path(context, bundle, file) + ".part";
  }
  // Returns the files of a job that are to be linked into its folder, each content once. Error not_found: a file has
  // not been received completely.
  Result<std::vector<CompleteFile>> find_complete_files(Id context, const InboundBundleId& bundle, const JobFiles& job,
                                                        const std::string& job_folder) const {
    std::map<std::string_view, CompleteFile> files_by_hash;
    for (const FileContent& content : job.files) {
      CompleteFile file;
      file.path = file_path(context, bundle, content);
      file.sha256 = content.sha256;
      file.bytes = content.bytes;
      if (read_file_size(file.path) == content.bytes) {
        files_by_hash.emplace(content.sha256, std::move(file));
      } else if (read_file_size(job_folder + '/' + content.sha256) != content.bytes) {
        // A file that an earlier call has linked into the folder of the job is not needed here.
        return fail(Code::not_found,
                    "an artifact for " + job.job_key + " was not received completely: " + content.sha256);
      }
    }
    std::vector<CompleteFile> files;
    for (auto& [sha256, file] : files_by_hash) files.push_back(std::move(file));
    return files;
  }
  // Reserves space for the files and links them. The limit message.max_incoming_bytes has accepted the files before, so
  // no quota applies here. After an error the space of files without a link is released.
  static Result<void> link_files(const std::vector<CompleteFile>& files, const ArtifactFolder& folder,
                                 const std::string& job_folder, const ArtifactUsage& usage, Id caller) {
    std::vector<std::uint64_t> sizes;
    for (const CompleteFile& file : files) {
      if (!read_file_size(job_folder + '/' + file.sha256)) sizes.push_back(file.bytes);
    }
    MJ_CHECK(usage.reserve(caller, sizes, {}));
    for (const CompleteFile& file : files) {
      auto link_result =
          link_artifact(file, folder.objects_folder() + '/' + file.sha256, job_folder + '/' + file.sha256);
      if (link_result) continue;
      std::uint64_t unlinked_bytes = 0;
      for (const CompleteFile& other_file : files) {
        if (!read_file_size(job_folder + '/' + other_file.sha256))
          unlinked_bytes += accounted_artifact_bytes(other_file.bytes);
      }
      (void)usage.release_bytes(caller, unlinked_bytes);  // After an error, ArtifactCleanup corrects the count.
      return link_result;
    }
    return {};
  }
  // Returns an empty descriptor if the file does not exist.
  Fd open_file(const std::vector<std::string>& store_names, Id context, const std::string& job_key,
               const FileContent& file) const {
    for (const std::string& folder : all_artifact_folders(state_dir_, context, job_key, store_names)) {
      auto fd = open_job_file(folder, file);
      if (!fd || !*fd) continue;
      ArtifactCache::mark_used_if_cached(folder + '/' + file.sha256);
      return std::move(*fd);
    }
    return {};
  }
  // Starts to fetch a file, and waits at most wait_ms for its end. Returns why the file is not on this host: io (it is
  // being fetched, or was just received) or not_found. Errors: those of the store.
  Result<Error> find_problem(RecordStore& store, Id context, const std::vector<std::string>& store_names,
                             const std::string& job_key, const FileContent& file, std::uint32_t wait_ms) {
    const std::string subject = "an artifact of " + job_key;
    if (!fetches_) return Error{Code::not_found, subject + " is not on this host with the content of its record"};
    MJ_TRY(progress, fetches_->request(store, context, store_names, job_key, file, wait_ms));
    if (progress.is_lost) return Error{Code::not_found, subject + " is on no host: " + progress.reason};
    return Error{Code::io, subject + " is being fetched from the host of its runner" +
                               (progress.reason.empty() ? "" : ": " + progress.reason)};
  }
  // Returns the error invalid. The file is truncated and not deleted, so that its space stays reserved.
  static tl::unexpected<Error> reject_file(int fd, const std::string& reason) {
    (void)!::ftruncate(fd, 0);  // If truncation fails, the next piece is rejected, too.
    return fail(Code::invalid, "the file " + reason);
  }

  // Does nothing while another thread runs this function, so that a disk that hangs blocks only one thread.
  void delete_expired_bundles() {
    const std::unique_lock lock(expiry_mutex_, std::try_to_lock);
    const std::uint64_t now_ms = clock_.boot_ms();
    if (!lock || now_ms < next_expiry_ms_) return;
    next_expiry_ms_ = now_ms + kExpiryIntervalMs;
    quota_.delete_expired();
  }
  struct ContextCleanup {
    std::mutex mutex;
    ArtifactCleanup cleanup;
  };
  std::shared_ptr<ContextCleanup> find_context_cleanup(Id context) {
    const std::lock_guard lock(cleanups_mutex_);
    auto& context_cleanup = cleanups_[context];
    if (!context_cleanup)
      context_cleanup.reset(
          new ContextCleanup{{}, ArtifactCleanup(clock_, state_dir_, cleanup_interval_ms_, cache_limits_)});
    return context_cleanup;
  }

  const Clock& clock_;
  const std::string state_dir_;
  const std::uint64_t cleanup_interval_ms_;
  const std::optional<ArtifactCache::Limits> cache_limits_;
  const InboundQuota quota_;
  std::unique_ptr<BackgroundFetches> fetches_;  // null: files of other hosts are not fetched
  std::mutex expiry_mutex_;
  std::uint64_t next_expiry_ms_ = 0;  // Clock::boot_ms() of the next delete_expired(), for all contexts.
  std::mutex cleanups_mutex_;
  // Each context has its own mutex and rounds, so that a disk that hangs does not affect other contexts.
  std::map<Id, std::shared_ptr<ContextCleanup>> cleanups_;
};

}  // namespace

std::shared_ptr<ArtifactStore> make_artifact_store(const std::string& state_dir, const Clock& clock,
                                                   std::uint64_t cleanup_interval_ms, std::uint64_t max_incoming_bytes,
                                                   std::optional<ArtifactCache::Limits> cache_limits,
                                                   std::shared_ptr<ArtifactFetcher> fetcher) {
  if (state_dir.empty()) return nullptr;
  return std::make_shared<LocalArtifactStore>(state_dir, clock, cleanup_interval_ms, max_incoming_bytes, cache_limits,
                                              std::move(fetcher));
}

}  // namespace mycojobs
