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
#include "executors/lua/workflowhost/run_step.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "sandbox/privilege_drop.h"

namespace mycojobs::workflow {
namespace {

constexpr int kSocketError = 70, kProtocolError = 71;  // exit codes
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers need terabytes of address space
#else
constexpr bool kSanitized = false;
#endif

// System calls that a step needs: for the socket, memory and exit.
constexpr const char* kAllowedCalls[] = {
    "read",        "write",       "mmap",         "munmap",        "mremap",         "mprotect",        "madvise",
    "brk",         "exit",        "exit_group",   "rt_sigreturn",  "rt_sigprocmask", "restart_syscall", "alarm",
    "setitimer",   "getpid",      "gettid",       "tgkill",        "futex",
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    "sched_yield", "sigaltstack", "rt_sigaction", "clock_gettime", "close",          "fstat",           "openat",
    "readlink",    "getrlimit",   "prlimit64",
#endif
};

// Drops the rights in an order in which no call needs a right or system call that an earlier call has removed.
// Namespaces and Landlock are skipped on kernels without them: the system call filter, which is mandatory, blocks every
// call that could reach the resources that they hide.
Result<void> drop_rights(std::size_t memory) {
  if (!kSanitized) MJ_CHECK(sandbox::limit_resource(RLIMIT_AS, "RLIMIT_AS", 8 * memory + (rlim_t{256} << 20)));
  MJ_CHECK(sandbox::limit_resource(RLIMIT_FSIZE, "RLIMIT_FSIZE", 0));
  sandbox::enter_empty_namespaces();
  MJ_CHECK(sandbox::empty_bounding_set());
  MJ_CHECK(sandbox::drop_root());
  MJ_CHECK(sandbox::drop_capabilities());
  MJ_CHECK(sandbox::forbid_ptrace_and_new_privileges());
  MJ_CHECK(sandbox::forbid_file_access());
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NPROC, "RLIMIT_NPROC", 0));
  MJ_CHECK(sandbox::forbid_core_dumps());
  MJ_CHECK(sandbox::limit_resource(RLIMIT_NOFILE, "RLIMIT_NOFILE", 0));
  return sandbox::allow_only_calls(kAllowedCalls);
}

void send(StepFrameKind kind, std::uint32_t call, std::string_view payload) {
  std::string frame;
  frame.reserve(kHeaderBytes + payload.size());
  append_header(frame, kind, call, payload.size());
  frame += payload;
  if (!write_all(kSocketFd, frame)) ::_exit(kSocketError);
}

void receive(char* buffer, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::read(kSocketFd, buffer, size);
    if (count == 0) ::_exit(0);  // the engine has exited or has released this process
    if (count < 0 && errno != EINTR) ::_exit(kSocketError);
    if (count < 0) continue;
    buffer += count;
    size -= static_cast<std::size_t>(count);
  }
}

// Payload: hash | entrypoint, NUL | name, NUL | source.
void load_program(StepInterpreter& interpreter, std::string_view payload) {
  const std::string_view hash = payload.substr(0, kHashBytes);
  std::string_view rest = payload.substr(hash.size());
  std::string texts[2];
  for (std::string& text : texts) {
    const auto end = rest.find('\0');
    if (end == rest.npos) ::_exit(kProtocolError);
    text = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  interpreter.load_program(hash, texts[0], texts[1], rest);
}

void run_step(StepInterpreter& interpreter, std::uint32_t call, std::string_view payload) {
  if (payload.size() < kHashBytes) ::_exit(kProtocolError);
  std::string answer;
  const auto is_loaded = interpreter.run_step(payload.substr(0, kHashBytes), payload.substr(kHashBytes), answer);
  if (!is_loaded) ::_exit(kProtocolError);  // only a defective peer sends an invalid request
  send(*is_loaded ? StepFrameKind::answer : StepFrameKind::unknown_program, call, answer);
}

[[noreturn]] void serve(StepInterpreter& interpreter) {
  std::string payload;
  for (;;) {
    char bytes[kHeaderBytes];
    receive(bytes, sizeof bytes);
    const StepFrameHeader header = parse_header(bytes);
    if (header.size > kMaxFrameBytes) ::_exit(kProtocolError);
    payload.resize(header.size);
    receive(payload.data(), payload.size());
    ::alarm(kStepTimeoutSeconds);
    if (header.kind == static_cast<std::uint8_t>(StepFrameKind::program)) {
      load_program(interpreter, payload);
    } else if (header.kind == static_cast<std::uint8_t>(StepFrameKind::step)) {
      run_step(interpreter, header.call, payload);
    } else {
      ::_exit(kProtocolError);
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
  StepInterpreter interpreter(std::strtoull(argv[1], nullptr, 10), static_cast<std::uint32_t>(std::atoi(argv[3])));
  const std::size_t memory = std::strtoull(argv[2], nullptr, 10);
  auto confined = heap().reserve(memory);
  if (confined) confined = drop_rights(memory);
  if (!confined) {
    send(StepFrameKind::refused, 0, confined.error().message);
    return 71;
  }
  send(StepFrameKind::ready, 0, engine_name());
  serve(interpreter);
} catch (...) {
  mycojobs::exit_with_report("mycojobs-workflowhost");
}
