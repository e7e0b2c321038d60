// Process 1 of a pid namespace that the test creates. tests/e2e/worker/first_process_test.cpp checks `mycojobs` as
// process 1.
#include "base/container_init.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <vector>

#include "support/process.h"

namespace mycojobs {
namespace {

constexpr int kUnavailable = 99;

int wait_for_end(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  std::array<int, 2> ends{};
  void close(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  ~Pipe() {
    close(0);
    close(1);
  }
};

// Runs `program` below a new process 1. When the program has written a byte to `ready`, calls `on_ready` with the pid
// of process 1. Returns the exit code of process 1.
int run_below_first_process(const std::function<int(int ready)>& program, const std::function<void(pid_t)>& on_ready) {
  const pid_t namespace_process = ::fork();
  if (namespace_process == 0) {
    // An unprivileged user also needs a user namespace.
    if (::unshare(CLONE_NEWPID | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0) ::_exit(kUnavailable);
    Pipe ready;
    const pid_t init = ::fork();
    if (init == 0) {
      start_as_container_init();
      ::_exit(program(ready.ends[1]));
    }
    ready.close(1);
    char byte = 0;
    if (::read(ready.ends[0], &byte, 1) == 1) on_ready(init);
    ::_exit(wait_for_end(init));
  }
  return wait_for_end(namespace_process);
}

// Creates processes whose parent exits, so that process 1 adopts them, and lets them exit. Returns the number
// of processes that process 1 had adopted, after all of them were reaped.
int make_orphans(int count) {
  Pipe id_pipe, start_pipe, reaped_pipe;
  const pid_t parent = ::fork();
  if (parent == 0) {
    for (int i = 0; i < count; ++i) {
      const pid_t orphan = ::fork();
      if (orphan < 0) ::_exit(kUnavailable);
      if (orphan == 0) {
        start_pipe.close(1);
        char byte = 0;
        (void)!::read(start_pipe.ends[0], &byte, 1);
        if (::getppid() == 1) (void)!::write(reaped_pipe.ends[1], &byte, 1);
        ::_exit(7);
      }
      (void)!::write(id_pipe.ends[1], &orphan, sizeof orphan);
    }
    ::_exit(0);
  }
  if (wait_for_end(parent) != 0) return -1;
  id_pipe.close(1);
  std::vector<pid_t> orphans(static_cast<std::size_t>(count));
  for (pid_t& orphan : orphans) {
    if (::read(id_pipe.ends[0], &orphan, sizeof orphan) != sizeof orphan || ::kill(orphan, 0) != 0) return -1;
  }
  start_pipe.close(1);
  reaped_pipe.close(1);
  int adopted_count = 0;
  for (char byte = 0; ::read(reaped_pipe.ends[0], &byte, 1) == 1;) ++adopted_count;
  // A zombie still accepts signals, so a failing kill() shows that the process was reaped.
  for (const pid_t orphan : orphans) {
    if (!test::eventually([&] { return ::kill(orphan, 0) != 0; })) return -1;
  }
  return adopted_count;
}

// Waits for TERM, as the agent does. Then starts a child, waits for it and returns its exit code.
int wait_for_term(int ready) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  (void)!::write(ready, "r", 1);
  int signal_number = 0;
  ::sigwait(&signals, &signal_number);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(42);
  ::usleep(20'000);  // The child has exited by now.
  return wait_for_end(child);
}

TEST(FirstProcess, ReapsTenThousandOrphansAndStopsOnRequest) {
  const auto program = [](int ready) {
    for (int round = 0; round < 20; ++round) {
      if (make_orphans(500) != 500) return kUnavailable;
    }
    return wait_for_term(ready);
  };
  // 42 is the status of the program's own child, which process 1 must not reap.
  EXPECT_EQ(run_below_first_process(program, [](pid_t init) { ::kill(init, SIGTERM); }), 42);
}

TEST(FirstProcess, ExitsLikeItsProgram) {
  EXPECT_EQ(run_below_first_process([](int) { return 3; }, [](pid_t) {}), 3);
  EXPECT_EQ(run_below_first_process([](int) { return ::raise(SIGKILL); }, [](pid_t) {}), 128 + SIGKILL);
}

TEST(FirstProcess, IsOnlyTheProcessWithId1) {
  const pid_t own_pid = ::getpid();
  start_as_container_init();
  EXPECT_EQ(::getpid(), own_pid);
}

}  // namespace
}  // namespace mycojobs
