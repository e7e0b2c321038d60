#include "executors/python/packages/environment_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <compare>
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
constexpr const char* kLockFilesFolder = "/.locks/";
constexpr const char* kFailuresFolder = "/.failures/";
// The sizes of files are rounded up to a multiple of this size. Empty files count as one block, since they use inodes.
constexpr std::uint64_t kBlockBytes = 4096;

std::string make_environment_key(const std::string& lock_file, const std::string& abi) {
  return sha256_hex(std::to_string(abi.size()) + ':' + abi + lock_file).substr(0, 40);
}

// Locks a folder with flock, which is released when the returned descriptor is closed. operation: LOCK_SH or LOCK_EX.
// Does not wait: returns null if the folder cannot be locked now, or if the path no longer names the locked folder.
std::shared_ptr<const Fd> lock_folder(const std::string& path, int operation) {
  auto folder = std::make_shared<Fd>(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!*folder || ::flock(folder->get(), operation | LOCK_NB) != 0) return nullptr;
  // The folder can be renamed for deletion between open() and flock().
  struct stat locked {
  }, named{};
  const bool is_same = ::fstat(folder->get(), &locked) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                       locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
  return is_same ? folder : nullptr;
}

// Returns an empty text if the file cannot be read.
std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Creates or replaces a file atomically, and creates its folder if that is missing.
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

std::uint64_t round_up_to_block(std::uint64_t bytes) {
  return std::max((bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes, kBlockBytes);
}

// Gives one file or folder of an installation to the user of the agent and removes the write permission of other users,
// so that no later job owns it or can change it. Returns its accounted size. An agent that is not root cannot change
// owners; its jobs have the same user as the agent.
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
  return round_up_to_block(bytes);
}

// Calls seal_entry() for the folder and all its entries. Returns the sum of the sizes.
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

// Returns the sum of the accounted sizes below a folder that may change or vanish during the call.
std::uint64_t measure_tree(const std::string& folder) {
  std::uint64_t total = kBlockBytes;
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(folder, kOptions, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const bool is_file = entry->is_regular_file(ignored) && !entry->is_symlink(ignored);
    const std::uintmax_t bytes = is_file ? entry->file_size(ignored) : 0;
    total += round_up_to_block(ignored ? 0 : bytes);
  }
  return total;
}

std::uint64_t read_size(const std::string& environment) {
  std::uint64_t bytes = 0;
  const std::string text = read_file(environment + "/size");
  return parse_u64(text, bytes) ? bytes : 0;
}

// Returns the modification time of the folder, which find() updates.
std::time_t read_last_use(const std::string& environment) {
  struct stat info {};
  return ::stat(environment.c_str(), &info) == 0 ? info.st_mtim.tv_sec : 0;
}

// Deletes an environment or installation unless it is in use. Renames it first, so that no new user finds a folder that
// is partly deleted. Returns whether it was deleted.
bool remove_if_unused(const std::string& path) {
  const auto deletion_lock = lock_folder(path, LOCK_EX);
  if (!deletion_lock) return false;
  const std::size_t slash = path.rfind('/');
  const std::string old = path.substr(0, slash + 1) + std::string(kOldPrefix) + random_hex(8);
  if (::rename(path.c_str(), old.c_str()) != 0) return false;
  remove_folder(old);
  return true;
}

// Returns whether the name belongs to an installation, or to a folder that is being deleted. Such a folder is in use
// only while the agent that created it runs.
bool is_unfinished(const std::string& name) { return name.starts_with(kNewPrefix) || name.starts_with(kOldPrefix); }

std::string resolve_state_dir(const std::string& state_dir) {
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(state_dir, error);
  return error ? state_dir : resolved.string();
}

// Returns the sorted names of the entries of a folder, or an empty list if the folder cannot be read.
std::vector<std::string> list_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string extract_pip_error(const std::string& output) {
  // If the index cannot be reached, the ERROR line of pip only says that no version was found. The cause is in an
  // earlier warning.
  constexpr std::string_view kBrokenConnectionPrefix = "connection broken by '", kErrorPrefix = "ERROR: ";
  if (const std::size_t broken = output.find(kBrokenConnectionPrefix); broken != std::string::npos) {
    const std::size_t first = broken + kBrokenConnectionPrefix.size();
    const std::size_t line_end = output.find('\n', first);
    return "the package index cannot be reached: " +
           output.substr(first, std::min(output.find("': /", first), line_end) - first);
  }
  const std::size_t start = output.find(kErrorPrefix);
  const std::size_t first = start == std::string::npos ? 0 : start + kErrorPrefix.size();
  return output.substr(first, output.find('\n', first) - first);
}

EnvironmentCache::EnvironmentCache(const std::string& state_dir, Id context)
    : folder_(resolve_state_dir(state_dir) + "/contexts/" + std::to_string(context) + "/packages") {}

std::optional<EnvironmentFolder> EnvironmentCache::find(const std::string& lock_file, const std::string& abi) const {
  const std::string prefix = make_environment_key(lock_file, abi) + '-';
  for (const std::string& name : list_names(folder_)) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = folder_ + '/' + name;
    auto use_lock = lock_folder(path, LOCK_SH);
    if (!use_lock) continue;
    ::futimens(use_lock->get(), nullptr);  // the modification time is the time of the last use
    return EnvironmentFolder{path, std::move(use_lock)};
  }
  return std::nullopt;
}

Result<EnvironmentFolder> EnvironmentCache::begin_installation() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return fail(Code::io, folder_ + ": " + error.message());
  // The folder of the installation has mode 0777, since pip runs as the user of a job. Its parent folder therefore must
  // not be accessible for other users of the host.
  if (::chmod(folder_.c_str(), 0700) != 0) return fail(Code::io, folder_ + ": " + errno_text(errno));
  // Before the new folder is locked, remove_abandoned() of another agent can delete the folder.
  constexpr int kAttempts = 5;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string path = folder_ + '/' + std::string(kNewPrefix) + random_hex(8);
    if (::mkdir(path.c_str(), 0700) != 0) return fail(Code::io, path + ": " + errno_text(errno));
    auto use_lock = lock_folder(path, LOCK_SH);
    if (!use_lock) {
      ::rmdir(path.c_str());
      continue;
    }
    if (::chmod(path.c_str(), 0777) == 0) return EnvironmentFolder{path, std::move(use_lock)};
    const int error_number = errno;
    remove_folder(path);
    return fail(Code::io, path + ": " + errno_text(error_number));
  }
  return fail(Code::io, folder_ + ": the folder of a new installation cannot be locked");
}

Result<EnvironmentFolder> EnvironmentCache::commit_installation(EnvironmentFolder installed,
                                                                const std::string& lock_file, const std::string& abi,
                                                                const Limits& limits) const {
  remove_folder(installed.path + "/tmp");
  std::error_code ignored;
  fs::create_directory(installed.site(), ignored);  // pip creates no folder if there is nothing to install
  MJ_TRY(bytes, seal_tree(installed.path));
  if (bytes > limits.environment_bytes)
    return fail(Code::too_large, "the packages take " + std::to_string(bytes) + " bytes; max_bytes is " +
                                     std::to_string(limits.environment_bytes));
  if (!write_file(installed.path + "/lock", lock_file) || !write_file(installed.path + "/size", std::to_string(bytes)))
    return fail(Code::io, installed.path + ": " + errno_text(errno));
  const std::string path = folder_ + '/' + make_environment_key(lock_file, abi) + '-' + random_hex(4);
  if (::rename(installed.path.c_str(), path.c_str()) != 0) return fail(Code::io, path + ": " + errno_text(errno));
  installed.path = path;
  clean_up(limits);
  return installed;
}

void EnvironmentCache::remove_installation(const EnvironmentFolder& installation) { remove_folder(installation.path); }

std::string EnvironmentCache::get_lock_file_path(const std::string& key) const {
  return folder_ + kLockFilesFolder + key;
}

std::string EnvironmentCache::find_lock_file(const std::string& key) const {
  return read_file(get_lock_file_path(key));
}

void EnvironmentCache::store_lock_file(const std::string& key, const std::string& lock_file) const {
  if (!write_file(get_lock_file_path(key), lock_file))
    log(LogLevel::warn, "packages", "{}: a lock file is not stored: {}", folder_, errno_text(errno));
}

std::optional<FailedInstallation> EnvironmentCache::find_failure(const std::string& key) const {
  const std::string path = folder_ + kFailuresFolder + key;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  const std::time_t age = std::time(nullptr) - info.st_mtim.tv_sec;
  if (age < 0 || age >= kRetryDelaySeconds) return std::nullopt;
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

void EnvironmentCache::remove_abandoned() const {
  for (const std::string& name : list_names(folder_)) {
    if (is_unfinished(name)) remove_if_unused(folder_ + '/' + name);
  }
}

void EnvironmentCache::clean_up(const Limits& limits) const {
  struct Environment {
    std::time_t last_use = 0;
    std::string path;
    std::uint64_t bytes = 0;
    auto operator<=>(const Environment&) const = default;
  };
  std::vector<Environment> environments;
  std::uint64_t total = 0;
  for (const std::string& name : list_names(folder_)) {
    const std::string path = folder_ + '/' + name;
    if (is_unfinished(name)) {
      if (!remove_if_unused(path)) total += measure_tree(path);
    } else if (!name.starts_with('.')) {
      environments.push_back({read_last_use(path), path, read_size(path)});
      total += environments.back().bytes;
    }
  }
  std::sort(environments.begin(), environments.end());
  const std::time_t now = std::time(nullptr);
  for (const Environment& environment : environments) {
    const bool is_expired = environment.last_use + static_cast<std::time_t>(limits.age_ms / 1000) < now;
    if (total <= limits.cache_bytes && !is_expired) return;
    if (remove_if_unused(environment.path)) total -= std::min(total, environment.bytes);
  }
}

void EnvironmentCache::clean_up_if_due(const Limits& limits) const {
  constexpr std::time_t kCleanUpIntervalSeconds = 3600;
  const std::string clean_up_marker = folder_ + "/.cleaned";
  struct stat info {};
  const std::time_t now = std::time(nullptr);
  if (::stat(clean_up_marker.c_str(), &info) == 0 && info.st_mtim.tv_sec <= now &&
      now - info.st_mtim.tv_sec < kCleanUpIntervalSeconds)
    return;
  if (write_file(clean_up_marker, "")) clean_up(limits);
}

std::vector<std::uint64_t> EnvironmentCache::list_sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const std::string& name : list_names(folder_)) {
    if (!name.starts_with('.')) sizes.push_back(read_size(folder_ + '/' + name));
  }
  return sizes;
}

std::vector<FailedInstallation> EnvironmentCache::list_failures() const {
  std::vector<FailedInstallation> failures;
  for (const std::string& name : list_names(folder_ + kFailuresFolder)) {
    if (auto failure = find_failure(name)) failures.push_back(std::move(*failure));
  }
  return failures;
}

}  // namespace mycojobs
