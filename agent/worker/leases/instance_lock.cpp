#include "worker/leases/instance_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/errno_text.h"

namespace mycojobs {
namespace {

constexpr std::string_view kFileSuffix = ".lock";

// Returns whether the name has the form that current_instance() generates. Other names can occur, since names are read
// from a store or a folder that other programs can write to.
bool is_instance_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string get_lock_folder(const std::string& state_dir) { return state_dir + "/runners"; }
std::string get_file_prefix(Id runner) { return std::to_string(runner) + '-'; }
std::string get_lock_path(const std::string& state_dir, Id runner, const std::string& instance) {
  return get_lock_folder(state_dir) + '/' + get_file_prefix(runner) + instance + std::string(kFileSuffix);
}

bool is_linked(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_nlink > 0;
}

}  // namespace

Result<InstanceLock> InstanceLock::acquire(const std::string& state_dir, Id runner, const std::string& instance) {
  std::error_code error;
  std::filesystem::create_directories(get_lock_folder(state_dir), error);
  if (error)
    return fail(Code::io, "state_dir: cannot make " + get_lock_folder(state_dir) + ": " + errno_text(error.value()));
  const std::string path = get_lock_path(state_dir, runner, instance);
  // Between creation and lock, another agent can mistake the file for that of a dead instance and delete the file.
  for (int i = 0; i < 100; ++i) {
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return fail(Code::io, "state_dir: cannot make " + path + ": " + errno_text(errno));
    if (::flock(fd.get(), LOCK_EX) != 0)
      return fail(Code::io, "state_dir: cannot lock " + path + ": " + errno_text(errno));
    if (is_linked(fd.get())) return InstanceLock(std::move(fd));
  }
  return fail(Code::io, "state_dir: " + path + " is removed repeatedly");
}

std::vector<std::string> list_instances(const std::string& state_dir, Id runner) {
  std::vector<std::string> instances;
  const std::string prefix = get_file_prefix(runner);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(get_lock_folder(state_dir), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kFileSuffix)) continue;
    const std::size_t affix_bytes = prefix.size() + kFileSuffix.size();
    std::string instance = name.substr(prefix.size(), name.size() - std::min(affix_bytes, name.size()));
    if (is_instance_name(instance)) instances.push_back(std::move(instance));
  }
  return instances;
}

std::optional<Fd> try_lock_dead_instance(const std::string& state_dir, Id runner, const std::string& instance) {
  if (!is_instance_name(instance)) return std::nullopt;
  Fd fd(::open(get_lock_path(state_dir, runner, instance).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !is_linked(fd.get())) return std::nullopt;
  return fd;
}

void delete_instance_file(const std::string& state_dir, Id runner, const std::string& instance) {
  // Fails only if another process has deleted the file already.
  (void)::unlink(get_lock_path(state_dir, runner, instance).c_str());
}

std::vector<std::string> InstanceFiles::list() const {
  return state_dir_.empty() ? std::vector<std::string>() : list_instances(state_dir_, runner_);
}

bool InstanceFiles::has_ended(const std::string& instance) const {
  return !state_dir_.empty() && try_lock_dead_instance(state_dir_, runner_, instance);
}

void InstanceFiles::forget_if_ended(const std::string& instance) const {
  const auto lock = try_lock_dead_instance(state_dir_, runner_, instance);
  if (lock) delete_instance_file(state_dir_, runner_, instance);
}

}  // namespace mycojobs
