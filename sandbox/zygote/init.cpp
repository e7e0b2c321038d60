// Process 1 of a sandbox: confined like a job, it forks jobs one after another, reaps processes, enforces the fence and
// ends the namespace. It executes no code of jobs. A job inherits init's namespaces, ids, Landlock rules, filter and
// limits, so that starting it costs only a fork and the last filter (confine.cpp). A job also inherits init's memory:
// data of a run is therefore erased before the next job is forked, and must not remain in freed memory.
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
class OwnFolders {
 public:
  // Records the current state: after the folders were created, before a job runs. kept: ZygoteHost::folder, or null.
  explicit OwnFolders(const char* kept);
  // Removes the files of a job, if there are few, and restores modes. Returns false if there are too many, or if a
  // change cannot be undone: the sandbox must not be reused. REQUIRES: no process of a job exists.
  bool tidy() const;

 private:
  struct Folder {
    const char* path;
    const char* kept;  // the only name that belongs into the folder
    Fd fd;             // O_PATH, which avoids path lookups
    struct stat made;
  };
  static bool tidy(const Folder&, int& left);
  bool has_stored() const;

  std::vector<Folder> folders_;  // nested folders before their parents
};

constexpr int kMaxEntries = 256, kDeepestFolder = 8;

// The size of a tmpfs folder grows with each name, so the number of names is known without reading the folder.
bool is_as_made(const struct stat& now, const struct stat& made) {
  return now.st_mode == made.st_mode && now.st_uid == made.st_uid && now.st_gid == made.st_gid &&
         now.st_size == made.st_size && now.st_nlink == made.st_nlink;
}

// Resets times that a job has set, or that reveal that it has written or listed the folder. The change time is then the
// end of the job.
bool forget_times(int folder) {
  constexpr timespec kNone[2] = {};
  return ::utimensat(folder, ".", kNone, 0) == 0;
}

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

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
    if (at_ == filled_) {
      filled_ = ::getdents64(folder, bytes_, sizeof bytes_);
      used_ = std::max(used_, static_cast<std::size_t>(std::max<ssize_t>(filled_, 0)));
      at_ = 0;
      if (filled_ <= 0) return nullptr;
    }
    const auto* entry = reinterpret_cast<const dirent64*>(bytes_ + at_);
    at_ += entry->d_reclen;
    return entry;
  }
  bool failed() const { return filled_ < 0; }

 private:
  alignas(dirent64) char bytes_[4096];
  std::size_t used_ = 0;
  ssize_t filled_ = 0, at_ = 0;
};

// Names are untrusted; links are not followed. No other process exists that could change the folder during the call.
bool empty_folder(const Fd& folder, const char* kept, int& left, int depth) {
  DirectoryNames names;
  while (const dirent64* entry = names.next(folder.get())) {
    const char* name = entry->d_name;
    if (same(name, ".") || same(name, "..") || (kept != nullptr && same(name, kept))) continue;
    if (--left < 0 || depth > kDeepestFolder) return false;
    int how = 0;
    if (entry->d_type == DT_DIR) {
      const Fd below(::openat(folder.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below || !empty_folder(below, nullptr, left, depth + 1)) return false;
      how = AT_REMOVEDIR;
    }
    if (::unlinkat(folder.get(), name, how) != 0) return false;
  }
  return !names.failed();
}

OwnFolders::OwnFolders(const char* kept) {
  const auto add = [this](const char* path, const char* name, int at) {
    Folder folder{path, name, Fd(::openat(at, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), {}};
    if (!folder.fd || !forget_times(folder.fd.get()) || ::fstat(folder.fd.get(), &folder.made) != 0)
      folder.made = {};  // never matches is_as_made()
    folders_.push_back(std::move(folder));
  };
  folders_.reserve(4);
  for (const char* path : {"/tmp", "/dev/shm", "/job"}) add(path, same(path, "/job") ? kept : nullptr, AT_FDCWD);
  if (kept == nullptr) return;
  add(kept, nullptr, folders_.back().fd.get());
  std::swap(folders_[2], folders_[3]);
}

bool OwnFolders::tidy(const Folder& folder, int& left) {
  struct stat now {};
  if (::fstat(folder.fd.get(), &now) != 0) return false;
  if (!is_as_made(now, folder.made)) {
    // An O_PATH descriptor permits neither reading nor chmod.
    const Fd open_folder(::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!open_folder) return false;
    const mode_t mode = folder.made.st_mode & 07777;
    if (now.st_mode != folder.made.st_mode && ::fchmod(open_folder.get(), mode) != 0) return false;
    if (!empty_folder(open_folder, folder.kept, left, 0)) return false;
    if (::fstat(folder.fd.get(), &now) != 0 || !is_as_made(now, folder.made)) return false;
  }
  return forget_times(folder.fd.get());
}

// Checks the name too, since a job could have moved the folder and replaced it.
bool OwnFolders::has_stored() const {
  const Folder& job = folders_.back();
  struct stat now {};
  return job.kept == nullptr ||
         (::fstatat(job.fd.get(), job.kept, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
          now.st_ino == folders_[folders_.size() - 2].made.st_ino && now.st_dev == job.made.st_dev);
}

bool OwnFolders::tidy() const {
  int left = kMaxEntries;
  for (const Folder& folder : folders_) {
    if (!tidy(folder, left)) return false;
  }
  return has_stored();
}

constexpr int kEndedInstance = 1;
constexpr int kTermAgainMs = 5;

[[noreturn]] void give_up(const ChildRun& run, const char* step, int error) {
  send_message(run.status, SetupStepFailed{step, error, run.limited});
  ::_exit(kEndedInstance);
}

struct InitState {
  ChildRun& run;
  int children;
  OwnFolders folders;
  pid_t job = -1;
  std::uint32_t turn = 0;  // number of ended runs
  bool main_ended = false, alone = false;
  bool term_wanted = false;
  MainEnded end = {};
  std::uint64_t user_us = 0, system_us = 0;  // CPU time of all runs
  // Warm process only: it is stopped until Start arrives; CPU time that it had used at the end of its last run.
  bool resting = false;
  std::uint64_t job_user_us = 0, job_system_us = 0;
};

// Reads and erases the signal information: pids, statuses and CPU times are for init only.
void read_children(const InitState& state) {
  signalfd_siginfo info{};
  (void)!::read(state.children, &info, sizeof info);
  ::explicit_bzero(&info, sizeof info);
}

// Adds up the CPU time of set-up and of every run so far, including this one, as the group counts it.
void count_all(InitState& state) {
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  state.user_us += state.end.user_us;
  state.system_us += state.end.system_us;
  state.end.sandbox_user_us = state.user_us + microseconds(own.ru_utime);
  state.end.sandbox_system_us = state.system_us + microseconds(own.ru_stime);
}

// Reaps ended processes; returns the number of processes other than the job. All processes of the namespace are below
// init, so without a child init is alone.
[[gnu::noinline]] std::uint32_t reap_ended(InitState& state) {
  std::uint32_t others = 0;
  int status = 0;
  rusage usage{};
  errno = 0;
  for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    state.end.user_us += microseconds(usage.ru_utime);
    state.end.system_us += microseconds(usage.ru_stime);
    if (pid == state.job) {  // a warm process reports its total time
      state.end.user_us -= std::exchange(state.job_user_us, 0);
      state.end.system_us -= std::exchange(state.job_system_us, 0);
      state.main_ended = true;
      state.end.wait_status = status;
    } else {
      ++others;
    }
  }
  state.alone = errno == ECHILD;
  return others;
}

// Erases the stack below this function, where returned functions have left data about the end of a run.
[[gnu::noinline]] void wipe_stack() {
  constexpr std::size_t kDeepest = 8192;  // maximum stack depth of finish()
  char below[kDeepest];
  ::explicit_bzero(below, sizeof below);
}

// REQUIRES: no frame of finish() is on the stack.
[[gnu::noinline]] void begin_job(InitState& state) {
  state.main_ended = state.term_wanted = false;
  state.end = {};
  wipe_stack();
  state.job = ::fork();
  if (state.job < 0) give_up(state.run, "fork_job", errno);
  if (state.job != 0) return;
  state.user_us = state.system_us = state.turn = 0;
  run_job(state.run);
}

// Start for this run must have been read by its job; otherwise the next job would receive it.
bool start_was_taken(const ChildRun& run) {
  char byte = 0;
  return ::recv(run.start, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

// True if another run may follow: nothing is left of this one, and it ended normally.
bool may_serve_again(const InitState& state) {
  return state.run.warm == nullptr && state.turn + 1 < state.run.request.runs && WIFEXITED(state.end.wait_status) &&
         state.end.stragglers == 0 && start_was_taken(state.run) && state.folders.tidy();
}

// Disables the fence of a run. Called before the end is reported, since the launcher then sets the fence of the next
// run.
void stop_fence(const InitState& state) {
  constexpr itimerspec kOff{};
  ::timerfd_settime(state.run.fence, 0, &kOff, nullptr);
}

// Checks the current run's fence again, since the launcher may have changed it after poll(2) returned.
bool fence_has_passed(const InitState& state) {
  std::uint64_t times = 0;
  return ::read(state.run.fence, &times, sizeof times) == sizeof times;
}

// Kills and counts remaining processes and reports the end of the run. Returns if another job may follow; otherwise
// exits. Reaps the processes itself, since the kernel would not add up their CPU time, but only for a limited time: the
// kernel reaps the rest of the namespace before init's end is visible. kill(-1, SIGKILL) is atomic: no process can fork
// in between.
[[gnu::noinline]] void finish(InitState& state, bool fenced, bool aborted) {
  constexpr std::uint64_t kPatienceUs = 200000;
  reap_ended(state);  // processes that have exited are not stragglers
  const std::uint64_t start = monotonic_us();
  while (!state.alone && ::kill(-1, SIGKILL) == 0 && monotonic_us() - start < kPatienceUs) {
    pollfd children{state.children, POLLIN, 0};
    ::poll(&children, 1, 10);
    read_children(state);
    state.end.stragglers += reap_ended(state);
  }
  if (!state.alone) ++state.end.stragglers;  // not reaped in time on a busy host: at least one
  state.end.fenced = fenced;
  state.end.all = state.alone;
  state.end.turn = state.resting ? state.turn - 1 : state.turn;  // a run started since has not begun
  state.end.again = state.alone && !fenced && !aborted && may_serve_again(state);
  count_all(state);
  stop_fence(state);
  if (send_message(state.run.status, state.end, {}, MSG_DONTWAIT) != 0 || !state.end.again) ::_exit(0);
  ++state.turn;
}

// True if the warm process was stopped or continued since the last call.
bool has_moved(const InitState& state, siginfo_t& info, rusage& usage) {
  info = {};
  return ::syscall(SYS_waitid, P_PID, state.job, &info, WSTOPPED | WCONTINUED | WNOHANG, &usage) == 0 &&
         info.si_pid != 0;
}
bool has_moved(const InitState& state) {
  siginfo_t info{};
  rusage usage{};
  return has_moved(state, info, usage);
}

// A warm process has ended its run: it is stopped, and its folders are emptied. The launcher checks in the group that
// it is alone; it sends Abort if the process must not stay.
void end_warm_run(InitState& state, const rusage& usage) {
  const std::uint64_t user_us = microseconds(usage.ru_utime), system_us = microseconds(usage.ru_stime);
  state.end.user_us += user_us - std::exchange(state.job_user_us, user_us);
  state.end.system_us += system_us - std::exchange(state.job_system_us, system_us);
  state.end.wait_status = W_EXITCODE(state.run.warm->code(), 0);
  state.end.stopped = state.end.all = true;
  state.end.turn = state.turn;
  // A process that was active while its folders were emptied may have written into them.
  state.end.again = start_was_taken(state.run) && state.folders.tidy() && !has_moved(state);
  count_all(state);
  stop_fence(state);
  if (send_message(state.run.status, state.end, {}, MSG_DONTWAIT) != 0) ::_exit(kEndedInstance);
  state.end = {};
  state.term_wanted = false;
  state.resting = true;
  ++state.turn;
}

// A resting warm process must not run: if anything other than init continued it (for example a timer of its own), it is
// ended. The kernel reports only the last change, and the stop at the end of the run was already reported, so a further
// stop means that it ran again. Returns true if a run has ended.
bool watch_warm(InitState& state) {
  siginfo_t info{};
  rusage usage{};
  if (!has_moved(state, info, usage)) return false;
  if (state.resting) finish(state, false, true);
  // If a script stops the process during a run, the end of the run is not reported, and its time limit applies as
  // usual.
  if (info.si_code != CLD_STOPPED || state.run.warm->runs() != state.turn + 1) return false;
  end_warm_run(state, usage);
  return true;
}

void begin_warm_run(InitState& state) {
  reap_ended(state);  // the process may have died after poll(2) returned
  if (state.main_ended || has_moved(state)) finish(state, false, true);
  state.resting = false;
  ::kill(state.job, SIGCONT);
}

// Handles a message of the launcher: SIGTERM or SIGKILL for the whole tree. A message for an earlier run is ignored. If
// the launcher has gone, init exits, since the notifications of a job's filter would not be answered.
[[gnu::noinline]] void obey(InitState& state) {
  RawFrame frame;
  switch (receive_short(state.run.status, frame, MSG_DONTWAIT)) {
    case ReceiveResult::frame:
      break;
    case ReceiveResult::nothing:
      return;
    default:
      ::_exit(kEndedInstance);
  }
  Terminate terminate;
  Abort abort;
  if (decode(frame, abort)) {
    finish(state, false, true);
  } else if (decode(frame, terminate)) {
    if (terminate.turn == state.turn) state.term_wanted = true;
  }
  ::explicit_bzero(frame.payload.data(), frame.payload.size());
}

[[noreturn]] void keep_watch(InitState& state) {
  // The last source is active only while a warm process rests: it receives Start.
  pollfd sources[] = {
      {state.children, POLLIN, 0}, {state.run.fence, POLLIN, 0}, {state.run.status, POLLIN, 0}, {-1, POLLIN, 0}};
  for (;;) {
    // EPERM while the job still has the rights of its set-up: try again, or the request would be lost.
    if (state.term_wanted) state.term_wanted = ::kill(-1, SIGTERM) != 0 && errno == EPERM;
    sources[3].fd = state.resting ? state.run.start : -1;
    if (::poll(sources, std::size(sources), state.term_wanted ? kTermAgainMs : -1) < 0 && errno != EINTR)
      ::_exit(kEndedInstance);
    if (sources[0].revents != 0) {
      read_children(state);
      reap_ended(state);
      if (state.main_ended) {
        finish(state, false, false);
        begin_job(state);
        continue;
      }
      if (state.run.warm != nullptr && watch_warm(state)) continue;  // other events belonged to the ended run
    }
    if (sources[1].revents != 0 && fence_has_passed(state)) finish(state, true, false);
    if (sources[2].revents != 0) obey(state);
    if (sources[3].revents != 0) begin_warm_run(state);
  }
}

bool share_word(ChildRun& run) {
  void* const page = ::mmap(nullptr, sizeof(WarmStatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  run.warm = new (page) WarmStatusPage();
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

bool left_out(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void take_steps(ChildRun& run, std::span<const SetupStep> steps, std::vector<StepTime>* times) {
  std::uint64_t before = times != nullptr ? monotonic_us() : 0;
  for (const SetupStep& step : steps) {
    if (left_out(run.leave_out, step.name)) continue;
    const int error = run.fail_step == step.name ? EIO : step.run(run);
    if (error != 0) give_up(run, step.name, error);
    if (times == nullptr) continue;
    const std::uint64_t after = monotonic_us();
    times->push_back({step.name, static_cast<std::uint32_t>(after - before)});
    before = after;
  }
}

void run_init(ChildRun& run) {
  ::prctl(PR_SET_NAME, "init");
  run.times.reserve(32);
  take_steps(run, init_steps(), &run.times);
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  InitState state{run, ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), OwnFolders(run.host->folder)};
  if (state.children < 0) give_up(run, "init_signals", errno);
  if (run.request.warm && !share_word(run)) give_up(run, "warm_page", errno);
  take_steps(run, confine_steps(), &run.times);
  if (int error = load_first_filter(run); error != 0) give_up(run, "seccomp", error);
  begin_job(state);
  keep_watch(state);
}

}  // namespace mycojobs::sandbox
