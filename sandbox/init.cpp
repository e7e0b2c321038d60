// pid 1 of a sandbox: confined like a job, it forks one job after another, reaps, keeps the fence and ends the
// namespace. It runs nothing of a job's. A job inherits what init has taken on (namespaces, ids, Landlock, filter,
// limits), so that all it costs itself is a fork and the last filter (confine.cpp). It inherits init's memory too: so
// what init hears of a run is wiped before the next one is forked, and lies in no memory that was given back.
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
#include "sandbox/job.h"

namespace mycojobs::sandbox {
namespace {

// The folders of a sandbox that its jobs can write, brought back to how they were made before the next job comes.
class OwnFolders {
 public:
  // As they are now: after they have been made, before a job runs. kept: of ZygoteHost::folder, or null.
  explicit OwnFolders(const char* kept);
  // Removes what a job has left, if that is little, and undoes changes of mode. False: there is more, or something that
  // cannot be undone: the sandbox is not to be used again. While no process of a job lives.
  bool tidy() const;

 private:
  struct Folder {
    const char* path;
    const char* kept;  // the one name that belongs in it
    Fd fd;             // O_PATH: asking it costs no walk
    struct stat made;
  };
  static bool tidy(const Folder&, int& left);
  bool has_kept() const;

  std::vector<Folder> folders_;  // an inner one before what it lies in
};

constexpr int kMostEntries = 256, kDeepestFolder = 8;

// A folder of tmpfs grows with each name in it, so that its size says how many there are without its being read.
bool is_as_made(const struct stat& now, const struct stat& made) {
  return now.st_mode == made.st_mode && now.st_uid == made.st_uid && now.st_gid == made.st_gid &&
         now.st_size == made.st_size && now.st_nlink == made.st_nlink;
}

// What a job has set, or what shows when it has written or listed. The time of the change itself is then that of its
// end, and no longer one that it chose.
bool forget_times(int folder) {
  constexpr timespec kNone[2] = {};
  return ::utimensat(folder, ".", kNone, 0) == 0;
}

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// As getdents64(2) gives them. Not readdir(3), whose memory is given back with the names in it: the next job is a copy
// of init, and would find them there.
class Names {
 public:
  Names() = default;
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  ~Names() { ::explicit_bzero(bytes_, used_); }
  // Null: there is none left, or failed().
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

// Names are a stranger's; no link is followed. Nobody else is there to change what is looked at.
bool empty_folder(const Fd& folder, const char* kept, int& left, int depth) {
  Names names;
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
      folder.made = {};  // then it never is as it was made
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
    // What is O_PATH can be neither read nor changed.
    const Fd open_folder(::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!open_folder) return false;
    const mode_t mode = folder.made.st_mode & 07777;
    if (now.st_mode != folder.made.st_mode && ::fchmod(open_folder.get(), mode) != 0) return false;
    if (!empty_folder(open_folder, folder.kept, left, 0)) return false;
    if (::fstat(folder.fd.get(), &now) != 0 || !is_as_made(now, folder.made)) return false;
  }
  return forget_times(folder.fd.get());
}

// Under its own name: a job could have moved it, and put another thing in its place.
bool OwnFolders::has_kept() const {
  const Folder& job = folders_.back();
  struct stat now {};
  return job.kept == nullptr ||
         (::fstatat(job.fd.get(), job.kept, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
          now.st_ino == folders_[folders_.size() - 2].made.st_ino && now.st_dev == job.made.st_dev);
}

bool OwnFolders::tidy() const {
  int left = kMostEntries;
  for (const Folder& folder : folders_) {
    if (!tidy(folder, left)) return false;
  }
  return has_kept();
}

constexpr int kGone = 1;
constexpr int kTermAgainMs = 5;

[[noreturn]] void give_up(const ChildRun& run, const char* step, int error) {
  send_message(run.status, StepFailed{step, error, run.limited});
  ::_exit(kGone);
}

struct InitState {
  ChildRun& run;
  int children;
  OwnFolders folders;
  pid_t job = -1;
  std::uint32_t turn = 0;  // runs that have ended
  bool main_ended = false, alone = false;
  bool term_wanted = false;
  MainEnded end = {};
  std::uint64_t user_us = 0, system_us = 0;  // of all runs
  // Of a warm process: it rests, stopped, until Start comes; what it had used when its last run ended.
  bool resting = false;
  std::uint64_t job_user_us = 0, job_system_us = 0;
};

// Says who of them has ended, with what and after how much CPU: that is for init alone.
void hear_children(const InitState& state) {
  signalfd_siginfo info{};
  (void)!::read(state.children, &info, sizeof info);
  ::explicit_bzero(&info, sizeof info);
}

// All that was set up, and every run so far, this one too: what the group has counted.
void count_all(InitState& state) {
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  state.user_us += state.end.user_us;
  state.system_us += state.end.system_us;
  state.end.sandbox_user_us = state.user_us + microseconds(own.ru_utime);
  state.end.sandbox_system_us = state.system_us + microseconds(own.ru_stime);
}

// How many were reaped that are not the job. All that is in the namespace is below init, so without a child it is
// alone.
[[gnu::noinline]] std::uint32_t reap_ended(InitState& state) {
  std::uint32_t others = 0;
  int status = 0;
  rusage usage{};
  errno = 0;
  for (pid_t pid = 0; (pid = ::wait4(-1, &status, WNOHANG, &usage)) > 0;) {
    state.end.user_us += microseconds(usage.ru_utime);
    state.end.system_us += microseconds(usage.ru_stime);
    if (pid == state.job) {  // of a warm process it is all of its life
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

// What functions that have returned have left below this one: their words about the end of a run, and the kernel's.
[[gnu::noinline]] void wipe_stack() {
  constexpr std::size_t kDeepest = 8192;  // of all that finish() calls
  char below[kDeepest];
  ::explicit_bzero(below, sizeof below);
}

// Called where nothing of finish() is on the stack any more.
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

// What the launcher has sent for this run must have been read by it: else the next job would take it for its own.
bool start_was_taken(const ChildRun& run) {
  char byte = 0;
  return ::recv(run.start, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

// Whether another run may come: nothing of this one is left, and nothing about its end was out of the ordinary.
bool may_serve_again(const InitState& state) {
  return state.run.warm == nullptr && state.turn + 1 < state.run.request.runs && WIFEXITED(state.end.wait_status) &&
         state.end.stragglers == 0 && start_was_taken(state.run) && state.folders.tidy();
}

// The fence of a run goes with it. Before its end is reported: the launcher sets that of the next one only when it has
// heard of this end.
void stop_fence(const InitState& state) {
  constexpr itimerspec kOff{};
  ::timerfd_settime(state.run.fence, 0, &kOff, nullptr);
}

// Of the run that is here: the launcher may have set it anew since poll(2) looked.
bool fence_has_passed(const InitState& state) {
  std::uint64_t times = 0;
  return ::read(state.run.fence, &times, sizeof times) == sizeof times;
}

// Kills what is left, counts it, reports it; returns if another job may come, else it is the end. It waits for the dead
// itself, for the kernel would not add up their CPU; but not for long: it reaps whatever is left of a namespace before
// the end of its init is seen. KILL to all of them is one step for the kernel: nobody forks in between.
[[gnu::noinline]] void finish(InitState& state, bool fenced, bool aborted) {
  constexpr std::uint64_t kPatienceUs = 200000;
  reap_ended(state);  // what has died by itself is no straggler
  const std::uint64_t start = monotonic_us();
  while (!state.alone && ::kill(-1, SIGKILL) == 0 && monotonic_us() - start < kPatienceUs) {
    pollfd children{state.children, POLLIN, 0};
    ::poll(&children, 1, 10);
    hear_children(state);
    state.end.stragglers += reap_ended(state);
  }
  if (!state.alone) ++state.end.stragglers;  // not reaped yet, on a busy host: one at least
  state.end.fenced = fenced;
  state.end.all = state.alone;
  state.end.turn = state.resting ? state.turn - 1 : state.turn;  // what has been started since has not begun
  state.end.again = state.alone && !fenced && !aborted && may_serve_again(state);
  count_all(state);
  stop_fence(state);
  if (send_message(state.run.status, state.end, {}, MSG_DONTWAIT) != 0 || !state.end.again) ::_exit(0);
  ++state.turn;
}

// Whether the warm process has been stopped or continued since this was asked last.
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

// The process of a warm script has ended its run: all of it stands still, and nothing is left in its folders. That it
// is alone is for the launcher to see, in its group; if it is not to stay, Abort comes.
void end_warm_run(InitState& state, const rusage& usage) {
  const std::uint64_t user_us = microseconds(usage.ru_utime), system_us = microseconds(usage.ru_stime);
  state.end.user_us += user_us - std::exchange(state.job_user_us, user_us);
  state.end.system_us += system_us - std::exchange(state.job_system_us, system_us);
  state.end.wait_status = W_EXITCODE(state.run.warm->code(), 0);
  state.end.stopped = state.end.all = true;
  state.end.turn = state.turn;
  // One that has moved while its folders were emptied may have put something into them.
  state.end.again = start_was_taken(state.run) && state.folders.tidy() && !has_moved(state);
  count_all(state);
  stop_fence(state);
  if (send_message(state.run.status, state.end, {}, MSG_DONTWAIT) != 0) ::_exit(kGone);
  state.end = {};
  state.term_wanted = false;
  state.resting = true;
  ++state.turn;
}

// What it does between its runs is nothing: whoever has continued it but us, a timer of its own say, has ended it. The
// kernel reports the last of it alone, and the stop that ended its run has been reported: if it has stopped now, it has
// stopped again.
// True: a run has ended.
bool watch_warm(InitState& state) {
  siginfo_t info{};
  rusage usage{};
  if (!has_moved(state, info, usage)) return false;
  if (state.resting) finish(state, false, true);
  // One that a script has stopped in the middle of a run has not reported that this run has ended, and waits for its
  // time limit as in any other sandbox.
  if (info.si_code != CLD_STOPPED || state.run.warm->runs() != state.turn + 1) return false;
  end_warm_run(state, usage);
  return true;
}

void begin_warm_run(InitState& state) {
  reap_ended(state);  // it may have died since poll(2) looked
  if (state.main_ended || has_moved(state)) finish(state, false, true);
  state.resting = false;
  ::kill(state.job, SIGCONT);
}

// The launcher speaks: TERM or KILL for the whole tree. What is meant for a run that has ended in the meantime is not
// for the next one. Its end is ours too: a job without its supervisor would have its notifications
// answered by nobody.
[[gnu::noinline]] void obey(InitState& state) {
  RawFrame frame;
  switch (receive_short(state.run.status, frame, MSG_DONTWAIT)) {
    case Received::frame:
      break;
    case Received::nothing:
      return;
    default:
      ::_exit(kGone);
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
  // The last one only while a warm process rests: a Start for it.
  pollfd sources[] = {
      {state.children, POLLIN, 0}, {state.run.fence, POLLIN, 0}, {state.run.status, POLLIN, 0}, {-1, POLLIN, 0}};
  for (;;) {
    // Refused while the job still has the rights of its set-up: then again, or the request would be lost.
    if (state.term_wanted) state.term_wanted = ::kill(-1, SIGTERM) != 0 && errno == EPERM;
    sources[3].fd = state.resting ? state.run.start : -1;
    if (::poll(sources, std::size(sources), state.term_wanted ? kTermAgainMs : -1) < 0 && errno != EINTR)
      ::_exit(kGone);
    if (sources[0].revents != 0) {
      hear_children(state);
      reap_ended(state);
      if (state.main_ended) {
        finish(state, false, false);
        begin_job(state);
        continue;
      }
      if (state.run.warm != nullptr && watch_warm(state)) continue;  // what else was heard was of that run
    }
    if (sources[1].revents != 0 && fence_has_passed(state)) finish(state, true, false);
    if (sources[2].revents != 0) obey(state);
    if (sources[3].revents != 0) begin_warm_run(state);
  }
}

bool share_word(ChildRun& run) {
  void* const page = ::mmap(nullptr, sizeof(WarmWord), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  run.warm = new (page) WarmWord();
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

void take_steps(ChildRun& run, std::span<const Step> steps, std::vector<StepTime>* times) {
  std::uint64_t before = times != nullptr ? monotonic_us() : 0;
  for (const Step& step : steps) {
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
