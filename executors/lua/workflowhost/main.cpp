// mycojobs-workflowhost INSTRUCTIONS BYTES COUNTING: started by the engine of workflows (agent/workflows/engine), with
// a socket as descriptor 3 and an empty environment. It is not a command for users. It runs one step after another.
// Before it reads the first program, it drops all rights that a step could use.
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/uncaught_exception.h"
#include "executors/lua/workflowhost/step.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "sandbox/privilege_drop.h"

namespace mycojobs::workflow {
namespace {

constexpr int kSocketEnded = 70, kConfused = 71;  // exit codes
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers need terabytes of address space
#else
constexpr bool kSanitized = false;
#endif

// System calls that a step needs: socket, memory, exit.
constexpr const char* kAllowed[] = {
    "read",        "write",       "mmap",         "munmap",        "mremap",         "mprotect",        "madvise",
    "brk",         "exit",        "exit_group",   "rt_sigreturn",  "rt_sigprocmask", "restart_syscall", "alarm",
    "setitimer",   "getpid",      "gettid",       "tgkill",        "futex",
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    "sched_yield", "sigaltstack", "rt_sigaction", "clock_gettime", "close",          "fstat",           "openat",
    "readlink",    "getrlimit",   "prlimit64",
#endif
};

// The order matters: later calls remove rights and system calls that earlier calls need. Namespaces and Landlock are
// skipped if the kernel lacks them, because the system call filter, which is mandatory, blocks every call that could
// reach the resources they hide.
Result<void> give_up_rights(std::size_t memory) {
  if (!kSanitized) MJ_CHECK(sandbox::limit_resource(RLIMIT_AS, "RLIMIT_AS", 8 * memory + (rlim_t{256} << 20)));
  MJ_CHECK(sandbox::limit_resource(RLIMIT_FSIZE, "RLIMIT_FSIZE", 0));
  sandbox::leave_namespaces();
  MJ_CHECK(sandbox::empty_bounding_set());
  MJ_CHECK(sandbox::drop_root());
  MJ_CHECK(sandbox::drop_capabilities());
  MJ_CHECK(sandbox::forbid_ptrace_and_new_privileges());
  MJ_CHECK(sandbox::forbid_file_access());
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NPROC, "RLIMIT_NPROC", 0));
  MJ_CHECK(sandbox::forbid_core_dumps());
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NOFILE, "RLIMIT_NOFILE", 0));
  return sandbox::allow_only_calls(kAllowed);
}

void send(StepFrameKind kind, std::uint32_t call, std::string_view payload) {
  std::string frame;
  frame.reserve(kHeaderBytes + payload.size());
  put_header(frame, kind, call, payload.size());
  frame += payload;
  if (!write_all(kSocketFd, frame)) ::_exit(kSocketEnded);
}

void receive(char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t got = ::read(kSocketFd, to, size);
    if (got == 0) ::_exit(0);  // the engine has exited or has released this process
    if (got < 0 && errno != EINTR) ::_exit(kSocketEnded);
    if (got < 0) continue;
    to += got;
    size -= static_cast<std::size_t>(got);
  }
}

// hash | entrypoint, NUL | name, NUL | source
void load(Programs& programs, std::string_view payload) {
  const std::string_view hash = payload.substr(0, kHashBytes);
  std::string_view rest = payload.substr(hash.size());
  std::string texts[2];
  for (std::string& text : texts) {
    const auto end = rest.find('\0');
    if (end == rest.npos) ::_exit(kConfused);
    text = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  programs.load(hash, texts[0], texts[1], rest);
}

void step(Programs& programs, std::uint32_t call, std::string_view payload) {
  if (payload.size() < kHashBytes) ::_exit(kConfused);
  std::string answer;
  const auto known = programs.step(payload.substr(0, kHashBytes), payload.substr(kHashBytes), answer);
  if (!known) ::_exit(kConfused);  // only a defective peer sends an invalid request
  send(*known ? StepFrameKind::answer : StepFrameKind::unknown, call, answer);
}

[[noreturn]] void serve(Programs& programs) {
  std::string payload;
  for (;;) {
    char bytes[kHeaderBytes];
    receive(bytes, sizeof bytes);
    const StepFrameHeader header = get_header(bytes);
    if (header.size > kMaxFrameBytes) ::_exit(kConfused);
    payload.resize(header.size);
    receive(payload.data(), payload.size());
    ::alarm(kAbandonedSeconds);
    if (header.kind == static_cast<std::uint8_t>(StepFrameKind::program)) {
      load(programs, payload);
    } else if (header.kind == static_cast<std::uint8_t>(StepFrameKind::step)) {
      step(programs, header.call, payload);
    } else {
      ::_exit(kConfused);
    }
    ::alarm(0);
  }
}

}  // namespace
}  // namespace mycojobs::workflow

using namespace mycojobs::workflow;

int main(int argc, char** argv) try {
  int type = 0;
  socklen_t size = sizeof type;
  if (argc != 4 || ::getsockopt(kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    std::fputs("mycojobs-workflowhost is started by the engine of workflows\n", stderr);
    return 64;
  }
  // Signals of a service manager are handled by the engine. This process exits when its socket is closed.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_IGN);
  ::close_range(kSocketFd + 1, ~0U, 0);
  Programs programs(std::strtoull(argv[1], nullptr, 10), static_cast<std::uint32_t>(std::atoi(argv[3])));
  const std::size_t memory = std::strtoull(argv[2], nullptr, 10);
  auto ready = heap().reserve(memory);
  if (ready) ready = give_up_rights(memory);
  if (!ready) {
    send(StepFrameKind::refused, 0, ready.error().message);
    return 71;
  }
  send(StepFrameKind::ready, 0, engine_name());
  serve(programs);
} catch (...) {
  mycojobs::exit_with_report("mycojobs-workflowhost");
}
