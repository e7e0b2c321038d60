#include "sandbox/launcher/reported_calls.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/cpu_time.h"
#include "base/fd.h"
#include "sandbox/launcher/event_loop.h"
#include "sandbox/messages.h"
#include "sandbox/processes.h"
#include "sandbox/seccomp/count_pace.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::sandbox {
namespace {

// Returns the pid of the caller in its own namespace, which is the last number of "NStgid: 3412 57 7".
std::int32_t read_inner_pid(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("NStgid:", 0) == 0) return std::atoi(line.c_str() + line.find_last_of("\t ") + 1);
  }
  return 0;
}

// A job chooses the name, so characters other than printable ASCII are replaced.
std::string read_comm(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  for (char& c : name) {
    if (c < ' ' || c > '~') c = '?';
  }
  return name;
}

}  // namespace

std::optional<seccomp_notif> receive_call(int listener) {
  seccomp_notif call{};
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return {};
  return call;
}

Violation describe_call(int listener, const std::optional<seccomp_notif>& call) {
  Violation violation;
  violation.syscall = "a forbidden call";
  if (!call) return violation;
  violation.syscall = syscall_name(call->data.arch, call->data.nr);
  for (std::size_t i = 0; i < violation.args.size(); ++i) violation.args[i] = call->data.args[i];
  violation.pid = read_inner_pid(call->pid);
  violation.comm = read_comm(call->pid);
  // If the call is still pending, the pid was that of the caller throughout, and not that of a later process.
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) != 0) violation.pid = 0, violation.comm.clear();
  return violation;
}

std::string describe(const Violation& violation) {
  std::string args;
  for (std::uint64_t arg : violation.args) args += fmt::format("{}{:#x}", args.empty() ? "" : ", ", arg);
  return fmt::format("denied: {}({}) by pid {} ({}): job killed", violation.syscall, args, violation.pid,
                     violation.comm);
}

namespace {

// Counts the locks of the process and its descendants, including requests that wait for a lock. Source: proc(5), locks:
// number: [->] type mode access pid device:inode from to.
std::uint32_t count_locks(pid_t init) {
  const auto tree = list_process_tree(init);
  const std::unordered_set<pid_t> job_pids(tree.begin(), tree.end());
  std::ifstream file("/proc/locks");
  if (!file) return CountedCalls::kMaxLocks;
  std::uint32_t count = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, type, mode, access;
    pid_t pid = 0;
    fields >> number >> type;
    if (type == "->") fields >> type;
    if (type == "POSIX" && fields >> mode >> access >> pid && job_pids.contains(pid)) ++count;
  }
  return count;
}

// Counts listening sockets in the network namespace of the process. The kernel lists sockets that listen before all
// others (tcp_get_idx in net/ipv4/tcp_ipv4.c), so that the connections of a job are not read.
std::uint32_t count_listeners(pid_t pid) {
  std::uint32_t count = 0;
  for (const std::string name : {"tcp", "tcp6"}) {
    std::ifstream file(fmt::format("/proc/{}/net/{}", pid, name));
    if (!file && name == "tcp") return CountedCalls::kMaxListeners;  // tcp6 does not exist on every host
    std::string line;
    std::getline(file, line);  // the heading
    while (count < CountedCalls::kMaxListeners && std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (state != "0A") break;
      ++count;
    }
  }
  return count;
}

bool is_listening(int socket) {
  int listening = 0;
  socklen_t size = sizeof listening;
  return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

// The child of one run. It may block in any call on a socket of the job.
class CallHelper {
 public:
  CallHelper(int launcher, CountPace& pace) : launcher_(launcher), pace_(pace) {}
  void serve() {
    (void)!::nice(10);  // the launcher has a higher priority than jobs, and this child works for one job
    for (RawFrame frame; receive_raw(launcher_, frame) == ReceiveResult::frame;) {
      MakeListen listen;
      CountLocks locks;
      if (decode(frame, listen) && frame.fds.size() == 1) {
        make_listen(listen, frame.fds[0]);
      } else if (decode(frame, locks)) {
        const std::uint32_t lock_count = count([&] { return count_locks(locks.init); });
        send_message(launcher_, HelperReply{0, lock_count});
      }
    }
  }

 private:
  // The socket is closed before the answer: afterwards the job may close its own copy and use the port again.
  void make_listen(const MakeListen& request, const Fd& process) {
    Fd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), request.fd, 0)));
    const int error = socket ? listen_on(socket.get(), request) : errno;
    socket.reset();
    send_message(launcher_, HelperReply{error, 0});
  }
  int listen_on(int socket, const MakeListen& request) {
    if (!is_listening(socket)) {
      if (listeners_left_ == 0)
        listeners_left_ = CountedCalls::kMaxListeners - count([&] { return count_listeners(request.pid); });
      if (listeners_left_ == 0) return ENOBUFS;
      --listeners_left_;
    }
    return ::listen(socket, request.backlog) == 0 ? 0 : errno;
  }
  template <class Counter>
  std::uint32_t count(Counter counter) {
    const std::uint64_t now = boot_us(), start_us = pace_.reserve(now);
    if (now < start_us) ::usleep(static_cast<useconds_t>(start_us - now));
    // CPU time is used instead of elapsed time, since a busy or suspended host must not delay other runs.
    const std::uint64_t begin_ns = cpu_time_ns(CLOCK_PROCESS_CPUTIME_ID);
    const std::uint32_t result = counter();
    pace_.charge((cpu_time_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_ns) / 1000);
    return result;
  }

  int launcher_;
  CountPace& pace_;
  std::uint32_t listeners_left_ = CountedCalls::kMaxListeners;
};

}  // namespace

bool CountedCalls::can_report(const RunSpec& spec) {
  const Grants& grants = spec.grants;
  return spec.limits.exec || grants.network != Network::none || count_folders(grants) > 0;
}

bool CountedCalls::is_counted(const seccomp_notif& call) {
  return call.data.nr == SYS_fcntl || call.data.nr == SYS_listen;
}

void CountedCalls::accept(const seccomp_notif& call, pid_t init) {
  constexpr std::size_t kMaxWaiting = 1024;
  calls_in_interval_ += call.data.nr == SYS_listen ? kMaxCallsPer100Ms / kMaxListensPer100Ms : 1;
  init_ = init;
  // On kernels before 5.19 a signal cancels a call, and its thread repeats the call.
  if (waiting_.size() == kMaxWaiting) return answer(call, ENOBUFS);
  waiting_.push_back(call);
  answer_waiting();
}

std::uint64_t CountedCalls::next_boot_ms(std::uint64_t now_boot_ms) {
  constexpr std::uint64_t kIntervalMs = 100;
  if (now_boot_ms / kIntervalMs != interval_) {
    interval_ = now_boot_ms / kIntervalMs;
    calls_in_interval_ = 0;
  }
  return calls_in_interval_ < kMaxCallsPer100Ms ? 0 : (interval_ + 1) * kIntervalMs;
}

void CountedCalls::answer_waiting() {
  while (!is_child_busy_ && !waiting_.empty()) {
    const seccomp_notif call = waiting_.front();
    if (call.data.nr == SYS_listen) {
      begin_listen(call);
    } else if (answer_lock(call)) {
      waiting_.pop_front();
    }
  }
}

void CountedCalls::answer(const seccomp_notif& call, int error) {
  seccomp_notif_resp response{};
  response.id = call.id;
  response.error = -error;
  if (call.data.nr == SYS_fcntl && error == 0) response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  ::ioctl(listener_, SECCOMP_IOCTL_NOTIF_SEND, &response);  // fails if the caller has died
}

// Counting is expensive, so it happens only after at least half of the limit was used or refused.
bool CountedCalls::answer_lock(const seccomp_notif& call) {
  if (locks_.remaining == 0 && locks_.refused % (kMaxLocks / 2) == 0) {
    locks_.refused = 1;
    is_child_busy_ = send_to_child(encode(CountLocks{init_}), {}) == 0;
    if (is_child_busy_) return false;
  }
  if (locks_.remaining == 0) {
    ++locks_.refused;
    answer(call, ENOLCK);
  } else {
    --locks_.remaining;
    answer(call, 0);
  }
  return true;
}

// If the caller still waits after the pidfd was opened, the pidfd refers to the caller's process. Threads share the
// descriptors of their process.
void CountedCalls::begin_listen(const seccomp_notif& call) {
  const auto process = read_number_after(fmt::format("/proc/{}/status", call.pid), "Tgid:");
  const Fd pidfd(process ? static_cast<int>(::syscall(SYS_pidfd_open, *process, 0)) : -1);
  int error = pidfd ? 0 : errno;
  if (::ioctl(listener_, SECCOMP_IOCTL_NOTIF_ID_VALID, &call.id) != 0) error = ESRCH;
  const int request = static_cast<int>(call.data.args[1]);
  const int queue = request < 0 || request > kMaxPendingConnections ? kMaxPendingConnections : request;
  const MakeListen listen{static_cast<std::int32_t>(process.value_or(-1)), static_cast<std::int32_t>(call.data.args[0]),
                          queue};
  if (error == 0 && send_to_child(encode(listen), {pidfd.get()}) != 0) error = ENOBUFS;
  is_child_busy_ = error == 0;
  if (is_child_busy_) return;
  answer(call, error);
  waiting_.pop_front();
}

int CountedCalls::send_to_child(const std::string& frame, std::initializer_list<int> fds) {
  CountPace* const pace = CountPace::shared();  // must be created before the fork
  if (pace == nullptr) return ENOMEM;
  if (child_ == 0)
    child_ = children_.start(
        "mycojobs-calls", [pace](int launcher) { CallHelper(launcher, *pace).serve(); },
        [this](HostChildren::Child, RawFrame* answered) { on_frame(answered); });
  return child_ == 0 ? errno : children_.send(child_, frame, fds);
}

// A null frame means that the child has ended. The first waiting call is refused, and the next call starts another
// child.
void CountedCalls::on_frame(const RawFrame* frame) {
  HelperReply reply{ENOBUFS, kMaxLocks};
  if (frame == nullptr) child_ = 0;
  if ((frame != nullptr && !decode(*frame, reply)) || !std::exchange(is_child_busy_, false)) return;
  const seccomp_notif call = waiting_.front();
  if (call.data.nr == SYS_listen) {
    waiting_.pop_front();
    answer(call, reply.error);
  } else if (reply.locks <= kMaxLocks / 2) {
    locks_ = {kMaxLocks - reply.locks};
  }
  answer_waiting();
}

namespace {

constexpr std::size_t kMaxBytes = 8192;  // limit for all lines, which are sent in one frame
// Limit for the lines of files; the rest is for calls, programs and sockets.
constexpr std::size_t kMaxFilesBytes = 6144;
constexpr const char* kTruncated = "there was more than can be shown";
// Folders that every root has, and folders of the job. They need no policy, and a single `import` opens hundreds of
// files.
constexpr const char* kCommonFolders[] = {"/usr/", "/bin/",  "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/",
                                          "/etc/", "/proc/", "/sys/",  "/dev/", "/venv/",  "/tmp/",   "/job/"};

constexpr const char* kProcessCalls[] = {"execve", "execveat", "fork", "vfork", "clone", "clone3"};

// Reads a string from the caller's memory. Returns nothing if the memory is unreadable or has no NUL.
std::optional<std::string> read_caller_text(int listener, const seccomp_notif& call, std::uint64_t address) {
  const Fd memory(::open(fmt::format("/proc/{}/mem", call.pid).c_str(), O_RDONLY | O_CLOEXEC));
  // If the call is still pending, the opened memory is that of the caller, and not that of a later process with the
  // same pid.
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call.id) != 0) return {};
  char text[4096];
  std::size_t total = 0;
  while (memory && total < sizeof text) {  // page by page, since the next page may not be mapped
    const std::size_t page_rest = 4096 - (address + total) % 4096;
    const ssize_t read_size = ::pread(memory.get(), text + total, std::min(page_rest, sizeof text - total),
                                      static_cast<off_t>(address + total));
    if (read_size <= 0) break;
    const void* end = std::memchr(text + total, '\0', static_cast<std::size_t>(read_size));
    if (end != nullptr) return std::string(text);
    total += static_cast<std::size_t>(read_size);
  }
  return {};
}

// Returns false if the text has characters that control a terminal or reorder displayed text: C0, C1, direction marks
// and zero-width marks.
bool is_plain(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte_at = [&](std::size_t index) {
      return index < text.size() ? static_cast<unsigned char>(text[index]) : 0U;
    };
    if (byte_at(i) < ' ' || byte_at(i) == 0x7f) return false;
    if (byte_at(i) == 0xc2 && byte_at(i + 1) >= 0x80 && byte_at(i + 1) < 0xa0) return false;  // U+0080 to U+009F
    const bool has_prefix_e280 = byte_at(i) == 0xe2 && byte_at(i + 1) == 0x80;
    if (has_prefix_e280 && byte_at(i + 2) >= 0x8b && byte_at(i + 2) <= 0x8f) return false;  // U+200B to U+200F
    if (has_prefix_e280 && byte_at(i + 2) >= 0xa8 && byte_at(i + 2) <= 0xae) return false;  // U+2028 to U+202E
    if (byte_at(i) == 0xe2 && byte_at(i + 1) == 0x81 && byte_at(i + 2) >= 0xa0 && byte_at(i + 2) < 0xb0)
      return false;                                                                            // U+2060 to U+206F
    if (byte_at(i) == 0xef && byte_at(i + 1) == 0xbb && byte_at(i + 2) == 0xbf) return false;  // U+FEFF
  }
  return true;
}

bool is_common_path(const std::string& path) {
  return path.find("/..") == std::string::npos &&
         std::any_of(std::begin(kCommonFolders), std::end(kCommonFolders),
                     [&](const char* folder) { return path.starts_with(folder); });
}

int find_refusal_errno(const std::string& name) {
  for (const auto& call : refused_calls()) {
    if (name == call.syscall) return call.error;
  }
  return name == "socket" ? EAFNOSUPPORT : EPERM;
}

}  // namespace

void PolicyRecorder::record(std::string line) {
  const bool is_file = line.starts_with("read ") || line.starts_with("write ");
  if (records_.contains(line)) return;
  if (bytes_ + line.size() > (is_file ? kMaxFilesBytes : kMaxBytes - std::strlen(kTruncated))) line = kTruncated;
  if (records_.insert(line).second) bytes_ += line.size();
}

int PolicyRecorder::decide_errno(int listener, const seccomp_notif& call) {
  const std::string name = syscall_name(call.data.arch, call.data.nr);
  const auto read_path = [&](unsigned argument) {
    const auto text = read_caller_text(listener, call, call.data.args[argument]);
    return text && is_plain(*text) ? *text : "?";
  };
  if (const FileOpenCall* open_call = find_file_open_call(name); open_call != nullptr) {
    const std::uint64_t flags = open_call->flags < 6 ? call.data.args[open_call->flags] : O_WRONLY | O_CREAT;
    const bool is_write = (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY;
    if ((flags & kCreates) != 0 && (call.data.args[open_call->mode] & kSetIds) != 0) return EPERM;
    const std::string path = read_path(open_call->path);
    if (path.starts_with('/') && !is_common_path(path)) record((is_write ? "write " : "read ") + path);
    return 0;
  }
  // The first fork is that of init: no job exists yet that could have made the call, and the flags are in a register.
  if (name == "clone" && (call.data.args[0] & ~std::uint64_t{0xff}) == (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) &&
      !std::exchange(has_forked_job_, true)) {
    return 0;
  }
  if (std::find(std::begin(kProcessCalls), std::end(kProcessCalls), name) != std::end(kProcessCalls)) {
    record(name == "execve" ? "exec " + read_path(0) : "exec");
    return name == "clone3" ? ENOSYS : EPERM;
  }
  if (name == "socket") {
    const auto family = call.data.args[0];
    record(family == AF_INET || family == AF_INET6 ? "socket inet" : fmt::format("socket family {}", family));
    return EAFNOSUPPORT;
  }
  const int error = find_refusal_errno(name);
  if (error != 0 && error != ENOSYS && !sets_mode(name)) record("syscall " + name);
  return error;
}

bool PolicyRecorder::answer(int listener) {
  seccomp_notif call{};
  if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return false;
  seccomp_notif_resp response{};
  response.id = call.id;
  const int error = decide_errno(listener, call);
  // The job may change the path before the call continues. The only effect is a wrong line in the list.
  const std::string name = syscall_name(call.data.arch, call.data.nr);
  if (error == 0 && (find_file_open_call(name) != nullptr || name == "clone")) {
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else {
    response.error = -error;
  }
  ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);  // fails if the caller has died
  return true;
}

std::vector<std::string> PolicyRecorder::records() const { return {records_.begin(), records_.end()}; }

}  // namespace mycojobs::sandbox
