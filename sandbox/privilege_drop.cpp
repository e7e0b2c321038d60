#include "sandbox/privilege_drop.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/errno_text.h"
#include "base/fd.h"
#include "sandbox/landlock.h"

namespace mycojobs::sandbox {
namespace {

constexpr unsigned kNobody = 65534;

tl::unexpected<Error> make_step_error(const std::string& step, int error) {
  return fail(Code::io, describe_failed_step(step, error));
}

}  // namespace

std::string describe_failed_step(const std::string& step, int error) {
  return "cannot drop rights: " + step + ": " + errno_text(error);
}

Result<void> limit_resource(int resource, const char* name, rlim_t max) {
  const auto resource_id = static_cast<__rlimit_resource_t>(resource);
  rlimit limit{};
  if (::getrlimit(resource_id, &limit) != 0) return make_step_error(name, errno);
  limit.rlim_cur = limit.rlim_max = std::min(limit.rlim_max, max);
  if (::setrlimit(resource_id, &limit) != 0) return make_step_error(name, errno);
  return {};
}

Result<void> forbid_core_dumps() { return limit_resource(RLIMIT_CORE, "RLIMIT_CORE", 1); }

Result<void> drop_root() {
  if (::geteuid() != 0) return {};
  // EPERM: the capability is missing, or a user namespace with a single id forbids setgroups. EINVAL: the id is not
  // mapped.
  const auto can_stay_root = [] { return errno == EPERM || errno == EINVAL; };
  if (::syscall(SYS_setgroups, 0, nullptr) != 0 && errno != EPERM) return make_step_error("setgroups", errno);
  if (::syscall(SYS_setresgid, kNobody, kNobody, kNobody) != 0 && !can_stay_root())
    return make_step_error("setresgid", errno);
  if (::syscall(SYS_setresuid, kNobody, kNobody, kNobody) != 0 && !can_stay_root())
    return make_step_error("setresuid", errno);
  return {};
}

Result<void> empty_bounding_set() {
  for (unsigned long cap = 0;; ++cap) {
    const int present = ::prctl(PR_CAPBSET_READ, cap);
    if (present < 0) return {};
    if (present == 1 && ::prctl(PR_CAPBSET_DROP, cap) != 0 && errno != EPERM)
      return make_step_error("bounding set", errno);
  }
}

Result<void> drop_capabilities() {
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
    return make_step_error("ambient capabilities", errno);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct no_capabilities[2] = {};
  if (::syscall(SYS_capset, &header, no_capabilities) != 0) return make_step_error("capset", errno);
  return {};
}

Result<void> forbid_ptrace_and_new_privileges() {
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return make_step_error("PR_SET_DUMPABLE", errno);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return make_step_error("PR_SET_NO_NEW_PRIVS", errno);
  return {};
}

Result<void> restrict_to_reading(std::span<const char* const> folders, int file) {
  const int abi = landlock_abi();
  if (abi == 0) return {};
  const RulesetAttr attr = all_rights(abi);
  // Older kernels have a shorter structure and accept a longer one if the additional bytes are zero.
  const Fd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0)));
  if (!ruleset) return make_step_error("landlock", errno);
  for (const char* path : folders) {
    const Fd path_fd(::open(path, O_PATH | O_CLOEXEC));
    struct stat info {};
    if (!path_fd || ::fstat(path_fd.get(), &info) != 0) continue;
    const std::uint64_t rights = S_ISDIR(info.st_mode) ? LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR
                                                       : LANDLOCK_ACCESS_FS_READ_FILE;  // files have no other rights
    const int error = add_rule(ruleset.get(), path_fd.get(), rights);
    if (error != 0) return make_step_error(std::string("landlock: ") + path, error);
  }
  if (int error = add_rule(ruleset.get(), file, LANDLOCK_ACCESS_FS_READ_FILE); error != 0) {
    return make_step_error("landlock: the file", error);
  }
  if (int error = restrict_self(ruleset.get(), abi); error != 0) return make_step_error("landlock", error);
  return {};
}

void enter_empty_namespaces() {
  constexpr int kNamespaces = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP;
  if (::unshare(kNamespaces) != 0) (void)!::unshare(CLONE_NEWUSER | kNamespaces);
}

Result<void> forbid_file_access() {
  const int abi = landlock_abi();
  if (abi == 0) return {};
  const RulesetAttr attr = all_rights(abi);
  const Fd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0)));
  if (!ruleset) return make_step_error("landlock", errno);
  if (int error = restrict_self(ruleset.get(), abi); error != 0) return make_step_error("landlock", error);
  return {};
}

Result<void> allow_only_calls(std::span<const char* const> names) {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_KILL_PROCESS), &seccomp_release);
  if (!filter) return make_step_error("seccomp_init", ENOMEM);
  for (const char* name : names) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;
    const bool is_mapping_call = std::strcmp(name, "mmap") == 0 || std::strcmp(name, "mprotect") == 0;
    const scmp_arg_cmp not_executable{2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0};
    const int code =
        seccomp_rule_add_array(filter.get(), SCMP_ACT_ALLOW, number, is_mapping_call ? 1 : 0, &not_executable);
    if (code != 0) return make_step_error(name, -code);
  }
  if (int code = seccomp_load(filter.get()); code != 0)
    return make_step_error("seccomp_load (a kernel with CONFIG_SECCOMP_FILTER is needed)", -code);
  return {};
}

Result<void> refuse_calls(std::span<const char* const> names) {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW), &seccomp_release);
  if (!filter) return make_step_error("seccomp_init", ENOMEM);
  if (int code = seccomp_attr_set(filter.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS); code != 0) {
    return make_step_error("seccomp: other architectures", -code);
  }
  for (const char* name : names) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;
    const int code = seccomp_rule_add_array(filter.get(), SCMP_ACT_ERRNO(EPERM), number, 0, nullptr);
    if (code != 0) return make_step_error(name, -code);
  }
  if (int code = seccomp_load(filter.get()); code != 0) return make_step_error("seccomp_load", -code);
  return {};
}

}  // namespace mycojobs::sandbox
