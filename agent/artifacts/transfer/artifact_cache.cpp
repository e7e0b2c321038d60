#include "artifacts/transfer/artifact_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"

namespace mycojobs {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

struct CachedFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_ns = 0;  // time of the last use
};

std::vector<CachedFile> list_cached_files(const std::string& folder) {
  std::vector<CachedFile> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat info {};
    std::string path = entry->path().string();
    if (::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      files.push_back({std::move(path), static_cast<std::uint64_t>(info.st_size),
                       info.st_mtim.tv_sec * kNsPerSecond + info.st_mtim.tv_nsec});
  }
  return files;
}

// Returns whether the path is <state_dir>/contexts/<context>/cache/<store>/<caller>.<job>/<sha256>.
bool is_in_cache(const std::string& path) {
  const auto cache_folder = std::filesystem::path(path).parent_path().parent_path().parent_path();
  return cache_folder.filename() == "cache";
}

Result<void> sync_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (fd && ::fdatasync(fd.get()) == 0) return {};
  return fail(errno == ENOENT ? Code::unavailable : Code::io, path + ": " + errno_text(errno));
}

// A cleanup can delete the empty folder before the rename, so the call is repeated once.
Result<void> move_to_folder(const std::string& path, const std::string& folder, const std::string& new_path) {
  for (int attempt = 0;; ++attempt) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail(Code::io, folder + ": " + errno_text(errno));
    if (::rename(path.c_str(), new_path.c_str()) == 0) return {};
    if (errno == ENOENT && attempt == 0) continue;
    return fail(errno == ENOENT ? Code::unavailable : Code::io, new_path + ": " + errno_text(errno));
  }
}

class CacheTarget final : public FileTarget {
 public:
  CacheTarget(ArtifactCache cache, ArtifactFolder folder, std::string store_name, std::string job_key)
      : cache_(std::move(cache)),
        folder_(std::move(folder)),
        store_name_(std::move(store_name)),
        job_key_(std::move(job_key)) {}

  Result<std::string> create_path() override {
    if (!spool_) {
      MJ_CHECK(folder_.create(store_name_));
      MJ_TRY(spool, Spool::make(folder_.spool_folder()));
      spool_.emplace(std::move(spool));
    }
    return spool_->path() + "/received";
  }
  Result<void> store(const CompleteFile& file) override { return cache_.store(store_name_, job_key_, file); }

 private:
  ArtifactCache cache_;
  ArtifactFolder folder_;
  std::string store_name_, job_key_;
  std::optional<Spool> spool_;
};

}  // namespace

// Size and number of the files in the cache: those that were found when the folder was last read, and those that this
// object and its copies have stored since. Files that other processes store or delete are counted when the folder is
// read again. Thread-safe.
class ArtifactCache::Totals {
 public:
  void set(std::uint64_t bytes, std::size_t files) {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
    files_ = files;
    is_known_ = true;
  }
  // Adds a file. Returns whether the folder must be read: it was never read, or a limit is exceeded.
  bool add(std::uint64_t bytes, const Limits& limits) {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
    ++files_;
    return !is_known_ || bytes_ > limits.max_bytes || files_ > limits.max_files;
  }

 private:
  std::mutex mutex_;
  bool is_known_ = false;
  std::uint64_t bytes_ = 0;
  std::size_t files_ = 0;
};

ArtifactCache::ArtifactCache(ArtifactFolder folder, Limits limits)
    : folder_(std::move(folder)), limits_(limits), totals_(std::make_shared<Totals>()) {}

Result<void> ArtifactCache::store(const std::string& store_name, const std::string& job_key,
                                  const CompleteFile& file) const {
  const std::string folder = folder_.cache_folder(store_name, job_key);
  const std::string path = folder + '/' + file.sha256;
  // After a loss of power a renamed file must not be short: the hash is verified only when the file is received.
  MJ_CHECK(sync_file(file.path));
  MJ_CHECK(move_to_folder(file.path, folder, path));
  if (totals_->add(file.bytes, limits_)) evict();
  return {};
}

std::uint64_t ArtifactCache::evict() const {
  std::vector<CachedFile> files = list_cached_files(folder_.cache_folder());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.used_ns < b.used_ns; });
  std::uint64_t total_bytes = 0;
  for (const CachedFile& file : files) total_bytes += file.bytes;
  std::size_t file_count = files.size();
  std::uint64_t max_bytes = limits_.max_bytes;
  std::size_t max_files = limits_.max_files;
  if (total_bytes > max_bytes || file_count > max_files) {
    max_bytes -= max_bytes / 10;
    max_files -= max_files / 10;
  }
  const std::int64_t oldest_s = std::time(nullptr) - static_cast<std::int64_t>(limits_.max_age_ms / 1000);
  for (const CachedFile& file : files) {
    if (total_bytes <= max_bytes && file_count <= max_files && file.used_ns / kNsPerSecond >= oldest_s) break;
    if (::unlink(file.path.c_str()) != 0) continue;
    total_bytes -= file.bytes;
    --file_count;
    (void)::rmdir(std::filesystem::path(file.path).parent_path().c_str());  // fails unless the folder is empty
  }
  totals_->set(total_bytes, file_count);
  return total_bytes;
}

void ArtifactCache::mark_used_if_cached(const std::string& path) {
  if (is_in_cache(path)) (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

void ArtifactCache::delete_if_damaged(const std::string& path, std::uint64_t bytes) {
  struct stat info {};
  if (!is_in_cache(path) || ::lstat(path.c_str(), &info) != 0) return;
  if (static_cast<std::uint64_t>(info.st_size) != bytes) (void)::unlink(path.c_str());
}

std::shared_ptr<FileTarget> ArtifactCache::make_target(const std::string& store_name,
                                                       const std::string& job_key) const {
  return std::make_shared<CacheTarget>(*this, folder_, store_name, job_key);
}

}  // namespace mycojobs
