#include "sandbox/launcher_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <list>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/shortage.h"
#include "base/spawn.h"
#include "sandbox/messages.h"
#include "sandbox/pidfd.h"

namespace mycojobs::sandbox {
namespace {

// The agent's connection to a launcher and its guardian: starts the program, exchanges messages, ends it.
class LauncherLink {
 public:
  static Result<LauncherLink> start(const SandboxConfig&, bool probe);
  LauncherLink(LauncherLink&&) = default;
  LauncherLink& operator=(LauncherLink&& other) noexcept;
  ~LauncherLink();  // calls end()

  int socket() const { return socket_.get(); }
  // Receives the next frame; log frames are passed to the log. Returns `closed` also after the time-out.
  ReceiveResult receive(RawFrame&, int timeout_ms);
  // Ends the launcher and waits until all its processes have ended. If SIGKILL does not end a process, the guardian
  // remains and waits for it.
  void end();
  // Kills a failed launcher without waiting.
  void kill_without_waiting();
  int guardian() const { return child_.pidfd.get(); }  // readable when all processes of the launcher have ended
  pid_t guardian_pid() const { return child_.pid; }
  bool has_ended();  // true if all processes of the launcher have ended
  // Returns the time at which all processes are assumed to have ended, since a killed guardian cannot report it.
  // Returns 0 if the guardian was not killed.
  std::uint64_t assumed_end_boot_ms() const { return assumed_end_boot_ms_; }

 private:
  LauncherLink(Child child, Fd socket) : child_(std::move(child)), socket_(std::move(socket)) {}

  bool wait_for_guardian(int timeout_ms) const;

  Child child_;  // the guardian
  Fd socket_;
  std::uint64_t assumed_end_boot_ms_ = 0;
};

// Script hosts for every context, installed with the agent. Hosts of single contexts are in SandboxConfig::hosts.
struct HostProgram {
  const char* host;
  const char* program;  // file name in the libexec folder
};
constexpr HostProgram kHostPrograms[] = {
    {"python", "mycojobs-pyhost"},
    {"lua", "mycojobs-luahost"},
    {"exec", "mycojobs-exechost"},
};
constexpr const char* kLauncherProgram = "mycojobs-launcher";

constexpr std::uint64_t kAssumedEndMs = 2000;  // wait after the end of a killed guardian
constexpr int kEndTimeoutMs = 5000;            // time-out for the launcher to kill and reap its processes
constexpr int kSendTimeoutMs = 5000;           // send time-out after which the launcher is considered stuck

std::string describe_errno(int error) {
  const ResourceShortage* shortage = find_shortage(error);
  return shortage == nullptr ? errno_text(error) : describe_shortage(*shortage);
}

Configure build_configuration(const SandboxConfig& config, bool probe) {
  Configure message;
  message.probe = probe;
  for (const auto& row : kHostPrograms) message.hosts.push_back({row.host, config.libexec_dir + "/" + row.program});
  message.hosts.insert(message.hosts.end(), config.hosts.begin(), config.hosts.end());
  message.allow_missing = config.allow_missing;
  message.uid_base = config.uid_base;
  message.uid_count = config.uid_count;
  message.initial_zygotes = config.initial_zygotes;
  message.max_zygote_runs = config.max_zygote_runs;
  message.max_zygote_age_ms = config.max_zygote_age_ms;
  message.max_prewarmed = config.max_prewarmed;
  message.max_sandbox_runs = config.max_sandbox_runs;
  message.max_warm_processes = config.max_warm_processes;
  message.max_zygotes = config.max_zygotes;
  message.disabled_steps = config.disabled_steps;
  message.files = config.files;
  message.volumes = config.volumes;
  message.written_folders = config.written_folders;
  message.unkillable_ms = config.unkillable_ms;
  message.fail_step = config.fail_step;
  return message;
}

// Returns the first message to the launcher. Error invalid: it is longer than a frame, because of its lists.
Result<std::string> encode_configuration(const SandboxConfig& config, bool probe) {
  std::string frame = encode(build_configuration(config, probe));
  if (frame.size() <= kMaxFrameBytes) return frame;
  return fail(Code::invalid, fmt::format("sandbox: the settings for mycojobs-launcher are too long, {} of {} bytes: {} "
                                         "volumes, {} folders of ceiling.fs.write, {} tables [contexts.N.files]; serve "
                                         "fewer contexts with one agent, or use fewer volumes or shorter paths",
                                         frame.size(), kMaxFrameBytes, config.volumes.size(),
                                         config.written_folders.size(), config.files.size()));
}

Result<LauncherLink> LauncherLink::start(const SandboxConfig& config, bool probe) {
  MJ_TRY(configuration, encode_configuration(config, probe));
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(Code::io, "sandbox: a socket for mycojobs-launcher: " + describe_errno(errno));
  }
  Fd agent_end(pair[0]);
  const Fd launcher_end(pair[1]);
  const timeval send_timeout{kSendTimeoutMs / 1000, 0};
  ::setsockopt(agent_end.get(), SOL_SOCKET, SO_SNDTIMEO, &send_timeout, sizeof send_timeout);
  SpawnSpec spec;
  spec.program = config.libexec_dir + "/" + kLauncherProgram;
  spec.argv0 = kLauncherProgram;
  // Duplicated to high numbers, so that the two descriptors cannot overwrite each other.
  const Fd socket(::fcntl(launcher_end.get(), F_DUPFD_CLOEXEC, 16));
  const Fd alive_copy(config.alive_fd < 0 ? -1 : ::fcntl(config.alive_fd, F_DUPFD_CLOEXEC, 16));
  if (!socket || (config.alive_fd >= 0 && !alive_copy))
    return fail(Code::io, "sandbox: descriptors for mycojobs-launcher: " + describe_errno(errno));
  spec.inherited_descriptors = {{socket.get(), kAgentSocket}};
  if (alive_copy) spec.inherited_descriptors.emplace_back(alive_copy.get(), kGuardianAlive);
  auto child = spawn(spec);
  if (!child) return fail(std::move(child).error(), "sandbox");
  LauncherLink link(std::move(*child), std::move(agent_end));
  std::vector<int> alive;
  if (config.alive_fd >= 0) alive.push_back(config.alive_fd);
  if (int error = send_raw(link.socket(), configuration, alive); error != 0) {
    return fail(Code::unavailable, "sandbox: mycojobs-launcher does not listen: " + errno_text(error));
  }
  return link;
}

LauncherLink& LauncherLink::operator=(LauncherLink&& other) noexcept {
  end();
  child_ = std::move(other.child_);
  socket_ = std::move(other.socket_);
  assumed_end_boot_ms_ = other.assumed_end_boot_ms_;
  return *this;
}

LauncherLink::~LauncherLink() { end(); }

bool LauncherLink::has_ended() {
  if (child_.pidfd) {
    if (!wait_for_guardian(0)) return false;
    const bool is_killed = wait_child(child_) > 128;
    child_.pidfd.reset();
    // A killed guardian has not observed the end of its processes. They are killed too, but their end is not visible.
    if (is_killed) assumed_end_boot_ms_ = SystemClock().boot_ms() + kAssumedEndMs;
  }
  return SystemClock().boot_ms() >= assumed_end_boot_ms_;
}

bool LauncherLink::wait_for_guardian(int timeout_ms) const {
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, timeout_ms) > 0;
}

void LauncherLink::kill_without_waiting() {
  socket_.reset();
  if (child_.pidfd) ::pidfd_send_signal(child_.pidfd.get(), kKillLauncher, nullptr, 0);
}

void LauncherLink::end() {
  socket_.reset();
  if (!child_.pidfd) return;
  if (!wait_for_guardian(kEndTimeoutMs)) {
    log(LogLevel::error, "sandbox", "mycojobs-launcher did not end within {} ms: killed", kEndTimeoutMs);
    kill_without_waiting();
    wait_for_guardian(kEndTimeoutMs);
  }
  if (has_ended() || !child_.pidfd) return;
  log(LogLevel::error, "sandbox", "KILL does not end some process of a job: process {} waits for it", child_.pid);
  child_.pidfd.reset();
}

ReceiveResult LauncherLink::receive(RawFrame& frame, int timeout_ms) {
  for (;;) {
    pollfd readable{socket_.get(), POLLIN, 0};
    if (timeout_ms != 0 && ::poll(&readable, 1, timeout_ms) <= 0) return ReceiveResult::closed;
    const ReceiveResult received = receive_raw(socket_.get(), frame, MSG_DONTWAIT);
    LogText text;
    if (received != ReceiveResult::frame || !decode(frame, text)) return received;
    log_line(
        text.level <= static_cast<std::uint8_t>(LogLevel::error) ? static_cast<LogLevel>(text.level) : LogLevel::error,
        "sandbox", text.text);
  }
}

}  // namespace

}  // namespace mycojobs::sandbox

namespace mycojobs {
namespace {

using namespace sandbox;

constexpr int kStartTimeoutMs = 30000;

// Reads the launcher's messages until it reports the result of its self-test.
Result<void> wait_until_started(LauncherLink& link, std::vector<LayerReport>* layers = nullptr) {
  for (;;) {
    RawFrame frame;
    LauncherStarted started;
    Layer layer;
    if (link.receive(frame, kStartTimeoutMs) != ReceiveResult::frame) {
      return fail(Code::unavailable, "sandbox: mycojobs-launcher ended, or was silent for 30 s, before it was ready");
    }
    if (layers != nullptr && decode(frame, layer)) {
      layers->push_back({layer.name, layer.ok, layer.detail, layer.remedy, layer.is_optional});
    } else if (decode(frame, started)) {
      if (started.ok || (layers != nullptr && !layers->empty())) return {};
      return fail(Code::unsupported, "sandbox: " + started.problem);
    } else {
      return fail(Code::internal, "sandbox: mycojobs-launcher is of another version");
    }
  }
}

struct PipePair {
  Fd agent_end, job_end;
};

// Creates a pipe for an output stream of a job. The job has another user id, and opening /dev/stdout, /dev/stderr or
// /proc/self/fd/N checks the owner and mode of the pipe's inode again. The mode admits every user, because the agent
// does not know the job's id yet and its unit has no CAP_CHOWN. Other processes cannot open the pipe: opening it
// through /proc requires the right to trace a process that holds it.
constexpr mode_t kOutputMode = 0666;
constexpr mode_t kChannelMode = 0;  // a job does not need to reopen its channel
bool make_pipe(PipePair& pipe, mode_t mode) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe.agent_end.reset(ends[0]);
  pipe.job_end.reset(ends[1]);
  return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && ::fchmod(ends[1], mode) == 0;
}

// A socket, since a descriptor may be attached to a request. The job's direction is shut down first; otherwise a job
// could send descriptors that this process would close when it reads or closes the socket. The last close of some
// objects blocks.
bool make_request_socket(PipePair& requests) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  requests.agent_end.reset(ends[0]);
  requests.job_end.reset(ends[1]);
  return ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && ::shutdown(ends[0], SHUT_RD) == 0;
}

class LauncherClient final : public Sandbox {
 public:
  explicit LauncherClient(SandboxConfig config)
      : config_(std::move(config)),
        events_(::epoll_create1(EPOLL_CLOEXEC)),
        timer_(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {
    watch(timer_.get());
  }

  Result<void> restart() override {
    if (link_) on_launcher_died("is replaced");
    if (!events_ || !timer_) return fail(Code::io, "sandbox: the launcher's events: " + describe_errno(EMFILE));
    MJ_TRY(link, LauncherLink::start(config_, false));
    MJ_CHECK(wait_until_started(link));
    config_.written_folders.clear();
    config_.volumes.clear();  // a volume that fails later fails its runs, not the restart of the launcher
    link_.emplace(std::move(link));
    counts_ = {};
    watch(link_->socket());
    return {};
  }

  Result<RunPipes> launch(const RunSpec& spec) override {
    if (!alive()) return fail(Code::unavailable, "sandbox: mycojobs-launcher has ended");
    PipePair out, err, channel, requests;
    if (!make_pipe(out, kOutputMode) || (!spec.merge_output && !make_pipe(err, kOutputMode)) ||
        !make_pipe(channel, kChannelMode) || !make_request_socket(requests)) {
      return fail(Code::io, describe_errno(errno) + " (for the pipes of a run)");
    }
    const int err_fd = spec.merge_output ? out.job_end.get() : err.job_end.get();
    const int error = send_message(link_->socket(), Launch{spec},
                                   {out.job_end.get(), err_fd, channel.job_end.get(), requests.job_end.get()});
    if (error == EMSGSIZE) return fail(Code::invalid, "sandbox: the grants of this run are too long");
    if (error != 0) {
      if (error == ETOOMANYREFS || error == ENOMEM)  // EAGAIN means that the launcher does not read
        return fail(Code::io, describe_errno(error) + " (to send a run)");
      on_launcher_died("does not accept a run: " + errno_text(error));
      return fail(Code::unavailable, "sandbox: mycojobs-launcher does not answer: " + errno_text(error));
    }
    active_runs_.insert(spec.run);
    return RunPipes{out.agent_end.release(), err.agent_end.release(), channel.agent_end.release(),
                    requests.agent_end.release()};
  }

  void kill(std::uint64_t run, KillReason reason, std::uint32_t grace_ms) override {
    if (alive() && active_runs_.contains(run)) send(Kill{run, reason, grace_ms});
  }
  void fence(std::uint64_t run, std::uint64_t fence_boot_ms) override {
    if (alive() && active_runs_.contains(run)) send(Fence{run, fence_boot_ms});
  }

  void retire_warm_key(const std::string& key) override {
    if (alive()) send(RetireWarmKey{key});
  }

  int event_fd() const override { return events_.get(); }
  bool alive() const override { return link_.has_value(); }
  SandboxCounts counts() const override { return alive() ? counts_ : SandboxCounts{}; }

  std::vector<RunEnded> read_ended() override {
    while (alive()) {
      RawFrame frame;
      LauncherRunEnded ended;
      const ReceiveResult received = link_->receive(frame, 0);
      if (received == ReceiveResult::would_block) break;
      if (PrewarmedCount count; received == ReceiveResult::frame && decode(frame, count)) {
        counts_ = count.counts;
        continue;
      }
      if (received != ReceiveResult::frame || !decode(frame, ended)) {
        on_launcher_died("has ended, or does not speak as it should");
        break;
      }
      const bool is_continuing = ended.outcome.status == RunStatus::unkillable;
      const bool is_known = is_continuing ? active_runs_.contains(ended.run) : active_runs_.erase(ended.run) > 0;
      if (is_known) ended_.push_back({ended.run, std::move(ended.outcome)});
    }
    if (!dead_launchers_.empty()) reap_dead_launchers();
    return std::exchange(ended_, {});
  }

 private:
  struct DeadLauncher {  // a failed launcher, stored until all its processes have ended
    LauncherLink link;
    std::set<std::uint64_t> runs;
    std::uint64_t overdue_boot_ms = 0;
    bool is_reported = false, has_ended = false;
  };

  template <class Message>
  void send(const Message& message) {
    if (int error = send_message(link_->socket(), message); error != 0)
      on_launcher_died("accepts no requests: " + errno_text(error));
  }
  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event);
  }

  // The runs end with the launcher: zygotes are tied to the launcher, and each namespace to its zygote. The kernel
  // needs time for this, and a lost run may be started elsewhere, so it is reported only after the guardian has seen
  // the last process end.
  void on_launcher_died(const std::string& failure) {
    log(LogLevel::error, "sandbox", "mycojobs-launcher {}; {} runs are lost", failure, active_runs_.size());
    ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, link_->socket(), nullptr);
    link_->kill_without_waiting();
    watch(link_->guardian());
    dead_launchers_.push_back(
        {std::move(*link_), std::exchange(active_runs_, {}), SystemClock().boot_ms() + config_.unkillable_ms});
    link_.reset();
    reap_dead_launchers();
  }
  void reap_dead_launchers() {
    std::uint64_t expirations = 0;
    (void)!::read(timer_.get(), &expirations, sizeof expirations);
    for (DeadLauncher& dead : dead_launchers_) {
      dead.has_ended = dead.link.has_ended();
      const bool is_overdue = !dead.is_reported && SystemClock().boot_ms() >= dead.overdue_boot_ms;
      dead.is_reported = dead.is_reported || is_overdue;
      if (!dead.has_ended && !is_overdue) continue;
      for (std::uint64_t run : dead.runs) report_dead_launcher(dead, run);
    }
    dead_launchers_.remove_if([](const DeadLauncher& dead) { return dead.has_ended; });
    std::uint64_t next = UINT64_MAX;
    for (const DeadLauncher& dead : dead_launchers_) {
      if (!dead.is_reported) next = std::min(next, dead.overdue_boot_ms);
      if (dead.link.assumed_end_boot_ms() != 0) next = std::min(next, dead.link.assumed_end_boot_ms());
    }
    set_timer(next);
  }
  void report_dead_launcher(const DeadLauncher& dead, std::uint64_t run) {
    RunEnded ended;
    ended.run = run;
    ended.outcome.status = dead.has_ended ? RunStatus::lost : RunStatus::unkillable;
    ended.outcome.reason = "the sandbox's launcher ended before the job did";
    if (!dead.has_ended) {
      ended.outcome.reason +=
          ", and KILL has had no effect on some process below process " + std::to_string(dead.link.guardian_pid());
    }
    ended_.push_back(std::move(ended));
  }
  // Sets or (UINT64_MAX) disables the alarm. The alarm is not read when no failed launcher is left; an expired and
  // unread alarm would keep event_fd() readable.
  void set_timer(std::uint64_t boot_ms) {
    itimerspec spec{};
    if (boot_ms != UINT64_MAX) {
      spec.it_value.tv_sec = static_cast<time_t>(boot_ms / 1000);
      spec.it_value.tv_nsec = static_cast<long>(boot_ms % 1000) * 1000000 + 1;
    }
    ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
  }

  SandboxConfig config_;
  Fd events_, timer_;
  std::optional<LauncherLink> link_;
  std::list<DeadLauncher> dead_launchers_;
  std::set<std::uint64_t> active_runs_;
  std::vector<RunEnded> ended_;
  SandboxCounts counts_;
};

}  // namespace

Result<std::unique_ptr<Sandbox>> start_sandbox(const SandboxConfig& config) {
  auto client = std::make_unique<LauncherClient>(config);
  MJ_CHECK(client->restart());
  return std::unique_ptr<Sandbox>(std::move(client));
}

Result<std::vector<LayerReport>> probe_layers(const SandboxConfig& config) {
  SandboxConfig lenient = config;
  lenient.allow_missing.clear();
  lenient.initial_zygotes.clear();
  std::vector<LayerReport> layers;
  MJ_TRY(link, LauncherLink::start(lenient, true));
  MJ_CHECK(wait_until_started(link, &layers));
  return layers;
}

}  // namespace mycojobs
