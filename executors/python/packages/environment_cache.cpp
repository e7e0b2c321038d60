#include "executors/python/packages/environment_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/errno_text.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "executors/python/packages/lock_file.h"

namespace mycojobs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNewPrefix = ".new-", kOldPrefix = ".old-";
constexpr const char* kLocksFolder = "/.locks/";
constexpr const char* kFailuresFolder = "/.failures/";
constexpr std::uint64_t kBlockBytes = 4096;  // accounted size of a file is a multiple of it

std::string make_environment_key(const std::string& lock, const std::string& abi) {
  return sha256_hex(std::to_string(abi.size()) + ':' + abi + lock).substr(0, 40);
}

// Returns null if another process holds a conflicting lock, or the folder has been deleted.
std::shared_ptr<const Fd> lock_folder(const std::string& path, int operation) {
  auto folder = std::make_shared<Fd>(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!*folder || ::flock(folder->get(), operation | LOCK_NB) != 0) return nullptr;
  struct stat locked {
  }, named{};
  const bool is_same = ::fstat(folder->get(), &locked) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                       locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
  return is_same ? folder : nullptr;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool write_file(const std::string& path, const std::string& text) {
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const std::string temporary = path + '.' + random_hex(4);
  const bool is_written = static_cast<bool>((std::ofstream(temporary, std::ios::binary) << text).flush());
  if (is_written && ::rename(temporary.c_str(), path.c_str()) == 0) return true;
  ::unlink(temporary.c_str());
  return false;
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log(LogLevel::warn, "packages", "{}: cannot be deleted: {}", path, error.message());
}

// Gives one file of an installation to the agent's user, so that no later job owns it. Only root can change owners;
// another agent has the user of its jobs.
Result<std::uint64_t> seal_entry(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))
    return fail(Code::invalid, path + ": packages may contain only files and folders");
  const mode_t readable = S_ISDIR(info.st_mode) ? 0755 : 0644 | (info.st_mode & 0111);
  if (info.st_uid != ::geteuid() && ::lchown(path.c_str(), ::geteuid(), ::getegid()) != 0 && ::geteuid() == 0 &&
      errno != EPERM)
    return fail(Code::io, path + ": " + errno_text(errno));
  if ((info.st_mode & 07777) != readable && ::chmod(path.c_str(), readable) != 0 && errno != EPERM)
    return fail(Code::io, path + ": " + errno_text(errno));
  const std::uint64_t bytes = S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : kBlockBytes;
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// Returns the size of the folder.
Result<std::uint64_t> seal_tree(const std::string& folder) {
  MJ_TRY(total, seal_entry(folder));
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    MJ_TRY(bytes, seal_entry(entry->path().string()));
    total += bytes;
  }
  if (error) return fail(Code::io, folder + ": " + error.message());
  return total;
}

std::uint64_t read_size(const std::string& environment) {
  std::uint64_t bytes = 0;
  const std::string text = read_file(environment + "/size");
  return parse_u64(text, bytes) ? bytes : 0;
}

std::time_t read_last_use(const std::string& environment) {
  struct stat info {};
  return ::stat(environment.c_str(), &info) == 0 ? info.st_mtim.tv_sec : 0;
}

bool remove_unused(const std::string& path) {
  const auto lock = lock_folder(path, LOCK_EX);
  if (!lock) return false;
  const std::size_t slash = path.rfind('/');
  const std::string old = path.substr(0, slash + 1) + std::string(kOldPrefix) + random_hex(8);
  if (::rename(path.c_str(), old.c_str()) != 0) return false;
  remove_folder(old);
  return true;
}

std::string resolve_state_dir(const std::string& state_dir) {
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(state_dir, error);
  return error ? state_dir : resolved.string();
}

std::vector<std::string> list_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string find_pip_error(const std::string& output) {
  // pip reports that it has found no version if it could not reach the index.
  constexpr std::string_view kBroken = "connection broken by '", kError = "ERROR: ";
  if (const std::size_t broken = output.find(kBroken); broken != std::string::npos) {
    const std::size_t first = broken + kBroken.size();
    const std::size_t line_end = output.find('\n', first);
    return "the package index cannot be reached: " +
           output.substr(first, std::min(output.find("': /", first), line_end) - first);
  }
  const std::size_t start = output.find(kError);
  const std::size_t first = start == std::string::npos ? 0 : start + kError.size();
  return output.substr(first, output.find('\n', first) - first);
}

EnvironmentCache::EnvironmentCache(const std::string& state_dir, Id context)
    : folder_(resolve_state_dir(state_dir) + "/contexts/" + std::to_string(context) + "/packages") {}

std::optional<EnvironmentFolder> EnvironmentCache::find(const std::string& lock, const std::string& abi) const {
  const std::string prefix = make_environment_key(lock, abi) + '-';
  for (const std::string& name : list_names(folder_)) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = folder_ + '/' + name;
    auto folder_lock = lock_folder(path, LOCK_SH);
    if (!folder_lock) continue;
    ::futimens(folder_lock->get(), nullptr);  // the time of the last use
    return EnvironmentFolder{path, std::move(folder_lock)};
  }
  return std::nullopt;
}

Result<EnvironmentFolder> EnvironmentCache::begin_installation() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return fail(Code::io, folder_ + ": " + error.message());
  // Other users of the host must not reach the folder that all users may write to.
  if (::chmod(folder_.c_str(), 0700) != 0) return fail(Code::io, folder_ + ": " + errno_text(errno));
  const std::string path = folder_ + '/' + std::string(kNewPrefix) + random_hex(8);
  if (::mkdir(path.c_str(), 0700) != 0 || ::chmod(path.c_str(), 0777) != 0)
    return fail(Code::io, path + ": " + errno_text(errno));
  auto lock = lock_folder(path, LOCK_SH);
  if (!lock) return fail(Code::io, path + ": cannot be locked: " + errno_text(errno));
  return EnvironmentFolder{path, std::move(lock)};
}

Result<EnvironmentFolder> EnvironmentCache::finish_installation(EnvironmentFolder installed, const std::string& lock,
                                                                const std::string& abi, const Limits& limits) const {
  remove_folder(installed.path + "/tmp");
  std::error_code ignored;
  fs::create_directory(installed.site(), ignored);  // pip creates none for an empty list
  MJ_TRY(bytes, seal_tree(installed.path));
  if (bytes > limits.environment_bytes)
    return fail(Code::too_large, "the packages take " + std::to_string(bytes) + " bytes; max_bytes is " +
                                     std::to_string(limits.environment_bytes));
  if (!write_file(installed.path + "/lock", lock) || !write_file(installed.path + "/size", std::to_string(bytes)))
    return fail(Code::io, installed.path + ": " + errno_text(errno));
  const std::string path = folder_ + '/' + make_environment_key(lock, abi) + '-' + random_hex(4);
  if (::rename(installed.path.c_str(), path.c_str()) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  installed.path = path;
  remove_old(limits);
  return installed;
}

void EnvironmentCache::remove_installation(const EnvironmentFolder& installation) { remove_folder(installation.path); }

std::string EnvironmentCache::find_lock(const std::string& key) const {
  return read_file(folder_ + kLocksFolder + key);
}

void EnvironmentCache::store_lock(const std::string& key, const std::string& lock) const {
  if (!write_file(folder_ + kLocksFolder + key, lock))
    log(LogLevel::warn, "packages", "{}: a lock file is not stored: {}", folder_, errno_text(errno));
}

std::optional<FailedInstallation> EnvironmentCache::find_failure(const std::string& key) const {
  const std::string path = folder_ + kFailuresFolder + key;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  const std::time_t age = std::time(nullptr) - info.st_mtim.tv_sec;
  if (age < 0 || age >= kFailureSeconds) return std::nullopt;
  return FailedInstallation{read_file(path), age};
}

void EnvironmentCache::store_failure(const std::string& key, const std::string& error) const {
  const std::string folder = folder_ + kFailuresFolder;
  for (const std::string& name : list_names(folder)) {
    if (!find_failure(name)) ::unlink((folder + name).c_str());
  }
  if (!write_file(folder + key, error))
    log(LogLevel::warn, "packages", "{}: a failed installation is not recorded: {}", folder_, errno_text(errno));
}

void EnvironmentCache::remove_old(const Limits& limits) const {
  std::vector<std::pair<std::time_t, std::string>> environments;
  std::uint64_t total = 0;
  for (const std::string& name : list_names(folder_)) {
    const std::string path = folder_ + '/' + name;
    if (name.starts_with(kNewPrefix) || name.starts_with(kOldPrefix)) {
      remove_unused(path);  // left behind by an agent that has died
    } else if (!name.starts_with('.')) {
      environments.emplace_back(read_last_use(path), path);
      total += read_size(path);
    }
  }
  std::sort(environments.begin(), environments.end());
  const std::time_t now = std::time(nullptr);
  for (const auto& [last_use, path] : environments) {
    const bool is_expired = last_use + static_cast<std::time_t>(limits.age_ms / 1000) < now;
    if (total <= limits.cache_bytes && !is_expired) return;
    const std::uint64_t bytes = read_size(path);
    if (remove_unused(path)) total -= std::min(total, bytes);
  }
}

void EnvironmentCache::remove_old_if_due(const Limits& limits) const {
  constexpr std::time_t kPauseSeconds = 3600;
  const std::string mark = folder_ + "/.cleaned";
  struct stat info {};
  const std::time_t now = std::time(nullptr);
  if (::stat(mark.c_str(), &info) == 0 && info.st_mtim.tv_sec <= now && now - info.st_mtim.tv_sec < kPauseSeconds)
    return;
  if (write_file(mark, "")) remove_old(limits);
}

std::vector<EnvironmentInfo> EnvironmentCache::list() const {
  std::vector<EnvironmentInfo> environments;
  for (const std::string& name : list_names(folder_)) {
    if (name.starts_with('.')) continue;
    const std::string path = folder_ + '/' + name;
    environments.push_back(
        {name, read_size(path), count_locked_packages(read_file(path + "/lock")), read_last_use(path)});
  }
  return environments;
}

std::vector<FailedInstallation> EnvironmentCache::list_failures() const {
  std::vector<FailedInstallation> failures;
  for (const std::string& name : list_names(folder_ + kFailuresFolder)) {
    if (auto failure = find_failure(name)) failures.push_back(std::move(*failure));
  }
  return failures;
}

}  // namespace mycojobs
