#include "model/policy_json.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/parse.h"
#include "net/allow_list.h"
#include "sandbox/withheld_calls.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {

// Names of system calls, from asm/unistd_64.h of Linux 6.1, which includes those of the other 64-bit architectures.
// Here the names only catch spelling mistakes; the launcher, which compiles the filter, uses libseccomp.

namespace {

// Sorted alphabetically.
// clang-format off
constexpr std::string_view kNames[] = {
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

// The same list as in sandbox/seccomp/filter_tables.cpp; a test compares both.
constexpr std::string_view kNeverInnocent[] = {
    "acct", "add_key", "bpf", "delete_module", "fanotify_init", "fanotify_mark", "finit_module", "fsconfig",
    "fsmount", "fsopen", "fspick", "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
    "lookup_dcookie", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "reboot",
    "request_key", "setns", "swapoff", "swapon", "umount", "umount2", "unshare", "userfaultfd",
};
// clang-format on
static_assert(std::is_sorted(std::begin(kNames), std::end(kNames)));
static_assert(std::is_sorted(std::begin(kNeverInnocent), std::end(kNeverInnocent)));

}  // namespace

bool is_known_syscall(std::string_view name) { return std::binary_search(std::begin(kNames), std::end(kNames), name); }

// Calls that "*" does not include. An added call is allowed with any arguments. Therefore "*" excludes calls whose
// arguments the sandbox checks in order to restrict processes, sockets, limits and priorities to the fields that grant
// them (a test compares this list with the sandbox's tables), and calls that use resources shared by all jobs of the
// host.
// clang-format off
constexpr std::string_view kNamed[] = {
    "accept", "accept4", "arch_prctl", "bind", "clone", "clone3", "close_range", "connect", "execve", "execveat",
    "fallocate", "fcntl", "fork", "getsockopt", "io_setup", "ioctl", "ioprio_set", "ipc", "listen", "madvise", "memfd_create",
    "mknod", "mknodat", "mmap", "mprotect", "mq_open", "msgctl", "msgget", "msgrcv", "msgsnd", "personality",
    "pkey_mprotect", "prctl", "prlimit64", "quotactl", "quotactl_fd", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "seccomp", "semctl", "semget", "semop", "semtimedop", "sendmmsg",
    "sendmsg", "sendto", "setpriority", "setrlimit", "setsockopt", "shmat", "shmctl", "shmget", "socket",
    "socketpair", "syslog", "vfork",
};
// clang-format on
static_assert(std::is_sorted(std::begin(kNamed), std::end(kNamed)));

bool requires_grant(std::string_view syscall) {
  return is_never_innocent(syscall) || std::binary_search(std::begin(kNamed), std::end(kNamed), syscall);
}

bool is_never_innocent(std::string_view syscall) {
  return std::binary_search(std::begin(kNeverInnocent), std::end(kNeverInnocent), syscall);
}

// The items of a policy's lists, and their checks.

namespace policies {

namespace {

constexpr std::size_t kMaxPathBytes = 4095;   // PATH_MAX includes the NUL
constexpr std::size_t kMaxSecretBytes = 255;  // limit of a file name
constexpr std::array kRoots =
    std::to_array<std::string_view>({"/srv", "/opt", "/home", "/var", "/mnt", "/media", "/data"});

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

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
  for (std::size_t from = 0; from < path.size();) {
    const std::size_t end = std::min(path.find('/', from), path.size());
    const std::string_view part = path.substr(from, end - from);
    if (part == "..") return fail(Code::invalid, excerpt(path) + " has \"..\" in it: name the folder itself");
    if (!part.empty() && part != ".") normal.append("/").append(part);
    from = end + 1;
  }
  const auto below = [&normal](std::string_view root) {
    return is_within(normal, root) && normal.size() > root.size();
  };
  if (!std::any_of(kRoots.begin(), kRoots.end(), below)) {
    return fail(Code::invalid, excerpt(path) + " is not below /srv, /opt, /home, /var, /mnt, /media or /data");
  }
  return normal;
}

bool is_within(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

Result<std::string> check_allow_entry(std::string_view entry) {
  std::string normal(entry);
  std::transform(normal.begin(), normal.end(), normal.begin(), lower);
  MJ_CHECK(parse_allow_entry(normal));
  return normal;
}

bool covers_entry(std::string_view granted, std::string_view asked) {
  const auto wide = parse_allow_entry(granted);
  const auto narrow = parse_allow_entry(asked);
  return wide && narrow && covers(*wide, *narrow);
}

Result<std::string> check_syscall(std::string_view name, PolicyKind kind) {
  if (const std::string_view why = never_granted_reason(name); !why.empty())
    return fail(Code::invalid, excerpt(name) + ' ' + std::string(why));
  if (is_known_syscall(name) || (kind == PolicyKind::ceiling && name == "*")) return std::string(name);
  return fail(Code::invalid, excerpt(name) + " is not a system call: use a name of syscalls(2), such as \"keyctl\"");
}

Result<std::string> check_secret(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return is_digit(c) || is_lower(lower(c)) || c == '-' || c == '_' || c == '.';
  });
  if (plain && !name.empty() && name.front() != '.' && name.size() <= kMaxSecretBytes) return std::string(name);
  return fail(Code::invalid, excerpt(name) +
                                 " is not the name of a secret: 1 to 255 of a-z, A-Z, 0-9, '_', '-' and "
                                 "'.', not '.' first");
}

namespace {

constexpr std::uint64_t kTebi = 1ULL << 40;
constexpr std::uint64_t kMaxDurationMs = 1ULL << 40;  // about 34 years
constexpr std::uint64_t kMaxWarmRuns = 1'000'000, kMaxIdleMs = 86'400'000;

// The range that the sandbox can set up (sandbox/launcher/launcher.cpp). Values outside of it are mistakes.
constexpr NumberRow kNumbers[] = {
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
    {PolicyField::warm_runs, Unit::count, 0, kMaxWarmRuns, false,
     [](const Policy& p) -> std::uint64_t { return p.warm_runs; },
     [](Policy& p, std::uint64_t n) { p.warm_runs = static_cast<std::uint32_t>(n); }},
    {PolicyField::warm_idle, Unit::time, 1, kMaxIdleMs, false, [](const Policy& p) { return p.warm_idle_ms; },
     [](Policy& p, std::uint64_t n) { p.warm_idle_ms = n; }},
};

constexpr ListRow kLists[] = {
    {PolicyField::fs_read, kMaxFolders, "folders", &Policy::fs_read},
    {PolicyField::fs_write, kMaxFolders, "folders", &Policy::fs_write},
    {PolicyField::syscalls, 64, "system calls", &Policy::syscalls},
    {PolicyField::secrets, 16, "secrets", &Policy::secrets},
};

constexpr SwitchRow kSwitches[] = {
    {PolicyField::exec, &Policy::exec},
    {PolicyField::output_kill, &Policy::output_kill},
    {PolicyField::artifacts_optional, &Policy::artifacts_optional},
};

struct UnitFactor {
  std::string_view name;
  std::uint64_t factor;
};
constexpr UnitFactor kSizes[] = {{"TiB", 1ULL << 40}, {"GiB", 1ULL << 30}, {"MiB", 1ULL << 20}, {"KiB", 1ULL << 10}};
constexpr UnitFactor kTimes[] = {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};

}  // namespace

std::span<const NumberRow> number_rows() { return kNumbers; }
std::span<const ListRow> list_rows() { return kLists; }
std::span<const SwitchRow> switch_rows() { return kSwitches; }

std::string number_text(Unit unit, std::uint64_t value) {
  const std::string digits = std::to_string(value);
  if (unit == Unit::count) return digits;
  const std::span<const UnitFactor> scales = unit == Unit::bytes ? std::span<const UnitFactor>(kSizes) : kTimes;
  for (const UnitFactor& scale : scales) {
    if (value != 0 && value % scale.factor == 0)
      return std::to_string(value / scale.factor) + ' ' + std::string(scale.name);
  }
  return digits + (unit == Unit::bytes ? " bytes" : " ms");
}

void add_missing(std::vector<std::string>& to, const std::vector<std::string>& items) {
  for (const std::string& item : items) {
    if (std::find(to.begin(), to.end(), item) == to.end()) to.push_back(item);
  }
}

}  // namespace policies

std::string_view to_string(PolicyField field) {
  static constexpr std::array<std::string_view, kPolicyFields> kWords = {
      "fs.read",     "fs.write",     "net",     "exec",      "cpu",        "memory",
      "pids",        "wall",         "disk",    "file_size", "open_files", "output.keep",
      "output.kill", "syscalls.add", "secrets", "warm.runs", "warm.idle",  "artifacts.optional"};
  return kWords[policies::index(field)];
}

nlohmann::json to_json(const Policy& policy) {
  auto out = nlohmann::json::object();
  for (const auto& row : policies::list_rows()) out[to_string(row.field)] = policy.*row.member;
  for (const auto& row : policies::switch_rows()) out[to_string(row.field)] = policy.*row.member;
  for (const auto& row : policies::number_rows()) {
    const std::uint64_t value = row.get(policy);
    out[to_string(row.field)] = row.may_be_unlimited && value == 0 ? nlohmann::json() : nlohmann::json(value);
  }
  auto& net = out[to_string(PolicyField::net)];
  if (policy.network == Network::allow_list) {
    net = policy.net_allow;
  } else {
    net = policy.network == Network::none ? "none" : "loopback";
  }
  return out;
}

std::string grant_members(const Policy& policy, const std::vector<std::string>& lowered) {
  auto granted = to_json(policy);
  if (policy.warm_runs == 0) granted.erase(std::string(to_string(PolicyField::warm_idle)));
  for (auto each = granted.begin(); each != granted.end();) {
    const nlohmann::json& value = each.value();
    const bool nothing =
        value.is_null() || value == false || value == 0 || value == "none" || (value.is_array() && value.empty());
    each = nothing ? granted.erase(each) : std::next(each);
  }
  std::string text = "\"granted\":" + dump_json(granted);
  if (!lowered.empty()) text += ",\"lowered\":" + dump_json(nlohmann::json(lowered));
  return text;
}

std::string value_text(PolicyField field, const Policy& policy) {
  for (const auto& row : policies::number_rows()) {
    if (row.field != field) continue;
    const std::uint64_t value = row.get(policy);
    if (row.may_be_unlimited && value == 0) return "\"unlimited\"";
    const std::string text = policies::number_text(row.unit, value);
    return row.unit == policies::Unit::count || text.ends_with("bytes") ? std::to_string(value) : '"' + text + '"';
  }
  return dump_json(to_json(policy).at(to_string(field)));
}

// Policies from JSON text and back. The text is untrusted: its size is bounded, and every problem is named.

namespace {

using nlohmann::json;
using policies::ListRow;
using policies::NumberRow;
using policies::Unit;

constexpr std::size_t kMaxProblems = 32;
constexpr std::string_view kReplace = "replace.";

std::optional<PolicyField> field_named(std::string_view name) {
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (to_string(static_cast<PolicyField>(i)) == name) return static_cast<PolicyField>(i);
  }
  return std::nullopt;
}

// Returns whether the prefix is a group of fields ("fs.", "output.") or exactly "replace.".
bool is_group(std::string_view prefix) {
  if (prefix.empty() || prefix == kReplace) return true;
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (to_string(static_cast<PolicyField>(i)).starts_with(prefix)) return true;
  }
  return false;
}

// Formats a value for a message. A text of digits is quoted, because the type is the problem.
std::string seen(const json& value) {
  if (!value.is_string()) return excerpt(dump_json(value));
  const std::string text = excerpt(value.get_ref<const std::string&>());
  return text.starts_with('"') ? text : '"' + text + '"';
}

template <class Rows>
auto row_of(Rows rows, PolicyField field) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.field == field; });
  return found == rows.end() ? nullptr : &*found;
}

class PolicyParser {
 public:
  PolicyParser(std::string_view prefix, PolicyKind kind, ParsedPolicy& out) : prefix_(prefix), kind_(kind), out_(out) {}

  void refuse(std::string_view name, const std::string& message) {
    if (out_.problems.size() >= kMaxProblems) return;
    std::string field(prefix_);
    if (!field.empty() && !name.empty()) field += '.';
    field += name;
    const std::string line = (field.empty() ? "" : field + ": ") + message;
    out_.problems.push_back({std::move(field), line});
  }

  // base: path of the object: "", "fs." or "replace.fs.".
  void read_object(const json& object, const std::string& base) {
    for (const auto& item : object.items()) {
      const std::string name = base + item.key();
      const bool replace = name.starts_with(kReplace) && kind_ == PolicyKind::request;
      const std::string bare = replace ? name.substr(kReplace.size()) : name;
      if (const auto field = field_named(bare)) {
        read_field(*field, name, replace, item.value());
      } else if (is_group(bare + '.') && !(replace && bare == "replace") && item.value().is_object() &&
                 !(bare == "replace" && kind_ == PolicyKind::ceiling)) {
        read_object(item.value(), name + '.');
      } else if (is_group(bare + '.') && bare != "replace") {
        refuse(name, "is not an object: write " + group_example(bare));
      } else {
        refuse(safe(name), "is not a field of a policy: " + known_names());
      }
    }
  }

 private:
  static std::string safe(std::string_view name) {
    const std::string text = excerpt(name);
    return text.size() > 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }
  static std::string group_example(const std::string& group) {
    for (std::size_t i = 0; i < kPolicyFields; ++i) {
      const std::string_view name = to_string(static_cast<PolicyField>(i));
      if (name.starts_with(group + '.')) return std::string(name) + ", for one";
    }
    return "names in it";
  }
  std::string known_names() const {
    std::string names = "there are ";
    for (std::size_t i = 0; i < kPolicyFields; ++i) names += std::string(to_string(static_cast<PolicyField>(i))) + ", ";
    names.resize(names.size() - 2);
    return kind_ == PolicyKind::request ? names + ", and replace with lists" : names;
  }

  void read_field(PolicyField field, const std::string& name, bool replace, const json& value) {
    const std::size_t at = policies::index(field);
    const ListRow* list = row_of(policies::list_rows(), field);
    if (replace && list == nullptr && field != PolicyField::net) {
      return refuse(name, "only lists are added to: write " + std::string(to_string(field)));
    }
    if (out_.request.named[at]) return refuse(name, "is given twice: give it once, or below replace");
    if (!has_ceiling(field) && kind_ == PolicyKind::ceiling) {
      return refuse(name, "cannot be forbidden by a ceiling: omit it");
    }
    out_.request.named[at] = true;
    out_.request.replace[at] =
        replace || (kind_ == PolicyKind::ceiling && (list != nullptr || field == PolicyField::net));
    Policy& values = out_.request.values;
    if (value.is_null()) {
      out_.request.named[at] = false;
      return refuse(name, "is null: omit it to request nothing");
    }
    if (const NumberRow* row = row_of(policies::number_rows(), field)) {
      out_.request.named[at] = read_number(*row, name, value);
      return;
    }
    if (list != nullptr) return read_list(*list, name, value);
    if (field == PolicyField::net) return read_net(name, value);
    out_.request.named[at] = value.is_boolean();
    if (!value.is_boolean()) return refuse(name, seen(value) + " is not true or false");
    values.*row_of(policies::switch_rows(), field)->member = value.get<bool>();
  }

  static std::string_view example(Unit unit) {
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
      if (text == "unlimited" && row.may_be_unlimited && kind_ == PolicyKind::ceiling) {
        row.set(out_.request.values, 0);
        return true;
      }
      const std::size_t blank = text.find(' ');  // removes the blank of "64 MiB"
      if (blank != std::string::npos && blank > 0) text.erase(blank, 1);
      const auto measured = row.unit == Unit::bytes ? parse_bytes(text) : parse_duration_ms(text);
      if (!measured) return refuse(name, measured.error().message), false;
      number = *measured;
    } else {
      return refuse(name, seen(value) + " is not " + std::string(example(row.unit))), false;
    }
    if (number < row.min || number > row.max) {
      refuse(name, policies::number_text(row.unit, number) + " is out of range: give " +
                       policies::number_text(row.unit, row.min) + " to " + policies::number_text(row.unit, row.max) +
                       ", or leave it out");
      return false;
    }
    row.set(out_.request.values, number);
    return true;
  }

  // Returns the items of a list in their normal form. Each invalid item is reported with its position.
  template <class Check>
  std::vector<std::string> items_of(const std::string& name, const json& value, std::size_t max, std::string_view noun,
                                    Check check) {
    std::vector<std::string> items;
    if (!value.is_array()) {
      refuse(name, seen(value) + " is not a list");
    } else if (value.size() > max) {
      refuse(name, std::to_string(value.size()) + ' ' + std::string(noun) + " are more than " + std::to_string(max));
    } else {
      for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string place = name + '[' + std::to_string(i) + ']';
        if (!value[i].is_string()) {
          refuse(place, seen(value[i]) + " is not text");
        } else if (auto item = check(value[i].template get_ref<const std::string&>())) {
          policies::add_missing(items, {std::move(*item)});
        } else {
          refuse(place, item.error().message);
        }
      }
    }
    return items;
  }
  void read_list(const ListRow& row, const std::string& name, const json& value) {
    out_.request.values.*row.member = items_of(name, value, row.max, row.noun, [&](const std::string& item) {
      if (row.field == PolicyField::syscalls) return policies::check_syscall(item, kind_);
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
      out_.request.named[policies::index(PolicyField::net)] = false;
      return refuse(name, seen(value) + " is not \"none\", \"loopback\" or a list such as " + R"(["example.org:443"])");
    }
    values.network = Network::allow_list;
    values.net_allow = items_of(name, value, policies::kMaxNetEntries, "entries",
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
  PolicyParser reader(prefix, kind, out);
  const auto parsed = parse_json(json_text, kMaxPolicyBytes);
  if (!parsed) {
    reader.refuse("", parsed.error().message);
  } else if (!parsed->is_object()) {
    reader.refuse("", seen(*parsed) + R"( is not an object, such as {"memory": "64 MiB"})");
  } else {
    reader.read_object(*parsed, "");
    const Policy& values = out.request.values;
    if (values.fs_read.size() + values.fs_write.size() > kMaxFolders) {
      reader.refuse("fs", std::to_string(values.fs_read.size() + values.fs_write.size()) + " folders are more than " +
                              std::to_string(kMaxFolders));
    }
  }
  return out;
}

std::string write_policy(const PolicyRequest& request) {
  const json all = to_json(request.values);
  json out = json::object();
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    if (!request.named[i]) continue;
    const std::string_view name = to_string(static_cast<PolicyField>(i));
    std::string pointer = (request.replace[i] ? "/replace/" : "/") + std::string(name);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    out[json::json_pointer(pointer)] = all.at(name);
  }
  return dump_json(out);
}

// Combines profile, request and ceiling.

namespace {

using policies::NumberRow;
using policies::Unit;

constexpr std::size_t kMaxShownBatch = 8;  // in one message; `mycojobs policy check` shows all

// Returns a number in which no limit is higher than every limit.
std::uint64_t rank(const NumberRow& row, std::uint64_t value) {
  return row.may_be_unlimited && value == 0 ? UINT64_MAX : value;
}

bool is_within_any(const std::string& path, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return policies::is_within(path, folder); });
}

bool may_read(const Policy& max, const std::string& path) {
  return is_within_any(path, max.fs_read) || is_within_any(path, max.fs_write);  // write access implies read access
}

bool has(const std::vector<std::string>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

bool may_call(const Policy& max, const std::string& name) {
  return has(max.syscalls, name) || (has(max.syscalls, "*") && !requires_grant(name));
}

bool may_reach(const Policy& max, const std::string& entry) {
  return max.network == Network::allow_list &&
         std::any_of(max.net_allow.begin(), max.net_allow.end(),
                     [&](const std::string& granted) { return policies::covers_entry(granted, entry); });
}

bool touches(const std::string& path, const std::string& folder) {
  return policies::is_within(path, folder) || policies::is_within(folder, path);
}

class CeilingApplier {
 public:
  CeilingApplier(const PolicyRequest& asked, const Ceiling& ceiling, GrantedPolicy& out)
      : asked_(asked), ceiling_(ceiling), most_(ceiling.max), out_(out) {}

  void weigh() {
    for (const auto& row : policies::number_rows()) number(row);
    for (const auto& row : policies::switch_rows()) {
      bool& value = out_.policy.*row.member;
      if (!value || most_.*row.member || keeps(row.field)) continue;
      if (!has_ceiling(row.field)) continue;
      if (asked_.names(row.field)) refuse(row.field, "is not allowed", "leave it out", "set", " = true");
      value = false;
    }
    folders(PolicyField::fs_read, &Policy::fs_read);
    folders(PolicyField::fs_write, &Policy::fs_write);
    network();
    list(PolicyField::syscalls, &Policy::syscalls, [this](const std::string& name) { return may_call(most_, name); });
    list(PolicyField::secrets, &Policy::secrets, [this](const std::string& name) { return has(most_.secrets, name); });
    counts();
  }

 private:
  bool is_written(PolicyField field) const { return ceiling_.written[static_cast<std::size_t>(field)]; }
  // Returns whether the field is not requested and has no written ceiling, so that the profile's value is kept.
  bool keeps(PolicyField field) const { return !asked_.names(field) && !is_written(field); }

  // Adds a problem such as: "policy.memory: 2 GiB is more than the ceiling of 512 MiB for context 3: ask for less, or
  // let the operator raise [contexts.3.ceiling] memory".
  void refuse(PolicyField field, const std::string& what, std::string_view remedy, std::string_view operator_does,
              std::string_view value = "") {
    const std::string name = "policy." + std::string(to_string(field));
    const std::string context = std::to_string(ceiling_.context);
    out_.problems.push_back({name, name + ": " + what + " for context " + context + ": " + std::string(remedy) +
                                       ", or let the operator " + std::string(operator_does) + " [contexts." + context +
                                       ".ceiling] " + std::string(to_string(field)) + std::string(value)});
  }

  void number(const NumberRow& row) {
    const std::uint64_t value = row.get(out_.policy);
    const std::uint64_t max = row.get(most_);
    if (rank(row, value) <= rank(row, max) || keeps(row.field)) return;
    if (row.field == PolicyField::warm_runs && max == 0) {
      if (asked_.names(row.field)) refuse(row.field, "warm scripts are not allowed", "leave it out", "set");
    } else if (asked_.names(row.field)) {
      refuse(row.field,
             policies::number_text(row.unit, value) + " is more than the ceiling of " +
                 policies::number_text(row.unit, max),
             "ask for less", "raise");
    }
    row.set(out_.policy, max);
  }

  // Items that were not requested come from the profile and are dropped if they are not allowed.
  template <class May>
  void list(PolicyField field, std::vector<std::string> Policy::*member, May may) {
    std::vector<std::string> kept;
    for (const std::string& item : out_.policy.*member) {
      const bool asked = was_asked(field, member, item);
      if (may(item) || (!asked && !is_written(field))) {
        kept.push_back(item);
      } else if (asked) {
        refuse(field, excerpt(item, 200) + " is not allowed", "leave it out", "name it in");
      }
    }
    out_.policy.*member = std::move(kept);
  }
  bool was_asked(PolicyField field, std::vector<std::string> Policy::*member, const std::string& item) const {
    return asked_.names(field) && has(asked_.values.*member, item);
  }

  void folders(PolicyField field, std::vector<std::string> Policy::*member) {
    const bool reading = field == PolicyField::fs_read;
    std::vector<std::string> kept;
    for (const std::string& path : out_.policy.*member) {
      const bool asked = was_asked(field, member, path);
      const auto& own = ceiling_.own_folders;
      const auto touched =
          std::find_if(own.begin(), own.end(), [&](const std::string& folder) { return touches(path, folder); });
      if (touched != own.end()) {
        const std::string name = "policy." + std::string(to_string(field));
        if (asked) {
          out_.problems.push_back({name, name + ": " + excerpt(path, 200) + " leads to the agent's own folder " +
                                             *touched + ", which no job may have: name another one"});
        }
      } else if (!asked && !is_written(field)) {
        kept.push_back(path);
      } else if (reading ? may_read(most_, path) : is_within_any(path, most_.fs_write)) {
        kept.push_back(path);
      } else if (asked) {
        refuse(field, excerpt(path, 200) + " is not allowed", "leave it out", "name it in");
      } else {
        narrow(path, most_.*member, kept);
      }
    }
    out_.policy.*member = std::move(kept);
  }
  // The profile grants a whole folder, but the ceiling only parts of it: keeps these parts.
  void narrow(const std::string& path, const std::vector<std::string>& allowed, std::vector<std::string>& kept) const {
    for (const std::string& part : allowed) {
      const bool own = std::any_of(ceiling_.own_folders.begin(), ceiling_.own_folders.end(),
                                   [&](const std::string& folder) { return touches(part, folder); });
      if (policies::is_within(part, path) && !own) policies::add_missing(kept, {part});
    }
  }

  void network() {
    Policy& policy = out_.policy;
    if (policy.network != Network::none && most_.network == Network::none && !keeps(PolicyField::net)) {
      if (asked_.names(PolicyField::net) && asked_.values.network != Network::none) {
        refuse(PolicyField::net, "network is not allowed", "leave it out", "set", " to what it may reach");
      }
      policy.network = Network::none;
    }
    if (policy.network == Network::allow_list) {
      list(PolicyField::net, &Policy::net_allow, [this](const std::string& entry) { return may_reach(most_, entry); });
      if (policy.net_allow.empty()) policy.network = Network::loopback;
    }
    if (policy.network != Network::allow_list) policy.net_allow.clear();
  }

  // Profile and request together may exceed a limit that neither exceeds alone.
  void counts() {
    const Policy& policy = out_.policy;
    const std::size_t all_folders = policy.fs_read.size() + policy.fs_write.size();
    const bool reading = asked_.names(PolicyField::fs_read);
    too_many(reading ? PolicyField::fs_read : PolicyField::fs_write, all_folders, kMaxFolders, "folders");
    too_many(PolicyField::net, policy.net_allow.size(), policies::kMaxNetEntries, "entries");
    for (const auto& row : policies::list_rows()) {
      if (row.field == PolicyField::syscalls || row.field == PolicyField::secrets)
        too_many(row.field, (policy.*row.member).size(), row.max, row.noun);
    }
  }
  void too_many(PolicyField field, std::size_t count, std::size_t max, std::string_view noun) {
    if (count <= max || !asked_.names(field)) return;
    const std::string name = "policy." + std::string(to_string(field));
    out_.problems.push_back({name, name + ": " + std::to_string(count) + ' ' + std::string(noun) +
                                       " together with those of the profile are more than " + std::to_string(max)});
  }

  const PolicyRequest& asked_;
  const Ceiling& ceiling_;
  const Policy& most_;
  GrantedPolicy& out_;
};

}  // namespace

Policy apply_request(const Policy& profile, const PolicyRequest& request) {
  Policy out = profile;
  const Policy& values = request.values;
  for (const auto& row : policies::number_rows()) {
    if (request.names(row.field)) row.set(out, row.get(values));
  }
  for (const auto& row : policies::switch_rows()) {
    if (request.names(row.field)) out.*row.member = values.*row.member;
  }
  for (const auto& row : policies::list_rows()) {
    if (request.replaces(row.field)) (out.*row.member).clear();
    if (request.names(row.field)) policies::add_missing(out.*row.member, values.*row.member);
  }
  if (request.names(PolicyField::net)) {
    const bool adds = values.network == Network::allow_list && !request.replaces(PolicyField::net);
    out.network = values.network;
    if (!adds) out.net_allow.clear();
    policies::add_missing(out.net_allow, values.net_allow);
  }
  return out;
}

GrantedPolicy apply_ceiling(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  GrantedPolicy out{apply_request(profile, request), {}};
  CeilingApplier(request, ceiling, out).weigh();
  return out;
}

Result<Policy> apply_ceiling_or_fail(const Policy& profile, const PolicyRequest& request, const Ceiling& ceiling) {
  GrantedPolicy combined = apply_ceiling(profile, request, ceiling);
  auto& problems = combined.problems;
  if (problems.empty()) return std::move(combined.policy);
  const std::size_t more = problems.size() - std::min(problems.size(), kMaxShownBatch);
  problems.resize(problems.size() - more);
  return fail(Code::invalid, join(problems) + (more > 0 ? "; and " + std::to_string(more) + " more" : ""));
}

std::vector<PolicyDifference> diff(const Policy& before, const Policy& after) {
  std::vector<PolicyDifference> out;
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    std::string was = value_text(field, before);
    std::string is = value_text(field, after);
    if (was != is) out.push_back({field, std::move(was), std::move(is)});
  }
  return out;
}

}  // namespace mycojobs
