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
  if (run.has_outcome) return;
  run.has_outcome = true;
  run.outcome.status = status;
  run.outcome.reason = std::move(reason);
}

void set_setup_error(SandboxRun& run, std::string step, int error, std::string remedy) {
  if (run.has_outcome) return;
  if (remedy.empty()) remedy = remedy_for_step(step, error);
  set_outcome(run, RunStatus::setup_error,
              fmt::format("the sandbox could not be set up: {}: {}: {}", step, errno_text(error), remedy));
  run.outcome.setup_error = SetupError{std::move(step), error, std::move(remedy)};
}

void set_not_started(SandboxRun& run, std::string reason) {
  if (run.has_outcome) return;
  set_outcome(run, RunStatus::lost, std::move(reason));
  run.outcome.never_started = true;
}

void set_not_started(SandboxRun& run, std::string reason, SetupError shortage) {
  if (run.has_outcome) return;
  set_not_started(run, std::move(reason));
  run.outcome.setup_error = std::move(shortage);
}

void set_outcome_by_wait_status(SandboxRun& run, int wait_status) {
  if (run.has_outcome) return;
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
  Usage& run_total = run.outcome.usage;
  run_total.memory_peak_bytes = usage.memory_peak_bytes;
  run_total.pids_peak = usage.pids_peak;
  if (!run.is_usage_complete) {  // a SIGKILL loses the sums of init
    run_total.user_us = std::max(run_total.user_us, usage.user_us);
    run_total.system_us = std::max(run_total.system_us, usage.system_us);
  }
  const RunStatus status = run.outcome.status;
  const bool ended_by_itself = status == RunStatus::signal || status == RunStatus::exit || status == RunStatus::ok;
  if (run.has_outcome && !ended_by_itself) return;
  if (usage.oom_kills == 0 && usage.pids_max_hits > 0 && run.has_outcome && status != RunStatus::ok) {
    run.has_outcome = false;
    return set_outcome(run, RunStatus::pids_limit,
                       fmt::format("over the limit of {} processes and threads, which refused it {}; then: {}",
                                   run.spec.limits.pids, usage.pids_max_hits, run.outcome.reason));
  }
  if (usage.oom_kills == 0) return;
  // Cgroup v2 kills the whole group; v1 kills one process, and the others may have continued.
  const bool others_continued = run.has_outcome && status != RunStatus::signal;
  run.has_outcome = false;
  run.outcome.exit_code = run.outcome.signal = 0;
  set_outcome(run, RunStatus::oom,
              fmt::format("over the memory limit of {} MiB: {}killed by the kernel", run.spec.limits.memory_bytes >> 20,
                          others_continued ? "a process of the job was " : ""));
}

namespace {

constexpr std::uint32_t kFirstJobUid = 1000;
constexpr std::uint64_t kSetUpTimeoutMs = 30000;  // for a prewarmed sandbox; runs have their own limits
// Time after Abort at which init is killed, and time after which a zygote that has not reported a child is
// unresponsive.
constexpr std::uint64_t kInitTimeoutMs = 300, kZygoteTimeoutMs = 5000;

// True if the pidfd refers to a child of this zygote, or to a reaped process (its pid reads as -1, or disappears during
// the check). With any other process, this launcher could kill a foreign process.
bool is_child_of(pid_t zygote, int pidfd) {
  const auto pid = read_pid(pidfd);
  if (!pid || *pid == 0) return false;
  if (*pid < 0) return true;
  if (read_number_after(fmt::format("/proc/{}/status", *pid), "PPid:").value_or(zygote) == zygote) return true;
  return read_pid(pidfd).value_or(0) < 0;  // reaped during the check: the PPid of a reaped process reads as 0
}

// Limits the untrusted list of step times of a child, which is forwarded in one frame with other data.
constexpr std::size_t kMaxSteps = 64;
std::vector<StepTime> limit_steps(std::vector<StepTime> setup) {
  if (setup.size() > kMaxSteps) setup.resize(kMaxSteps);
  for (auto& step : setup) step.step = step.step.substr(0, kMaxStepName);
  return setup;
}

}  // namespace

RunTable::RunTable(EventLoop& loop, Cgroups& cgroups, HostChildren& children, RunHandler on_run_ended,
                   OnUnkillable on_unkillable)
    : loop_(loop),
      cgroups_(cgroups),
      children_(children),
      on_run_ended_(std::move(on_run_ended)),
      on_unkillable_(std::move(on_unkillable)) {}

SandboxRun& RunTable::create(const RunSpec& spec, JobPipeEnds ends) {
  auto run = std::make_unique<SandboxRun>();
  run->id = next_id_++;
  run->created_us = boot_us();
  run->spec = spec;
  run->pipe_ends = std::move(ends);
  return *(runs_[run->id] = std::move(run));
}

SandboxRun& RunTable::add(const RunSpec& spec, JobPipeEnds ends) {
  SandboxRun& run = create(spec, std::move(ends));
  ids_by_run_[spec.run] = run.id;
  return run;
}

SandboxRun& RunTable::add_prewarmed(const RunSpec& shape) {
  RunSpec spec;
  spec.host = shape.host;
  spec.context = shape.context;
  spec.limits = shape.limits;
  // The run is not known yet. Its memory limit is set later, and set-up must not fail with the small limit of another
  // run.
  if (settings_.has_memory_cgroup) spec.limits.memory_bytes = std::max(spec.limits.memory_bytes, Limits{}.memory_bytes);
  SandboxRun& run = create(spec, {});
  run.is_idle = true;
  return run;
}

SandboxRun& RunTable::add_canary(const std::string& host, ContextId context) {
  RunSpec spec;
  spec.host = host;
  spec.context = context;
  spec.limits.wall_ms = 10000;
  int answer_pipe[2] = {-1, -1};
  (void)!::pipe2(answer_pipe, O_CLOEXEC | O_NONBLOCK);
  const int null_fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  Fd requests(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // the canary receives no requests
  SandboxRun& run =
      create(spec, {Fd(null_fd), Fd(::fcntl(null_fd, F_DUPFD_CLOEXEC, 0)), Fd(answer_pipe[1]), std::move(requests)});
  run.is_canary = true;
  run.canary_answer.reset(answer_pipe[0]);
  return run;
}

SandboxRun* RunTable::find(std::uint64_t id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : found->second.get();
}

SandboxRun* RunTable::find_by_run(std::uint64_t run) {
  const auto found = ids_by_run_.find(run);
  return found == ids_by_run_.end() ? nullptr : find(found->second);
}

// Assigns ids in turn, so that an id is not reused soon.
std::optional<std::uint32_t> RunTable::allocate_uid() {
  if (!settings_.ids.has_id_per_job()) return 0;
  const std::uint32_t id_count = settings_.ids.count - kFirstJobUid;
  for (std::uint32_t attempt = 0; attempt < id_count; ++attempt) {
    const std::uint32_t uid = kFirstJobUid + next_uid_++ % id_count;
    if (uids_.insert(uid).second) return uid;
  }
  return {};
}

bool RunTable::assign_uid(SandboxRun& run) {
  if (run.uid) return true;
  const bool is_fixed = needs_file_owner(run.spec.grants) && settings_.owners.find_fixed_owner(run.spec.context);
  run.uid = is_fixed ? settings_.ids.fixed_uid() : allocate_uid();
  return run.uid.has_value();
}

// Returns the descriptors that follow the sockets in ForkRequest, in the order of sandbox/messages.h.
Result<std::vector<Fd>> RunTable::prepare_grants(SandboxRun& run, ForkRequest& request) {
  std::vector<Fd> fds;
  MJ_TRY(filter, filters_.get_filter(run.spec));
  request.has_own_filter = filter >= 0;
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
  if (limited && !settings_.has_memory_cgroup) return false;
  return !run.has_group || cgroups_.read_usage(run.id).memory_max_hits == 0;
}

void RunTable::fail_setup(SandboxRun& run, const std::string& step, int error, std::string remedy, bool limited) const {
  if (run.has_outcome) return;
  if (!is_host_shortage(run, error, limited)) return set_setup_error(run, step, error, std::move(remedy));
  if (remedy.empty()) remedy = remedy_for_step(step, error);
  set_not_started(run, fmt::format("the sandbox cannot be set up now: {}: {}: {}", step, errno_text(error), remedy),
                  {step, error, remedy});
}

namespace {

std::uint64_t required_descriptors(std::size_t runs) { return kLauncherDescriptors + runs * kRunDescriptors; }

}  // namespace

bool RunTable::has_descriptors() const {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) != 0 || required_descriptors(runs_.size()) <= files.rlim_cur;
}

bool RunTable::can_prewarm() const {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) != 0 || required_descriptors(runs_.size() + 1) <= files.rlim_cur / 2;
}

// Returns the request without the parts that depend on the grants.
ForkRequest RunTable::build_fork_request(SandboxRun& run) const {
  ForkRequest request{run.id, *run.uid, run.spec.limits, run.spec.grants};
  for (Volume& volume : request.grants.volumes) volume.path.clear();  // the folder is opened; a job need not know it
  if (!request.grants.packages.path.empty()) request.grants.packages.path = kPackagesFolder;
  request.has_own_uid = settings_.ids.has_id_per_job();
  request.has_fixed_uid = request.has_own_uid && *run.uid == settings_.ids.fixed_uid();
  request.needs_memory_rlimit = !settings_.has_memory_cgroup;
  request.is_canary = run.is_canary;
  request.learn = run.spec.learn;
  request.is_warm = run.is_warm = run.spec.warm.runs > 0 && !run.is_canary && !run.spec.learn && !run.is_idle;
  if (run.is_warm) {
    request.max_runs = run.max_runs = run.spec.warm.runs;
    return request;
  }
  // A sandbox with grants must not serve other runs.
  const bool is_single_use = run.is_canary || run.spec.learn || run.spec.grants != Grants{};
  request.max_runs = run.max_runs = is_single_use ? 1 : settings_.max_sandbox_runs;
  return request;
}

bool RunTable::fork(SandboxRun& run, int zygote_control) {
  const auto fail_fork = [&](const char* step, int error, std::string detail = {}) {
    fail_setup(run, step, error, std::move(detail));
    finish_run(run);
    return false;
  };
  if (!has_descriptors()) return fail_fork("descriptors", EMFILE);
  if (!assign_uid(run)) return fail_fork("uid", EAGAIN, kNoFreeUid);
  int group_error = EIO;
  auto group_fds = cgroups_.create_run_group(run.id, run.spec.limits, &group_error);
  if (!group_fds)
    return fail_fork("cgroup_make", find_shortage(group_error) != nullptr ? group_error : EIO,
                     group_fds.error().message);
  run.has_group = true;
  int status[2], start_pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) != 0) return fail_fork("status_socket", errno);
  run.status.reset(status[0]);
  const Fd child_status(status[1]);
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start_pair) != 0) return fail_fork("start_socket", errno);
  run.start.reset(start_pair[0]);
  const Fd child_start(start_pair[1]);
  run.fence_clock.reset(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!run.fence_clock || set_fence_clock(run, run.spec.fence_boot_ms) != 0) return fail_fork("fence_clock", errno);

  ForkRequest request = build_fork_request(run);
  // The child's end of the socket stays open while a script of a warm process runs, and the script must not send on it.
  if (run.is_warm && ::shutdown(child_start.get(), SHUT_WR) != 0) return fail_fork("start_socket", errno);
  if (run.is_warm) run.outcome.reused = 0;
  const auto grants = prepare_grants(run, request);
  if (!grants)
    return fail_fork("grants", grants.error().code == Code::unavailable ? EMFILE : EINVAL, grants.error().message);
  std::vector<int> fds{child_status.get(), child_start.get(), run.fence_clock.get()};
  for (const auto& fd : *grants) fds.push_back(fd.get());
  for (const auto& fd : *group_fds) fds.push_back(fd.get());
  run.is_forked = true;
  if (!run.is_idle) run.started_us = boot_us();
  if (int error = send_raw(zygote_control, encode(request), fds, MSG_DONTWAIT); error != 0) {
    if (error == EPIPE) return finish_run(run), false;  // the zygote has just died: the run is lost
    return fail_fork("fork", error);
  }
  run.status_watch = loop_.watch(run.status.get(), [this, &run](std::uint32_t) { read_status(run); });
  if (run.is_idle) {
    run.wall_timer = loop_.add_timer(boot_ms() + kSetUpTimeoutMs, [this, &run] {
      if (!run.is_confined) discard(run);
    });
    return true;
  }
  start_clocks(run);
  if (int error = send_start(run, run.pipe_ends); error != 0) {
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
  if (idle.is_kill_requested || idle.has_outcome || ::poll(&ended, 1, 0) != 0) return false;
  const Limits& limits = waiting.spec.limits;
  if (limits.memory_bytes != idle.spec.limits.memory_bytes &&
      !cgroups_.set_limits(idle.id, limits.memory_bytes, limits.pids)) {
    return discard(idle), false;
  }
  // The time is read before Start is sent, since the run may end before this function continues.
  const std::uint64_t started_us = boot_us();
  if (set_fence_clock(idle, waiting.spec.fence_boot_ms) != 0 || send_start(idle, waiting.pipe_ends) != 0)
    return discard(idle), false;
  const std::uint64_t requested_us = waiting.created_us;
  idle.spec = std::move(waiting.spec);
  idle.is_idle = false;
  ids_by_run_[idle.spec.run] = idle.id;
  runs_.erase(waiting.id);
  idle.started_us = started_us;
  idle.outcome.setup.push_back({std::string(idle.is_warm ? kWarmStep : kPrewarmedStep),
                                static_cast<std::uint32_t>(idle.started_us - requested_us)});
  if (idle.is_warm) idle.outcome.reused = idle.run_index;
  start_clocks(idle);
  return true;
}

void RunTable::start_clocks(SandboxRun& run) {
  loop_.cancel(run.wall_timer);
  run.wall_timer = loop_.add_timer((run.started_us + 999) / 1000 + run.spec.limits.wall_ms, [this, &run] {
    set_outcome(run, RunStatus::timeout_wall,
                fmt::format("over the wall-clock limit of {} ms: killed", run.spec.limits.wall_ms));
    send_kill(run);
  });
  if (run.spec.limits.cpu_ms > 0) schedule_cpu_check(run, run.spec.limits.cpu_ms * 1000);
  set_fence(run, run.spec.fence_boot_ms);
}

std::vector<std::string> RunTable::list_layers(const SandboxRun& run) const {
  std::vector<std::string> layers(std::begin(kNamespaceLayers), std::end(kNamespaceLayers));
  for (const char* name : {"cgroupns", "seccomp", "caps", "nnp"}) layers.emplace_back(name);
  for (const auto& step : settings_.disabled_steps) {
    std::erase(layers, step == "rights" ? "caps" : step == "no_new_privs" ? "nnp" : step);
  }
  if (run.landlock_abi > 0) layers.push_back(fmt::format("landlock:{}", run.landlock_abi));
  if (settings_.ids.has_id_per_job()) layers.emplace_back("uid");
  if (settings_.has_memory_cgroup) layers.emplace_back("cgroup:memory");
  if (settings_.has_pids_cgroup) layers.emplace_back("cgroup:pids");
  return layers;
}

// Finishes a run, whether or not its sandbox continues.
void RunTable::close(SandboxRun& run) {
  if (run.started_us != 0) run.outcome.usage.wall_us = boot_us() - run.started_us;
  if (run.is_confined) run.outcome.layers = list_layers(run);
  if (run.spec.learn) run.outcome.notes = run.policy_recorder.records();
  for (auto* timer : {&run.wall_timer, &run.cpu_timer, &run.fence_timer, &run.grace_timer, &run.kill_timer})
    loop_.cancel(*timer);
  on_run_ended_(run);
  if (const auto found = ids_by_run_.find(run.spec.run); found != ids_by_run_.end() && found->second == run.id)
    ids_by_run_.erase(found);
}

void RunTable::finish_run(SandboxRun& run) {
  if (run.has_group) {
    apply_usage(run, subtract_earlier_usage(run, cgroups_.read_usage(run.id)));
    cgroups_.remove_run_group(run.id);
  }
  set_outcome(run, RunStatus::lost, "the sandbox's helper ended before the job");
  loop_.unwatch(run.status_watch, run.status.get());
  loop_.unwatch(run.listener_watch, run.listener.get());
  loop_.cancel(run.listener_timer);
  if (run.uid) uids_.erase(*run.uid);
  close(run);
  if (on_sandbox_ended_) on_sandbox_ended_(run);
  runs_.erase(run.id);
}

// Process counts of a job alone, and of a host that starts one program. A peak that nearly every run reaches is
// reported without resetting the counter.
constexpr std::uint32_t kJobProcesses = 1, kJobProcessesWithExec = 2;

// The run has ended by itself, and init reports that nothing is left of it: the sandbox may serve the next run.
bool RunTable::reuse_sandbox(SandboxRun& run) {
  if (!is_clean_after_run(run)) return false;
  const auto peaks = cgroups_.reset_for_next_run(run.id, run.spec.limits,
                                                 run.spec.limits.exec ? kJobProcessesWithExec : kJobProcesses);
  if (!peaks) return false;
  make_idle(run, *peaks);
  run.counted_calls.reset();
  if (!on_idle_ || !on_idle_(run)) discard(run);
  return true;
}

// True if the run ended by itself and its sandbox can be reused.
bool RunTable::is_clean_after_run(SandboxRun& run) {
  const bool is_normal_end = run.outcome.status == RunStatus::ok || run.outcome.status == RunStatus::exit;
  if (run.is_idle || !is_normal_end || run.is_kill_requested || run.grace_timer.first != 0) return false;
  // Events of limits are visible only in the group's counters, and could not be assigned after the next run.
  if (run.outcome.status == RunStatus::exit) apply_usage(run, subtract_earlier_usage(run, cgroups_.read_usage(run.id)));
  return run.outcome.status == RunStatus::ok || run.outcome.status == RunStatus::exit;
}

// Reports the run; its sandbox is idle until it is given another run.
void RunTable::make_idle(SandboxRun& run, const RunUsage& peaks) {
  run.outcome.usage.memory_peak_bytes = peaks.memory_peak_bytes;
  run.outcome.usage.pids_peak = peaks.pids_peak;
  close(run);
  run.outcome = {};
  run.has_outcome = run.has_job_ended = run.is_usage_complete = false;
  run.started_us = 0;
  run.spec.run = 0;
  if (std::exchange(run.was_fence_moved, false)) set_fence_clock(run, 0);
  run.is_idle = true;
  ++run.run_index;
}

// Init reports that the warm process has stopped itself. If the process is alone in its group, the run is over, since a
// stopped process cannot fork; it may then serve another run of its key. Its memory for file locks stays counted.
bool RunTable::keep_process(SandboxRun& run) {
  if (!run.is_warm || !is_clean_after_run(run)) return false;
  if (run.run_index + 1 >= run.max_runs || !can_keep_process_ || !can_keep_process_(run)) return false;
  const auto peaks = cgroups_.reset_for_warm_run(run.id, run.spec.limits);
  if (!peaks) {
    run.outcome.notes.push_back("warm: its process is not retained: " + peaks.error().message);
    return false;
  }
  run.keeps_process = true;
  make_idle(run, *peaks);
  run.keeps_process = false;
  if (!on_idle_ || !on_idle_(run)) discard(run);
  return true;
}

bool RunTable::on_forked(SandboxRun& run, const RunForked& message, Fd pidfd, pid_t zygote) {
  if (!run.is_forked || run.pidfd) return false;  // not requested, or already answered
  if (message.error != 0) {
    fail_setup(run, "fork", message.error);
    finish_run(run);
    return true;
  }
  if (!pidfd || !is_child_of(zygote, pidfd.get())) return false;
  run.pidfd = std::move(pidfd);
  loop_.cancel(run.kill_timer);
  if (run.is_kill_requested) send_kill(run);
  return true;
}

void RunTable::read_status(SandboxRun& run) {
  for (;;) {
    RawFrame frame;
    const ReceiveResult received = receive_raw(run.status.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::would_block) return;
    SetupStepFailed step;
    RunConfined confined;
    ProxySocketReady listening;
    JobEnded ended;
    if (received == ReceiveResult::frame && decode(frame, step)) {
      fail_setup(run, step.step.substr(0, kMaxStepName), step.error, {}, step.are_limits_set);
    } else if (received == ReceiveResult::frame && decode(frame, confined) && frame.fds.size() == 1 &&
               !run.is_confined) {
      run.is_confined = true;
      run.landlock_abi = confined.landlock_abi;
      run.outcome.setup = limit_steps(std::move(confined.setup));
      run.listener = std::move(frame.fds[0]);
      watch_listener(run);
      if (run.listener_watch == 0) {
        set_setup_error(run, "seccomp", EBADF);
        return send_kill(run);
      }
      if (on_confined_) on_confined_(run);
    } else if (received == ReceiveResult::frame && decode(frame, listening) && frame.fds.size() == 1 &&
               run.spec.grants.network == Network::allow_list) {
      const std::string problem = on_listening_ ? on_listening_(run, frame.fds[0]) : "no proxy is running";
      if (problem.empty()) continue;
      set_setup_error(run, "egress", EIO, problem);
      send_kill(run);
    } else if (received == ReceiveResult::frame && decode(frame, ended)) {
      on_job_ended(run, ended);
    } else {
      // Init has ended or sent an invalid message.
      if (received == ReceiveResult::descriptors_lost)
        set_outcome(run, RunStatus::lost, describe_shortage(*find_shortage(EMFILE)));  // the filter's listener was lost
      loop_.unwatch(run.status_watch, run.status.get());
      if (received != ReceiveResult::closed) return send_kill(run);
      return schedule_init_kill(run,
                                boot_ms() + kInitTimeoutMs);  // init waits in the kernel until its namespace is empty
    }
  }
}

// An idle warm process ended before it began the run that it was given, so no code of that run was executed.
void RunTable::end_idle_process(SandboxRun& run) {
  set_outcome(run, RunStatus::lost, "its warm process had ended while idle");
  schedule_init_kill(run, boot_ms() + kInitTimeoutMs);
}

// Only the first JobEnded of a run counts: when its sandbox is discarded, init also reports the waiting job.
void RunTable::on_job_ended(SandboxRun& run, const JobEnded& ended) {
  cgroups_.sample();  // while init is still in the group
  if (ended.run_index != run.run_index) return end_idle_process(run);
  if (!std::exchange(run.has_job_ended, true)) {
    run.outcome.stragglers = ended.stragglers;
    run.outcome.usage.user_us = ended.user_us;
    run.outcome.usage.system_us = ended.system_us;
    run.is_usage_complete = ended.are_all_reaped;
    if (ended.is_fenced) set_killed(run, KillReason::fenced);
    set_outcome_by_wait_status(run, ended.wait_status);
    // Only the group counts children that were never waited for. Its value includes CPU time of the waiting job.
    const std::uint64_t reported_us = ended.sandbox_user_us + ended.sandbox_system_us;
    const std::uint64_t counted_us = ended.can_run_again && run.spec.limits.exec ? cgroups_.read_cpu_us(run.id) : 0;
    if (ended.can_run_again && (ended.is_stopped ? keep_process(run) : reuse_sandbox(run))) {
      run.sandbox_user_us = ended.sandbox_user_us;
      run.sandbox_system_us = ended.sandbox_system_us + std::max(counted_us, reported_us) - reported_us;
      return;
    }
  }
  if (ended.is_stopped && !ended.can_run_again)
    run.outcome.notes.push_back(
        "warm: its process is not retained: its folders cannot be emptied, it has run after its end, or it has closed "
        "the socket of its jobs");
  if (ended.can_run_again || ended.is_stopped) return send_kill(run);
  schedule_init_kill(run, boot_ms() + kInitTimeoutMs);  // init has killed all other processes
}

// Subtracts the earlier use of init and its runs. The group and the processes agree only on the sum of user and system
// time: for a process shorter than a tick, the split is an estimate that differs between the two sources.
RunUsage RunTable::subtract_earlier_usage(const SandboxRun& run, RunUsage usage) {
  const std::uint64_t total_us = usage.user_us + usage.system_us,
                      used_before_us = run.sandbox_user_us + run.sandbox_system_us;
  const std::uint64_t run_us = total_us - std::min(total_us, used_before_us);
  usage.user_us = std::min(usage.user_us, run_us);
  usage.system_us = run_us - usage.user_us;
  return usage;
}

void RunTable::read_listener(SandboxRun& run, std::uint32_t events) {
  // No process is left under the filter.
  if ((events & EPOLLIN) == 0) return loop_.unwatch(run.listener_watch, run.listener.get());
  if (run.spec.learn) {
    run.policy_recorder.answer(run.listener.get());
    return;
  }
  const auto call = receive_call(run.listener.get());
  if (CountedCalls::can_report(run.spec)) {
    if (!call) return;  // it was cancelled before it was read, and has no effect
    if (CountedCalls::is_counted(*call)) return answer_counted(run, *call);
  }
  const Violation violation = describe_call(run.listener.get(), call);
  if (!run.has_outcome) run.outcome.violation = violation;
  set_outcome(run, RunStatus::violation, describe(violation));
  loop_.unwatch(run.listener_watch, run.listener.get());
  send_kill(run);
}

// A job that calls continuously is answered with a delay, so that the launcher can serve other events.
void RunTable::answer_counted(SandboxRun& run, const seccomp_notif& call) {
  const pid_t init = run.pidfd ? static_cast<pid_t>(read_pid(run.pidfd.get()).value_or(-1)) : -1;
  if (!run.counted_calls) run.counted_calls = std::make_unique<CountedCalls>(children_, run.listener.get());
  run.counted_calls->accept(call, init);
  const std::uint64_t resume_boot_ms = run.counted_calls->next_boot_ms(boot_ms());
  if (resume_boot_ms == 0) return;
  loop_.unwatch(run.listener_watch, run.listener.get());
  run.listener_timer = loop_.add_timer(resume_boot_ms, [this, &run] { watch_listener(run); });
}

void RunTable::watch_listener(SandboxRun& run) {
  run.listener_timer = {};
  run.listener_watch =
      loop_.watch(run.listener.get(), [this, &run](std::uint32_t events) { read_listener(run, events); });
}

// Kills the whole process tree. First Abort is sent to init, since only init can add up the usage of its tree; shortly
// after, init is killed, and the kernel ends the namespace.
void RunTable::send_kill(SandboxRun& run) {
  run.is_kill_requested = true;
  if (run.kill_timer.first != 0) return;
  if (!run.pidfd) {
    // A zygote that does not report its children cannot serve any run; all its runs end with it.
    run.kill_timer = loop_.add_timer(boot_ms() + kZygoteTimeoutMs, [this, &run] {
      run.kill_timer = {};
      if (!run.pidfd && on_zygote_unresponsive_) on_zygote_unresponsive_(run);
    });
    return;
  }
  const int error = send_message(run.status.get(), Abort{}, {}, MSG_DONTWAIT);
  schedule_init_kill(run, boot_ms() + (error == 0 ? kInitTimeoutMs : 0));
}

// Only the first call for a run has an effect. The signal has no effect if init is already exiting.
void RunTable::schedule_init_kill(SandboxRun& run, std::uint64_t due_boot_ms) {
  if (run.kill_timer.first != 0) return;
  run.kill_timer = loop_.add_timer(due_boot_ms, [this, &run] {
    if (run.pidfd) ::pidfd_send_signal(run.pidfd.get(), SIGKILL, nullptr, 0);
    run.kill_timer = loop_.add_timer(boot_ms() + settings_.unkillable_ms, [this, &run] { check_unkillable(run); });
  });
}

// Either init has ended, but the dying zygote cannot report it because another of its runs does not end; or a process
// of this run does not end.
void RunTable::check_unkillable(SandboxRun& run) {
  pollfd init_exit{run.pidfd.get(), POLLIN, 0};
  if (run.pidfd && ::poll(&init_exit, 1, 0) == 1) return finish_run(run);
  run.kill_timer = loop_.add_timer(boot_ms() + settings_.unkillable_ms, [this, &run] { check_unkillable(run); });
  if (std::exchange(run.was_reported_unkillable, true)) return;
  Outcome outcome = run.outcome;
  outcome.status = RunStatus::unkillable;
  const pid_t init = run.pidfd ? static_cast<pid_t>(read_pid(run.pidfd.get()).value_or(-1)) : -1;
  outcome.reason = fmt::format("KILL has had no effect for {} ms on {}", settings_.unkillable_ms,
                               init > 0 ? describe_survivors(init) : "its init");
  if (!run.outcome.reason.empty()) outcome.reason += "; first reason: " + run.outcome.reason;
  on_unkillable_(run, std::move(outcome));
}

void RunTable::kill(SandboxRun& run, KillReason reason, std::uint32_t grace_ms) {
  set_killed(run, reason);
  if (!run.is_forked) return finish_run(run);  // the run still waits for its zygote
  if (grace_ms == 0) return send_kill(run);
  send_message(run.status.get(), Terminate{run.run_index}, {}, MSG_DONTWAIT);
  if (run.grace_timer.first == 0) {
    run.grace_timer = loop_.add_timer(boot_ms() + grace_ms, [this, &run] { send_kill(run); });
  }
}

void RunTable::fence(SandboxRun& run, std::uint64_t fence_boot_ms) {
  run.spec.fence_boot_ms = fence_boot_ms;
  if (!run.is_forked) return;
  run.was_fence_moved = true;
  if (set_fence_clock(run, fence_boot_ms) != 0) return send_kill(run);
  set_fence(run, fence_boot_ms);
}

int RunTable::set_fence_clock(SandboxRun& run, std::uint64_t boot_ms) {
  itimerspec spec{};  // all zero: disabled
  spec.it_value.tv_sec = static_cast<time_t>(boot_ms / 1000);
  spec.it_value.tv_nsec = static_cast<long>(boot_ms % 1000) * 1000000;
  return ::timerfd_settime(run.fence_clock.get(), TFD_TIMER_ABSTIME, &spec, nullptr) == 0 ? 0 : errno;
}

void RunTable::set_fence(SandboxRun& run, std::uint64_t boot_ms) {
  loop_.cancel(run.fence_timer);
  if (boot_ms == 0) return;
  run.fence_timer = loop_.add_timer(boot_ms, [this, &run] {
    set_killed(run, KillReason::fenced);
    send_kill(run);
  });
}

// Checks again at the earliest time at which the limit can be reached on all CPUs, and not more often than every
// hundredth of the limit.
void RunTable::check_cpu_limit(SandboxRun& run) {
  const std::uint64_t limit_us = run.spec.limits.cpu_ms * 1000;
  const RunUsage usage = subtract_earlier_usage(run, cgroups_.read_usage(run.id));
  std::uint64_t used_us = usage.user_us + usage.system_us;
  if (used_us == 0 && run.pidfd) {
    const std::uint64_t total_us = read_tree_cpu_us(static_cast<pid_t>(read_pid(run.pidfd.get()).value_or(-1)));
    used_us = total_us - std::min(total_us, run.sandbox_user_us + run.sandbox_system_us);
  }
  if (used_us >= limit_us) {
    set_outcome(run, RunStatus::timeout_cpu,
                fmt::format("over the limit of {} ms of CPU: killed", run.spec.limits.cpu_ms));
    return send_kill(run);
  }
  schedule_cpu_check(run, limit_us - used_us);
}

void RunTable::schedule_cpu_check(SandboxRun& run, std::uint64_t remaining_us) {
  static const auto cpus = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::uint64_t parallelism = std::min<std::uint64_t>(cpus, run.spec.limits.pids);
  const std::uint64_t wait_ms =
      std::max({remaining_us / parallelism / 1000, run.spec.limits.cpu_ms / 100, std::uint64_t{2}});
  run.cpu_timer = loop_.add_timer(boot_ms() + wait_ms, [this, &run] { check_cpu_limit(run); });
}

bool RunTable::on_reaped(SandboxRun& run, const InitReaped& reaped) {
  pollfd init_exit{run.pidfd.get(), POLLIN, 0};
  if (!run.pidfd || ::poll(&init_exit, 1, 0) != 1)
    return false;                               // otherwise its id and group would be reused too early
  if (run.status_watch != 0) read_status(run);  // messages that init sent before it exited
  if (!run.is_usage_complete) {
    RunUsage tree_usage;
    tree_usage.user_us = reaped.user_us;
    tree_usage.system_us = reaped.system_us;
    const RunUsage run_usage = subtract_earlier_usage(run, tree_usage);
    run.outcome.usage.user_us = std::max(run.outcome.usage.user_us, run_usage.user_us);
    run.outcome.usage.system_us = std::max(run.outcome.usage.system_us, run_usage.system_us);
  }
  if (!run.has_outcome && WIFSIGNALED(reaped.wait_status)) set_outcome_by_wait_status(run, reaped.wait_status);
  finish_run(run);
  return true;
}

}  // namespace mycojobs::sandbox
