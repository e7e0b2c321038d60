#include "sandbox/launcher/id_mapping.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <limits>
#include <utility>

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kInvalidId = std::numeric_limits<std::uint32_t>::max();

bool is_root(const FileOwner& owner) { return owner.uid == 0 || owner.gid == 0; }

int exit_at_once(void*) { ::_exit(0); }

// Returns a descriptor, or -errno.
int open_mapped_namespace(pid_t pid, const FileOwner& files, const FileOwner& job) {
  if (int error = write_process_file(pid, "uid_map", format_mapped_ids(files.uid, job.uid)); error != 0) return -error;
  if (int error = write_process_file(pid, "gid_map", format_mapped_ids(files.gid, job.gid)); error != 0) return -error;
  const int fd = ::open(fmt::format("/proc/{}/ns/user", pid).c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

}  // namespace

std::string format_mapped_ids(std::uint32_t files, std::uint32_t job) {
  if (files == job) return fmt::format("0 0 {}\n", kInvalidId);
  std::string text = fmt::format("0 {} 1\n", files == 0 ? job : files);
  std::uint32_t next = 1;
  const auto add_unchanged_until = [&](std::uint32_t end) {
    if (next < end) text += fmt::format("{0} {0} {1}\n", next, end - next);
    next = end + 1;
  };
  for (const std::uint32_t id : {std::min(files, job), std::max(files, job)}) {
    if (id == 0) continue;
    add_unchanged_until(id);
    if (id == files) text += fmt::format("{} {} 1\n", files, job);
  }
  add_unchanged_until(kInvalidId);
  return text;
}

// The process of the new namespace exits immediately and stays a zombie, which keeps its namespace until it is reaped.
// So no process can be left behind if this one is killed. CLONE_VM makes the call cheap; the parent waits for the exit.
int create_id_mapping(const FileOwner& files, const FileOwner& job) {
  alignas(std::max_align_t) char stack[16384];
  const pid_t pid =
      ::clone(exit_at_once, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
  if (pid < 0) return -errno;
  const int fd = open_mapped_namespace(pid, files, job);
  ::waitpid(pid, nullptr, 0);
  return fd;
}

Result<FileOwners> FileOwners::make(std::vector<ContextFiles> files, const IdRange& ids, UsedIds used_ids) {
  FileOwners owners;
  owners.ids_ = ids;
  owners.used_ids_ = std::move(used_ids);
  for (const ContextFiles& entry : files) {
    const std::string name = fmt::format("contexts.{}.files.owner", entry.context);
    if (auto checked = owners.check_owner(entry.owner); !checked) return fail(std::move(checked).error(), name);
    if (is_root(entry.owner)) return fail(Code::invalid, name + ": jobs never write as root: name another user");
    if (entry.has_fixed_uid && owners.has_ids() && !are_ids_mapped(entry.owner)) {
      return fail(Code::invalid, fmt::format("{}: the ids {}:{} do not exist in this container: use ids of "
                                             "/proc/self/uid_map and gid_map",
                                             name, entry.owner.uid, entry.owner.gid));
    }
  }
  owners.files_ = std::move(files);
  return owners;
}

// A job with an id of the range could read and change the owner's files without a mapping.
Result<void> FileOwners::check_owner(const FileOwner& owner) const {
  if (owner.uid == kInvalidId || owner.gid == kInvalidId) return fail(Code::invalid, "is no user of this host");
  if (!has_ids()) {
    if (owner.uid == ::geteuid()) return {};
    return fail(Code::invalid,
                fmt::format("is user {}, but only an agent of root can map ids: name the agent's own user {}, or run "
                            "the agent as root",
                            owner.uid, ::geteuid()));
  }
  for (const std::uint32_t id : {owner.uid, owner.gid}) {
    if (id >= ids_.base && id - ids_.base < ids_.count)
      return fail(Code::invalid, fmt::format("{} is an id of jobs (sandbox.uid_range): name another user", id));
    if (contains_id(used_ids_.of_launchers, id))
      return fail(Code::invalid, fmt::format("{} is an id of jobs of another agent: name another user", id));
  }
  return {};
}

Result<FileOwner> FileOwners::find_owner(ContextId context) const {
  if (!has_ids()) return FileOwner{::geteuid(), ::getegid()};
  if (const ContextFiles* files = find_context_files(files_, context); files != nullptr) return files->owner;
  const FileOwner owner = default_file_owner(context);
  const bool is_free = check_owner(owner) && !contains_id(used_ids_.of_users, owner.uid);
  if (context <= kMaxContextWithFileUid && is_free) return owner;
  return fail(Code::invalid,
              fmt::format("fs.write: files of context {0} have no owner{1}: set [contexts.{0}.files] owner", context,
                          is_free ? "" : fmt::format(", since {} is an id of others on this host", owner.uid)));
}

std::optional<FileOwner> FileOwners::find_fixed_owner(ContextId context) const {
  const ContextFiles* files = find_context_files(files_, context);
  if (!has_ids() || files == nullptr || !files->has_fixed_uid) return {};
  return files->owner;
}

Result<void> FileOwners::check_volume(const Volume& volume) const {
  const std::string name = fmt::format("volume {}: owner", volume.name);
  if (auto checked = check_owner(volume.owner); !checked) return fail(std::move(checked).error(), name);
  if (volume.writable && is_root(volume.owner))
    return fail(Code::invalid, name + ": jobs never write as root: name another user, or use mode = \"ro\"");
  return {};
}

FileOwner FileOwners::get_job_ids(ContextId context, std::uint32_t uid) const {
  if (!has_ids()) return {::geteuid(), ::getegid()};
  if (const auto fixed = find_fixed_owner(context); fixed && uid == ids_.fixed_uid()) return *fixed;
  return {ids_.base + uid, ids_.base + uid};
}

}  // namespace mycojobs::sandbox
