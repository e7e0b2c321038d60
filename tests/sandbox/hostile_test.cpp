// Jobs that attack their supervisor, their init, or the readers of their output.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "fixture.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

std::size_t open_descriptors_here() {
  const auto folder = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

std::size_t resident_kib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "VmRSS:" && file >> kib) return kib;
  }
  return 0;
}

RunSpec exec_spec(std::uint64_t wall_ms = 20000) {
  RunSpec spec = spec_with(wall_ms);
  spec.limits.exec = true;
  return spec;
}

void expect_serves(Sandbox& sandbox) {
  EXPECT_EQ(to_string(run_attempts(sandbox, spec_with(), "getpid").outcome.status), "ok");
}

struct Fight {
  const char* row;
  const char* lines;
  bool exec;
  const char* status;
};
void PrintTo(const Fight& fight, std::ostream* out) {
  std::string lines = fight.lines;
  std::replace(lines.begin(), lines.end(), '\n', ',');
  *out << fight.row << " " << lines;
}

class Hostile : public ::testing::TestWithParam<Fight> {};

TEST_P(Hostile, EndsAsExpectedAndTheNextJobRuns) {
  RunSpec spec = spec_with(1500);
  spec.limits.exec = GetParam().exec;
  const RunResult result = run_attempts(shared_sandbox(), spec, GetParam().lines);
  EXPECT_EQ(to_string(result.outcome.status), GetParam().status) << result.outcome.reason;
  expect_serves(shared_sandbox());
}

INSTANTIATE_TEST_SUITE_P(
    HostileJobs, Hostile,
    ::testing::Values(Fight{"SQ24", "many_violations 40", false, "violation"},
                      Fight{"SZ30", "violation_under_signals", false, "violation"},
                      Fight{"SZ31", "violation_without_descriptors", false, "violation"},
                      Fight{"SZ32", "violation_by_orphan", true, "violation"},
                      Fight{"SZ33", "ignore_signals\nviolation_under_name", false, "violation"},
                      Fight{"SZ34", "hold_by_vfork", true, "timeout_wall"},
                      Fight{"SZ35", "stop_oneself", false, "timeout_wall"},
                      Fight{"SZ36", "bad_lists\nsleep 5000", false, "signal"},
                      Fight{"SZ37", "ignore_signals\nflood_init 2000\npause", false, "timeout_wall"},
                      Fight{"SZ37", "flood_init 2000\nexit 3", false, "exit"},
                      Fight{"SZ38", "daemonize\nignore_signals\nstop_oneself", true, "timeout_wall"},
                      Fight{"SP1", "kill 1 9\nkill 1 19\nkill -1 9\nexit 4", false, "exit"},
                      Fight{"SY2", "bad_pointer", false, "signal"}, Fight{"SY9", "overflow_stack", false, "signal"},
                      Fight{"SK17", "landlock_layers 40\nexit 5", false, "exit"},
                      Fight{"SZ48", "queue_up\npause", false, "timeout_wall"},
                      Fight{"SZ48", "queue_up\ndaemonize\nzombies 20\nexit 8", true, "exit"},
                      Fight{"SZ48", "queue_up\ncall ptrace", false, "violation"},
                      Fight{"SZ39", "raise 31", false, "signal"},
                      Fight{"SZ39", "raise 19\nexit 6", false, "timeout_wall"}));

// SK17
TEST(HostileJobs, SeventeenthLandlockLayerIsRejected) {
  const std::string answer = run_attempts("landlock_layers 40").answer("landlock_layers 40");
  EXPECT_TRUE(answer == "E2BIG" || answer == "ruleset: ENOSYS" || answer == "ruleset: EOPNOTSUPP") << answer;
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
  RunSpec spec = exec_spec(3000);
  spec.limits.pids = 512;
  const RunResult result = run_attempts(shared_sandbox(), spec, "signal_storm 500");
  EXPECT_EQ(to_string(result.outcome.status), "timeout_wall") << result.outcome.reason;
  EXPECT_EQ(result.out, "storm");
  expect_serves(shared_sandbox());
}

// SP9
TEST(HostileJobs, FiveHundredZombiesAreReaped) {
  SandboxConfig config = test_config();
  config.prewarmed = 0;  // so all processes below the zygote belong to the run
  OwnSandbox own = own_sandbox(config);
  RunSpec spec = exec_spec();
  spec.limits.pids = 600;
  const RunResult result = run_attempts(*own.sandbox, spec, "zombies 500\norphans 300\ndaemonize");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  for (const auto& [line, answer] : result.answers) EXPECT_EQ(answer, "ok") << line;
  for (pid_t zygote : find_children(own.launcher)) {
    EXPECT_TRUE(eventually([&] { return find_children(zygote).empty(); }));
  }
}

// SP6, SZ40: reading to the end of a job's output must not block on processes that the job left behind.
TEST(HostileJobs, OutputEndsWithTheRun) {
  OwnSandbox own = own_sandbox();
  StartedRun started = start_attempts(*own.sandbox, exec_spec(), "daemonize\ndaemonize\nprint up\nexit 0");
  wait_for_output(started, "up");
  const int out = ::dup(started.pipes.out);
  const RunResult result = wait_for(*own.sandbox, started);
  EXPECT_EQ(result.outcome.stragglers, 2U) << result.outcome.reason;
  pollfd source{out, POLLIN, 0};
  EXPECT_EQ(::poll(&source, 1, 20000), 1);
  char byte = 0;
  EXPECT_EQ(::read(out, &byte, 1), 0) << "somebody still holds the job's stdout";
  ::close(out);
}

// SP2: tries every pid that exists outside.
TEST(HostileJobs, HostProcessesAreNotReachedByPid) {
  OwnSandbox own = own_sandbox();
  StartedRun other = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(other, "up");
  std::vector<pid_t> pids = find_descendants(own.launcher);
  EXPECT_GE(pids.size(), 3U);
  pids.insert(pids.end(), {own.guardian, own.launcher, ::getpid(), ::getppid()});
  std::string lines;
  for (pid_t pid : pids) {
    if (pid > 2) lines += "kill " + std::to_string(pid) + " 9\n";
  }
  const RunResult result = run_attempts(*own.sandbox, spec_with(), lines);
  for (const auto& [line, answer] : result.answers) EXPECT_EQ(answer, "ESRCH") << line;
  own.sandbox->kill(other.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for(*own.sandbox, other).outcome.status), "cancelled");
}

// SP12
TEST(HostileJobs, EndOfTheStartingThreadEndsNoJob) {
  OwnSandbox own;
  StartedRun started;
  std::thread([&] {
    own = own_sandbox();
    started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 200\nexit 7");
  }).join();
  EXPECT_EQ(wait_for(*own.sandbox, started).outcome.exit_code, 7);
  expect_serves(*own.sandbox);
}

// SI3, SZ26: unsolicited descriptors are not kept by the agent.
TEST(HostileJobs, DescriptorsSentUpTheChannelAreDropped) {
  run_attempts("getpid");
  const std::size_t before = open_descriptors_here();
  const RunResult result = run_attempts("rights_to_channel 200\nexit 0");
  EXPECT_EQ(to_string(result.outcome.status), "ok");
  EXPECT_EQ(open_descriptors_here(), before);
}

// SZ69: no descriptor of a job is a socket of a trusted process that receives messages. That process would have to
// close descriptors sent with a message, and closing a socket with SO_LINGER can block for as long as the job chooses.
TEST(HostileJobs, NoSocketOfAJobLeadsToATrustedProcess) {
  RunSpec spec = spec_with();
  spec.grants.network = Network::loopback;
  const RunResult result = run_attempts(shared_sandbox(), spec, "rights_to_every 64");
  EXPECT_EQ(result.answer("rights_to_every 64"), "none") << result.outcome.reason;
  spec.run = next_run();
  spec.grants.syscalls = {"sendmsg"};
  spec.warm.runs = 2;
  spec.warm.key = spec.warm.family = std::string(64, 'k');
  spec.warm.idle_ms = 1000;
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, "rights_to_every 64").answer("rights_to_every 64"), "none");
}

// SI11
TEST(HostileJobs, StandardStreamsArePipesOfTheRun) {
  EXPECT_EQ(run_attempts("stdio").answer("stdio"), "0:character 1:pipe 2:pipe 3:pipe 4:socket tty:0");
}

// SQ12
TEST(HostileJobs, EndlessOutputIsEndedAndNotStored) {
  OwnSandbox own = own_sandbox();
  expect_serves(*own.sandbox);
  const std::size_t before = resident_kib(own.launcher);
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print_forever");
  char part[65536];
  for (std::size_t seen = 0; seen < (64U << 20);) {
    pollfd source{started.pipes.out, POLLIN, 0};
    ASSERT_GE(::poll(&source, 1, 20000), 1);
    const ssize_t size = ::read(started.pipes.out, part, sizeof part);
    ASSERT_GT(size, 0);
    seen += static_cast<std::size_t>(size);
  }
  own.sandbox->kill(started.spec.run, KillReason::output_limit, 0);
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "output_limit");
  EXPECT_LT(resident_kib(own.launcher), before + 4096);
}

// SQ13
TEST(HostileJobs, LargeOutputOnBothStreamsIsComplete) {
  const RunResult result = run_attempts("print_mib 5");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.out.size(), 5U << 20);
  EXPECT_EQ(result.err.size(), 5U << 20);
}

// SF17, SZ28: a job cannot change the programs of the sandbox.
TEST(HostileJobs, ProgramsOfTheSandboxAreUnchanged) {
  const auto contents = [] {
    std::string all;
    for (const char* name : {"/mycojobs-launcher", "/attempt_host"}) {
      std::ifstream file(mj::test::programs_folder() + name, std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return std::hash<std::string>{}(all);
  };
  const std::size_t before = contents();
  run_with_exec(
      "open_truncate /proc/self/exe\nwrite /proc/self/exe x\nwrite /host x\nwrite_through_mem /host\n"
      "unlink /host\nshell cp /bin/true /host\nserve_again");
  EXPECT_EQ(contents(), before);
}

}  // namespace
}  // namespace mycojobs::test
