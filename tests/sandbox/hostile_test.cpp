// Jobs that attack their supervisor, their init, or the readers of their output.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>

#include "fixture.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

std::size_t count_own_descriptors() {
  const auto folder = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

RunSpec make_exec_spec(std::uint64_t wall_ms = 20000) {
  RunSpec spec = make_spec(wall_ms);
  spec.limits.exec = true;
  return spec;
}

void expect_sandbox_serves(Sandbox& sandbox) {
  EXPECT_EQ(to_string(run_attempts(sandbox, make_spec(), "getpid").outcome.status), "ok");
}

struct HostileRun {
  const char* id;      // Id in rows.txt.
  const char* lines;   // Attempts, one per line.
  bool can_exec;       // Whether the job may fork and exec.
  const char* status;  // Expected status.
};
void PrintTo(const HostileRun& run, std::ostream* out) {
  std::string lines = run.lines;
  std::replace(lines.begin(), lines.end(), '\n', ',');
  *out << run.id << " " << lines;
}

// Each parameter is a hostile run with its expected status. After the run, the sandbox must serve the next run.
class Hostile : public ::testing::TestWithParam<HostileRun> {};

TEST_P(Hostile, EndsAsExpectedAndTheNextJobRuns) {
  RunSpec spec = make_spec(1500);
  spec.limits.exec = GetParam().can_exec;
  const RunResult result = run_attempts(shared_sandbox(), spec, GetParam().lines);
  EXPECT_EQ(to_string(result.outcome.status), GetParam().status) << result.outcome.reason;
  expect_sandbox_serves(shared_sandbox());
}

INSTANTIATE_TEST_SUITE_P(
    HostileJobs, Hostile,
    ::testing::Values(HostileRun{"SQ24", "many_violations 40", false, "violation"},
                      HostileRun{"SZ30", "violation_under_signals", false, "violation"},
                      HostileRun{"SZ31", "violation_without_descriptors", false, "violation"},
                      HostileRun{"SZ32", "violation_by_orphan", true, "violation"},
                      HostileRun{"SZ33", "ignore_signals\nviolation_under_name", false, "violation"},
                      HostileRun{"SZ34", "hold_by_vfork", true, "timeout_wall"},
                      HostileRun{"SZ35", "stop_oneself", false, "timeout_wall"},
                      HostileRun{"SZ36", "bad_lists\nsleep 5000", false, "signal"},
                      HostileRun{"SZ37", "ignore_signals\nflood_init 2000\npause", false, "timeout_wall"},
                      HostileRun{"SZ37", "flood_init 2000\nexit 3", false, "exit"},
                      HostileRun{"SZ38", "daemonize\nignore_signals\nstop_oneself", true, "timeout_wall"},
                      HostileRun{"SP1", "kill 1 9\nkill 1 19\nkill -1 9\nexit 4", false, "exit"},
                      HostileRun{"SY2", "bad_pointer", false, "signal"},
                      HostileRun{"SY9", "overflow_stack", false, "signal"},
                      HostileRun{"SK17", "landlock_layers 40\nexit 5", false, "exit"},
                      HostileRun{"SZ48", "queue_up\npause", false, "timeout_wall"},
                      HostileRun{"SZ48", "queue_up\ndaemonize\nzombies 20\nexit 8", true, "exit"},
                      HostileRun{"SZ48", "queue_up\ncall ptrace", false, "violation"},
                      HostileRun{"SZ39", "raise 31", false, "signal"},
                      HostileRun{"SZ39", "raise 19\nexit 6", false, "timeout_wall"}));

// SK17
TEST(HostileJobs, SeventeenthLandlockLayerIsRejected) {
  const std::string result_text = run_attempts("landlock_layers 40").get_result("landlock_layers 40");
  EXPECT_TRUE(result_text == "E2BIG" || result_text == "ruleset: ENOSYS" || result_text == "ruleset: EOPNOTSUPP")
      << result_text;
}

// SZ33: the job chooses the name, and the reason is read on a terminal.
TEST(HostileJobs, JobNameCannotChangeTheReason) {
  const RunResult result = run_attempts("violation_under_name");
  ASSERT_TRUE(result.outcome.violation);
  EXPECT_EQ(result.outcome.violation->comm, "?[2J");
  for (char c : result.outcome.reason) EXPECT_GE(c, ' ') << result.outcome.reason;
}

// SP10
TEST(HostileJobs, StormOfSignalsEndsAtTheDeadline) {
  RunSpec spec = make_exec_spec(3000);
  spec.limits.pids = 512;
  const RunResult result = run_attempts(shared_sandbox(), spec, "signal_storm 500");
  EXPECT_EQ(to_string(result.outcome.status), "timeout_wall") << result.outcome.reason;
  EXPECT_EQ(result.stdout_text, "storm");
  expect_sandbox_serves(shared_sandbox());
}

// SP9
TEST(HostileJobs, FiveHundredZombiesAreReaped) {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec spec = make_exec_spec();
  spec.limits.pids = 600;
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "zombies 500\norphans 300\ndaemonize");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  for (const auto& [line, result_text] : result.results) EXPECT_EQ(result_text, "ok") << line;
  for (pid_t zygote : find_children(dedicated_sandbox.launcher)) {
    EXPECT_TRUE(eventually([&] { return find_children(zygote).empty(); }));
  }
}

// SP6, SZ40: reading to the end of a job's output must not block on processes that the job left behind.
TEST(HostileJobs, OutputEndsWithTheRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun started =
      start_attempts(*dedicated_sandbox.sandbox, make_exec_spec(), "daemonize\ndaemonize\nprint up\nexit 0");
  wait_for_output(started, "up");
  const int stdout_fd = ::dup(started.pipes.out);
  const RunResult result = wait_for_end(*dedicated_sandbox.sandbox, started);
  EXPECT_EQ(result.outcome.stragglers, 2U) << result.outcome.reason;
  pollfd event{stdout_fd, POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 20000), 1);
  char byte = 0;
  EXPECT_EQ(::read(stdout_fd, &byte, 1), 0) << "a process still has the job's stdout";
  ::close(stdout_fd);
}

// SP2: tries every pid that exists outside.
TEST(HostileJobs, HostProcessesAreNotReachedByPid) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun other = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(other, "up");
  std::vector<pid_t> pids = find_descendants(dedicated_sandbox.launcher);
  EXPECT_GE(pids.size(), 3U);
  pids.insert(pids.end(), {dedicated_sandbox.guardian, dedicated_sandbox.launcher, ::getpid(), ::getppid()});
  std::string lines;
  for (pid_t pid : pids) {
    if (pid > 2) lines += "kill " + std::to_string(pid) + " 9\n";
  }
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(), lines);
  for (const auto& [line, result_text] : result.results) EXPECT_EQ(result_text, "ESRCH") << line;
  dedicated_sandbox.sandbox->kill(other.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, other).outcome.status), "cancelled");
}

// SP12
TEST(HostileJobs, EndOfTheStartingThreadEndsNoJob) {
  DedicatedSandbox dedicated_sandbox;
  StartedRun started;
  std::thread([&] {
    dedicated_sandbox = start_dedicated_sandbox();
    started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 200\nexit 7");
  }).join();
  EXPECT_EQ(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.exit_code, 7);
  expect_sandbox_serves(*dedicated_sandbox.sandbox);
}

// SI3, SZ26: the agent closes unsolicited descriptors.
TEST(HostileJobs, DescriptorsSentUpTheChannelAreDropped) {
  run_attempts("getpid");
  const std::size_t initial_count = count_own_descriptors();
  const RunResult result = run_attempts("rights_to_channel 200\nexit 0");
  EXPECT_EQ(to_string(result.outcome.status), "ok");
  EXPECT_EQ(count_own_descriptors(), initial_count);
}

// SZ69: no descriptor of a job is a socket of a trusted process that receives messages. That process would have to
// close descriptors sent with a message, and closing a socket with SO_LINGER can block for as long as the job chooses.
TEST(HostileJobs, NoSocketOfAJobLeadsToATrustedProcess) {
  RunSpec spec = make_spec();
  spec.grants.network = Network::loopback;
  const RunResult result = run_attempts(shared_sandbox(), spec, "rights_to_every 64");
  EXPECT_EQ(result.get_result("rights_to_every 64"), "none") << result.outcome.reason;
  spec.run = next_run_id();
  spec.grants.syscalls = {"sendmsg"};
  spec.warm.runs = 2;
  spec.warm.key = spec.warm.family = std::string(64, 'k');
  spec.warm.idle_ms = 1000;
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, "rights_to_every 64").get_result("rights_to_every 64"), "none");
}

// SI11
TEST(HostileJobs, StandardStreamsArePipesOfTheRun) {
  EXPECT_EQ(run_attempts("stdio").get_result("stdio"), "0:character 1:pipe 2:pipe 3:pipe 4:socket tty:0");
}

// SQ12
TEST(HostileJobs, EndlessOutputIsEndedAndNotStored) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  expect_sandbox_serves(*dedicated_sandbox.sandbox);
  const long initial_kib = read_status_kib(dedicated_sandbox.launcher, "VmRSS");
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print_forever");
  char buffer[65536];
  for (std::size_t read_bytes = 0; read_bytes < (64U << 20);) {
    pollfd event{started.pipes.out, POLLIN, 0};
    ASSERT_GE(::poll(&event, 1, 20000), 1);
    const ssize_t size = ::read(started.pipes.out, buffer, sizeof buffer);
    ASSERT_GT(size, 0);
    read_bytes += static_cast<std::size_t>(size);
  }
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::output_limit, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "output_limit");
  EXPECT_LT(read_status_kib(dedicated_sandbox.launcher, "VmRSS"), initial_kib + 4096);
}

// SQ13
TEST(HostileJobs, LargeOutputOnBothStreamsIsComplete) {
  const RunResult result = run_attempts("print_mib 5");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.stdout_text.size(), 5U << 20);
  EXPECT_EQ(result.stderr_text.size(), 5U << 20);
}

// SF17, SZ28: a job cannot change the programs of the sandbox.
TEST(HostileJobs, ProgramsOfTheSandboxAreUnchanged) {
  const auto hash_programs = [] {
    std::string all;
    for (const char* name : {"/mycojobs-launcher", "/attempt_host"}) {
      all += read_file(mj::test::programs_folder() + name);
    }
    return std::hash<std::string>{}(all);
  };
  const std::size_t initial_hash = hash_programs();
  run_attempts_with_exec(
      "open_truncate /proc/self/exe\nwrite /proc/self/exe x\nwrite /host x\nwrite_through_mem /host\n"
      "unlink /host\nshell cp /bin/true /host\nserve_again");
  EXPECT_EQ(hash_programs(), initial_hash);
}

}  // namespace
}  // namespace mycojobs::test
