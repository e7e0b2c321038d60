#include "artifacts/artifact_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/errno_text.h"
#include "base/parse.h"
#include "base/random.h"

namespace mycojobs {
namespace {

constexpr std::string_view kLockSuffix = ".lock";

Result<void> create_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return fail(Code::io, path + ": " + errno_text(errno));
}

// Returns whether the file still has a name. The lock of a deleted file has no effect: a process that deletes a spool
// deletes the name first.
bool has_name(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

void remove_spool(const std::string& path) {
  std::error_code ignored_error;  // After an error, the next cleanup deletes the remaining files.
  std::filesystem::remove_all(path, ignored_error);
  (void)::unlink((path + std::string(kLockSuffix)).c_str());
}

}  // namespace

std::string ArtifactFolder::job_folder(const std::string& store, const std::string& job_key) const {
  return store_folder(store) + '/' + job_folder_name(job_key);
}

std::string ArtifactFolder::log_folder(const std::string& store, const std::string& job_key) const {
  return log_folder(store) + '/' + job_folder_name(job_key);
}

std::string ArtifactFolder::cache_folder(const std::string& store, const std::string& job_key) const {
  return cache_folder(store) + '/' + job_folder_name(job_key);
}

Result<void> ArtifactFolder::create(const std::string& store) const {
  std::error_code error;
  std::filesystem::create_directories(state_dir_, error);
  if (error) return fail(Code::io, state_dir_ + ": " + errno_text(error.value()));
  for (const auto& folder :
       {state_dir_ + "/contexts", path_, objects_folder(), spool_folder(), path_ + "/jobs", store_folder(store),
        cache_folder(), cache_folder(store), path_ + "/logs", log_folder(store)})
    MJ_CHECK(create_folder(folder));
  return {};
}

std::optional<Fd> ArtifactFolder::lock(bool is_exclusive, int timeout_ms) const {
  return lock_file(path_ + "/lock", is_exclusive, timeout_ms);
}

std::optional<Fd> lock_file(const std::string& path, bool is_exclusive, int timeout_ms) {
  constexpr int kPollIntervalMs = 5;
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return std::nullopt;
  for (int waited_ms = 0;; waited_ms += kPollIntervalMs) {
    if (::flock(fd.get(), (is_exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK && errno != EINTR) return std::nullopt;
    if (waited_ms >= timeout_ms) return std::nullopt;
    ::poll(nullptr, 0, kPollIntervalMs);
  }
}

std::string job_folder_name(const std::string& job_key) {
  constexpr std::string_view kKeyPrefix = "job:";
  std::string name = job_key.substr(std::min(kKeyPrefix.size(), job_key.size()));
  std::replace(name.begin(), name.end(), ':', '.');
  return name;
}

std::string parse_job_folder_name(const std::string& name) {
  const std::size_t dot = name.find('.');
  std::uint64_t caller = 0;
  std::uint64_t id = 0;
  if (dot == std::string::npos || !parse_u64(std::string_view(name).substr(0, dot), caller) ||
      !parse_u64(std::string_view(name).substr(dot + 1), id) || caller > UINT32_MAX || id > UINT32_MAX)
    return {};
  return job_key(static_cast<Id>(caller), static_cast<Id>(id));
}

Result<Spool> Spool::make(const std::string& folder) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::string path = folder + '/' + random_hex(12);
    const std::string lock_path = path + std::string(kLockSuffix);
    Fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) return fail(Code::io, lock_path + ": " + errno_text(errno));
    // Between the two calls another agent can delete the lock file, since no process holds the lock.
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || !has_name(lock.get())) continue;
    Spool spool(path, std::move(lock));
    MJ_CHECK(create_folder(path));
    return spool;
  }
  return fail(Code::io, folder + ": other users can delete files there");
}

Spool::~Spool() {
  if (!path_.empty()) remove_spool(path_);
}

void remove_orphaned_spools(const std::string& folder) {
  std::vector<std::string> lock_paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::string path = entry->path().string();
    if (path.ends_with(kLockSuffix)) lock_paths.push_back(std::move(path));
  }
  for (std::string& path : lock_paths) {
    const Fd lock(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || !has_name(lock.get())) continue;
    path.resize(path.size() - kLockSuffix.size());
    remove_spool(path);
  }
}

}  // namespace mycojobs
