// Checks the tables of denied attempts (denied_rows_*.cpp), and the calls that end a job.
#include "denied.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "sandbox/attempts/attempts.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::test {
namespace {

TEST(Denied, FilesOfTheSystemAndOfTheHost) { expect_denied(file_rows()); }
TEST(Denied, NetworkIsMissing) { expect_denied(network_rows()); }
TEST(Denied, KernelInterfacesAnswerAsLibcExpects) { expect_denied(kernel_rows()); }
TEST(Denied, CapabilitiesCannotBeRegained) { expect_denied(capability_rows()); }
TEST(Denied, TwoRowsAtOnce) { expect_denied(combined_rows()); }
TEST(Denied, ExecOpensNothingElse) { expect_denied(exec_rows(), true); }

// SF3, SF4, SF12: this test creates the files outside of the sandbox.
TEST(Denied, FileOfTheHostIsNotThere) {
  char secret[] = "/tmp/mycojobs-secret-XXXXXX";
  char shared[] = "/dev/shm/mycojobs-secret-XXXXXX";
  for (char* path : {secret, shared}) {
    const int fd = ::mkstemp(path);
    ASSERT_GE(fd, 0);
    ::close(fd);
    EXPECT_EQ(run_attempt_outside("open_read " + std::string(path)), "ok");
  }
  expect_denied({
      {"SF3", "open_read " + std::string(secret), {"ENOENT"}},
      {"SF4", "open_read /tmp/../../.." + std::string(secret), {"ENOENT"}},
      {"SF12", "open_read " + std::string(shared), {"ENOENT"}},
  });
  ::unlink(secret);
  ::unlink(shared);
}

// SN3, SX6: a server outside listens on a path and on an abstract name.
TEST(Denied, ListeningSocketOfTheHostIsOutOfReach) {
  char folder[] = "/tmp/mycojobs-listen-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/s";
  const std::string name = "mycojobs-test-" + std::to_string(::getpid());
  int listeners[2];
  for (int i = 0; i < 2; ++i) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (i == 0 ? path : name).copy(address.sun_path + i, sizeof address.sun_path - 2);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + i + (i == 0 ? path : name).size());
    listeners[i] = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::bind(listeners[i], reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listeners[i], 1), 0);
  }
  EXPECT_EQ(run_attempt("connect_unix " + path), "ok");
  EXPECT_EQ(run_attempt("connect_abstract " + name), "ok");
  for (const auto& text :
       find_unexpected_results(shared_sandbox(), {
                                                     {"SN3", "connect_unix " + path, {"EAFNOSUPPORT"}},
                                                     {"SX6", "connect_abstract " + name, {"EAFNOSUPPORT"}},
                                                 }))
    ADD_FAILURE() << text;
  for (int fd : listeners) ::close(fd);
  ::unlink(path.c_str());
  ::rmdir(folder);
}

TEST(Denied, NothingCanBeExecutedUnlessGranted) {
  expect_denied({
      {"SF15", "exec_copy /tmp/true", {"EPERM", "EACCES"}, "run /bin/true"},
      {"exec off", "exec /bin/true", {"EPERM"}, "run /bin/true"},
      {"exec off", "fork", {"EPERM"}},
      {"exec off", "run /bin/true", {"EPERM"}},
      {"threads", "thread", {"ok"}},
  });
  EXPECT_EQ(get_violation(run_attempts("exec_memfd")), "execveat");  // SF15
  // Outside, the result is empty because another program has replaced the process.
  EXPECT_EQ(run_attempt_outside("exec_memfd"), "");
}

// SK4, which includes SK5, SK6, SK11, SP4, SP5, SF19, SF20, SR4, SR6 and SR9.
TEST(Denied, NeverInnocentCallsEndTheJob) {
  std::size_t tested_count = 0;
  for (const char* call : sandbox::forbidden_calls()) {
    const std::string line = std::string("call ") + call;
    if (run_attempt_outside(line) == "no such call") continue;  // The call does not exist on this architecture.
    EXPECT_NE(run_attempt_outside(line), "") << call << " does not return even outside";
    EXPECT_EQ(get_violation(run_attempts(line)), call);
    ++tested_count;
  }
  EXPECT_GT(tested_count, 35U);
}

// The same calls with meaningful arguments, in a job that may fork.
TEST(Denied, NeverInnocentCallsWithArguments) {
  struct Call {
    const char* id;
    const char* line;
    const char* name;
  };
  const Call calls[] = {
      {"SK5", "call_on bpf 5 @ 120", "bpf"},
      {"SK5", "call_on bpf 0 @ 72", "bpf"},
      {"SK6", "call keyctl 0 0xfffffffd 0", "keyctl"},
      {"SK6", "call_on add_key @ @ 0 0 0xfffffffe", "add_key"},
      {"SK6", "call_on request_key @ @ 0 0", "request_key"},
      {"SP4", "call ptrace 16 1 0 0", "ptrace"},
      {"SP4", "call ptrace 0x4206 1 0 0", "ptrace"},
      {"SP4", "call ptrace 0x100000000 0 0 0", "ptrace"},
      {"SP5", "call_on process_vm_readv 1 @ 1 @ 1 0", "process_vm_readv"},
      {"SP5", "call pidfd_getfd 3 0 0", "pidfd_getfd"},
      {"SP5", "call kcmp 1 2 0 0 0", "kcmp"},
      {"SF19", "call_on mount @ @ @ 4096 0", "mount"},
      {"SF19", "call_on umount2 @ 2", "umount2"},
      {"SF19", "call_on open_tree 0xffffff9c @ 1", "open_tree"},
      {"SF19", "call_on mount_setattr 0xffffff9c @ 0x8000 @ 32", "mount_setattr"},
      {"SF20", "call_on open_by_handle_at 3 @ 0", "open_by_handle_at"},
      {"SK11", "call userfaultfd 1", "userfaultfd"},
      {"SK11", "call_on perf_event_open @ 0 0xffffffffffffffff 3 0", "perf_event_open"},
      {"SR4", "call unshare 0x10000000", "unshare"},
      {"SR4", "call unshare 0x80", "unshare"},
      {"SR4", "call unshare 0x7e020080", "unshare"},
      {"SR6", "call setns 3 0", "setns"},
      {"SR9", "call_on fsopen @ 0", "fsopen"},
  };
  for (const auto& call : calls) {
    EXPECT_EQ(get_violation(run_attempts(call.line)), call.name) << call.id;
    EXPECT_EQ(get_violation(run_attempts_with_exec(call.line)), call.name) << call.id << " with exec";
  }
}

// SR4: clone ignores the upper half of the flags, so the upper half must not hide a namespace flag.
TEST(Denied, CloneOfANamespaceEndsTheJob) {
  for (const char* flag : {"0x10000000", "0x00020000", "0x20000000", "0x40000000", "0x02000000", "0x08000000",
                           "0x04000000", "0x7e020011", "0x1ffffffff10000000"}) {
    const std::string line = std::string("call clone ") + (std::string(flag).size() > 18 ? "0xffffffff10000000" : flag);
    EXPECT_EQ(get_violation(run_attempts(line)), "clone") << flag;
    EXPECT_EQ(get_violation(run_attempts_with_exec(line)), "clone") << flag;
  }
}

// SZ1: numbers of the 32-bit and x32 interfaces, which have other meanings there.
TEST(Denied, ForeignNumbersEndTheJob) {
#ifdef __x86_64__
  EXPECT_EQ(run_attempt_outside("call32 20"), "ok");
  for (const char* line : {"call32 20", "call32 88", "call 0x40000027", "call 0x40000200", "call 0x7fffffff"}) {
    const RunResult run_result = run_attempts(line);
    EXPECT_EQ(to_string(run_result.outcome.status), "signal") << line << ": " << run_result.get_result(line);
    EXPECT_EQ(run_result.outcome.signal, SIGSYS) << line;
  }
  // SZ4: uretprobe and uprobe. Kernels that have these calls bypass the filter, and a direct call causes SIGILL.
  for (const char* line : {"call 335", "call 336"}) {
    const RunResult run_result = run_attempts(line);
    const std::string result = run_result.get_result(line);
    EXPECT_TRUE((run_result.outcome.status == RunStatus::signal && run_result.outcome.signal == SIGILL) ||
                result == "EPERM" || result == "ENOSYS" || result == "ENXIO")
        << line << ": " << result;
  }
#else
  GTEST_SKIP() << "the numbers are defined only on x86-64";
#endif
}

}  // namespace
}  // namespace mycojobs::test
