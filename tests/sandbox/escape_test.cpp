// Additional attacks: bypassed limits, granted paths that change during the set-up, and side effects of calls that were
// added to the filter.
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/fd.h"
#include "fixture.h"

namespace mycojobs::test {
namespace {

TEST(Escape, CpuOfUnreapedChildrenCounts) {
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 500;
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "spin_unwaited 30 4000").outcome;
  EXPECT_EQ(to_string(outcome.status), "timeout_cpu") << outcome.reason << ": " << outcome.usage.user_us << " us";
}

TEST(Escape, BytesInConnectionsAreBoundedByTheMemoryLimit) {
  RunSpec spec = make_spec();
  spec.grants.network = Network::loopback;
  spec.limits.memory_bytes = 64U << 20;
  const RunResult result = run_attempts(shared_sandbox(), spec, "hold_connections 60");
  // Some kernels charge the buffers to the cgroup as memory.
  const bool is_charged = result.outcome.status == RunStatus::oom;
  EXPECT_TRUE(is_charged || result.outcome.status == RunStatus::ok) << result.outcome.reason;
  if (!is_charged) {
    EXPECT_LE(std::stoul(result.get_result("hold_connections 60")), 64U);
  }
}

// Another job with the same folder exchanges a folder of the path and a link in a loop.
TEST(Escape, GrantReplacedByALinkIsNotMounted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a host folder in another namespace";
  const GrantedFolder folder;
  std::filesystem::create_directories(folder / "part/bin");
  std::ofstream(folder / "part/bin/planted") << "planted";
  std::filesystem::create_directory_symlink("/usr", folder / "link");
  std::atomic<bool> should_stop = false;
  std::thread exchange_thread([&] {
    while (!should_stop) {
      ::renameat2(AT_FDCWD, (folder / "part").c_str(), AT_FDCWD, (folder / "link").c_str(), RENAME_EXCHANGE);
      ::usleep(300);
    }
  });
  int mounted_count = 0;
  for (int i = 0; i < 300; ++i) {
    RunSpec spec = make_spec();
    spec.grants.fs_write = {folder.path(), folder / "part/bin"};
    const RunResult result = run_attempts(shared_sandbox(), spec, "read /usr/bin/planted");
    if (result.outcome.status == RunStatus::setup_error) continue;
    ++mounted_count;
    EXPECT_EQ(result.get_result("read /usr/bin/planted"), "ENOENT") << i;
    if (result.get_result("read /usr/bin/planted") != "ENOENT") break;
  }
  should_stop = true;
  exchange_thread.join();
  EXPECT_GT(mounted_count, 0);
}

// A named pipe can be written on a read-only mount, because the kernel checks only regular files. Only Landlock refuses
// it.
TEST(Escape, PipeInAReadOnlyFolderIsNotWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a host folder in another namespace";
  const GrantedFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  ::chmod(pipe.c_str(), 0666);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder.path()};
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, "open_write " + pipe).get_result("open_write " + pipe), "EACCES");
  ::close(reader);
}

// No system call moves or links a file of the host, or of one granted folder, into another granted folder.
TEST(Escape, FileOfOneGrantIsNotMovedOrLinkedIntoAnother) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a host folder in another namespace";
  const GrantedFolder first, second;
  std::ofstream(first / "first") << "first";
  std::ofstream(second / "second") << "second";
  ::chmod((second / "second").c_str(), 0666);
  RunSpec spec = make_spec();
  spec.grants.fs_write = {first.path(), second.path()};
  const std::string lines[] = {"rename " + (second / "second") + " " + (first / "a"),
                               "hardlink " + (second / "second") + " " + (first / "b"),
                               "hardlink /usr/bin/env " + (first / "c"), "mknod " + (first / "d") + " 0020666"};
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  const RunResult result = run_attempts(shared_sandbox(), spec, text);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(result.get_result(lines[i]), "EXDEV") << lines[i];
  EXPECT_EQ(result.get_result(lines[3]), "EPERM");
}

// Urgent data of unix sockets (MSG_OOB) is rarely needed and had a kernel vulnerability (CVE-2025-38236).
TEST(Escape, SocketPairRejectsUrgentData) {
  const RunResult result = run_attempts("send_with 1\nsend_with 0x4041\nsend_with 0x4040\nsend_with 0");
  EXPECT_EQ(result.get_result("send_with 1"), "EPERM");
  EXPECT_EQ(result.get_result("send_with 0x4041"), "EPERM");
  EXPECT_EQ(result.get_result("send_with 0x4040"), "ok") << "MSG_NOSIGNAL | MSG_DONTWAIT";
  EXPECT_EQ(result.get_result("send_with 0"), "ok");
}

// AF_VSOCK reaches the hypervisor, and AF_ALG reaches the ciphers of the kernel. Network namespaces confine neither.
TEST(Escape, AddedSocketHasOnlyFamiliesThatANamespaceConfines) {
  RunSpec spec = make_spec();
  spec.grants.syscalls = {"socket"};
  const RunResult result =
      run_attempts(shared_sandbox(), spec, "socket 1 1\nsocket 16 3\nsocket 40 1\nsocket 38 5\nsocket 64 1");
  EXPECT_EQ(result.get_result("socket 1 1"), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("socket 16 3"), "ok");
  EXPECT_EQ(result.get_result("socket 40 1"), "EAFNOSUPPORT");
  EXPECT_EQ(result.get_result("socket 38 5"), "EAFNOSUPPORT");
  EXPECT_EQ(result.get_result("socket 64 1"), "EPERM");
}

TEST(Escape, NamespaceAndProgramCallsAreNeverAdded) {
  for (const char* name : {"clone", "request_key"}) {
    RunSpec spec = make_spec();
    spec.grants.syscalls = {name};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error") << name;
    EXPECT_NE(outcome.reason.find(std::string(name) + " is never granted"), std::string::npos) << outcome.reason;
  }
}

// Both jobs are from the same zygote, and jobs of a zygote otherwise share its namespaces.
TEST(Escape, SharedMemoryOfOneJobIsHiddenFromTheNext) {
  RunSpec spec = make_spec();
  spec.grants.syscalls = {"shmget"};
  const RunResult first_result = run_attempts(shared_sandbox(), spec, "call shmget 77 4096 0x3b6");
  EXPECT_EQ(first_result.get_result("call shmget 77 4096 0x3b6"), "ok") << first_result.outcome.reason;
  const RunResult second_result = run_attempts(shared_sandbox(), spec, "call shmget 77 4096 0x1b6");
  EXPECT_EQ(second_result.get_result("call shmget 77 4096 0x1b6"), "ENOENT") << second_result.outcome.reason;
}

// Creates a user namespace below that of this process, or below that of the file. Returns 0 or an errno.
int create_user_namespace(const std::string& namespace_path) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Fd parent_namespace(namespace_path.empty() ? -1 : ::open(namespace_path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!namespace_path.empty() && ::setns(parent_namespace.get(), CLONE_NEWUSER) != 0) ::_exit(200);
    ::_exit(::unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A process has all capabilities in a user namespace that it creates. The limit of the zygote's namespace prevents this
// for processes without a filter, too.
TEST(Escape, NestedUserNamespaceIsDenied) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can enter that namespace";
  ASSERT_EQ(create_user_namespace(""), 0) << "this host permits user namespaces";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun running = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(running, "up");
  const pid_t zygote = find_children(dedicated_sandbox.launcher).at(0);
  EXPECT_EQ(create_user_namespace("/proc/" + std::to_string(zygote) + "/ns/user"), ENOSPC);
  dedicated_sandbox.sandbox->kill(running.spec.run, KillReason::cancelled, 0);
  wait_for_end(*dedicated_sandbox.sandbox, running);
}

// An operator reads the learned paths on a terminal before granting them.
TEST(Escape, LearnedPathsCannotControlTheTerminal) {
  RunSpec spec = make_spec();
  spec.learn = true;
  const RunResult result = run_attempts(
      shared_sandbox(), spec,
      "open_read /srv/a\xc2\x9b"
      "2J\nopen_read /srv/b\xe2\x80\xaex\nopen_read /srv/c\x1b[2J\n"
      "open_read /srv/d\xef\xbb\xbf\nopen_read /srv/e\xe2\x81\xa6\nopen_read /srv/caf\xc3\xa9\xe2\x80\x93");
  std::string text;
  for (const auto& note : result.outcome.notes) text += note + "\n";
  for (const char* hidden : {"/srv/a", "/srv/b", "/srv/c\x1b", "/srv/d", "/srv/e"})
    EXPECT_EQ(text.find(hidden), text.npos) << text;
  EXPECT_NE(text.find("read /srv/caf\xc3\xa9\xe2\x80\x93\n"), text.npos) << text;
}

pid_t find_child_named(pid_t parent, const std::string& name) {
  for (const pid_t child : find_children(parent)) {
    if (read_process_name(child) == name.substr(0, 15)) return child;
  }
  return -1;
}

// A stopped proxy must survive a large number of new runs with a network, because other jobs use it.
TEST(Escape, SlowProxyIsNotEnded) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  RunSpec spec = make_spec();
  spec.grants.network = Network::allow_list;
  for (int i = 0; i < 64; ++i) {
    spec.grants.net_allow.push_back(std::string(50, 'a') + "." + std::string(50, 'b') + std::to_string(i) +
                                    ".example:443");
  }
  StartedRun first = start_attempts(*dedicated_sandbox.sandbox, spec, "sleep 60000");
  pid_t proxy = -1;
  ASSERT_TRUE(
      eventually([&] { return (proxy = find_child_named(dedicated_sandbox.launcher, "mycojobs-egress")) > 0; }));
  ASSERT_EQ(::kill(proxy, SIGSTOP), 0);
  for (int i = 0; i < 60; ++i) {
    spec.run = next_run_id();
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
    if (result.outcome.status != RunStatus::ok) break;
  }
  EXPECT_FALSE(is_reaped(proxy));
  ::kill(proxy, SIGCONT);
  dedicated_sandbox.sandbox->kill(first.spec.run, KillReason::cancelled, 0);
  wait_for_end(*dedicated_sandbox.sandbox, first);
}

// Each report is work for the launcher, which must also end other runs.
TEST(Escape, FloodOfALearningRunStarvesNoOther) {
  RunSpec spec = make_spec();
  spec.learn = true;
  StartedRun flooding_run = start_attempts(shared_sandbox(), spec, "open_storm 60000");
  for (int i = 0; i < 50; ++i) EXPECT_EQ(to_string(run_attempts("getpid").outcome.status), "ok");
  EXPECT_EQ(to_string(run_attempts("sleep 60000", 300).outcome.status), "timeout_wall");
  shared_sandbox().kill(spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(shared_sandbox(), flooding_run).outcome.status), "cancelled");
}

}  // namespace
}  // namespace mycojobs::test
