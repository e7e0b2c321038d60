#include "sandbox/launcher/host_children.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "sandbox/pidfd.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kSocket = STDERR_FILENO + 1;

[[noreturn]] void run_host_child(pid_t launcher, const char* name, const HostChildren::Work& work, int socket) {
  // The launcher may have died before PR_SET_PDEATHSIG was set, which `work` cannot detect while it blocks.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != launcher) ::_exit(1);
  ::prctl(PR_SET_NAME, name);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  if (socket != kSocket && ::dup2(socket, kSocket) < 0) ::_exit(1);
  if (::close_range(kSocket + 1, ~0U, 0) != 0) ::_exit(1);
  work(kSocket);
  ::_exit(0);
}

}  // namespace

HostChildren::~HostChildren() {
  for (const auto& [child, entry] : entries_) ::kill(entry.pid, SIGKILL);
}

HostChildren::Child HostChildren::start(const char* name, const Work& work, OnFrame on_frame) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return 0;
  Entry entry;
  entry.socket.reset(pair[0]);
  const Fd child_socket(pair[1]);
  const pid_t launcher = ::getpid();
  entry.pid = ::fork();
  if (entry.pid < 0) return 0;
  if (entry.pid == 0) run_host_child(launcher, name, work, child_socket.get());
  entry.pidfd.reset(::pidfd_open(entry.pid, 0));
  if (!entry.pidfd) {
    const int error = errno;
    ::kill(entry.pid, SIGKILL);
    ::waitpid(entry.pid, nullptr, 0);
    errno = error;
    return 0;
  }
  entry.on_frame = std::move(on_frame);
  const Child child = next_child_++;
  entry.socket_watch = loop_.watch(entry.socket.get(), [this, child](std::uint32_t) { read(child); });
  entry.end_watch = loop_.watch(entry.pidfd.get(), [this, child](std::uint32_t) { reap(child); });
  entries_.emplace(child, std::move(entry));
  return child;
}

int HostChildren::send(Child child, const std::string& frame, std::initializer_list<int> fds) {
  const auto found = entries_.find(child);
  return found == entries_.end() ? ESRCH : send_raw(found->second.socket.get(), frame, fds, MSG_DONTWAIT);
}

// The handler may call kill_silently().
void HostChildren::read(Child child) {
  for (;;) {
    const auto found = entries_.find(child);
    if (found == entries_.end() || !found->second.on_frame) return;
    Entry& entry = found->second;
    RawFrame frame;
    const ReceiveResult received = receive_raw(entry.socket.get(), frame, MSG_DONTWAIT);
    if (received == ReceiveResult::would_block) return;
    if (received != ReceiveResult::frame && received != ReceiveResult::descriptors_lost)
      return loop_.unwatch(entry.socket_watch, entry.socket.get());
    const OnFrame on_frame = entry.on_frame;
    on_frame(child, &frame);
  }
}

void HostChildren::reap(Child child) {
  read(child);  // frames that it sent before it ended
  auto node = entries_.extract(child);
  Entry& entry = node.mapped();
  loop_.unwatch(entry.socket_watch, entry.socket.get());
  loop_.unwatch(entry.end_watch, entry.pidfd.get());
  ::waitpid(entry.pid, nullptr, 0);
  if (entry.on_frame) entry.on_frame(child, nullptr);
}

void HostChildren::kill(Child child) {
  if (const auto found = entries_.find(child); found != entries_.end()) ::kill(found->second.pid, SIGKILL);
}

void HostChildren::kill_silently(Child child) {
  const auto found = entries_.find(child);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.on_frame = nullptr;
  loop_.unwatch(entry.socket_watch, entry.socket.get());
  ::kill(entry.pid, SIGKILL);
}

}  // namespace mycojobs::sandbox
