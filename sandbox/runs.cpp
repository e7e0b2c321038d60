#include "sandbox/runs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>

#include "sandbox/pidfd.h"
#include "sandbox/survivors.h"
#include "sandbox/violation.h"
#include "sandbox/zygote_start.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kFirstJobUid = 1000;
constexpr std::uint64_t kInitPatienceMs = 300;

std::optional<long> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    long number = 0;
    if (word == key && file >> number) return number;
  }
  return {};
}

std::optional<long> pid_of(int pidfd) { return number_after(fmt::format("/proc/self/fdinfo/{}", pidfd), "Pid:"); }

// Whether the pidfd is of a child of this zygote, or of a process that has been reaped already (its number reads -1, or
// vanishes while we look). Anything else might make us kill a stranger.
bool is_child_of(pid_t zygote, int pidfd) {
  const auto pid = pid_of(pidfd);
  if (!pid || *pid == 0) return false;
  if (*pid < 0) return true;
  return number_after(fmt::format("/proc/{}/status", *pid), "PPid:").value_or(zygote) == zygote;
}

}  // namespace

Runs::Runs(Loop& loop, Cgroups& cgroups, Ended ended, Stuck stuck)
    : loop_(loop), cgroups_(cgroups), ended_(std::move(ended)), stuck_(std::move(stuck)) {}

Run& Runs::add(const RunSpec& spec, Fd out, Fd err, Fd channel) {
  auto run = std::make_unique<Run>();
  run->spec = spec;
  run->out = std::move(out);
  run->err = std::move(err);
  run->channel = std::move(channel);
  return *(runs_[spec.run] = std::move(run));
}

Run& Runs::add_canary(const std::string& host, Id context) {
  RunSpec spec;
  spec.run = next_canary_++;
  spec.host = host;
  spec.context = context;
  spec.limits.wall_ms = 10000;
  int pair[2] = {-1, -1};
  (void)!::pipe2(pair, O_CLOEXEC | O_NONBLOCK);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  Run& run = add(spec, Fd(null), Fd(::fcntl(null, F_DUPFD_CLOEXEC, 0)), Fd(pair[1]));
  run.canary = true;
  run.canary_answer.reset(pair[0]);
  return run;
}

Run* Runs::find(std::uint64_t id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : found->second.get();
}

// Round robin, so that an id rests long before it is used again.
std::optional<std::uint32_t> Runs::take_uid() {
  if (!settings_.ids.wide()) return 0;
  const std::uint32_t choice = settings_.ids.count - kFirstJobUid;
  for (std::uint32_t tries = 0; tries < choice; ++tries) {
    const std::uint32_t uid = kFirstJobUid + next_uid_++ % choice;
    if (uids_.insert(uid).second) return uid;
  }
  return {};
}

bool Runs::fork(Run& run, int zygote_control) {
  const auto failed = [&](const char* step, int error, std::string detail = {}) {
    decide_setup_error(run, step, error, std::move(detail));
    end(run);
    return false;
  };
  run.uid = take_uid();
  if (!run.uid) return failed("uid", EAGAIN, "all ids of sandbox.uid_range are in use: fewer slots, or a wider range");
  auto joins = cgroups_.make(run.spec.run, run.spec.limits);
  if (!joins) return failed("cgroup_make", EIO, joins.error().message);
  run.has_group = true;
  int status[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) != 0) return failed("status_socket", errno);
  run.status.reset(status[0]);
  const Fd theirs(status[1]);

  const RunSpec& spec = run.spec;
  const Fork request{
      spec.run, *run.uid, spec.fence_boot_ms, spec.limits, settings_.ids.wide(), !settings_.memory_cgroup, run.canary};
  std::vector<int> fds{run.out.get(), run.err.get(), run.channel.get(), theirs.get()};
  for (const auto& join : *joins) fds.push_back(join.get());
  run.started_us = boot_us();
  if (int error = send_raw(zygote_control, encode(request), fds, MSG_DONTWAIT); error != 0) {
    if (error == EPIPE) return end(run), false;  // the zygote has just died: lost
    return failed("fork", error);
  }
  run.out.reset();
  run.err.reset();
  run.channel.reset();
  run.status_watch = loop_.watch(run.status.get(), [this, &run](std::uint32_t) { read_status(run); });
  run.wall = loop_.at((run.started_us + 999) / 1000 + spec.limits.wall_ms, [this, &run] {
    decide(run, RunStatus::timeout_wall,
           fmt::format("over the wall-clock limit of {} ms: killed", run.spec.limits.wall_ms));
    send_kill(run);
  });
  set_fence(run, spec.fence_boot_ms);
  return true;
}

bool Runs::forked(Run& run, const Forked& message, Fd pidfd, pid_t zygote) {
  if (message.error != 0) {
    decide_setup_error(run, "fork", message.error);
    end(run);
    return true;
  }
  if (!pidfd || !is_child_of(zygote, pidfd.get())) return false;
  run.pidfd = std::move(pidfd);
  if (run.kill_wanted) send_kill(run);
  return true;
}

void Runs::read_status(Run& run) {
  for (;;) {
    RawFrame frame;
    const Received received = receive_raw(run.status.get(), frame, MSG_DONTWAIT);
    if (received == Received::nothing) return;
    StepFailed step;
    Confined confined;
    MainEnded ended;
    if (received == Received::frame && decode(frame, step)) {
      decide_setup_error(run, step.step, step.error);
    } else if (received == Received::frame && decode(frame, confined) && frame.fds.size() == 1 && !run.confined) {
      run.confined = true;
      run.landlock_abi = confined.landlock_abi;
      run.outcome.setup = std::move(confined.setup);
      run.listener = std::move(frame.fds[0]);
      run.listener_watch =
          loop_.watch(run.listener.get(), [this, &run](std::uint32_t events) { read_listener(run, events); });
    } else if (received == Received::frame && decode(frame, ended)) {
      cgroups_.sample();  // while init is still in the group
      run.outcome.stragglers = ended.stragglers;
      if (ended.fenced) decide_killed(run, KillReason::fenced);
      decide_by_wait_status(run, ended.wait_status);
      kill_init_at(run, boot_ms() + kInitPatienceMs);  // it has killed all the others
    } else {
      // Init has ended, or does not speak as it should.
      loop_.unwatch(run.status_watch, run.status.get());
      if (received != Received::closed) return send_kill(run);
      return kill_init_at(run, boot_ms() + kInitPatienceMs);  // it waits in the kernel until its namespace is empty
    }
  }
}

void Runs::read_listener(Run& run, std::uint32_t events) {
  if ((events & EPOLLIN) == 0) return loop_.unwatch(run.listener_watch, run.listener.get());  // nobody is left under it
  const Violation violation = read_violation(run.listener.get());
  if (!run.decided) run.outcome.violation = violation;
  decide(run, RunStatus::violation, describe(violation));
  loop_.unwatch(run.listener_watch, run.listener.get());
  send_kill(run);
}

// The whole tree. Init is asked first, since only it can add up what its tree has used; a moment later it is killed,
// and the kernel ends the namespace with it.
void Runs::send_kill(Run& run) {
  run.kill_wanted = true;
  if (!run.pidfd || run.killing.first != 0) return;
  const int error = send_message(run.status.get(), Abort{}, {}, MSG_DONTWAIT);
  kill_init_at(run, boot_ms() + (error == 0 ? kInitPatienceMs : 0));
}

// The first call of a run counts. Init may be on its way out already: then the signal changes nothing.
void Runs::kill_init_at(Run& run, std::uint64_t when) {
  if (run.killing.first != 0) return;
  run.killing = loop_.at(when, [this, &run] {
    if (run.pidfd) ::pidfd_send_signal(run.pidfd.get(), SIGKILL, nullptr, 0);
    run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { judge_survivor(run); });
  });
}

// Either its init is gone and the zygote cannot say so, since it is dying and another of its runs holds it; or a
// process of the run does not end.
void Runs::judge_survivor(Run& run) {
  pollfd gone{run.pidfd.get(), POLLIN, 0};
  if (run.pidfd && ::poll(&gone, 1, 0) == 1) return end(run);
  run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { judge_survivor(run); });
  if (std::exchange(run.stuck, true)) return;
  Outcome outcome = run.outcome;
  outcome.status = RunStatus::unkillable;
  const pid_t init = run.pidfd ? static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)) : -1;
  outcome.reason = fmt::format("KILL has had no effect for {} ms on {}", settings_.unkillable_ms,
                               init > 0 ? describe_survivors(init) : "its init");
  if (!run.outcome.reason.empty()) outcome.reason += "; first reason: " + run.outcome.reason;
  stuck_(run, std::move(outcome));
}

void Runs::kill(Run& run, KillReason reason, std::uint32_t grace_ms) {
  decide_killed(run, reason);
  if (run.started_us == 0) return end(run);  // still waiting for its zygote
  if (grace_ms == 0) return send_kill(run);
  send_message(run.status.get(), Terminate{}, {}, MSG_DONTWAIT);
  if (run.grace.first == 0) {
    run.grace = loop_.at(boot_ms() + grace_ms, [this, &run] { send_kill(run); });
  }
}

void Runs::fence(Run& run, std::uint64_t boot_ms) {
  run.spec.fence_boot_ms = boot_ms;
  if (run.started_us == 0) return;
  send_message(run.status.get(), Fence{run.spec.run, boot_ms}, {}, MSG_DONTWAIT);
  set_fence(run, boot_ms);
}

void Runs::set_fence(Run& run, std::uint64_t boot_ms) {
  loop_.cancel(run.fence);
  if (boot_ms == 0) return;
  run.fence = loop_.at(boot_ms, [this, &run] {
    decide_killed(run, KillReason::fenced);
    send_kill(run);
  });
}

void Runs::reaped(Run& run, const Reaped& reaped) {
  if (run.status_watch != 0) read_status(run);  // what init said before it left
  run.outcome.usage.user_us = reaped.user_us;
  run.outcome.usage.system_us = reaped.system_us;
  if (!run.decided && WIFSIGNALED(reaped.wait_status)) decide_by_wait_status(run, reaped.wait_status);
  end(run);
}

std::vector<std::string> Runs::layers_of(const Run& run) const {
  std::vector<std::string> layers(std::begin(kNamespaceLayers), std::end(kNamespaceLayers));
  for (const char* name : {"cgroupns", "seccomp", "caps", "nnp"}) layers.emplace_back(name);
  if (run.landlock_abi > 0) layers.push_back(fmt::format("landlock:{}", run.landlock_abi));
  if (settings_.ids.wide()) layers.emplace_back("uid");
  if (settings_.memory_cgroup) layers.emplace_back("cgroup:memory");
  if (settings_.pids_cgroup) layers.emplace_back("cgroup:pids");
  return layers;
}

void Runs::end(Run& run) {
  if (run.has_group) {
    judge_usage(run, cgroups_.usage(run.spec.run));
    cgroups_.remove(run.spec.run);
  }
  decide(run, RunStatus::lost, "the sandbox's helper ended before the job did");
  if (run.started_us != 0) run.outcome.usage.wall_us = boot_us() - run.started_us;
  if (run.confined) run.outcome.layers = layers_of(run);
  loop_.unwatch(run.status_watch, run.status.get());
  loop_.unwatch(run.listener_watch, run.listener.get());
  for (auto* timer : {&run.wall, &run.fence, &run.grace, &run.killing}) loop_.cancel(*timer);
  if (run.uid) uids_.erase(*run.uid);
  ended_(run);
  runs_.erase(run.spec.run);
}

}  // namespace mycojobs::sandbox
