#include "sandbox/launcher/runs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/errno_text.h"
#include "base/shortage.h"
#include "sandbox/launcher/layers.h"
#include "sandbox/launcher/reported_calls.h"
#include "sandbox/pidfd.h"
#include "sandbox/processes.h"

namespace mycojobs::sandbox {

void set_outcome(SandboxRun& run, RunStatus status, std::string reason) {
  if (run.decided) return;
  run.decided = true;
  run.outcome.status = status;
  run.outcome.reason = std::move(reason);
}

void decide_setup_error(SandboxRun& run, std::string step, int error, std::string remedy) {
  if (run.decided) return;
  if (remedy.empty()) remedy = remedy_for_step(step, error);
  set_outcome(run, RunStatus::setup_error,
              fmt::format("the sandbox could not be set up: {}: {}: {}", step, errno_text(error), remedy));
  run.outcome.setup_error = SetupError{std::move(step), error, std::move(remedy)};
}

void set_not_started(SandboxRun& run, std::string why) {
  if (run.decided) return;
  set_outcome(run, RunStatus::lost, std::move(why));
  run.outcome.unstarted = true;
}

void set_not_started(SandboxRun& run, std::string why, SetupError shortage) {
  if (run.decided) return;
  set_not_started(run, std::move(why));
  run.outcome.setup_error = std::move(shortage);
}

void decide_by_wait_status(SandboxRun& run, int wait_status) {
  if (run.decided) return;
  if (WIFEXITED(wait_status)) {
    run.outcome.exit_code = WEXITSTATUS(wait_status);
    const bool ok = run.outcome.exit_code == 0;
    set_outcome(run, ok ? RunStatus::ok : RunStatus::exit,
                ok ? "" : fmt::format("exit code {}", run.outcome.exit_code));
    return;
  }
  const int number = WTERMSIG(wait_status);
  run.outcome.signal = number;
  if (number == SIGXFSZ) {
    return set_outcome(
        run, RunStatus::file_limit,
        fmt::format("over the limit of {} KiB for one file: ended by the kernel", run.spec.limits.file_bytes >> 10));
  }
  const char* name = ::sigabbrev_np(number);
  set_outcome(run, RunStatus::signal, fmt::format("ended by signal {} ({})", number, name != nullptr ? name : "?"));
}

void set_killed(SandboxRun& run, KillReason reason) {
  switch (reason) {
    case KillReason::output_limit:
      return set_outcome(run, RunStatus::output_limit, "over the limit of output: killed");
    case KillReason::fenced:
      return set_outcome(run, RunStatus::lost, "the lease of this run has ended: killed");
    case KillReason::cancelled:
      break;
  }
  set_outcome(run, RunStatus::cancelled, "cancelled: killed");
}

void apply_usage(SandboxRun& run, const RunUsage& usage) {
  Usage& total = run.outcome.usage;
  total.memory_peak_bytes = usage.memory_peak;
  total.pids_peak = usage.pids_peak;
  if (!run.usage_complete) {  // a SIGKILL loses the sums of init
    total.user_us = std::max(total.user_us, usage.user_us);
    total.system_us = std::max(total.system_us, usage.system_us);
  }
  const RunStatus status = run.outcome.status;
  const bool by_itself = status == RunStatus::signal || status == RunStatus::exit || status == RunStatus::ok;
  if (run.decided && !by_itself) return;
  if (usage.oom_kills == 0 && usage.pids_max_hits > 0 && run.decided && status != RunStatus::ok) {
    run.decided = false;
    return set_outcome(run, RunStatus::pids_limit,
                       fmt::format("over the limit of {} processes and threads, which refused it {}; then: {}",
                                   run.spec.limits.pids, usage.pids_max_hits, run.outcome.reason));
  }
  if (usage.oom_kills == 0) return;
  // Cgroup v2 kills the whole group; v1 kills one process, and the others may have continued.
  const bool went_on = run.decided && status != RunStatus::signal;
  run.decided = false;
  run.outcome.exit_code = run.outcome.signal = 0;
  set_outcome(run, RunStatus::oom,
              fmt::format("over the memory limit of {} MiB: {}killed by the kernel", run.spec.limits.memory_bytes >> 20,
                          went_on ? "a process of the job was " : ""));
}

namespace {

constexpr std::uint32_t kFirstJobUid = 1000;
constexpr std::uint64_t kSetUpMs = 30000;  // for a prewarmed sandbox; runs have their own limits

constexpr std::uint64_t kInitTimeoutMs = 300, kZygoteTimeoutMs = 5000;

// True if the pidfd refers to a child of this zygote, or to a reaped process (its pid reads as -1, or disappears during
// the check). With any other process, this launcher could kill a foreign process.
bool is_child_of(pid_t zygote, int pidfd) {
  const auto pid = pid_of(pidfd);
  if (!pid || *pid == 0) return false;
  if (*pid < 0) return true;
  if (number_after(fmt::format("/proc/{}/status", *pid), "PPid:").value_or(zygote) == zygote) return true;
  return pid_of(pidfd).value_or(0) < 0;  // reaped during the check: the PPid of a reaped process reads as 0
}

// Limits the untrusted list of step times of a child, which is forwarded in one frame with other data.
constexpr std::size_t kMaxSteps = 64;
std::vector<StepTime> believable(std::vector<StepTime> setup) {
  if (setup.size() > kMaxSteps) setup.resize(kMaxSteps);
  for (auto& step : setup) step.step = step.step.substr(0, kMaxStepName);
  return setup;
}

}  // namespace

RunTable::RunTable(EventLoop& loop, Cgroups& cgroups, HostChildren& children, OnEnded ended, Stuck stuck)
    : loop_(loop), cgroups_(cgroups), children_(children), ended_(std::move(ended)), stuck_(std::move(stuck)) {}

SandboxRun& RunTable::create(const RunSpec& spec, JobPipeEnds ends) {
  auto run = std::make_unique<SandboxRun>();
  run->id = next_++;
  run->made_us = boot_us();
  run->spec = spec;
  run->ends = std::move(ends);
  return *(runs_[run->id] = std::move(run));
}

SandboxRun& RunTable::add(const RunSpec& spec, JobPipeEnds ends) {
  SandboxRun& run = create(spec, std::move(ends));
  named_[spec.run] = run.id;
  return run;
}

SandboxRun& RunTable::add_prewarmed(const RunSpec& like) {
  RunSpec spec;
  spec.host = like.host;
  spec.context = like.context;
  spec.limits = like.limits;
  // The run is not known yet. Its memory limit is set later, and set-up must not fail with the small limit of another
  // run.
  if (settings_.memory_cgroup) spec.limits.memory_bytes = std::max(spec.limits.memory_bytes, Limits{}.memory_bytes);
  SandboxRun& run = create(spec, {});
  run.idle = true;
  return run;
}

SandboxRun& RunTable::add_canary(const std::string& host, ContextId context) {
  RunSpec spec;
  spec.host = host;
  spec.context = context;
  spec.limits.wall_ms = 10000;
  int pair[2] = {-1, -1};
  (void)!::pipe2(pair, O_CLOEXEC | O_NONBLOCK);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  Fd requests(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // the canary receives no requests
  SandboxRun& run = create(spec, {Fd(null), Fd(::fcntl(null, F_DUPFD_CLOEXEC, 0)), Fd(pair[1]), std::move(requests)});
  run.canary = true;
  run.canary_answer.reset(pair[0]);
  return run;
}

SandboxRun* RunTable::find(std::uint64_t id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : found->second.get();
}

SandboxRun* RunTable::find_named(std::uint64_t name) {
  const auto found = named_.find(name);
  return found == named_.end() ? nullptr : find(found->second);
}

// Assigns ids in turn, so that an id is not reused soon.
std::optional<std::uint32_t> RunTable::take_uid() {
  if (!settings_.ids.wide()) return 0;
  const std::uint32_t choice = settings_.ids.count - kFirstJobUid;
  for (std::uint32_t tries = 0; tries < choice; ++tries) {
    const std::uint32_t uid = kFirstJobUid + next_uid_++ % choice;
    if (uids_.insert(uid).second) return uid;
  }
  return {};
}

// Returns the descriptors that follow the sockets in Fork, in the order of sandbox/messages.h.
Result<std::vector<Fd>> RunTable::grants_of(SandboxRun& run, Fork& request) {
  std::vector<Fd> fds;
  MJ_TRY(filter, filters_.filter_for(run.spec));
  request.own_filter = filter >= 0;
  if (filter >= 0) {
    fds.emplace_back(::fcntl(filter, F_DUPFD_CLOEXEC, 0));
    if (!fds.back()) return fail(Code::unavailable, "no descriptor for its filter: " + errno_text(errno));
  }
  for (Fd& folder : run.folders) fds.push_back(std::move(folder));
  return fds;
}

// True if the host lacks a resource. A shortage by the job's own limits would occur on every host and does not count.
bool RunTable::is_host_shortage(const SandboxRun& run, int error, bool limited) const {
  if (find_shortage(error) == nullptr) return false;
  if (limited && error == EMFILE) return false;
  if (error != ENOMEM) return true;
  if (limited && !settings_.memory_cgroup) return false;
  return !run.has_group || cgroups_.usage(run.id).memory_max_hits == 0;
}

void RunTable::fail_setup(SandboxRun& run, const std::string& step, int error, std::string remedy, bool limited) const {
  if (run.decided) return;
  if (!is_host_shortage(run, error, limited)) return decide_setup_error(run, step, error, std::move(remedy));
  if (remedy.empty()) remedy = remedy_for_step(step, error);
  set_not_started(run, fmt::format("the sandbox cannot be set up now: {}: {}: {}", step, errno_text(error), remedy),
                  {step, error, remedy});
}

namespace {

std::uint64_t descriptors_of(std::size_t runs) { return kLauncherDescriptors + runs * kRunDescriptors; }

}  // namespace

bool RunTable::has_descriptors() const {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) != 0 || descriptors_of(runs_.size()) <= files.rlim_cur;
}

bool RunTable::may_prewarm() const {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) != 0 || descriptors_of(runs_.size() + 1) <= files.rlim_cur / 2;
}

// Returns the request without the parts that depend on the grants.
Fork RunTable::fork_request(SandboxRun& run) const {
  Fork request{run.id, *run.uid, run.spec.limits, run.spec.grants};
  request.own_uid = settings_.ids.wide();
  request.memory_rlimit = !settings_.memory_cgroup;
  request.canary = run.canary;
  request.learn = run.spec.learn;
  request.warm = run.warm = run.spec.warm.runs > 0 && !run.canary && !run.spec.learn && !run.idle;
  if (run.warm) {
    request.runs = run.runs = run.spec.warm.runs;
    return request;
  }
  // A sandbox with grants must not serve other runs.
  const bool alone = run.canary || run.spec.learn || run.spec.grants != Grants{};
  request.runs = run.runs = alone ? 1 : settings_.sandbox_runs;
  return request;
}

bool RunTable::fork(SandboxRun& run, int zygote_control) {
  const auto failed = [&](const char* step, int error, std::string detail = {}) {
    fail_setup(run, step, error, std::move(detail));
    finish_run(run);
    return false;
  };
  if (!has_descriptors()) return failed("descriptors", EMFILE);
  run.uid = take_uid();
  if (!run.uid) return failed("uid", EAGAIN, "all ids of sandbox.uid_range are in use: use fewer slots or more ids");
  int group_error = EIO;
  auto joins = cgroups_.make(run.id, run.spec.limits, &group_error);
  if (!joins)
    return failed("cgroup_make", find_shortage(group_error) != nullptr ? group_error : EIO, joins.error().message);
  run.has_group = true;
  int status[2], start_pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) != 0) return failed("status_socket", errno);
  run.status.reset(status[0]);
  const Fd their_status(status[1]);
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start_pair) != 0) return failed("start_socket", errno);
  run.start.reset(start_pair[0]);
  const Fd their_start(start_pair[1]);
  run.fence_clock.reset(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!run.fence_clock || set_fence_clock(run, run.spec.fence_boot_ms) != 0) return failed("fence_clock", errno);

  Fork request = fork_request(run);
  // A warm process keeps its end while a script runs, and the script must not send on it.
  if (run.warm && ::shutdown(their_start.get(), SHUT_WR) != 0) return failed("start_socket", errno);
  if (run.warm) run.outcome.reused = 0;
  const auto grants = grants_of(run, request);
  if (!grants)
    return failed("grants", grants.error().code == Code::unavailable ? EMFILE : EINVAL, grants.error().message);
  std::vector<int> fds{their_status.get(), their_start.get(), run.fence_clock.get()};
  for (const auto& fd : *grants) fds.push_back(fd.get());
  for (const auto& fd : *joins) fds.push_back(fd.get());
  run.forked = true;
  if (!run.idle) run.started_us = boot_us();
  if (int error = send_raw(zygote_control, encode(request), fds, MSG_DONTWAIT); error != 0) {
    if (error == EPIPE) return finish_run(run), false;  // the zygote has just died: the run is lost
    return failed("fork", error);
  }
  run.status_watch = loop_.watch(run.status.get(), [this, &run](std::uint32_t) { read_status(run); });
  if (run.idle) {
    run.wall = loop_.at(boot_ms() + kSetUpMs, [this, &run] {
      if (!run.confined) discard(run);
    });
    return true;
  }
  begin_clocks(run);
  if (int error = send_start(run, run.ends); error != 0) {
    fail_setup(run, "start", error);
    send_kill(run);  // the zygote has the request: the run ends with its child
  }
  return true;
}

int RunTable::send_start(SandboxRun& run, JobPipeEnds& ends) {
  const int error =
      send_message(run.start.get(), Start{}, {ends.out.get(), ends.err.get(), ends.channel.get(), ends.requests.get()},
                   MSG_DONTWAIT);
  if (error == 0) ends = {};
  return error;
}

bool RunTable::adopt(SandboxRun& idle, SandboxRun& waiting) {
  pollfd ended{idle.pidfd.get(), POLLIN, 0};
  // The sandbox is ending: it was discarded, or its zygote has not reported the end yet.
  if (idle.kill_wanted || idle.decided || ::poll(&ended, 1, 0) != 0) return false;
  const Limits& wanted = waiting.spec.limits;
  if (wanted.memory_bytes != idle.spec.limits.memory_bytes &&
      !cgroups_.set_limits(idle.id, wanted.memory_bytes, wanted.pids)) {
    return discard(idle), false;
  }
  // Taken before the start is sent, since the run may be over before this function continues.
  const std::uint64_t started_us = boot_us();
  if (set_fence_clock(idle, waiting.spec.fence_boot_ms) != 0 || send_start(idle, waiting.ends) != 0)
    return discard(idle), false;
  const std::uint64_t asked_us = waiting.made_us;
  idle.spec = std::move(waiting.spec);
  idle.idle = false;
  named_[idle.spec.run] = idle.id;
  runs_.erase(waiting.id);
  idle.started_us = started_us;
  idle.outcome.setup.push_back(
      {std::string(idle.warm ? kWarmStep : kPrewarmedStep), static_cast<std::uint32_t>(idle.started_us - asked_us)});
  if (idle.warm) idle.outcome.reused = idle.turn;
  begin_clocks(idle);
  return true;
}

void RunTable::begin_clocks(SandboxRun& run) {
  loop_.cancel(run.wall);
  run.wall = loop_.at((run.started_us + 999) / 1000 + run.spec.limits.wall_ms, [this, &run] {
    set_outcome(run, RunStatus::timeout_wall,
                fmt::format("over the wall-clock limit of {} ms: killed", run.spec.limits.wall_ms));
    send_kill(run);
  });
  if (run.spec.limits.cpu_ms > 0) watch_cpu_in(run, run.spec.limits.cpu_ms * 1000);
  set_fence(run, run.spec.fence_boot_ms);
}

std::vector<std::string> RunTable::layers_of(const SandboxRun& run) const {
  std::vector<std::string> layers(std::begin(kNamespaceLayers), std::end(kNamespaceLayers));
  for (const char* name : {"cgroupns", "seccomp", "caps", "nnp"}) layers.emplace_back(name);
  for (const auto& step : settings_.leave_out) {
    std::erase(layers, step == "rights" ? "caps" : step == "no_new_privs" ? "nnp" : step);
  }
  if (run.landlock_abi > 0) layers.push_back(fmt::format("landlock:{}", run.landlock_abi));
  if (settings_.ids.wide()) layers.emplace_back("uid");
  if (settings_.memory_cgroup) layers.emplace_back("cgroup:memory");
  if (settings_.pids_cgroup) layers.emplace_back("cgroup:pids");
  return layers;
}

// Finishes a run, whether or not its sandbox continues.
void RunTable::close(SandboxRun& run) {
  if (run.started_us != 0) run.outcome.usage.wall_us = boot_us() - run.started_us;
  if (run.confined) run.outcome.layers = layers_of(run);
  if (run.spec.learn) run.outcome.notes = run.learning.lines();
  for (auto* timer : {&run.wall, &run.cpu, &run.fence, &run.grace, &run.killing}) loop_.cancel(*timer);
  ended_(run);
  if (const auto name = named_.find(run.spec.run); name != named_.end() && name->second == run.id) named_.erase(name);
}

void RunTable::finish_run(SandboxRun& run) {
  if (run.has_group) {
    apply_usage(run, usage_of_turn(run, cgroups_.usage(run.id)));
    cgroups_.remove(run.id);
  }
  set_outcome(run, RunStatus::lost, "the sandbox's helper ended before the job");
  loop_.unwatch(run.status_watch, run.status.get());
  loop_.unwatch(run.listener_watch, run.listener.get());
  loop_.cancel(run.listening);
  if (run.uid) uids_.erase(*run.uid);
  close(run);
  if (on_ended_) on_ended_(run);
  runs_.erase(run.id);
}

// Process counts of a job alone, and of a host that starts one program. A peak that nearly every run reaches is
// reported without resetting the counter.
constexpr std::uint32_t kProcesses = 1, kProcessesWithExec = 2;

// The run has ended by itself, and init reports that nothing is left of it: the sandbox may serve the next run.
bool RunTable::reuse_sandbox(SandboxRun& run) {
  if (!is_clean_after_run(run)) return false;
  const auto peaks =
      cgroups_.reset_for_next_run(run.id, run.spec.limits, run.spec.limits.exec ? kProcessesWithExec : kProcesses);
  if (!peaks) return false;
  make_idle(run, *peaks);
  run.counted.reset();
  if (!turned_ || !turned_(run)) discard(run);
  return true;
}

// True if the run ended by itself and its sandbox can be reused.
bool RunTable::is_clean_after_run(SandboxRun& run) {
  const bool usual = run.outcome.status == RunStatus::ok || run.outcome.status == RunStatus::exit;
  if (run.idle || !usual || run.kill_wanted || run.grace.first != 0) return false;
  // Events of limits are visible only in the group's counters, and could not be assigned after the next run.
  if (run.outcome.status == RunStatus::exit) apply_usage(run, usage_of_turn(run, cgroups_.usage(run.id)));
  return run.outcome.status == RunStatus::ok || run.outcome.status == RunStatus::exit;
}

// Reports the run; its sandbox is idle until it is given another run.
void RunTable::make_idle(SandboxRun& run, const RunUsage& peaks) {
  run.outcome.usage.memory_peak_bytes = peaks.memory_peak;
  run.outcome.usage.pids_peak = peaks.pids_peak;
  close(run);
  run.outcome = {};
  run.decided = run.main_ended = run.usage_complete = false;
  run.started_us = 0;
  run.spec.run = 0;
  if (std::exchange(run.fence_moved, false)) set_fence_clock(run, 0);
  run.idle = true;
  ++run.turn;
}

// Init reports that the warm process has stopped itself. If the process is alone in its group, the run is over, since a
// stopped process cannot fork; it may then serve another run of its key. Its memory for file locks stays counted.
bool RunTable::keep_process(SandboxRun& run) {
  if (!run.warm || !is_clean_after_run(run)) return false;
  if (run.turn + 1 >= run.runs || !staying_ || !staying_(run)) return false;
  const auto peaks = cgroups_.reset_for_warm_run(run.id, run.spec.limits);
  if (!peaks) {
    run.outcome.notes.push_back("warm: its process is not retained: " + peaks.error().message);
    return false;
  }
  run.stays = true;
  make_idle(run, *peaks);
  run.stays = false;
  if (!turned_ || !turned_(run)) discard(run);
  return true;
}

bool RunTable::forked(SandboxRun& run, const RunForked& message, Fd pidfd, pid_t zygote) {
  if (!run.forked || run.pidfd) return false;  // not requested, or already answered
  if (message.error != 0) {
    fail_setup(run, "fork", message.error);
    finish_run(run);
    return true;
  }
  if (!pidfd || !is_child_of(zygote, pidfd.get())) return false;
  run.pidfd = std::move(pidfd);
  loop_.cancel(run.killing);
  if (run.kill_wanted) send_kill(run);
  return true;
}

void RunTable::read_status(SandboxRun& run) {
  for (;;) {
    RawFrame frame;
    const ReceiveResult received = receive_raw(run.status.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::nothing) return;
    SetupStepFailed step;
    sandbox::RunConfined confined;
    ProxySocketReady listening;
    MainEnded ended;
    if (received == ReceiveResult::frame && decode(frame, step)) {
      fail_setup(run, step.step.substr(0, kMaxStepName), step.error, {}, step.limited);
    } else if (received == ReceiveResult::frame && decode(frame, confined) && frame.fds.size() == 1 && !run.confined) {
      run.confined = true;
      run.landlock_abi = confined.landlock_abi;
      run.outcome.setup = believable(std::move(confined.setup));
      run.listener = std::move(frame.fds[0]);
      watch_listener(run);
      if (run.listener_watch == 0) {
        decide_setup_error(run, "seccomp", EBADF);
        return send_kill(run);
      }
      if (confined_) confined_(run);
    } else if (received == ReceiveResult::frame && decode(frame, listening) && frame.fds.size() == 1 &&
               run.spec.grants.network == Network::allow_list) {
      const std::string problem = listening_ ? listening_(run, frame.fds[0]) : "no proxy is running";
      if (problem.empty()) continue;
      decide_setup_error(run, "egress", EIO, problem);
      send_kill(run);
    } else if (received == ReceiveResult::frame && decode(frame, ended)) {
      main_ended(run, ended);
    } else {
      // Init has ended or sent an invalid message.
      if (received == ReceiveResult::cut)
        set_outcome(run, RunStatus::lost, describe_shortage(*find_shortage(EMFILE)));  // the filter's listener was lost
      loop_.unwatch(run.status_watch, run.status.get());
      if (received != ReceiveResult::closed) return send_kill(run);
      return kill_init_at(run, boot_ms() + kInitTimeoutMs);  // init waits in the kernel until its namespace is empty
    }
  }
}

// A resting warm process ended before it began the run that it was given, so no code of that run was executed.
void RunTable::ended_resting(SandboxRun& run) {
  set_outcome(run, RunStatus::lost, "its warm process had ended while idle");
  kill_init_at(run, boot_ms() + kInitTimeoutMs);
}

// Only the first MainEnded of a turn counts: when its sandbox is discarded, init also reports the waiting job.
void RunTable::main_ended(SandboxRun& run, const MainEnded& ended) {
  cgroups_.sample();  // while init is still in the group
  if (ended.turn != run.turn) return ended_resting(run);
  if (!std::exchange(run.main_ended, true)) {
    run.outcome.stragglers = ended.stragglers;
    run.outcome.usage.user_us = ended.user_us;
    run.outcome.usage.system_us = ended.system_us;
    run.usage_complete = ended.all;
    if (ended.fenced) set_killed(run, KillReason::fenced);
    decide_by_wait_status(run, ended.wait_status);
    // Only the group counts children that were never waited for. Its value includes CPU time of the waiting job.
    const std::uint64_t reported_us = ended.sandbox_user_us + ended.sandbox_system_us;
    const std::uint64_t counted_us = ended.again && run.spec.limits.exec ? cgroups_.cpu_us(run.id) : 0;
    if (ended.again && (ended.stopped ? keep_process(run) : reuse_sandbox(run))) {
      run.sandbox_user_us = ended.sandbox_user_us;
      run.sandbox_system_us = ended.sandbox_system_us + std::max(counted_us, reported_us) - reported_us;
      return;
    }
  }
  if (ended.stopped && !ended.again)
    run.outcome.notes.push_back(
        "warm: its process is not retained: its folders cannot be emptied, it has run after its end, or it has closed "
        "the socket of its jobs");
  if (ended.again || ended.stopped) return send_kill(run);
  kill_init_at(run, boot_ms() + kInitTimeoutMs);  // init has killed all other processes
}

// Subtracts the earlier use of init and its runs. The group and the processes agree only on the sum of user and system
// time: for a process shorter than a tick, the split is an estimate, which both make differently.
RunUsage RunTable::usage_of_turn(const SandboxRun& run, RunUsage usage) {
  const std::uint64_t all = usage.user_us + usage.system_us, before = run.sandbox_user_us + run.sandbox_system_us;
  const std::uint64_t own = all - std::min(all, before);
  usage.user_us = std::min(usage.user_us, own);
  usage.system_us = own - usage.user_us;
  return usage;
}

void RunTable::read_listener(SandboxRun& run, std::uint32_t events) {
  // no process is left under the filter
  if ((events & EPOLLIN) == 0) return loop_.unwatch(run.listener_watch, run.listener.get());
  if (run.spec.learn) {
    run.learning.answer(run.listener.get());
    return;
  }
  const auto call = receive_call(run.listener.get());
  if (CountedCalls::can_report(run.spec)) {
    // No call: it was cancelled before it was read, and has no effect.
    if (!call) return;
    if (CountedCalls::is_one(*call)) return answer_counted(run, *call);
  }
  const Violation violation = describe_call(run.listener.get(), call);
  if (!run.decided) run.outcome.violation = violation;
  set_outcome(run, RunStatus::violation, describe(violation));
  loop_.unwatch(run.listener_watch, run.listener.get());
  send_kill(run);
}

// A job that calls continuously is answered with a delay, so that the launcher can serve other events.
void RunTable::answer_counted(SandboxRun& run, const seccomp_notif& call) {
  const pid_t init = run.pidfd ? static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)) : -1;
  if (!run.counted) run.counted = std::make_unique<CountedCalls>(children_, run.listener.get());
  run.counted->accept(call, init);
  const std::uint64_t later = run.counted->next_boot_ms(boot_ms());
  if (later == 0) return;
  loop_.unwatch(run.listener_watch, run.listener.get());
  run.listening = loop_.at(later, [this, &run] { watch_listener(run); });
}

void RunTable::watch_listener(SandboxRun& run) {
  run.listening = {};
  run.listener_watch =
      loop_.watch(run.listener.get(), [this, &run](std::uint32_t events) { read_listener(run, events); });
}

// Kills the whole process tree. Init is asked first, since only init can add up the usage of its tree; shortly after,
// init is killed, and the kernel ends the namespace.
void RunTable::send_kill(SandboxRun& run) {
  run.kill_wanted = true;
  if (run.killing.first != 0) return;
  if (!run.pidfd) {
    // A zygote that does not report its children cannot serve any run; all its runs end with it.
    run.killing = loop_.at(boot_ms() + kZygoteTimeoutMs, [this, &run] {
      run.killing = {};
      if (!run.pidfd && silent_) silent_(run);
    });
    return;
  }
  const int error = send_message(run.status.get(), Abort{}, {}, MSG_DONTWAIT);
  kill_init_at(run, boot_ms() + (error == 0 ? kInitTimeoutMs : 0));
}

// Only the first call for a run has an effect. The signal has no effect if init is already exiting.
void RunTable::kill_init_at(SandboxRun& run, std::uint64_t when) {
  if (run.killing.first != 0) return;
  run.killing = loop_.at(when, [this, &run] {
    if (run.pidfd) ::pidfd_send_signal(run.pidfd.get(), SIGKILL, nullptr, 0);
    run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { check_unkillable(run); });
  });
}

// Either init has ended, but the dying zygote cannot report it because another of its runs does not end; or a process
// of this run does not end.
void RunTable::check_unkillable(SandboxRun& run) {
  pollfd gone{run.pidfd.get(), POLLIN, 0};
  if (run.pidfd && ::poll(&gone, 1, 0) == 1) return finish_run(run);
  run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { check_unkillable(run); });
  if (std::exchange(run.stuck, true)) return;
  Outcome outcome = run.outcome;
  outcome.status = RunStatus::unkillable;
  const pid_t init = run.pidfd ? static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)) : -1;
  outcome.reason = fmt::format("KILL has had no effect for {} ms on {}", settings_.unkillable_ms,
                               init > 0 ? describe_survivors(init) : "its init");
  if (!run.outcome.reason.empty()) outcome.reason += "; first reason: " + run.outcome.reason;
  stuck_(run, std::move(outcome));
}

void RunTable::kill(SandboxRun& run, KillReason reason, std::uint32_t grace_ms) {
  set_killed(run, reason);
  if (!run.forked) return finish_run(run);  // the run still waits for its zygote
  if (grace_ms == 0) return send_kill(run);
  send_message(run.status.get(), Terminate{run.turn}, {}, MSG_DONTWAIT);
  if (run.grace.first == 0) {
    run.grace = loop_.at(boot_ms() + grace_ms, [this, &run] { send_kill(run); });
  }
}

void RunTable::fence(SandboxRun& run, std::uint64_t boot_ms) {
  run.spec.fence_boot_ms = boot_ms;
  if (!run.forked) return;
  run.fence_moved = true;
  if (set_fence_clock(run, boot_ms) != 0) return send_kill(run);
  set_fence(run, boot_ms);
}

int RunTable::set_fence_clock(SandboxRun& run, std::uint64_t boot_ms) {
  itimerspec at{};  // all zero: disabled
  at.it_value.tv_sec = static_cast<time_t>(boot_ms / 1000);
  at.it_value.tv_nsec = static_cast<long>(boot_ms % 1000) * 1000000;
  return ::timerfd_settime(run.fence_clock.get(), TFD_TIMER_ABSTIME, &at, nullptr) == 0 ? 0 : errno;
}

void RunTable::set_fence(SandboxRun& run, std::uint64_t boot_ms) {
  loop_.cancel(run.fence);
  if (boot_ms == 0) return;
  run.fence = loop_.at(boot_ms, [this, &run] {
    set_killed(run, KillReason::fenced);
    send_kill(run);
  });
}

// Checks again at the earliest time at which the limit can be reached on all CPUs, and not more often than every
// hundredth of the limit.
void RunTable::watch_cpu(SandboxRun& run) {
  const std::uint64_t limit_us = run.spec.limits.cpu_ms * 1000;
  const RunUsage counted = usage_of_turn(run, cgroups_.usage(run.id));
  std::uint64_t used_us = counted.user_us + counted.system_us;
  if (used_us == 0 && run.pidfd) {
    const std::uint64_t all_us = tree_cpu_us(static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)));
    used_us = all_us - std::min(all_us, run.sandbox_user_us + run.sandbox_system_us);
  }
  if (used_us >= limit_us) {
    set_outcome(run, RunStatus::timeout_cpu,
                fmt::format("over the limit of {} ms of CPU: killed", run.spec.limits.cpu_ms));
    return send_kill(run);
  }
  watch_cpu_in(run, limit_us - used_us);
}

void RunTable::watch_cpu_in(SandboxRun& run, std::uint64_t left_us) {
  static const auto cpus = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::uint64_t at_once = std::min<std::uint64_t>(cpus, run.spec.limits.pids);
  const std::uint64_t wait_ms = std::max({left_us / at_once / 1000, run.spec.limits.cpu_ms / 100, std::uint64_t{2}});
  run.cpu = loop_.at(boot_ms() + wait_ms, [this, &run] { watch_cpu(run); });
}

bool RunTable::reaped(SandboxRun& run, const InitReaped& reaped) {
  pollfd gone{run.pidfd.get(), POLLIN, 0};
  if (!run.pidfd || ::poll(&gone, 1, 0) != 1) return false;  // otherwise its id and group would be reused too early
  if (run.status_watch != 0) read_status(run);               // messages that init sent before it exited
  if (!run.usage_complete) {
    RunUsage whole;
    whole.user_us = reaped.user_us;
    whole.system_us = reaped.system_us;
    const RunUsage own = usage_of_turn(run, whole);
    run.outcome.usage.user_us = std::max(run.outcome.usage.user_us, own.user_us);
    run.outcome.usage.system_us = std::max(run.outcome.usage.system_us, own.system_us);
  }
  if (!run.decided && WIFSIGNALED(reaped.wait_status)) decide_by_wait_status(run, reaped.wait_status);
  finish_run(run);
  return true;
}

}  // namespace mycojobs::sandbox
