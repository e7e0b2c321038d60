// The layers of isolation, in order: the setup by init while it has privileges, the privileges that init drops for
// itself and all its jobs, and the further restrictions of a job. Each is a list of steps that is executed from top to
// bottom. The order of the steps matters; where the reason is not obvious, the comment of a step states it.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>

#include "sandbox/landlock.h"
#include "sandbox/open_path.h"
#include "sandbox/zygote/child.h"
#include "sandbox/zygote/landlock_rules.h"

namespace mycojobs::sandbox {
namespace {

int raise_loopback() {
  const Fd socket_fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd) return errno;
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  return error_if(::ioctl(socket_fd.get(), SIOCSIFFLAGS, &request) != 0);
}

// The kernel charges no group for the socket and the received data of a connection that is not accepted yet, nor for a
// closed connection that waits for its last packets. Therefore the number and the size of such connections are limited.
// The limits of pending connections and of listeners are in sandbox/launcher/reported_calls.h.
int limit_connections() {
  constexpr std::pair<const char*, std::string_view> kSettings[] = {
      {"/proc/sys/net/ipv4/tcp_rmem", "4096 32768 65536"},
      {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 262144"},
      {"/proc/sys/net/ipv4/tcp_max_tw_buckets", "1024"},
      {"/proc/sys/net/ipv4/tcp_no_metrics_save", "1"},
  };
  for (const auto& [path, value] : kSettings) {
    const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
    if (!file || ::write(file.get(), value.data(), value.size()) != static_cast<ssize_t>(value.size())) return errno;
  }
  return 0;
}

// Sends the launcher a listener for the proxy. The socket belongs to the job's network even in another process: the
// proxy accepts connections of the job here and connects outside.
int send_proxy_listener(const ChildRun& run) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return errno;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kProxyPort);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return errno;
  constexpr int kBacklog = 128;  // in addition to the connections that the proxy serves
  if (::listen(listener.get(), kBacklog) != 0) return errno;
  return send_message(run.status_fd, ProxySocketReady{}, {listener.get()});
}

// "/srv/a/b" -> "/srv"
std::string top_folder(const std::string& path) { return path.substr(0, path.find('/', 1)); }

int make_parents(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    if (::mkdir(path.substr(0, slash).c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

int make_mount_point(const std::string& path, int tree) {
  if (int error = make_parents(path); error != 0) return error;
  struct stat info {};
  if (::fstat(tree, &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return error_if(::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444));
  return error_if(!file && errno != EROFS);  // the path may be in another granted folder
}

int set_read_only(const std::string& path) {
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY;
  return error_if(::mount_setattr(AT_FDCWD, path.c_str(), 0, &attr, sizeof attr) != 0);
}

int create_network(ChildRun& run) {
  const Grants& grants = run.request.grants;
  if (grants.network == Network::none && grants.syscalls.empty()) return 0;
  if (::unshare(CLONE_NEWNET) != 0) return errno;
  if (grants.network == Network::none) return 0;
  if (int error = limit_connections(); error != 0) return error;
  if (int error = raise_loopback(); error != 0) return error;
  return grants.network == Network::allow_list ? send_proxy_listener(run) : 0;
}

// The root is sealed, so each top folder becomes a small file system of its own that holds the mount points and is then
// sealed as well. The launcher has opened the trees and set their mount attributes.
int mount_grants(ChildRun& run) {
  std::vector<std::string> paths = run.request.grants.fs_read;
  paths.insert(paths.end(), run.request.grants.fs_write.begin(), run.request.grants.fs_write.end());
  for (const Volume& volume : run.request.grants.volumes) paths.push_back(volume_mount_point(volume.name));
  if (!run.request.grants.packages.path.empty()) paths.emplace_back(kPackagesFolder);
  std::vector<std::size_t> order(paths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return paths[a] < paths[b]; });  // outer before inner
  std::vector<std::string> tops;
  for (const std::size_t i : order) {
    const std::string top = top_folder(paths[i]);
    if (std::find(tops.begin(), tops.end(), top) == tops.end()) {
      const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
      if (::mount("grants", top.c_str(), "tmpfs", flags, "size=256k,nr_inodes=256,mode=755") != 0) return errno;
      tops.push_back(top);
      if (top == "/var" && ::mkdir("/var/tmp", 0755) != 0) return errno;
    }
    if (int error = make_mount_point(paths[i], run.mounts[i]); error != 0) return error;
    // In a folder that another job may write, the path may have been replaced by a link, for example to /usr.
    const Fd mount_point_fd = open_without_links(paths[i]);
    constexpr unsigned kByDescriptors = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    if (!mount_point_fd || ::move_mount(run.mounts[i], "", mount_point_fd.get(), "", kByDescriptors) != 0) return errno;
  }
  for (const auto& top : tops) {
    if (int error = set_read_only(top); error != 0) return error;
  }
  return 0;
}

// Sets the soft and the hard limit, at most to the current hard limit. Returns 0 or errno.
int limit_resource(int resource, std::uint64_t value) {
  const auto resource_id = static_cast<__rlimit_resource>(resource);
  rlimit current{};
  if (::getrlimit(resource_id, &current) != 0) return errno;
  const rlim_t limit = std::min<rlim_t>(value, current.rlim_max);  // lowering needs no privilege
  const rlimit soft_and_hard{limit, limit};
  return error_if(::setrlimit(resource_id, &soft_and_hard) != 0);
}

// Kills init when the zygote ends. The zygote is pid 1 of the enclosing namespace, so the kernel does this anyway; the
// signal is a second safeguard. The step is repeated after drop_privileges(), because a change of credentials clears
// the signal. A job needs no such signal, since its init is pid 1.
int set_parent_death_signal(ChildRun&) { return error_if(::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0); }

// A script host may have set handlers, an alarm and blocked signals, which must not apply to init.
int reset_signals(ChildRun&) {
  struct sigaction default_action {};
  default_action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number)
    ::sigaction(number, &default_action, nullptr);  // fails for SIGKILL and SIGSTOP, which have no handlers
  const itimerval disarmed{};
  for (int timer : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF})
    ::setitimer(static_cast<__itimer_which>(timer), &disarmed, nullptr);
  stack_t disabled_stack{};
  disabled_stack.ss_flags = SS_DISABLE;
  ::sigaltstack(&disabled_stack, nullptr);
  ::umask(022);
  // Init receives SIGCHLD from a descriptor. All other signals have no handler, so the kernel drops those that are sent
  // to pid 1 from inside the namespace. Blocked signals would be queued and count against the user's limit while init
  // lives.
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  return error_if(::sigprocmask(SIG_SETMASK, &children, nullptr) != 0);
}

int start_session(ChildRun&) { return error_if(::setsid() < 0); }

// Precedes all steps that allocate memory, so that the memory is charged to the run. The kernel checks the privileges
// of the launcher, which opened the files, and not those of the writing process.
int join_cgroups(ChildRun& run) {
  for (int fd : run.cgroup_files) {
    if (::write(fd, "0", 1) != 1) return errno;
  }
  return 0;
}

int read_run_filter(ChildRun& run) { return run.filter_file < 0 ? 0 : read_filter(run.filter_file, run.run_filter); }

// Gives the descriptors of init their fixed numbers (sandbox/messages.h) and closes all others. Close-on-exec would not
// close them, since a script host never calls exec.
int arrange_descriptors(ChildRun& run) {
  const int null_in = ::open("/dev/null", O_RDONLY), null_out = ::open("/dev/null", O_WRONLY);
  const int sources[] = {null_in, null_out, null_out, run.start_fd, run.status_fd, run.fence_timer_fd, run.alive_fd};
  const int count = run.alive_fd < 0 ? kAliveFd : kAliveFd + 1;
  int duplicates[kAliveFd + 1];
  for (int i = 0; i < count; ++i) {
    duplicates[i] = ::fcntl(sources[i], F_DUPFD, 64);  // away from the targets
    if (duplicates[i] < 0) return errno;
  }
  for (int i = 0; i < count; ++i) {
    if (::dup3(duplicates[i], i, i >= kStartFd ? O_CLOEXEC : 0) < 0) return errno;
  }
  run.status_fd = kStatusFd;
  run.start_fd = kStartFd;
  run.fence_timer_fd = kFenceFd;
  if (run.alive_fd >= 0) run.alive_fd = kAliveFd;
  return error_if(::close_range(static_cast<unsigned>(count), ~0U, 0) != 0);
}

// Namespaces shared with the zygote's other jobs are accessible only by calls that no profile has. If such a call is
// granted, the namespaces are not shared. Network: see create_network().
int create_namespaces(ChildRun& run) {
  const int ipc = run.request.grants.syscalls.empty() ? 0 : CLONE_NEWIPC;
  return error_if(::unshare(CLONE_NEWNS | CLONE_NEWCGROUP | ipc) != 0);
}

int join_new_keyring(ChildRun&) {
  const long ring = ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  return ring < 0 && errno != ENOSYS ? errno : 0;  // no keys in this kernel: nothing to separate
}

constexpr std::uint64_t kUserDatabasePages = 2;  // passwd and group, each below one page, not charged to the job

int mount_tmpfs(const ChildRun& run, const char* path, const char* mode) {
  const ForkRequest& request = run.request;
  // Inodes use kernel memory that the size does not count, so their number is limited to about one per page.
  const std::uint64_t inodes =
      std::clamp<std::uint64_t>(request.limits.tmp_bytes / 4096, 1024, 65536) + kUserDatabasePages;
  char options[160];
  std::snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%s,uid=%u,gid=%u",
                static_cast<unsigned long long>(request.limits.tmp_bytes + kUserDatabasePages * 4096),
                static_cast<unsigned long long>(inodes), mode, request.uid, request.uid);
  const unsigned long flags = MS_NOSUID | MS_NODEV | (request.limits.exec ? 0 : MS_NOEXEC);
  return error_if(::mount("tmpfs", path, "tmpfs", flags, options) != 0);
}

// Mounts a file of the sandbox over a file of the root. A later mount covers `source` before a job runs.
int mount_over(const char* source, const char* path, const std::string& text) {
  const Fd file(::open(source, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file) return errno;
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return errno;
  if (::mount(source, path, nullptr, MS_BIND, nullptr) != 0) return errno;
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  return error_if(::mount_setattr(AT_FDCWD, path, 0, &attr, sizeof attr) != 0);
}

// Makes the job's user resolvable by id and by name. The id is 0 if the agent runs as an ordinary user.
int write_user_database(std::uint32_t uid) {
  const std::string id = std::to_string(uid);
  const std::string root = uid == 0 ? "" : "root:x:0:0:root:/:/usr/sbin/nologin\n";
  const std::string user = "job:x:" + id + ":" + id + ":job:/job:/bin/sh\n";
  if (int error =
          mount_over("/job/passwd", "/etc/passwd", root + user + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n");
      error != 0)
    return error;
  const std::string groups = (uid == 0 ? "" : "root:x:0:\n") + ("job:x:" + id) + ":\nnogroup:x:65534:\n";
  return mount_over("/job/group", "/etc/group", groups);
}

// /tmp and /job share one file system, and therefore one limit. The root of the file system is covered by one of its
// own folders, so that nothing has to be unmounted. A job could never modify these paths before, since the root of the
// zygote is read-only.
int create_folders(ChildRun& run) {
  if (int error = mount_tmpfs(run, "/job", "700"); error != 0) return error;
  if (int error = write_user_database(run.request.uid); error != 0) return error;
  for (const char* folder : {"/job/tmp", "/job/job"}) {
    if (::mkdir(folder, 0700) != 0 || ::chown(folder, run.request.uid, run.request.uid) != 0) return errno;
  }
  if (::chmod("/job/tmp", 01777) != 0) return errno;
  if (const char* name = run.script_host->folder; name != nullptr) {
    const std::string folder = std::string("/job/job/") + name;
    if (::mkdir(folder.c_str(), 0755) != 0 || ::chown(folder.c_str(), run.request.uid, run.request.uid) != 0)
      return errno;
  }
  if (::mount("/job/tmp", "/tmp", nullptr, MS_BIND, nullptr) != 0) return errno;
  if (::mount("/job/job", "/job", nullptr, MS_BIND, nullptr) != 0) return errno;
  return mount_tmpfs(run, "/dev/shm", "1777");
}

// Mounts the proc file system of the new pid namespace over the zygote's. Older kernels support neither option in a
// user namespace; then only the namespace hides other processes.
int mount_proc(ChildRun&) {
  const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (::mount("proc", "/proc", "proc", flags, "subset=pid,hidepid=invisible") == 0) return 0;
  return error_if(errno != EINVAL || ::mount("proc", "/proc", "proc", flags, "hidepid=2") != 0);
}

int change_to_job_folder(ChildRun&) {
  if (::chdir("/job") != 0) return errno;
  char cwd[16];
  // getcwd() returns "(unreachable)..." for a path that does not start at the root; then this is not the mounted
  // folder.
  return ::getcwd(cwd, sizeof cwd) != nullptr && std::strcmp(cwd, "/job") == 0 ? 0 : ENOTDIR;
}

// RLIMIT_AS stays unset: it counts address space, and interpreters reserve much that they never touch. RLIMIT_CORE is
// 1, since with a pipe as core_pattern the limit 0 still starts the helper.
int limit_resources(ChildRun& run) {
  const Limits& request_limits = run.request.limits;
  const std::pair<__rlimit_resource, std::uint64_t> limits[] = {
      {RLIMIT_NOFILE, request_limits.open_files},
      {RLIMIT_FSIZE, request_limits.file_bytes},
      {RLIMIT_CORE, 1},
      {RLIMIT_MEMLOCK, 0},
      {RLIMIT_MSGQUEUE, 0},
      {RLIMIT_SIGPENDING, 1024},
      {RLIMIT_STACK, 8U << 20},
      {RLIMIT_NICE, 0},
      {RLIMIT_RTPRIO, 0},
  };
  for (auto [resource, value] : limits) {
    if (int error = limit_resource(resource, value); error != 0) return error;
  }
  run.are_limits_set = true;
  return run.request.needs_memory_rlimit ? limit_resource(RLIMIT_DATA, request_limits.memory_bytes) : 0;
}

constexpr SetupStep kInitSteps[] = {
    {"parent", set_parent_death_signal}, {"signals", reset_signals},   {"session", start_session},
    {"cgroups", join_cgroups},           {"filter", read_run_filter},  {"namespaces", create_namespaces},
    {"network", create_network},         {"grants", mount_grants},     {"descriptors", arrange_descriptors},
    {"keyring", join_new_keyring},       {"folders", create_folders},  {"proc", mount_proc},
    {"cwd", change_to_job_folder},       {"rlimits", limit_resources},
};

// The launcher, its zygotes and inits have a higher priority, so that a job that uses every CPU cannot prevent them
// from ending it. A job has the priority that the agent was started with; lowering a priority needs no privilege.
int restore_niceness(ChildRun& run) { return error_if(::setpriority(PRIO_PROCESS, 0, run.job_niceness) != 0); }

// The host may have to repair its state after the fork (Python: its locks and its ids).
int run_after_fork_hook(ChildRun& run) {
  if (run.script_host->after_fork_job != nullptr) run.script_host->after_fork_job();
  return 0;
}

int unblock_signals(ChildRun&) {
  sigset_t no_signals;
  ::sigemptyset(&no_signals);
  return error_if(::sigprocmask(SIG_SETMASK, &no_signals, nullptr) != 0);
}

// Securebits, bounding set, groups, gid, uid, ambient set, capabilities: each step needs a privilege that a later step
// drops.
int drop_privileges(ChildRun& run) {
  const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                             SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                             SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  if (::prctl(PR_SET_SECUREBITS, bits) != 0) return errno;
  for (unsigned long cap = 0;; ++cap) {
    const int present = ::prctl(PR_CAPBSET_READ, cap);
    if (present < 0) break;
    if (present == 1 && ::prctl(PR_CAPBSET_DROP, cap) != 0) return errno;
  }
  const gid_t id = run.request.uid;
  // With a single mapped id the kernel forbids setgroups; the layer "uid" is then reported as missing.
  if (run.request.has_own_uid && ::syscall(SYS_setgroups, 0, nullptr) != 0) return errno;
  if (::syscall(SYS_setresgid, id, id, id) != 0) return errno;
  if (::syscall(SYS_setresuid, id, id, id) != 0) return errno;
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return errno;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct no_capabilities[2] = {};
  return error_if(::syscall(SYS_capset, &header, no_capabilities) != 0);
}

// Follows the change of ids, because RLIMIT_NPROC counts the processes of a uid, including init. The cgroup also counts
// init, so it permits pids + 1. This limit is one higher: the cgroup, which counts its refusals, must refuse first.
// Jobs that share a uid are limited together.
int limit_processes(ChildRun& run) {
  const bool has_own_uid = run.request.has_own_uid && !run.request.has_fixed_uid;
  return limit_resource(RLIMIT_NPROC, has_own_uid ? run.request.limits.pids + 2 : 4096);
}

// Forbids ptrace and core dumps; root owns /proc/self. The setting is lost at exec, where the filter and the namespace
// remain.
int hide_memory(ChildRun&) { return error_if(::prctl(PR_SET_DUMPABLE, 0) != 0); }

// Prevents speculative reads of a sibling's memory, permanently, so that a job cannot revert the setting. Some
// processors need no mitigation, and some have no setting per process.
int mitigate_speculation(ChildRun&) {
  for (const int control : {PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH}) {
    const int state = ::prctl(PR_GET_SPECULATION_CTRL, control, 0, 0, 0);
    if (state < 0 || (state & PR_SPEC_PRCTL) == 0 || (state & PR_SPEC_FORCE_DISABLE) != 0) continue;
    if (::prctl(PR_SET_SPECULATION_CTRL, control, PR_SPEC_FORCE_DISABLE, 0, 0) != 0) return errno;
  }
  return 0;
}

int set_no_new_privileges(ChildRun&) { return error_if(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0); }

// Follows the mounts, since Landlock forbids mounting.
int apply_landlock(ChildRun& run) {
  run.landlock_abi = landlock_abi();
  if (run.landlock_abi == 0) return 0;
  const int domain = make_job_domain(run.landlock_abi);
  if (domain < 0) return -domain;
  run.job_domain.reset(domain);
  return restrict_with_landlock(run.landlock_abi, run.request.limits.exec, run.request.grants);
}

// Loads the filter of init and of every job below, and returns the listener to which the filter reports, or -errno. A
// tree of filters can have only one listener.
int load_filter_with_listener(const std::vector<sock_filter>& program) {
  const sock_fprog raw_program{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  // With WAIT_KILLABLE_RECV a signal that the caller has sent to itself does not cancel a reported call.
  unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
  long fd = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw_program);
  if (fd < 0 && errno == EINVAL) {  // older than 5.19
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    fd = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw_program);
  }
  return fd < 0 ? -errno : static_cast<int>(fd);
}

// Allows all calls; used only to measure the other layers.
const std::vector<sock_filter>& allow_all_filter() {
  static const std::vector<sock_filter> kProgram{BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return kProgram;
}

// The filter of the sandbox, with the id of its job.
std::vector<sock_filter> build_filter(const ChildRun& run) {
  if (is_disabled(run.disabled_steps, "seccomp")) return allow_all_filter();
  const FilterKind kind = run.request.limits.exec ? FilterKind::job_exec : FilterKind::job;
  std::vector<sock_filter> program = run.run_filter.empty() ? (*run.filters)[kind] : run.run_filter;
  set_own_id(program, run.request.uid);
  return program;
}

int enter_job_domain(ChildRun& run) {
  return run.job_domain ? restrict_self(run.job_domain.get(), run.landlock_abi) : 0;
}

// Removes calls that the first filter still allows to init: loading filters, and forks if the job may have no
// processes. In learning mode the first filter reports forks.
int load_last_filter(ChildRun& run) {
  if (is_disabled(run.disabled_steps, "seccomp")) return 0;
  const ForkRequest& request = run.request;
  const bool sockets = request.grants.network != Network::none || !request.grants.syscalls.empty();
  const auto& program = (*run.filters)[last_filter_kind(request.limits.exec || request.learn, sockets)];
  const sock_fprog raw_program{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  return error_if(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw_program) != 0);
}

constexpr SetupStep kConfineSteps[] = {
    {"rights", drop_privileges},  {"parent_again", set_parent_death_signal},
    {"dumpable", hide_memory},    {"no_new_privs", set_no_new_privileges},
    {"landlock", apply_landlock}, {"speculation", mitigate_speculation},
};

constexpr SetupStep kJobSteps[] = {
    {"rank", restore_niceness}, {"host", run_after_fork_hook}, {"unblock", unblock_signals},
    {"nproc", limit_processes}, {"domain", enter_job_domain},  {"last_filter", load_last_filter},
};

// All privileges have been dropped by now: a child that waits in the pool is equivalent to a sleeping job. The received
// descriptors become stdout, stderr and channel, and replace the socket that delivered them, except in a warm process.
void wait_for_start(ChildRun& run) {
  RawFrame frame;
  Start start;
  if (receive_short(run.start_fd, frame) != ReceiveResult::frame || !decode(frame, start) ||
      frame.fds.size() != kRequestsFd)
    ::_exit(1);
  // The descriptors have the lowest free numbers, in order; the first usually has kRequestsFd. A warm script may have
  // closed lower numbers. Descriptors received at those numbers are moved, or they would be overwritten below.
  const bool would_overwrite_source = frame.fds.front().get() < kRequestsFd;
  for (Fd& source : frame.fds) {
    if (!would_overwrite_source || source.get() > kRequestsFd) continue;
    source.reset(::fcntl(source.get(), F_DUPFD_CLOEXEC, kRequestsFd + 1));
    if (!source) ::_exit(1);
  }
  for (int target = 1; target <= kRequestsFd; ++target) {
    Fd& source = frame.fds[static_cast<std::size_t>(target - 1)];
    if (::dup3(source.get(), target, target >= kChannelFd ? O_CLOEXEC : 0) < 0) ::_exit(1);
    source.reset();  // its number may be the next target
  }
}

// Compares the files, because a script may have closed the descriptor and opened another with the same number.
bool is_same_socket(int fd, const struct stat& expected) {
  struct stat now {};
  return ::fstat(fd, &now) == 0 && now.st_ino == expected.st_ino && now.st_dev == expected.st_dev;
}

// Serves further runs of a warm script and stops the process between them, until the script declines or init ends it.
// The result is stored before the stop, because init reads it when the kernel reports that the process has stopped.
int serve_warm_runs(ChildRun& run, int code) {
  struct stat start {};
  if (::fstat(run.start_fd, &start) != 0) return code;
  for (std::uint32_t run_count = 1; run.script_host->can_run_again != nullptr && run.script_host->can_run_again();
       ++run_count) {
    if (!is_same_socket(run.start_fd, start)) return code;
    std::fflush(nullptr);
    run.warm_status->store(run_count, code);
    ::kill(::getpid(), SIGSTOP);
    wait_for_start(run);
    code = run.script_host->run({kChannelFd, kRequestsFd});
  }
  return code;
}

}  // namespace

std::span<const SetupStep> init_steps() { return kInitSteps; }

std::span<const SetupStep> confine_steps() { return kConfineSteps; }

// Must be the last step: afterwards only the calls of a job are allowed, and the calls of init to fork a job. They
// include sending and closing the listener.
int load_first_filter(ChildRun& run) {
  const std::uint64_t start_us = monotonic_us();
  const Fd listener(load_filter_with_listener(build_filter(run)));
  if (listener.get() < 0) return -listener.get();
  if (run.fail_step == "seccomp") return EIO;
  RunConfined confined{run.landlock_abi, std::move(run.step_times)};
  confined.setup.push_back({"seccomp", static_cast<std::uint32_t>(monotonic_us() - start_us)});
  return send_message(run.status_fd, confined, {listener.get()});
}

void run_job(ChildRun& run) {
  ::prctl(PR_SET_NAME, run.script_host->name);
  run_steps(run, kJobSteps, nullptr);
  ::close_range(kStatusFd, ~0U, 0);  // descriptors of init: status, fence and alive_fd
  // A new open file, since locks and flags belong to an open file, and would outlive the job in the file of init.
  ::close(STDIN_FILENO);
  if (::open("/dev/null", O_RDONLY) != STDIN_FILENO) ::_exit(1);
  if (run.warm_status != nullptr && (run.start_fd = ::dup3(run.start_fd, kWarmStartFd, O_CLOEXEC)) < 0) ::_exit(1);
  wait_for_start(run);
  int code = run.request.is_canary ? run_canary(kChannelFd) : run.script_host->run({kChannelFd, kRequestsFd});
  if (run.warm_status != nullptr) code = serve_warm_runs(run, code);
  std::fflush(nullptr);
  ::_exit(code & 0xff);
}

}  // namespace mycojobs::sandbox
