#include "artifacts/transfer/artifact_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/errno_text.h"

namespace mycojobs {
namespace {

struct CachedFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t used_s = 0;
};

std::vector<CachedFile> list_cached_files(const std::string& folder) {
  std::vector<CachedFile> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat info {};
    std::string path = entry->path().string();
    if (::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode))
      files.push_back({std::move(path), static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec});
  }
  return files;
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

Result<void> ArtifactCache::store(const std::string& store_name, const std::string& job_key,
                                  const CompleteFile& file) const {
  const std::string folder = folder_.cache_folder(store_name, job_key);
  const std::string path = folder + '/' + file.sha256;
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return fail(Code::io, folder + ": " + errno_text(errno));
  if (::rename(file.path.c_str(), path.c_str()) != 0) {
    const Code code = errno == ENOENT ? Code::unavailable : Code::io;
    return fail(code, path + ": " + errno_text(errno));
  }
  mark_used_if_cached(path);
  evict();
  return {};
}

std::uint64_t ArtifactCache::evict() const {
  std::vector<CachedFile> files = list_cached_files(folder_.cache_folder());
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.used_s < b.used_s; });
  std::uint64_t total_bytes = 0;
  for (const CachedFile& file : files) total_bytes += file.bytes;
  const std::int64_t oldest_s = std::time(nullptr) - static_cast<std::int64_t>(limits_.max_age_ms / 1000);
  for (const CachedFile& file : files) {
    if (total_bytes <= limits_.max_bytes && file.used_s >= oldest_s) break;
    if (::unlink(file.path.c_str()) != 0) continue;
    total_bytes -= file.bytes;
    (void)::rmdir(std::filesystem::path(file.path).parent_path().c_str());  // fails unless the folder is empty
  }
  return total_bytes;
}

void ArtifactCache::mark_used_if_cached(const std::string& path) {
  // <state_dir>/contexts/<context>/cache/<store>/<caller>.<job>/<sha256>
  const auto cache_folder = std::filesystem::path(path).parent_path().parent_path().parent_path();
  if (cache_folder.filename() != "cache") return;
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

std::shared_ptr<FileTarget> ArtifactCache::make_target(const std::string& store_name,
                                                       const std::string& job_key) const {
  return std::make_shared<CacheTarget>(*this, folder_, store_name, job_key);
}

}  // namespace mycojobs
