#include "sandbox/runs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/errno_text.h"
#include "sandbox/granted_tree.h"
#include "sandbox/zygote_start.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kFirstJobUid = 1000;
constexpr std::uint64_t kSetUpMs = 30000;  // of a spare: a run has its own limit

}  // namespace

Runs::Runs(Loop& loop, Cgroups& cgroups, Ended ended, Stuck stuck)
    : loop_(loop), cgroups_(cgroups), ended_(std::move(ended)), stuck_(std::move(stuck)) {}

Run& Runs::create(const RunSpec& spec, Fd out, Fd err, Fd channel) {
  auto run = std::make_unique<Run>();
  run->id = next_++;
  run->made_us = boot_us();
  run->spec = spec;
  run->out = std::move(out);
  run->err = std::move(err);
  run->channel = std::move(channel);
  return *(runs_[run->id] = std::move(run));
}

Run& Runs::add(const RunSpec& spec, Fd out, Fd err, Fd channel) {
  Run& run = create(spec, std::move(out), std::move(err), std::move(channel));
  named_[spec.run] = run.id;
  return run;
}

Run& Runs::add_spare(const RunSpec& like) {
  RunSpec spec;
  spec.host = like.host;
  spec.context = like.context;
  spec.limits = like.limits;
  // Whose run it will be is not known yet: the limit comes with it, and set-up is not to die of another's small one.
  if (settings_.memory_cgroup) spec.limits.memory_bytes = std::max(spec.limits.memory_bytes, Limits{}.memory_bytes);
  Run& run = create(spec, {}, {}, {});
  run.spare = true;
  return run;
}

Run& Runs::add_canary(const std::string& host, Id context) {
  RunSpec spec;
  spec.host = host;
  spec.context = context;
  spec.limits.wall_ms = 10000;
  int pair[2] = {-1, -1};
  (void)!::pipe2(pair, O_CLOEXEC | O_NONBLOCK);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  Run& run = create(spec, Fd(null), Fd(::fcntl(null, F_DUPFD_CLOEXEC, 0)), Fd(pair[1]));
  run.canary = true;
  run.canary_answer.reset(pair[0]);
  return run;
}

Run* Runs::find(std::uint64_t id) {
  const auto found = runs_.find(id);
  return found == runs_.end() ? nullptr : found->second.get();
}

Run* Runs::find_named(std::uint64_t name) {
  const auto found = named_.find(name);
  return found == named_.end() ? nullptr : find(found->second);
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

// What goes along with Fork behind the two sockets, in the order of messages.h.
Result<std::vector<Fd>> Runs::grants_of(Run& run, Fork& request) {
  const Grants& grants = run.spec.grants;
  std::vector<Fd> fds;
  MJ_TRY(filter, filters_.filter_for(run.spec));
  request.own_filter = filter >= 0;
  if (filter >= 0) fds.emplace_back(::fcntl(filter, F_DUPFD_CLOEXEC, 0));
  for (const auto* paths : {&grants.fs_read, &grants.fs_write}) {
    for (const auto& path : *paths) {
      MJ_TRY(tree, open_granted(path, paths == &grants.fs_write, run.spec.limits.exec));
      fds.push_back(std::move(tree));
    }
  }
  return fds;
}

bool Runs::fork(Run& run, int zygote_control) {
  const auto failed = [&](const char* step, int error, std::string detail = {}) {
    decide_setup_error(run, step, error, std::move(detail));
    end(run);
    return false;
  };
  run.uid = take_uid();
  if (!run.uid) return failed("uid", EAGAIN, "all ids of sandbox.uid_range are in use: fewer slots, or a wider range");
  auto joins = cgroups_.make(run.id, run.spec.limits);
  if (!joins) return failed("cgroup_make", EIO, joins.error().message);
  run.has_group = true;
  int status[2], start_pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) != 0) return failed("status_socket", errno);
  run.status.reset(status[0]);
  const Fd their_status(status[1]);
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, start_pair) != 0) return failed("start_socket", errno);
  run.start.reset(start_pair[0]);
  const Fd their_start(start_pair[1]);

  Fork request{run.id, *run.uid, run.spec.limits, run.spec.grants};
  request.own_uid = settings_.ids.wide();
  request.memory_rlimit = !settings_.memory_cgroup;
  request.canary = run.canary;
  request.learn = run.spec.learn;
  // What was granted to one run is nothing for the next.
  const bool alone = run.canary || run.spec.learn || run.spec.grants != Grants{};
  request.runs = run.runs = alone ? 1 : settings_.slot_runs;
  const auto grants = grants_of(run, request);
  if (!grants) return failed("grants", EINVAL, grants.error().message);
  std::vector<int> fds{their_status.get(), their_start.get()};
  for (const auto& fd : *grants) fds.push_back(fd.get());
  for (const auto& fd : *joins) fds.push_back(fd.get());
  run.forked = true;
  if (!run.spare) run.started_us = boot_us();
  if (int error = send_raw(zygote_control, encode(request), fds, MSG_DONTWAIT); error != 0) {
    if (error == EPIPE) return end(run), false;  // the zygote has just died: lost
    return failed("fork", error);
  }
  run.status_watch = loop_.watch(run.status.get(), [this, &run](std::uint32_t) { read_status(run); });
  if (run.spare) {
    run.wall = loop_.at(boot_ms() + kSetUpMs, [this, &run] {
      if (!run.confined) discard(run);
    });
    return true;
  }
  begin_clocks(run);
  if (int error = send_start(run, run.out, run.err, run.channel); error != 0) {
    decide_setup_error(run, "start", error);
    send_kill(run);  // the zygote has been asked: it ends when its child does
  }
  return true;
}

int Runs::send_start(Run& run, Fd& out, Fd& err, Fd& channel) {
  const int error = send_message(run.start.get(), Start{}, {out.get(), err.get(), channel.get()}, MSG_DONTWAIT);
  if (error != 0) return error;
  for (Fd* fd : {&out, &err, &channel}) fd->reset();
  return 0;
}

bool Runs::adopt(Run& spare, Run& waiting) {
  pollfd ended{spare.pidfd.get(), POLLIN, 0};
  // On its way out: given back, or its zygote has not said so yet.
  if (spare.kill_wanted || spare.decided || ::poll(&ended, 1, 0) != 0) return false;
  const Limits& wanted = waiting.spec.limits;
  if (wanted.memory_bytes != spare.spec.limits.memory_bytes &&
      !cgroups_.set_limits(spare.id, wanted.memory_bytes, wanted.pids)) {
    return discard(spare), false;
  }
  if (send_start(spare, waiting.out, waiting.err, waiting.channel) != 0) return discard(spare), false;
  const std::uint64_t asked_us = waiting.made_us;
  spare.spec = std::move(waiting.spec);
  spare.spare = false;
  named_[spare.spec.run] = spare.id;
  runs_.erase(waiting.id);
  spare.started_us = boot_us();
  spare.outcome.setup.push_back({"spare", static_cast<std::uint32_t>(spare.started_us - asked_us)});
  begin_clocks(spare);
  return true;
}

void Runs::begin_clocks(Run& run) {
  loop_.cancel(run.wall);
  run.wall = loop_.at((run.started_us + 999) / 1000 + run.spec.limits.wall_ms, [this, &run] {
    decide(run, RunStatus::timeout_wall,
           fmt::format("over the wall-clock limit of {} ms: killed", run.spec.limits.wall_ms));
    send_kill(run);
  });
  if (run.spec.limits.cpu_ms > 0) watch_cpu_in(run, run.spec.limits.cpu_ms * 1000);
  if (run.spec.fence_boot_ms > 0) fence(run, run.spec.fence_boot_ms);
}

std::vector<std::string> Runs::layers_of(const Run& run) const {
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

// What ends with a run, whether or not its slot goes on.
void Runs::close(Run& run) {
  if (run.started_us != 0) run.outcome.usage.wall_us = boot_us() - run.started_us;
  if (run.confined) run.outcome.layers = layers_of(run);
  if (run.spec.learn) run.outcome.notes = run.learning.lines();
  for (auto* timer : {&run.wall, &run.cpu, &run.fence, &run.grace, &run.killing}) loop_.cancel(*timer);
  ended_(run);
  if (const auto name = named_.find(run.spec.run); name != named_.end() && name->second == run.id) named_.erase(name);
}

void Runs::end(Run& run) {
  if (run.has_group) {
    judge_usage(run, usage_of_turn(run, cgroups_.usage(run.id)));
    cgroups_.remove(run.id);
  }
  decide(run, RunStatus::lost, "the sandbox's helper ended before the job did");
  loop_.unwatch(run.status_watch, run.status.get());
  loop_.unwatch(run.listener_watch, run.listener.get());
  loop_.cancel(run.listening);
  if (run.uid) uids_.erase(*run.uid);
  close(run);
  if (gone_) gone_(run);
  runs_.erase(run.id);
}

// Of a job by itself, and of a host that starts a program: the peak that nearly every run reaches, which counts none
// anew.
constexpr std::uint32_t kProcesses = 1, kProcessesWithExec = 2;

// The run has ended by itself, and its init says that nothing is left of it: then the slot may serve the next one.
bool Runs::turn_over(Run& run) {
  const bool usual = run.outcome.status == RunStatus::ok || run.outcome.status == RunStatus::exit;
  if (run.spare || !usual || run.kill_wanted || run.grace.first != 0) return false;
  // What the kernel has refused it shows in its group alone, and cannot be told from the next run's.
  if (run.outcome.status == RunStatus::exit) {
    judge_usage(run, usage_of_turn(run, cgroups_.usage(run.id)));
    if (run.outcome.status != RunStatus::exit) return false;
  }
  const auto peaks =
      cgroups_.turn_over(run.id, run.spec.limits, run.spec.limits.exec ? kProcessesWithExec : kProcesses);
  if (!peaks) return false;
  run.outcome.usage.memory_peak_bytes = peaks->memory_peak;
  run.outcome.usage.pids_peak = peaks->pids_peak;
  close(run);
  run.outcome = {};
  run.decided = run.main_ended = run.usage_told = false;
  run.counted = {};
  run.started_us = 0;
  run.spec.run = 0;
  run.spare = true;
  ++run.turn;
  if (!turned_ || !turned_(run)) discard(run);
  return true;
}

}  // namespace mycojobs::sandbox
