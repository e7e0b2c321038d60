#include "sandbox/counted_calls.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <unordered_set>

#include "base/fd.h"
#include "sandbox/processes.h"

namespace mycojobs::sandbox {
namespace {

// Of the process and all below it, those waiting for one too. Source: proc(5), locks: number: [->] type mode access pid
// device:inode from to.
std::uint32_t count_locks(pid_t init) {
  const auto tree = tree_of(init);
  const std::unordered_set<pid_t> own(tree.begin(), tree.end());
  std::ifstream file("/proc/locks");
  if (!file) return CountedCalls::kMostLocks;
  std::uint32_t count = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string number, type, mode, access;
    pid_t pid = 0;
    words >> number >> type;
    if (type == "->") words >> type;
    if (type == "POSIX" && words >> mode >> access >> pid && own.contains(pid)) ++count;
  }
  return count;
}

// In the network of the process.
std::uint32_t count_listeners(std::uint32_t pid) {
  std::uint32_t count = 0;
  for (const std::string name : {"tcp", "tcp6"}) {
    std::ifstream file(fmt::format("/proc/{}/net/{}", pid, name));
    if (!file && name == "tcp") return CountedCalls::kMostListeners;  // the other is not on every host
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if (state == "0A") ++count;
    }
  }
  return count;
}

// The caller's own descriptor; a thread's are those of its process. EPERM: this host lets nobody look.
Fd socket_of(int listener, const seccomp_notif& call) {
  const auto process = number_after(fmt::format("/proc/{}/status", call.pid), "Tgid:");
  const Fd pidfd(process ? static_cast<int>(::syscall(SYS_pidfd_open, *process, 0)) : -1);
  Fd socket(pidfd ? static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), static_cast<int>(call.data.args[0]), 0))
                  : -1);
  // Still waiting: then that was the caller, and not a later process of its number.
  const int error = errno;
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call.id) != 0) return {};
  errno = error;
  return socket;
}

bool is_listening(int socket) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

}  // namespace

bool CountedCalls::may_be_made(const RunSpec& spec) {
  const Grants& grants = spec.grants;
  return spec.limits.exec || grants.network != Network::none || !grants.fs_read.empty() || !grants.fs_write.empty();
}

bool CountedCalls::is_one(const seccomp_notif& call) { return call.data.nr == SYS_fcntl || call.data.nr == SYS_listen; }

void CountedCalls::answer(int listener, const seccomp_notif& call, pid_t init) {
  seccomp_notif_resp response{};
  response.id = call.id;
  if (call.data.nr == SYS_listen) {
    response.error = -listen_for(listener, call);
  } else if (const int error = judge_lock(init); error != 0) {
    response.error = -error;
  } else {
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  }
  ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);  // fails if the caller has died
  ++in_tenth_;
}

std::uint64_t CountedCalls::next_boot_ms(std::uint64_t now_boot_ms) {
  constexpr std::uint64_t kTenthMs = 100;
  if (now_boot_ms / kTenthMs != tenth_) {
    tenth_ = now_boot_ms / kTenthMs;
    in_tenth_ = 0;
  }
  return in_tenth_ < kMostInATenth ? 0 : (tenth_ + 1) * kTenthMs;
}

// Counting takes its time: so it is worth half of the number at least, used or refused.
int CountedCalls::judge_lock(pid_t init) {
  if (locks_.left == 0 && locks_.refused % (kMostLocks / 2) == 0) {
    in_tenth_ += kCounting;
    const std::uint32_t held = count_locks(init);
    locks_ = {held <= kMostLocks / 2 ? kMostLocks - held : 0};
  }
  if (locks_.left == 0) return ++locks_.refused, ENOLCK;
  --locks_.left;
  return 0;
}

int CountedCalls::listen_for(int listener, const seccomp_notif& call) {
  const Fd socket = socket_of(listener, call);
  if (!socket) return errno;
  if (!is_listening(socket.get())) {
    if (listeners_.left == 0) {
      in_tenth_ += kCounting;
      listeners_.left = kMostListeners - std::min(count_listeners(call.pid), kMostListeners);
    }
    if (listeners_.left == 0) return ENOBUFS;
    --listeners_.left;
  }
  const int wanted = static_cast<int>(call.data.args[1]);
  const int queue = wanted < 0 || wanted > kMostPending ? kMostPending : wanted;
  return ::listen(socket.get(), queue) == 0 ? 0 : errno;
}

}  // namespace mycojobs::sandbox
