#include "sandbox/zygote/zygote.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sandbox/pidfd.h"
#include "sandbox/zygote/child.h"
#include "sandbox/zygote/freeze.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kControlSocket = 3;
constexpr std::size_t kRequiredFds = 3;  // status, start, fence; the others as in sandbox/messages.h

void erase_text(std::string& text) { ::explicit_bzero(text.data(), text.size()); }

// Erases the grants of a run, since the next child is a copy of this process and must not read them.
void erase_grants(RawFrame& frame, Grants& grants) {
  erase_text(frame.payload);
  for (auto* list : {&grants.fs_read, &grants.fs_write, &grants.net_allow, &grants.syscalls}) {
    for (std::string& text : *list) erase_text(text);
  }
  for (Volume& volume : grants.volumes) erase_text(volume.name);
}

class Zygote {
 public:
  explicit Zygote(const ZygoteHost& host) : host_(host) {}
  [[noreturn]] void serve();

 private:
  void receive_setup();
  void check_single_threaded() const;
  void send_loaded_files() const;
  void fork_run(RawFrame&&);
  static void refuse_run(RawFrame&);
  pid_t fork_in_new_namespace(ChildRun&) const;
  void reap();
  [[noreturn]] void exit_with_refusal(const std::string& reason) const;

  const ZygoteHost& host_;
  FilterSet filters_;
  int job_niceness_ = 0;
  std::string fail_step_;
  std::vector<std::string> disabled_steps_;
  Fd alive_, pid_namespace_, children_;
  std::unordered_map<pid_t, std::uint64_t> runs_;
};

void Zygote::exit_with_refusal(const std::string& reason) const {
  send_message(kControlSocket, RequestRefused{std::string(host_.name) + ": " + reason});
  std::exit(1);
}

void Zygote::receive_setup() {
  RawFrame frame;
  ZygoteSetup setup;
  if (receive_raw(kControlSocket, frame) != ReceiveResult::frame) std::exit(0);  // the launcher has ended
  if (!decode(frame, setup) || frame.fds.empty() || frame.fds.size() > 2)
    exit_with_refusal("the launcher uses another protocol version");
  if (int error = read_filters(frame.fds[0].get(), filters_); error != 0)
    exit_with_refusal("the seccomp programs are not readable");
  fail_step_ = setup.fail_step;
  disabled_steps_ = setup.disabled_steps;
  job_niceness_ = setup.job_niceness;
  if (frame.fds.size() == 2) alive_ = std::move(frame.fds[1]);
}

std::size_t count_entries(const char* folder) {
  std::size_t count = 0;
  DIR* open_folder = ::opendir(folder);
  if (open_folder == nullptr) return 0;
  while (const dirent* entry = ::readdir(open_folder)) count += entry->d_name[0] != '.';
  ::closedir(open_folder);
  return count;
}

// Every job would inherit an open descriptor, and fork can deadlock with a second thread.
void Zygote::check_single_threaded() const {
  if (count_entries("/proc/self/task") != 1) exit_with_refusal("a preloaded module left a thread running");
  const std::size_t expected = 4 + 1 + (alive_ ? 1 : 0);  // 0, 1, 2, control; the folder being read; alive
  if (count_entries("/proc/self/fd") != expected) exit_with_refusal("a preloaded module left a file open");
}

// Returns the paths of all mapped files in the zygote's root.
std::vector<std::string> list_mapped_files() {
  std::vector<std::string> files;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return files;
  char line[4500];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    const char* const path = std::strchr(line, '/');
    if (path == nullptr) continue;
    std::string file(path, std::strcspn(path, "\n"));
    constexpr std::string_view kDeleted = " (deleted)";  // already replaced: the file that now has the name is used
    if (file.ends_with(kDeleted)) file.resize(file.size() - kDeleted.size());
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(std::move(file));
  }
  std::fclose(maps);
  return files;
}

// Sends as many paths as fit into a frame: enough for all libraries and several hundred modules.
void Zygote::send_loaded_files() const {
  constexpr std::size_t kMaxBytes = 80U << 10;
  LoadedFiles loaded{list_mapped_files()};
  for (auto& file : host_.loaded_files != nullptr ? host_.loaded_files() : std::vector<std::string>())
    loaded.files.push_back(std::move(file));
  std::size_t bytes = 0, count = 0;
  while (count < loaded.files.size() && (bytes += loaded.files[count].size() + 4) < kMaxBytes) ++count;
  loaded.files.resize(count);
  send_message(kControlSocket, loaded);
}

void Zygote::serve() {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) exit_with_refusal("cannot tie itself to the launcher");
  // No descendant needs to gain rights by exec. Dropped here, the bounding set need not be dropped twice per job.
  for (unsigned long cap = 0; ::prctl(PR_CAPBSET_READ, cap) >= 0; ++cap) ::prctl(PR_CAPBSET_DROP, cap);
  receive_setup();  // also detects that the launcher has died
  check_single_threaded();
  ::prctl(PR_SET_NAME, (std::string("mj-") + host_.name).c_str());
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &children, nullptr);
  children_.reset(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  pid_namespace_.reset(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  if (!children_ || !pid_namespace_) exit_with_refusal("cannot open the descriptors of the server");
  send_loaded_files();
  freeze_memory(host_.written_memory != nullptr ? host_.written_memory() : std::span<const void* const>());
  send_message(kControlSocket, Ready{});
  pollfd sources[] = {{kControlSocket, POLLIN, 0}, {children_.get(), POLLIN, 0}};
  for (;;) {
    ::poll(sources, 2, -1);
    if (sources[1].revents != 0) reap();
    if (sources[0].revents == 0) continue;
    RawFrame frame;
    const ReceiveResult received = receive_raw(kControlSocket, frame, MSG_DONTWAIT);
    if (received == ReceiveResult::frame) fork_run(std::move(frame));
    if (received == ReceiveResult::descriptors_lost) refuse_run(frame);
    // all runs end with this process
    if (received == ReceiveResult::closed || received == ReceiveResult::malformed) std::_Exit(0);
  }
}

// Uses fork() of libc, which updates the thread id, locks and atfork handlers, unlike a raw clone; the namespace is
// therefore selected before. setns() to the own namespace is first, since unshare() cannot nest a second PID namespace.
pid_t Zygote::fork_in_new_namespace(ChildRun& run) const {
  if (::setns(pid_namespace_.get(), CLONE_NEWPID) != 0 || ::unshare(CLONE_NEWPID) != 0) return -1;
  if (host_.before_fork != nullptr) host_.before_fork();
  const pid_t pid = ::fork();
  if (pid == 0) run_init(run);
  const int error = errno;
  if (host_.after_fork_parent != nullptr) host_.after_fork_parent();
  errno = error;
  return pid;
}

void Zygote::fork_run(RawFrame&& frame) {
  ChildRun run;
  if (!decode(frame, run.request)) std::_Exit(1);
  const Grants& grants = run.request.grants;
  const std::size_t filters = run.request.has_own_filter ? 1 : 0;
  const std::size_t mounts = count_folders(grants);
  if (frame.fds.size() < kRequiredFds + filters + mounts) std::_Exit(1);
  run.status_fd = frame.fds[0].get();
  run.start_fd = frame.fds[1].get();
  run.fence_timer_fd = frame.fds[2].get();
  if (filters > 0) run.filter_file = frame.fds[kRequiredFds].get();
  for (std::size_t i = kRequiredFds + filters; i < frame.fds.size(); ++i) {
    auto& list = run.mounts.size() < mounts ? run.mounts : run.cgroup_files;
    list.push_back(frame.fds[i].get());
  }
  run.alive_fd = alive_.get();
  run.filters = &filters_;
  run.script_host = &host_;
  run.fail_step = fail_step_;
  run.disabled_steps = disabled_steps_;
  run.job_niceness = job_niceness_;
  const pid_t pid = fork_in_new_namespace(run);
  const int error = errno;
  erase_grants(frame, run.request.grants);
  if (pid < 0) {
    send_message(kControlSocket, RunForked{run.request.run, error});
    return;
  }
  runs_[pid] = run.request.run;
  const Fd pidfd(::pidfd_open(pid, 0));  // not reaped yet, so the pid is still valid
  if (pidfd) {
    send_message(kControlSocket, RunForked{run.request.run, 0}, {pidfd.get()});
  } else {
    ::kill(pid, SIGKILL);
    send_message(kControlSocket, RunForked{run.request.run, errno});
  }
}

// The descriptors of the run exceeded this process's limit.
void Zygote::refuse_run(RawFrame& frame) {
  ForkRequest request;
  if (!decode(frame, request)) std::_Exit(1);
  erase_grants(frame, request.grants);
  send_message(kControlSocket, RunForked{request.run, EMFILE});
}

// A reaped init proves that its namespace is empty. Its usage includes all processes that it had reaped.
void Zygote::reap() {
  signalfd_siginfo info{};
  (void)!::read(children_.get(), &info, sizeof info);
  int status = 0;
  rusage usage{};
  for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    const auto found = runs_.find(pid);
    if (found == runs_.end()) continue;
    send_message(kControlSocket,
                 InitReaped{found->second, status, microseconds(usage.ru_utime), microseconds(usage.ru_stime)});
    runs_.erase(found);
  }
  ::explicit_bzero(&info, sizeof info);
  ::explicit_bzero(&usage, sizeof usage);
}

}  // namespace
}  // namespace mycojobs::sandbox

namespace mycojobs {

namespace {

// Exchanges the effective capabilities of the calling thread, as two 32-bit words. Returns 0 or an errno.
int exchange_capabilities(unsigned (&in_force)[2]) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct capabilities[2] = {};
  if (::syscall(SYS_capget, &header, capabilities) != 0) return errno;
  std::swap(in_force[0], capabilities[0].effective);
  std::swap(in_force[1], capabilities[1].effective);
  return ::syscall(SYS_capset, &header, capabilities) == 0 ? 0 : errno;
}

}  // namespace

CapabilityDropScope::CapabilityDropScope() {
  if (exchange_capabilities(effective_) != 0) std::abort();
}
CapabilityDropScope::~CapabilityDropScope() {
  if (exchange_capabilities(effective_) != 0) std::abort();
}

void serve_zygote(const ZygoteHost& host) { sandbox::Zygote(host).serve(); }

}  // namespace mycojobs
