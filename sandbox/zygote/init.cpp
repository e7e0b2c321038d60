// Init, process 1 of a sandbox. It is confined like a job, forks jobs one after another, reaps processes, enforces the
// fence and ends the namespace. It executes no code of jobs. A job inherits init's namespaces, ids, Landlock rules,
// filter and limits, so that starting it costs only a fork and the last filter (confine.cpp). A job also inherits
// init's memory: data of a run is therefore erased before the next job is forked, and must not remain in freed memory.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

// Restores the writable folders of a sandbox to their initial state before the next job.
class JobFolders {
 public:
  // Records the state of the folders before a job runs. `preserved` is ZygoteHost::folder, or null.
  explicit JobFolders(const char* preserved);
  // Removes the files of a job, if there are few, and restores modes. Returns false if there are too many, or if a
  // change cannot be undone: the sandbox must not be reused. REQUIRES: no process of a job exists.
  bool clean_up() const;

 private:
  struct Folder {
    const char* path;
    const char* preserved;  // the only entry that is not removed, or null
    Fd fd;                  // O_PATH, which avoids path lookups
    struct stat initial;
  };
  static bool clean_up(const Folder&, int& remaining);
  bool has_preserved_folder() const;

  std::vector<Folder> folders_;  // nested folders before their parents
};

constexpr int kMaxEntries = 256, kMaxFolderDepth = 8;

// The size of a tmpfs folder grows with each name, so the number of names is known without reading the folder.
bool is_unchanged(const struct stat& now, const struct stat& initial) {
  return now.st_mode == initial.st_mode && now.st_uid == initial.st_uid && now.st_gid == initial.st_gid &&
         now.st_size == initial.st_size && now.st_nlink == initial.st_nlink;
}

// Resets times that a job has set, or that reveal that it has written or listed the folder. The change time is then the
// end of the job.
bool reset_times(int folder) {
  constexpr timespec kEpoch[2] = {};
  return ::utimensat(folder, ".", kEpoch, 0) == 0;
}

bool is_equal(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// Iterates with getdents64(2). readdir(3) would leave the names in freed memory, and the next job, a copy of init,
// could read them.
class DirectoryNames {
 public:
  DirectoryNames() = default;
  DirectoryNames(const DirectoryNames&) = delete;
  DirectoryNames& operator=(const DirectoryNames&) = delete;
  ~DirectoryNames() { ::explicit_bzero(bytes_, used_); }
  // Returns null at the end or after an error (failed()).
  const dirent64* next(int folder) {
    if (position_ == size_) {
      size_ = ::getdents64(folder, bytes_, sizeof bytes_);
      used_ = std::max(used_, static_cast<std::size_t>(std::max<ssize_t>(size_, 0)));
      position_ = 0;
      if (size_ <= 0) return nullptr;
    }
    const auto* entry = reinterpret_cast<const dirent64*>(bytes_ + position_);
    position_ += entry->d_reclen;
    return entry;
  }
  bool failed() const { return size_ < 0; }

 private:
  alignas(dirent64) char bytes_[4096];
  std::size_t used_ = 0;
  ssize_t size_ = 0, position_ = 0;
};

// Names are untrusted; links are not followed. No other process exists that could change the folder during the call.
bool empty_folder(const Fd& folder, const char* preserved, int& remaining, int depth) {
  DirectoryNames names;
  while (const dirent64* entry = names.next(folder.get())) {
    const char* name = entry->d_name;
    if (is_equal(name, ".") || is_equal(name, "..") || (preserved != nullptr && is_equal(name, preserved))) continue;
    if (--remaining < 0 || depth > kMaxFolderDepth) return false;
    int flags = 0;
    if (entry->d_type == DT_DIR) {
      const Fd subfolder(::openat(folder.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!subfolder || !empty_folder(subfolder, nullptr, remaining, depth + 1)) return false;
      flags = AT_REMOVEDIR;
    }
    if (::unlinkat(folder.get(), name, flags) != 0) return false;
  }
  return !names.failed();
}

JobFolders::JobFolders(const char* preserved) {
  const auto add = [this](const char* path, const char* name, int parent) {
    Folder folder{path, name, Fd(::openat(parent, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), {}};
    if (!folder.fd || !reset_times(folder.fd.get()) || ::fstat(folder.fd.get(), &folder.initial) != 0)
      folder.initial = {};  // never matches is_unchanged()
    folders_.push_back(std::move(folder));
  };
  folders_.reserve(4);
  for (const char* path : {"/tmp", "/dev/shm", "/job"})
    add(path, is_equal(path, "/job") ? preserved : nullptr, AT_FDCWD);
  if (preserved == nullptr) return;
  add(preserved, nullptr, folders_.back().fd.get());
  std::swap(folders_[2], folders_[3]);
}

bool JobFolders::clean_up(const Folder& folder, int& remaining) {
  struct stat now {};
  if (::fstat(folder.fd.get(), &now) != 0) return false;
  if (!is_unchanged(now, folder.initial)) {
    // An O_PATH descriptor permits neither reading nor chmod.
    const Fd open_folder(::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!open_folder) return false;
    const mode_t mode = folder.initial.st_mode & 07777;
    if (now.st_mode != folder.initial.st_mode && ::fchmod(open_folder.get(), mode) != 0) return false;
    if (!empty_folder(open_folder, folder.preserved, remaining, 0)) return false;
    if (::fstat(folder.fd.get(), &now) != 0 || !is_unchanged(now, folder.initial)) return false;
  }
  return reset_times(folder.fd.get());
}

// Checks the name too, since a job could have moved the folder and replaced it.
bool JobFolders::has_preserved_folder() const {
  const Folder& job = folders_.back();
  struct stat now {};
  return job.preserved == nullptr ||
         (::fstatat(job.fd.get(), job.preserved, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
          now.st_ino == folders_[folders_.size() - 2].initial.st_ino && now.st_dev == job.initial.st_dev);
}

bool JobFolders::clean_up() const {
  int remaining = kMaxEntries;
  for (const Folder& folder : folders_) {
    if (!clean_up(folder, remaining)) return false;
  }
  return has_preserved_folder();
}

constexpr int kFailureExitCode = 1;
constexpr int kTermRepeatMs = 5;

[[noreturn]] void report_failure_and_exit(const ChildRun& run, const char* step, int error) {
  send_message(run.status_fd, SetupStepFailed{step, error, run.are_limits_set});
  ::_exit(kFailureExitCode);
}

struct InitState {
  ChildRun& run;
  int child_signals;  // signalfd for SIGCHLD
  JobFolders folders;
  pid_t job = -1;
  std::uint32_t run_index = 0;  // number of ended runs
  bool has_job_ended = false, is_alone = false;
  bool is_term_requested = false;
  JobEnded end = {};
  std::uint64_t user_us = 0, system_us = 0;          // CPU time of all runs
  bool is_idle = false;                              // a warm process is stopped until Start arrives
  std::uint64_t job_user_us = 0, job_system_us = 0;  // CPU time of a warm process at the end of its last run
};

// Reads and erases the signal information: pids, statuses and CPU times are for init only.
void read_children(const InitState& state) {
  signalfd_siginfo info{};
  (void)!::read(state.child_signals, &info, sizeof info);
  ::explicit_bzero(&info, sizeof info);
}

// Adds up the CPU time of set-up and of every run so far, including this one, as the group counts it.
void add_cpu_times(InitState& state) {
  rusage init_usage{};
  ::getrusage(RUSAGE_SELF, &init_usage);
  state.user_us += state.end.user_us;
  state.system_us += state.end.system_us;
  state.end.sandbox_user_us = state.user_us + microseconds(init_usage.ru_utime);
  state.end.sandbox_system_us = state.system_us + microseconds(init_usage.ru_stime);
}

// Reaps ended processes; returns the number of processes other than the job. All processes of the namespace are below
// init, so without a child init is alone.
[[gnu::noinline]] std::uint32_t reap_ended(InitState& state) {
  std::uint32_t other_count = 0;
  int status = 0;
  rusage usage{};
  errno = 0;
  for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    state.end.user_us += microseconds(usage.ru_utime);
    state.end.system_us += microseconds(usage.ru_stime);
    if (pid == state.job) {  // a warm process reports its total time
      state.end.user_us -= std::exchange(state.job_user_us, 0);
      state.end.system_us -= std::exchange(state.job_system_us, 0);
      state.has_job_ended = true;
      state.end.wait_status = status;
    } else {
      ++other_count;
    }
  }
  state.is_alone = errno == ECHILD;
  return other_count;
}

// Erases the stack below this function, where returned functions have left data about the end of a run.
[[gnu::noinline]] void wipe_stack() {
  constexpr std::size_t kStackBytes = 8192;  // maximum stack depth of finish_run()
  char stack_bytes[kStackBytes];
  ::explicit_bzero(stack_bytes, sizeof stack_bytes);
}

// REQUIRES: no frame of finish_run() is on the stack.
[[gnu::noinline]] void begin_job(InitState& state) {
  state.has_job_ended = state.is_term_requested = false;
  state.end = {};
  wipe_stack();
  state.job = ::fork();
  if (state.job < 0) report_failure_and_exit(state.run, "fork_job", errno);
  if (state.job != 0) return;
  state.user_us = state.system_us = state.run_index = 0;
  run_job(state.run);
}

// Start for this run must have been read by its job; otherwise the next job would receive it.
bool was_start_received(const ChildRun& run) {
  char byte = 0;
  return ::recv(run.start_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

// True if another run may follow: nothing is left of this one, and it ended normally.
bool can_serve_again(const InitState& state) {
  return state.run.warm_status == nullptr && state.run_index + 1 < state.run.request.max_runs &&
         WIFEXITED(state.end.wait_status) && state.end.stragglers == 0 && was_start_received(state.run) &&
         state.folders.clean_up();
}

// Disables the fence of a run. Called before the end is reported, since the launcher then sets the fence of the next
// run.
void disarm_fence(const InitState& state) {
  constexpr itimerspec kDisarmed{};
  ::timerfd_settime(state.run.fence_timer_fd, 0, &kDisarmed, nullptr);
}

// Checks the current run's fence again, since the launcher may have changed it after poll(2) returned.
bool has_fence_expired(const InitState& state) {
  std::uint64_t expirations = 0;
  return ::read(state.run.fence_timer_fd, &expirations, sizeof expirations) == sizeof expirations;
}

// Kills and counts remaining processes and reports the end of the run. Returns if another job may follow; otherwise
// exits. Reaps the processes itself, since the kernel would not add up their CPU time, but only for a limited time: the
// kernel reaps the rest of the namespace before init's end is visible. kill(-1, SIGKILL) is atomic: no process can fork
// in between.
[[gnu::noinline]] void finish_run(InitState& state, bool fenced, bool aborted) {
  constexpr std::uint64_t kKillTimeoutUs = 200000;
  reap_ended(state);  // processes that have exited are not stragglers
  const std::uint64_t start_us = monotonic_us();
  while (!state.is_alone && ::kill(-1, SIGKILL) == 0 && monotonic_us() - start_us < kKillTimeoutUs) {
    pollfd children{state.child_signals, POLLIN, 0};
    ::poll(&children, 1, 10);
    read_children(state);
    state.end.stragglers += reap_ended(state);
  }
  if (!state.is_alone) ++state.end.stragglers;  // not reaped in time on a busy host: at least one
  state.end.is_fenced = fenced;
  state.end.are_all_reaped = state.is_alone;
  state.end.run_index = state.is_idle ? state.run_index - 1 : state.run_index;  // the last run that has begun
  state.end.can_run_again = state.is_alone && !fenced && !aborted && can_serve_again(state);
  add_cpu_times(state);
  disarm_fence(state);
  if (send_message(state.run.status_fd, state.end, {}, MSG_DONTWAIT) != 0 || !state.end.can_run_again) ::_exit(0);
  ++state.run_index;
}

// True if the warm process was stopped or continued since the last call.
bool has_changed_state(const InitState& state, siginfo_t& info, rusage& usage) {
  info = {};
  return ::syscall(SYS_waitid, P_PID, state.job, &info, WSTOPPED | WCONTINUED | WNOHANG, &usage) == 0 &&
         info.si_pid != 0;
}
bool has_changed_state(const InitState& state) {
  siginfo_t info{};
  rusage usage{};
  return has_changed_state(state, info, usage);
}

// A warm process has ended its run: it is stopped, and its folders are emptied. The launcher checks in the group that
// no other process is left, and sends Abort if the process must not stay.
void end_warm_run(InitState& state, const rusage& usage) {
  const std::uint64_t user_us = microseconds(usage.ru_utime), system_us = microseconds(usage.ru_stime);
  state.end.user_us += user_us - std::exchange(state.job_user_us, user_us);
  state.end.system_us += system_us - std::exchange(state.job_system_us, system_us);
  state.end.wait_status = W_EXITCODE(state.run.warm_status->exit_code(), 0);
  state.end.is_stopped = state.end.are_all_reaped = true;
  state.end.run_index = state.run_index;
  // A process that was active while its folders were emptied may have written into them.
  state.end.can_run_again = was_start_received(state.run) && state.folders.clean_up() && !has_changed_state(state);
  add_cpu_times(state);
  disarm_fence(state);
  if (send_message(state.run.status_fd, state.end, {}, MSG_DONTWAIT) != 0) ::_exit(kFailureExitCode);
  state.end = {};
  state.is_term_requested = false;
  state.is_idle = true;
  ++state.run_index;
}

// An idle warm process must not run: if anything other than init continued it (for example a timer of its own), it is
// ended. The kernel reports only the last change, and the stop at the end of the run was already reported, so a further
// stop means that it ran again. Returns true if a run has ended.
bool check_warm_process(InitState& state) {
  siginfo_t info{};
  rusage usage{};
  if (!has_changed_state(state, info, usage)) return false;
  if (state.is_idle) finish_run(state, false, true);
  // If a script stops the process during a run, the end of the run is not reported, and its time limit applies as
  // usual.
  if (info.si_code != CLD_STOPPED || state.run.warm_status->ended_runs() != state.run_index + 1) return false;
  end_warm_run(state, usage);
  return true;
}

void begin_warm_run(InitState& state) {
  reap_ended(state);  // the process may have died after poll(2) returned
  if (state.has_job_ended || has_changed_state(state)) finish_run(state, false, true);
  state.is_idle = false;
  ::kill(state.job, SIGCONT);
}

// Handles a message of the launcher: SIGTERM or SIGKILL for the whole tree. A message for an earlier run is ignored. If
// the launcher has gone, init exits, since the notifications of a job's filter would not be answered.
[[gnu::noinline]] void handle_message(InitState& state) {
  RawFrame frame;
  switch (receive_short(state.run.status_fd, frame, MSG_DONTWAIT)) {
    case ReceiveResult::frame:
      break;
    case ReceiveResult::would_block:
      return;
    default:
      ::_exit(kFailureExitCode);
  }
  Terminate terminate;
  Abort abort;
  if (decode(frame, abort)) {
    finish_run(state, false, true);
  } else if (decode(frame, terminate)) {
    if (terminate.run_index == state.run_index) state.is_term_requested = true;
  }
  ::explicit_bzero(frame.payload.data(), frame.payload.size());
}

[[noreturn]] void serve_events(InitState& state) {
  // The last source is active only while a warm process is idle: it receives Start.
  pollfd sources[] = {{state.child_signals, POLLIN, 0},
                      {state.run.fence_timer_fd, POLLIN, 0},
                      {state.run.status_fd, POLLIN, 0},
                      {-1, POLLIN, 0}};
  for (;;) {
    // EPERM while the job still has the rights of its set-up: try again, or the request would be lost.
    if (state.is_term_requested) state.is_term_requested = ::kill(-1, SIGTERM) != 0 && errno == EPERM;
    sources[3].fd = state.is_idle ? state.run.start_fd : -1;
    if (::poll(sources, std::size(sources), state.is_term_requested ? kTermRepeatMs : -1) < 0 && errno != EINTR)
      ::_exit(kFailureExitCode);
    if (sources[0].revents != 0) {
      read_children(state);
      reap_ended(state);
      if (state.has_job_ended) {
        finish_run(state, false, false);
        begin_job(state);
        continue;
      }
      if (state.run.warm_status != nullptr && check_warm_process(state))
        continue;  // other events belonged to the ended run
    }
    if (sources[1].revents != 0 && has_fence_expired(state)) finish_run(state, true, false);
    if (sources[2].revents != 0) handle_message(state);
    if (sources[3].revents != 0) begin_warm_run(state);
  }
}

bool create_warm_status_page(ChildRun& run) {
  void* const page = ::mmap(nullptr, sizeof(WarmStatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  run.warm_status = new (page) WarmStatusPage();
  return true;
}

}  // namespace

std::uint64_t microseconds(const timeval& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1000000 + static_cast<std::uint64_t>(time.tv_usec);
}

std::uint64_t monotonic_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

bool is_disabled(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void run_steps(ChildRun& run, std::span<const SetupStep> steps, std::vector<StepTime>* times) {
  std::uint64_t start_us = times != nullptr ? monotonic_us() : 0;
  for (const SetupStep& step : steps) {
    if (is_disabled(run.disabled_steps, step.name)) continue;
    const int error = run.fail_step == step.name ? EIO : step.run(run);
    if (error != 0) report_failure_and_exit(run, step.name, error);
    if (times == nullptr) continue;
    const std::uint64_t end_us = monotonic_us();
    times->push_back({step.name, static_cast<std::uint32_t>(end_us - start_us)});
    start_us = end_us;
  }
}

void run_init(ChildRun& run) {
  ::prctl(PR_SET_NAME, "init");
  run.step_times.reserve(32);
  run_steps(run, init_steps(), &run.step_times);
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  InitState state{run, ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), JobFolders(run.script_host->folder)};
  if (state.child_signals < 0) report_failure_and_exit(run, "init_signals", errno);
  if (run.request.is_warm && !create_warm_status_page(run)) report_failure_and_exit(run, "warm_page", errno);
  run_steps(run, confine_steps(), &run.step_times);
  if (int error = load_first_filter(run); error != 0) report_failure_and_exit(run, "seccomp", error);
  begin_job(state);
  serve_events(state);
}

}  // namespace mycojobs::sandbox
