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

class SharedFolder {
 public:
  SharedFolder() {
    char path[] = "/var/tmp/mycojobs-test-XXXXXX";
    path_ = ::mkdtemp(path);
    ::chmod(path_.c_str(), 0777);
  }
  ~SharedFolder() { std::filesystem::remove_all(path_); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Escape, CpuOfUnreapedChildrenCounts) {
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 500;
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "spin_unwaited 30 4000").outcome;
  EXPECT_EQ(to_string(outcome.status), "timeout_cpu") << outcome.reason << ": " << outcome.usage.user_us << " us";
}

TEST(Escape, BytesInConnectionsAreBoundedByTheMemoryLimit) {
  RunSpec spec = spec_with();
  spec.grants.network = Network::loopback;
  spec.limits.memory_bytes = 64U << 20;
  const RunResult result = run_attempts(shared_sandbox(), spec, "hold_connections 60");
  // if the kernel charges the buffers to the cgroup as memory
  const bool counted = result.outcome.status == RunStatus::oom;
  EXPECT_TRUE(counted || result.outcome.status == RunStatus::ok) << result.outcome.reason;
  if (!counted) {
    EXPECT_LE(std::stoul(result.answer("hold_connections 60")), 64U);
  }
}

// Another job with the same folder replaces a part of the path in a loop: folder, link, folder, and so on.
TEST(Escape, GrantReplacedByALinkIsNotMounted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can take a folder of the host's into another namespace";
  const SharedFolder folder;
  std::filesystem::create_directories(folder / "part/bin");
  std::ofstream(folder / "part/bin/planted") << "planted";
  std::filesystem::create_directory_symlink("/usr", folder / "link");
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) {
      ::renameat2(AT_FDCWD, (folder / "part").c_str(), AT_FDCWD, (folder / "link").c_str(), RENAME_EXCHANGE);
      ::usleep(300);
    }
  });
  int mounted = 0;
  for (int i = 0; i < 300; ++i) {
    RunSpec spec = spec_with();
    spec.grants.fs_write = {folder.path(), folder / "part/bin"};
    const RunResult result = run_attempts(shared_sandbox(), spec, "read /usr/bin/planted");
    if (result.outcome.status == RunStatus::setup_error) continue;
    ++mounted;
    EXPECT_EQ(result.answer("read /usr/bin/planted"), "ENOENT") << i;
    if (result.answer("read /usr/bin/planted") != "ENOENT") break;
  }
  done = true;
  other.join();
  EXPECT_GT(mounted, 0);
}

// A named pipe can be written on a read-only mount, because the kernel checks only regular files. Only Landlock refuses
// it.
TEST(Escape, PipeInAReadOnlyFolderIsNotWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can take a folder of the host's into another namespace";
  const SharedFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  ::chmod(pipe.c_str(), 0666);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  RunSpec spec = spec_with();
  spec.grants.fs_read = {folder.path()};
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, "open_write " + pipe).answer("open_write " + pipe), "EACCES");
  ::close(reader);
}

// Tests the host and another grant: no system call moves or links a file out of its granted folder.
TEST(Escape, FileOfOneGrantIsNotMovedOrLinkedIntoAnother) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can take a folder of the host's into another namespace";
  const SharedFolder mine, other;
  std::ofstream(mine / "mine") << "mine";
  std::ofstream(other / "other") << "other";
  ::chmod((other / "other").c_str(), 0666);
  RunSpec spec = spec_with();
  spec.grants.fs_write = {mine.path(), other.path()};
  const std::string lines[] = {"rename " + (other / "other") + " " + (mine / "a"),
                               "hardlink " + (other / "other") + " " + (mine / "b"),
                               "hardlink /usr/bin/env " + (mine / "c"), "mknod " + (mine / "d") + " 0020666"};
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  const RunResult result = run_attempts(shared_sandbox(), spec, all);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(result.answer(lines[i]), "EXDEV") << lines[i];
  EXPECT_EQ(result.answer(lines[3]), "EPERM");
}

// Urgent bytes of unix sockets (MSG_OOB) are rarely needed kernel code with a known vulnerability (CVE-2025-38236).
TEST(Escape, SocketPairRejectsUrgentData) {
  const RunResult result = run_attempts("send_with 1\nsend_with 0x4041\nsend_with 0x4040\nsend_with 0");
  EXPECT_EQ(result.answer("send_with 1"), "EPERM");
  EXPECT_EQ(result.answer("send_with 0x4041"), "EPERM");
  EXPECT_EQ(result.answer("send_with 0x4040"), "ok") << "MSG_NOSIGNAL | MSG_DONTWAIT";
  EXPECT_EQ(result.answer("send_with 0"), "ok");
}

// AF_VSOCK reaches the hypervisor, and AF_ALG reaches the ciphers of the kernel. Network namespaces confine neither.
TEST(Escape, AddedSocketHasOnlyFamiliesThatANamespaceConfines) {
  RunSpec spec = spec_with();
  spec.grants.syscalls = {"socket"};
  const RunResult result =
      run_attempts(shared_sandbox(), spec, "socket 1 1\nsocket 16 3\nsocket 40 1\nsocket 38 5\nsocket 64 1");
  EXPECT_EQ(result.answer("socket 1 1"), "ok") << result.outcome.reason;
  EXPECT_EQ(result.answer("socket 16 3"), "ok");
  EXPECT_EQ(result.answer("socket 40 1"), "EAFNOSUPPORT");
  EXPECT_EQ(result.answer("socket 38 5"), "EAFNOSUPPORT");
  EXPECT_EQ(result.answer("socket 64 1"), "EPERM");
}

TEST(Escape, NamespaceAndProgramCallsAreNeverAdded) {
  for (const char* name : {"clone", "request_key"}) {
    RunSpec spec = spec_with();
    spec.grants.syscalls = {name};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error") << name;
    EXPECT_NE(outcome.reason.find(std::string(name) +
                                  (std::string_view(name) == "clone" ? " is never granted" : " is never granted")),
              std::string::npos)
        << outcome.reason;
  }
}

// Both jobs are from the same zygote, and jobs of a zygote otherwise share its namespaces.
TEST(Escape, SharedMemoryOfOneJobIsHiddenFromTheNext) {
  RunSpec spec = spec_with();
  spec.grants.syscalls = {"shmget"};
  const RunResult first = run_attempts(shared_sandbox(), spec, "call shmget 77 4096 0x3b6");
  EXPECT_EQ(first.answer("call shmget 77 4096 0x3b6"), "ok") << first.outcome.reason;
  const RunResult second = run_attempts(shared_sandbox(), spec, "call shmget 77 4096 0x1b6");
  EXPECT_EQ(second.answer("call shmget 77 4096 0x1b6"), "ENOENT") << second.outcome.reason;
}

// In this process's user namespace, or in that of the file. The errno of making another one below it; 0: it was made.
int error_of_user_namespace(const std::string& in) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Fd space(in.empty() ? -1 : ::open(in.c_str(), O_RDONLY | O_CLOEXEC));
    if (!in.empty() && ::setns(space.get(), CLONE_NEWUSER) != 0) ::_exit(200);
    ::_exit(::unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Every capability comes back in a user namespace below. The limit of the zygote's namespace forbids it to processes
// without a filter, too.
TEST(Escape, NestedUserNamespaceIsDenied) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can enter that namespace";
  ASSERT_EQ(error_of_user_namespace(""), 0) << "this host allows them";
  OwnSandbox own = own_sandbox();
  StartedRun held = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(held, "up");
  const pid_t zygote = find_children(own.launcher).at(0);
  EXPECT_EQ(error_of_user_namespace("/proc/" + std::to_string(zygote) + "/ns/user"), ENOSPC);
  own.sandbox->kill(held.spec.run, KillReason::cancelled, 0);
  wait_for(*own.sandbox, held);
}

// An operator reads the learned paths on a terminal before granting them.
TEST(Escape, LearnedPathsCannotControlTheTerminal) {
  RunSpec spec = spec_with();
  spec.learn = true;
  const RunResult result = run_attempts(
      shared_sandbox(), spec,
      "open_read /srv/a\xc2\x9b"
      "2J\nopen_read /srv/b\xe2\x80\xaex\nopen_read /srv/c\x1b[2J\n"
      "open_read /srv/d\xef\xbb\xbf\nopen_read /srv/e\xe2\x81\xa6\nopen_read /srv/caf\xc3\xa9\xe2\x80\x93");
  std::string all;
  for (const auto& note : result.outcome.notes) all += note + "\n";
  for (const char* hidden : {"/srv/a", "/srv/b", "/srv/c\x1b", "/srv/d", "/srv/e"})
    EXPECT_EQ(all.find(hidden), all.npos) << all;
  EXPECT_NE(all.find("read /srv/caf\xc3\xa9\xe2\x80\x93\n"), all.npos) << all;
}

pid_t child_named(pid_t parent, const std::string& name) {
  for (const pid_t child : find_children(parent)) {
    std::string comm;
    std::getline(std::ifstream("/proc/" + std::to_string(child) + "/comm"), comm);
    if (comm == name.substr(0, 15)) return child;
  }
  return -1;
}

// A stopped proxy must survive a large number of new runs with a network, because other jobs use it.
TEST(Escape, SlowProxyIsNotEnded) {
  OwnSandbox own = own_sandbox();
  RunSpec spec = spec_with();
  spec.grants.network = Network::allow_list;
  for (int i = 0; i < 64; ++i) {
    spec.grants.net_allow.push_back(std::string(50, 'a') + "." + std::string(50, 'b') + std::to_string(i) +
                                    ".example:443");
  }
  StartedRun first = start_attempts(*own.sandbox, spec, "sleep 60000");
  pid_t proxy = -1;
  ASSERT_TRUE(eventually([&] { return (proxy = child_named(own.launcher, "mycojobs-egress")) > 0; }));
  ASSERT_EQ(::kill(proxy, SIGSTOP), 0);
  for (int i = 0; i < 60; ++i) {
    spec.run = next_run();
    const RunResult result = run_attempts(*own.sandbox, spec, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
    if (result.outcome.status != RunStatus::ok) break;
  }
  EXPECT_FALSE(is_reaped(proxy));
  ::kill(proxy, SIGCONT);
  own.sandbox->kill(first.spec.run, KillReason::cancelled, 0);
  wait_for(*own.sandbox, first);
}

// Each report is work for the launcher, which must also end other runs.
TEST(Escape, FloodOfALearningRunStarvesNoOther) {
  RunSpec spec = spec_with();
  spec.learn = true;
  StartedRun storm = start_attempts(shared_sandbox(), spec, "open_storm 60000");
  for (int i = 0; i < 50; ++i) EXPECT_EQ(to_string(run_attempts("getpid").outcome.status), "ok");
  EXPECT_EQ(to_string(run_attempts("sleep 60000", 300).outcome.status), "timeout_wall");
  shared_sandbox().kill(spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for(shared_sandbox(), storm).outcome.status), "cancelled");
}

}  // namespace
}  // namespace mycojobs::test
