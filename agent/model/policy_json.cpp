#include "model/policy_json.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/parse.h"
#include "net/allow_list.h"
#include "sandbox/withheld_calls.h"
#include "text/json.h"
#include "text/split.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {

// The tables of system calls.

namespace {

// Names of system calls from asm/unistd_64.h of Linux 6.1, which includes those of the other 64-bit architectures, in
// alphabetical order. Here the names only catch spelling mistakes; the launcher compiles the filter with libseccomp.
// clang-format off
constexpr std::string_view kSyscallNames[] = {
    "_sysctl", "accept", "accept4", "access", "acct", "add_key", "adjtimex", "afs_syscall", "alarm", "arch_prctl",
    "bind", "bpf", "brk", "capget", "capset", "chdir", "chmod", "chown", "chroot", "clock_adjtime", "clock_getres",
    "clock_gettime", "clock_nanosleep", "clock_settime", "clone", "clone3", "close", "close_range", "connect",
    "copy_file_range", "creat", "create_module", "delete_module", "dup", "dup2", "dup3", "epoll_create",
    "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old",
    "eventfd", "eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64",
    "fallocate", "fanotify_init", "fanotify_mark", "fchdir", "fchmod", "fchmodat", "fchown", "fchownat", "fcntl",
    "fdatasync", "fgetxattr", "finit_module", "flistxattr", "flock", "fork", "fremovexattr", "fsconfig", "fsetxattr",
    "fsmount", "fsopen", "fspick", "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futex_waitv", "futimesat",
    "get_kernel_syms", "get_mempolicy", "get_robust_list", "get_thread_area", "getcpu", "getcwd", "getdents",
    "getdents64", "getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpgrp",
    "getpid", "getpmsg", "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage",
    "getsid", "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "init_module",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy",
    "io_getevents", "io_pgetevents", "io_setup", "io_submit", "io_uring_enter", "io_uring_register", "io_uring_setup",
    "ioctl", "ioperm", "iopl", "ioprio_get", "ioprio_set", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "kill",
    "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lchown", "lgetxattr", "link", "linkat",
    "listen", "listxattr", "llistxattr", "lookup_dcookie", "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise",
    "mbind", "membarrier", "memfd_create", "memfd_secret", "migrate_pages", "mincore", "mkdir", "mkdirat", "mknod",
    "mknodat", "mlock", "mlock2", "mlockall", "mmap", "modify_ldt", "mount", "mount_setattr", "move_mount",
    "move_pages", "mprotect", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
    "mremap", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock", "munlockall", "munmap", "name_to_handle_at",
    "nanosleep", "newfstatat", "nfsservctl", "open", "open_by_handle_at", "open_tree", "openat", "openat2", "pause",
    "perf_event_open", "personality", "pidfd_getfd", "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pivot_root",
    "pkey_alloc", "pkey_free", "pkey_mprotect", "poll", "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64",
    "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "pselect6", "ptrace", "putpmsg",
    "pwrite64", "pwritev", "pwritev2", "query_module", "quotactl", "quotactl_fd", "read", "readahead", "readlink",
    "readlinkat", "readv", "reboot", "recvfrom", "recvmmsg", "recvmsg", "remap_file_pages", "removexattr", "rename",
    "renameat", "renameat2", "request_key", "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam",
    "sched_setscheduler", "sched_yield", "seccomp", "security", "select", "semctl", "semget", "semop", "semtimedop",
    "sendfile", "sendmmsg", "sendmsg", "sendto", "set_mempolicy", "set_mempolicy_home_node", "set_robust_list",
    "set_thread_area", "set_tid_address", "setdomainname", "setfsgid", "setfsuid", "setgid", "setgroups",
    "sethostname", "setitimer", "setns", "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid",
    "setrlimit", "setsid", "setsockopt", "settimeofday", "setuid", "setxattr", "shmat", "shmctl", "shmdt", "shmget",
    "shutdown", "sigaltstack", "signalfd", "signalfd4", "socket", "socketpair", "splice", "stat", "statfs", "statx",
    "swapoff", "swapon", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "sysfs", "sysinfo", "syslog",
    "tee", "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime",
    "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill", "truncate", "tuxcall", "umask",
    "umount", "umount2", "uname", "unlink", "unlinkat", "unshare", "uselib", "userfaultfd", "ustat", "utime",
    "utimensat", "utimes", "vfork", "vhangup", "vmsplice", "vserver", "wait4", "waitid", "write", "writev",
};

// Calls that no legitimate script needs. The list is the same as in sandbox/seccomp/filter_tables.cpp; a test compares
// both.
constexpr std::string_view kForbiddenCalls[] = {
    "acct", "add_key", "bpf", "delete_module", "fanotify_init", "fanotify_mark", "finit_module", "fsconfig",
    "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
    "lookup_dcookie", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "reboot",
    "request_key", "setns", "swapoff", "swapon", "umount", "umount2", "unshare", "userfaultfd",
};
// clang-format on
static_assert(std::is_sorted(std::begin(kSyscallNames), std::end(kSyscallNames)));
static_assert(std::is_sorted(std::begin(kForbiddenCalls), std::end(kForbiddenCalls)));

}  // namespace

bool is_known_syscall(std::string_view name) {
  return std::binary_search(std::begin(kSyscallNames), std::end(kSyscallNames), name);
}

// Calls that "*" does not include. An added call is allowed with any arguments. Therefore "*" excludes calls whose
// arguments the sandbox checks in order to restrict processes, sockets, limits and priorities to the fields that grant
// them (a test compares this list with the sandbox's tables), and calls that use resources shared by all jobs of the
// host.
// clang-format off
constexpr std::string_view kExcludedFromWildcard[] = {
    "accept", "accept4", "arch_prctl", "bind", "chmod", "clone", "clone3", "close_range", "connect", "creat", "execve",
    "execveat", "fallocate", "fchmod", "fchmodat", "fchmodat2", "fcntl", "fork", "getsockopt", "io_setup", "ioctl",
    "ioprio_set", "ipc", "listen", "madvise", "memfd_create", "mkdir", "mkdirat", "mknod", "mknodat", "mmap",
    "mprotect", "mq_open", "msgctl", "msgget", "msgrcv", "msgsnd", "open", "openat", "openat2", "personality",
    "pkey_mprotect", "prctl", "prlimit64", "quotactl", "quotactl_fd", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "seccomp", "semctl", "semget", "semop", "semtimedop", "sendmmsg",
    "sendmsg", "sendto", "setpriority", "setrlimit", "setsockopt", "shmat", "shmctl", "shmget", "socket", "socketpair",
    "syslog", "vfork",
};
// clang-format on
static_assert(std::is_sorted(std::begin(kExcludedFromWildcard), std::end(kExcludedFromWildcard)));

bool requires_grant(std::string_view syscall) {
  return is_forbidden_syscall(syscall) ||
         std::binary_search(std::begin(kExcludedFromWildcard), std::end(kExcludedFromWildcard), syscall);
}

bool is_forbidden_syscall(std::string_view syscall) {
  return std::binary_search(std::begin(kForbiddenCalls), std::end(kForbiddenCalls), syscall);
}

// The items of a policy's lists, and their checks.

namespace policies {

namespace {

constexpr std::size_t kMaxPathBytes = 4095;  // PATH_MAX includes the NUL
constexpr std::size_t kMaxVolumeBytes = 64;
constexpr std::size_t kMaxSecretBytes = 255;  // limit of a file name
constexpr std::size_t kMaxRequirementBytes = 300;
constexpr std::array kPolicyRootFolders =
    std::to_array<std::string_view>({"/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data"});

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
// Returns whether the text is not empty and has only a-z, A-Z, 0-9, '_', '-' and '.', which is not first.
bool is_plain_name(std::string_view text) {
  return !text.empty() && text.front() != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return is_digit(c) || is_lower(to_lower(c)) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

Result<std::string> check_folder(std::string_view path) {
  if (path.size() > kMaxPathBytes) {
    return fail(Code::invalid,
                "a path of " + std::to_string(path.size()) + " bytes is longer than " + std::to_string(kMaxPathBytes));
  }
  if (!path.starts_with('/')) return fail(Code::invalid, excerpt(path) + " is not an absolute path");
  if (!is_utf8(path) || std::any_of(path.begin(), path.end(), is_control)) {
    return fail(Code::invalid, excerpt(path) + " has control characters in it, or is not UTF-8");
  }
  std::string normal;
  for (std::size_t start = 0; start < path.size();) {
    const std::size_t end = std::min(path.find('/', start), path.size());
    const std::string_view part = path.substr(start, end - start);
    if (part == "..") return fail(Code::invalid, excerpt(path) + " has \"..\" in it: name the folder itself");
    if (!part.empty() && part != ".") normal.append("/").append(part);
    start = end + 1;
  }
  const auto is_below = [&normal](std::string_view root) {
    return is_within(normal, root) && normal.size() > root.size();
  };
  if (!std::any_of(kPolicyRootFolders.begin(), kPolicyRootFolders.end(), is_below)) {
    return fail(Code::invalid, excerpt(path) + " is not below /srv, /opt, /home, /var, /mnt, /media or /data");
  }
  return normal;
}

bool is_within(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

bool overlaps(std::string_view a, std::string_view b) { return is_within(a, b) || is_within(b, a); }

Result<std::string> check_allow_entry(std::string_view entry) {
  std::string normal(entry);
  std::transform(normal.begin(), normal.end(), normal.begin(), to_lower);
  MJ_CHECK(parse_allow_entry(normal));
  return normal;
}

bool covers_entry(std::string_view granted, std::string_view requested) {
  const auto granted_entry = parse_allow_entry(granted);
  const auto requested_entry = parse_allow_entry(requested);
  return granted_entry && requested_entry && covers(*granted_entry, *requested_entry);
}

Result<std::string> check_syscall(std::string_view name, PolicyKind kind) {
  if (const std::string_view reason = never_granted_reason(name); !reason.empty())
    return fail(Code::invalid, excerpt(name) + ' ' + std::string(reason));
  if (is_known_syscall(name) || (kind == PolicyKind::ceiling && name == "*")) return std::string(name);
  return fail(Code::invalid, excerpt(name) + " is not a system call: use a name of syscalls(2), such as \"keyctl\"");
}

Result<std::string> check_secret(std::string_view name) {
  if (is_plain_name(name) && name.size() <= kMaxSecretBytes) return std::string(name);
  return fail(Code::invalid, excerpt(name) +
                                 " is not the name of a secret: 1 to 255 of a-z, A-Z, 0-9, '_', '-' and "
                                 "'.', not '.' first");
}

Result<std::string> check_volume(std::string_view name) {
  if (is_plain_name(name) && name.size() <= kMaxVolumeBytes) return std::string(name);
  return fail(Code::invalid, excerpt(name) +
                                 " is not the name of a volume: 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.', "
                                 "'.' not first");
}

namespace {

bool is_letter_or_digit(char c) { return is_digit(c) || is_lower(to_lower(c)); }

// Removes and returns the name of the package at the beginning of a requirement.
std::string_view pop_package_name(std::string_view& text) {
  std::size_t size = 0;
  while (size < text.size() &&
         (is_letter_or_digit(text[size]) || text[size] == '.' || text[size] == '_' || text[size] == '-'))
    ++size;
  const std::string_view name = text.substr(0, size);
  text.remove_prefix(size);
  return name;
}

}  // namespace

Result<std::string> check_python_requirement(std::string_view requirement) {
  const auto make_error = [requirement](const std::string& problem) {
    return fail(Code::invalid, excerpt(requirement) + ' ' + problem);
  };
  if (requirement.size() > kMaxRequirementBytes) return make_error("is longer than 300 bytes");
  const auto is_unprintable = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; };
  if (std::any_of(requirement.begin(), requirement.end(), is_unprintable))
    return make_error("has a control character in it");
  std::string_view rest = requirement;
  const std::string_view name = pop_package_name(rest);
  if (name.empty() || !is_letter_or_digit(name.front()) || !is_letter_or_digit(name.back()))
    return make_error("does not begin with the name of a package");
  rest = trim_blanks(rest);
  if (rest.starts_with('@')) return make_error("names a URL; packages come from the index of the context alone");
  const std::string_view versions = rest.substr(0, rest.find(';'));
  constexpr std::string_view kVersionCharacters = "[](),.<>=!~*+-_ \t";
  const auto is_allowed = [&](char c) {
    return is_letter_or_digit(c) || kVersionCharacters.find(c) != std::string_view::npos;
  };
  if (!std::all_of(versions.begin(), versions.end(), is_allowed) || rest.find(" -") != std::string_view::npos ||
      rest.find('#') != std::string_view::npos || (!versions.empty() && is_letter_or_digit(versions.front())))
    return make_error("is not a requirement, as \"requests>=2.28,<3\"");
  return std::string(requirement);
}

namespace {

constexpr std::uint64_t kTebi = 1ULL << 40;
constexpr std::uint64_t kMaxDurationMs = 1ULL << 40;  // about 34 years
constexpr std::uint64_t kMaxWarmRuns = 1'000'000, kMaxIdleMs = 86'400'000;

// The range that the sandbox can set up (sandbox/launcher/launcher.cpp). Values outside of it are mistakes.
constexpr NumberRow kNumberRows[] = {
    {PolicyField::cpu, Unit::time, 1, kMaxDurationMs, true, [](const Policy& p) { return p.cpu_ms; },
     [](Policy& p, std::uint64_t n) { p.cpu_ms = n; }},
    {PolicyField::memory, Unit::bytes, 4ULL << 20, kTebi, false, [](const Policy& p) { return p.memory_bytes; },
     [](Policy& p, std::uint64_t n) { p.memory_bytes = n; }},
    {PolicyField::pids, Unit::count, 1, 1U << 20, false, [](const Policy& p) -> std::uint64_t { return p.pids; },
     [](Policy& p, std::uint64_t n) { p.pids = static_cast<std::uint32_t>(n); }},
    {PolicyField::wall, Unit::time, 1, kMaxDurationMs, true, [](const Policy& p) { return p.wall_ms; },
     [](Policy& p, std::uint64_t n) { p.wall_ms = n; }},
    {PolicyField::disk, Unit::bytes, 4096, kTebi, false, [](const Policy& p) { return p.disk_bytes; },
     [](Policy& p, std::uint64_t n) { p.disk_bytes = n; }},
    {PolicyField::file_size, Unit::bytes, 4096, kTebi, false, [](const Policy& p) { return p.file_bytes; },
     [](Policy& p, std::uint64_t n) { p.file_bytes = n; }},
    {PolicyField::open_files, Unit::count, 32, 1U << 20, false,
     [](const Policy& p) -> std::uint64_t { return p.open_files; },
     [](Policy& p, std::uint64_t n) { p.open_files = static_cast<std::uint32_t>(n); }},
    {PolicyField::output_keep, Unit::bytes, 1, kTebi, false, [](const Policy& p) { return p.output_bytes; },
     [](Policy& p, std::uint64_t n) { p.output_bytes = n; }},
    {PolicyField::log_keep, Unit::bytes, 1, kTebi, false, [](const Policy& p) { return p.log_bytes; },
     [](Policy& p, std::uint64_t n) { p.log_bytes = n; }},
    {PolicyField::warm_runs, Unit::count, 0, kMaxWarmRuns, false,
     [](const Policy& p) -> std::uint64_t { return p.warm_runs; },
     [](Policy& p, std::uint64_t n) { p.warm_runs = static_cast<std::uint32_t>(n); }},
    {PolicyField::warm_idle, Unit::time, 1, kMaxIdleMs, false, [](const Policy& p) { return p.warm_idle_ms; },
     [](Policy& p, std::uint64_t n) { p.warm_idle_ms = n; }},
};

constexpr ListRow kListRows[] = {
    {PolicyField::fs_read, kMaxFolders, "folders", &Policy::fs_read},
    {PolicyField::fs_write, kMaxFolders, "folders", &Policy::fs_write},
    {PolicyField::syscalls, 64, "system calls", &Policy::syscalls},
    {PolicyField::secrets, 16, "secrets", &Policy::secrets},
    {PolicyField::volumes, kMaxFolders, "volumes", &Policy::volumes},
    {PolicyField::python_requirements, kMaxPythonRequirements, "packages", &Policy::python_requirements},
};

constexpr SwitchRow kSwitchRows[] = {
    {PolicyField::exec, &Policy::exec},
    {PolicyField::output_kill, &Policy::output_kill},
    {PolicyField::output_merge, &Policy::output_merge},
    {PolicyField::log_full, &Policy::log_full},
    {PolicyField::artifacts_optional, &Policy::artifacts_optional},
};

struct UnitFactor {
  std::string_view name;
  std::uint64_t factor;
};
constexpr UnitFactor kSizes[] = {{"TiB", 1ULL << 40}, {"GiB", 1ULL << 30}, {"MiB", 1ULL << 20}, {"KiB", 1ULL << 10}};
constexpr UnitFactor kTimes[] = {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};

}  // namespace

std::span<const NumberRow> number_rows() { return kNumberRows; }
std::span<const ListRow> list_rows() { return kListRows; }
std::span<const SwitchRow> switch_rows() { return kSwitchRows; }

std::string format_number(Unit unit, std::uint64_t value) {
  const std::string digits = std::to_string(value);
  if (unit == Unit::count) return digits;
  const std::span<const UnitFactor> scales = unit == Unit::bytes ? std::span<const UnitFactor>(kSizes) : kTimes;
  for (const UnitFactor& scale : scales) {
    if (value != 0 && value % scale.factor == 0)
      return std::to_string(value / scale.factor) + ' ' + std::string(scale.name);
  }
  return digits + (unit == Unit::bytes ? " bytes" : " ms");
}

void add_missing(std::vector<std::string>& list, const std::vector<std::string>& items) {
  for (const std::string& item : items) {
    if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
  }
}

}  // namespace policies

std::string_view to_string(PolicyField field) {
  static constexpr std::array<std::string_view, kPolicyFields> kFieldNames = {
      "fs.read",     "fs.write",     "net",
      "exec",        "cpu",          "memory",
      "pids",        "wall",         "disk",
      "file_size",   "open_files",   "output.keep",
      "output.kill", "syscalls.add", "secrets",
      "warm.runs",   "warm.idle",    "artifacts.optional",
      "volumes",     "output.merge", "python.requirements",
      "log.keep",    "log.full"};
  return kFieldNames[policies::index(field)];
}

nlohmann::json to_json(const Policy& policy) {
  auto out = nlohmann::json::object();
  for (const auto& row : policies::list_rows()) out[to_string(row.field)] = policy.*row.member;
  for (const auto& row : policies::switch_rows()) out[to_string(row.field)] = policy.*row.member;
  for (const auto& row : policies::number_rows()) {
    const std::uint64_t value = row.get(policy);
    out[to_string(row.field)] = row.can_be_unlimited && value == 0 ? nlohmann::json() : nlohmann::json(value);
  }
  auto& net = out[to_string(PolicyField::net)];
  if (policy.network == Network::allow_list) {
    net = policy.net_allow;
  } else {
    net = policy.network == Network::none ? "none" : "loopback";
  }
  return out;
}

std::string format_grant_members(const Policy& policy, const std::vector<std::string>& lowered) {
  auto granted = to_json(policy);
  if (policy.warm_runs == 0) granted.erase(std::string(to_string(PolicyField::warm_idle)));
  for (auto it = granted.begin(); it != granted.end();) {
    const nlohmann::json& value = it.value();
    const bool is_empty =
        value.is_null() || value == false || value == 0 || value == "none" || (value.is_array() && value.empty());
    it = is_empty ? granted.erase(it) : std::next(it);
  }
  std::string text = "\"granted\":" + dump_json(granted);
  if (!lowered.empty()) text += ",\"lowered\":" + dump_json(nlohmann::json(lowered));
  return text;
}

std::string format_policy_value(PolicyField field, const Policy& policy) {
  for (const auto& row : policies::number_rows()) {
    if (row.field != field) continue;
    const std::uint64_t value = row.get(policy);
    if (row.can_be_unlimited && value == 0) return "\"unlimited\"";
    const std::string text = policies::format_number(row.unit, value);
    return row.unit == policies::Unit::count || text.ends_with("bytes") ? std::to_string(value) : '"' + text + '"';
  }
  return dump_json(to_json(policy).at(to_string(field)));
}

// The parser and the writer of policy texts. The text is untrusted: its size is limited, and every problem is reported.

namespace {

using nlohmann::json;
using policies::ListRow;
using policies::NumberRow;
using policies::Unit;

constexpr std::size_t kMaxProblems = 32;
constexpr std::string_view kReplacePrefix = "replace.";

std::optional<PolicyField> find_field(std::string_view name) {
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (to_string(static_cast<PolicyField>(i)) == name) return static_cast<PolicyField>(i);
  }
  return std::nullopt;
}

// Returns whether the prefix is a group of fields ("fs.", "output.") or exactly "replace.".
bool is_field_group(std::string_view prefix) {
  if (prefix.empty() || prefix == kReplacePrefix) return true;
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (to_string(static_cast<PolicyField>(i)).starts_with(prefix)) return true;
  }
  return false;
}

// Formats a value for a message. A text of digits is quoted, because the type is the problem.
std::string format_value(const json& value) {
  if (!value.is_string()) return excerpt(dump_json(value));
  const std::string text = excerpt(value.get_ref<const std::string&>());
  return text.starts_with('"') ? text : '"' + text + '"';
}

template <class Rows>
auto find_field_row(Rows rows, PolicyField field) {
  const auto match = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.field == field; });
  return match == rows.end() ? nullptr : &*match;
}

class PolicyParser {
 public:
  PolicyParser(std::string_view prefix, PolicyKind kind, ParsedPolicy& out) : prefix_(prefix), kind_(kind), out_(out) {}

  void add_problem(std::string_view name, const std::string& message) {
    if (out_.problems.size() >= kMaxProblems) return;
    std::string field(prefix_);
    if (!field.empty() && !name.empty()) field += '.';
    field += name;
    const std::string text = (field.empty() ? "" : field + ": ") + message;
    out_.problems.push_back({std::move(field), text});
  }

  // Reads the fields of an object. `base` is the path of the object: "", "fs." or "replace.fs.".
  void read_object(const json& object, const std::string& base) {
    for (const auto& item : object.items()) {
      const std::string name = base + item.key();
      const bool is_replacement = name.starts_with(kReplacePrefix) && kind_ == PolicyKind::request;
      const std::string field_name = is_replacement ? name.substr(kReplacePrefix.size()) : name;
      if (const auto field = find_field(field_name)) {
        read_field(*field, name, is_replacement, item.value());
      } else if (name == "log" && item.value() == "full") {
        read_field(PolicyField::log_full, name, false, true);
      } else if (is_field_group(field_name + '.') && !(is_replacement && field_name == "replace") &&
                 item.value().is_object() && !(field_name == "replace" && kind_ == PolicyKind::ceiling)) {
        read_object(item.value(), name + '.');
      } else if (is_field_group(field_name + '.') && field_name != "replace") {
        add_problem(name, "is not an object: write " + find_group_example(field_name));
      } else {
        add_problem(printable_name(name), "is not a field of a policy: " + list_field_names());
      }
    }
  }

 private:
  static std::string printable_name(std::string_view name) {
    const std::string text = excerpt(name);
    return text.size() > 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }
  static std::string find_group_example(const std::string& group) {
    for (std::size_t i = 0; i < kPolicyFields; ++i) {
      const std::string_view name = to_string(static_cast<PolicyField>(i));
      if (name.starts_with(group + '.')) return std::string(name) + ", for one";
    }
    return "names in it";
  }
  std::string list_field_names() const {
    std::string names = "there are ";
    for (std::size_t i = 0; i < kPolicyFields; ++i) names += std::string(to_string(static_cast<PolicyField>(i))) + ", ";
    names.resize(names.size() - 2);
    return kind_ == PolicyKind::request ? names + ", and replace with lists" : names;
  }

  void read_field(PolicyField field, const std::string& name, bool is_replacement, const json& value) {
    const std::size_t index = policies::index(field);
    const ListRow* list = find_field_row(policies::list_rows(), field);
    if (is_replacement && list == nullptr && field != PolicyField::net) {
      return add_problem(name, "only lists are added to: write " + std::string(to_string(field)));
    }
    if (out_.request.named_fields[index]) return add_problem(name, "is given twice: give it once, or below replace");
    if (!has_ceiling(field) && kind_ == PolicyKind::ceiling) {
      return add_problem(name, "cannot be forbidden by a ceiling: omit it");
    }
    out_.request.named_fields[index] = true;
    out_.request.replaced_fields[index] =
        is_replacement || (kind_ == PolicyKind::ceiling && (list != nullptr || field == PolicyField::net));
    Policy& values = out_.request.values;
    if (value.is_null()) {
      out_.request.named_fields[index] = false;
      return add_problem(name, "is null: omit it to request nothing");
    }
    if (const NumberRow* row = find_field_row(policies::number_rows(), field)) {
      out_.request.named_fields[index] = read_number(*row, name, value);
      return;
    }
    if (list != nullptr) return read_list(*list, name, value);
    if (field == PolicyField::net) return read_net(name, value);
    out_.request.named_fields[index] = value.is_boolean();
    if (!value.is_boolean()) return add_problem(name, format_value(value) + " is not true or false");
    values.*find_field_row(policies::switch_rows(), field)->member = value.get<bool>();
  }

  static std::string_view describe_unit(Unit unit) {
    if (unit == Unit::count) return "a whole number";
    return unit == Unit::bytes ? "a size: bytes, or text such as \"64 MiB\""
                               : "a time: milliseconds, or text such as \"30 s\"";
  }
  bool read_number(const NumberRow& row, const std::string& name, const json& value) {
    std::uint64_t number = 0;
    if (value.is_number_unsigned()) {
      number = value.get<std::uint64_t>();
    } else if (value.is_string() && row.unit != Unit::count) {
      std::string text = value.get<std::string>();
      if (text == "unlimited" && row.can_be_unlimited && kind_ == PolicyKind::ceiling) {
        row.set(out_.request.values, 0);
        return true;
      }
      const std::size_t blank = text.find(' ');  // removes the blank of "64 MiB"
      if (blank != std::string::npos && blank > 0) text.erase(blank, 1);
      const auto parsed = row.unit == Unit::bytes ? parse_bytes(text) : parse_duration_ms(text);
      if (!parsed) return add_problem(name, parsed.error().message), false;
      number = *parsed;
    } else {
      return add_problem(name, format_value(value) + " is not " + std::string(describe_unit(row.unit))), false;
    }
    if (number < row.min || number > row.max) {
      add_problem(name, policies::format_number(row.unit, number) + " is out of range: give " +
                            policies::format_number(row.unit, row.min) + " to " +
                            policies::format_number(row.unit, row.max) + ", or leave it out");
      return false;
    }
    row.set(out_.request.values, number);
    return true;
  }

  // Returns the items of a list in their normal form. Each invalid item is reported with its position.
  template <class Check>
  std::vector<std::string> read_items(const std::string& name, const json& value, std::size_t max,
                                      std::string_view noun, Check check) {
    std::vector<std::string> items;
    if (!value.is_array()) {
      add_problem(name, format_value(value) + " is not a list");
    } else if (value.size() > max) {
      add_problem(name,
                  std::to_string(value.size()) + ' ' + std::string(noun) + " are more than " + std::to_string(max));
    } else {
      for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string item_name = name + '[' + std::to_string(i) + ']';
        if (!value[i].is_string()) {
          add_problem(item_name, format_value(value[i]) + " is not text");
        } else if (auto item = check(value[i].template get_ref<const std::string&>())) {
          policies::add_missing(items, {std::move(*item)});
        } else {
          add_problem(item_name, item.error().message);
        }
      }
    }
    return items;
  }
  void read_list(const ListRow& row, const std::string& name, const json& value) {
    out_.request.values.*row.member = read_items(name, value, row.max, row.noun, [&](const std::string& item) {
      if (row.field == PolicyField::syscalls) return policies::check_syscall(item, kind_);
      if (row.field == PolicyField::volumes) return policies::check_volume(item);
      if (row.field == PolicyField::python_requirements) return policies::check_python_requirement(item);
      return row.field == PolicyField::secrets ? policies::check_secret(item) : policies::check_folder(item);
    });
  }
  void read_net(const std::string& name, const json& value) {
    Policy& values = out_.request.values;
    if (value == "none" || value == "loopback") {
      values.network = value == "none" ? Network::none : Network::loopback;
      return;
    }
    if (!value.is_array() || value.empty()) {
      out_.request.named_fields[policies::index(PolicyField::net)] = false;
      return add_problem(
          name, format_value(value) + " is not \"none\", \"loopback\" or a list such as " + R"(["example.org:443"])");
    }
    values.network = Network::allow_list;
    values.net_allow = read_items(name, value, policies::kMaxNetEntries, "entries",
                                  [](const std::string& item) { return policies::check_allow_entry(item); });
  }

  std::string_view prefix_;
  PolicyKind kind_;
  ParsedPolicy& out_;
};

}  // namespace

ParsedPolicy read_policy(std::string_view json_text, std::string_view prefix, PolicyKind kind) {
  ParsedPolicy out;
  if (json_text.empty()) return out;
  PolicyParser parser(prefix, kind, out);
  const auto parsed = parse_json(json_text, kMaxPolicyBytes);
  if (!parsed) {
    parser.add_problem("", parsed.error().message);
  } else if (!parsed->is_object()) {
    parser.add_problem("", format_value(*parsed) + R"( is not an object, such as {"memory": "64 MiB"})");
  } else {
    parser.read_object(*parsed, "");
    const std::size_t folders = count_folders(out.request.values);
    if (folders > kMaxFolders) {
      parser.add_problem("fs", std::to_string(folders) + " folders are more than " + std::to_string(kMaxFolders));
    }
  }
  return out;
}

std::string write_policy(const PolicyRequest& request) {
  const json values = to_json(request.values);
  json out = json::object();
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (!request.named_fields[i]) continue;
    const std::string_view name = to_string(static_cast<PolicyField>(i));
    std::string pointer = (request.replaced_fields[i] ? "/replace/" : "/") + std::string(name);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    out[json::json_pointer(pointer)] = values.at(name);
  }
  return dump_json(out);
}

}  // namespace mycojobs
