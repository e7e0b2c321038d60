#include "sandbox/launcher_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <csignal>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/log.h"
#include "sandbox/guardian.h"
#include "sandbox/pidfd.h"

namespace mycojobs::sandbox {
namespace {

// The script hosts that come with the agent, for every context. One row a host; what a context has of its own is in
// SandboxConfig::hosts.
struct HostRow {
  const char* host;
  const char* program;  // in the libexec folder
};
constexpr HostRow kHosts[] = {
    {"python", "mycojobs-pyhost"},
    {"lua", "mycojobs-luahost"},
    {"exec", "mycojobs-exechost"},
};
constexpr const char* kLauncherProgram = "mycojobs-launcher";

constexpr std::uint64_t kUnprovenMs = 2000;  // after the end of a guardian that was killed
constexpr int kEndMs = 5000;                 // for a launcher to kill and reap what it has
constexpr int kSendMs = 5000;                // a launcher that takes nothing for so long is stuck

Configure configuration_of(const SandboxConfig& config, bool probe) {
  Configure message;
  message.probe = probe;
  for (const auto& row : kHosts) message.hosts.push_back({row.host, config.libexec_dir + "/" + row.program});
  message.hosts.insert(message.hosts.end(), config.hosts.begin(), config.hosts.end());
  message.allow_missing = config.allow_missing;
  message.uid_base = config.uid_base;
  message.uid_count = config.uid_count;
  message.warm = config.warm;
  message.zygote_runs = config.zygote_runs;
  message.zygote_age_ms = config.zygote_age_ms;
  message.prewarmed = config.prewarmed;
  message.sandbox_runs = config.sandbox_runs;
  message.leave_out = config.leave_out;
  message.unkillable_ms = config.unkillable_ms;
  message.fail_step = config.fail_step;
  return message;
}

}  // namespace

Result<LauncherLink> LauncherLink::start(const SandboxConfig& config, bool probe) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return fail(Code::io, "sandbox: socketpair: " + errno_text(errno));
  }
  Fd ours(pair[0]);
  const Fd theirs(pair[1]);
  const timeval patience{kSendMs / 1000, 0};
  ::setsockopt(ours.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  SpawnSpec spec;
  spec.program = config.libexec_dir + "/" + kLauncherProgram;
  spec.argv0 = kLauncherProgram;
  // Out of each other's way.
  const Fd socket(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 16));
  const Fd alive_copy(config.alive_fd < 0 ? -1 : ::fcntl(config.alive_fd, F_DUPFD_CLOEXEC, 16));
  if (!socket || (config.alive_fd >= 0 && !alive_copy))
    return fail(Code::io, "sandbox: no descriptors for mycojobs-launcher: " + errno_text(errno));
  spec.descriptors = {{socket.get(), kAgentSocket}};
  if (alive_copy) spec.descriptors.emplace_back(alive_copy.get(), kGuardianAlive);
  auto child = spawn(spec);
  if (!child) return fail(std::move(child).error(), "sandbox");
  LauncherLink link(std::move(*child), std::move(ours));
  std::vector<int> alive;
  if (config.alive_fd >= 0) alive.push_back(config.alive_fd);
  if (int error = send_raw(link.socket(), encode(configuration_of(config, probe)), alive); error != 0) {
    return fail(Code::unavailable, "sandbox: mycojobs-launcher does not listen: " + errno_text(error));
  }
  return link;
}

LauncherLink& LauncherLink::operator=(LauncherLink&& other) noexcept {
  end();
  child_ = std::move(other.child_);
  socket_ = std::move(other.socket_);
  believed_at_boot_ms_ = other.believed_at_boot_ms_;
  return *this;
}

LauncherLink::~LauncherLink() { end(); }

bool LauncherLink::all_gone() {
  if (child_.pidfd) {
    if (!wait_for_guardian(0)) return false;
    const bool killed = wait_child(child_) > 128;
    child_.pidfd.reset();
    // One that was killed has seen nothing go. What was below it dies with it, but when is anybody's guess.
    if (killed) believed_at_boot_ms_ = SystemClock().boot_ms() + kUnprovenMs;
  }
  return SystemClock().boot_ms() >= believed_at_boot_ms_;
}

bool LauncherLink::wait_for_guardian(int timeout_ms) const {
  pollfd ended{child_.pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, timeout_ms) > 0;
}

void LauncherLink::give_up() {
  socket_.reset();
  if (child_.pidfd) ::pidfd_send_signal(child_.pidfd.get(), kKillLauncher, nullptr, 0);
}

void LauncherLink::end() {
  socket_.reset();
  if (!child_.pidfd) return;
  if (!wait_for_guardian(kEndMs)) {
    log(LogLevel::error, "sandbox", "mycojobs-launcher did not end within {} ms: killed", kEndMs);
    give_up();
    wait_for_guardian(kEndMs);
  }
  if (all_gone() || !child_.pidfd) return;
  log(LogLevel::error, "sandbox", "KILL does not end some process of a job: process {} waits for it", child_.pid);
  child_.pidfd.reset();
}

Received LauncherLink::receive(RawFrame& frame, int timeout_ms) {
  for (;;) {
    pollfd readable{socket_.get(), POLLIN, 0};
    if (timeout_ms != 0 && ::poll(&readable, 1, timeout_ms) <= 0) return Received::closed;
    const Received received = receive_raw(socket_.get(), frame, MSG_DONTWAIT);
    LogText text;
    if (received != Received::frame || !decode(frame, text)) return received;
    log_line(
        text.level <= static_cast<std::uint8_t>(LogLevel::error) ? static_cast<LogLevel>(text.level) : LogLevel::error,
        "sandbox", text.text);
  }
}

}  // namespace mycojobs::sandbox
