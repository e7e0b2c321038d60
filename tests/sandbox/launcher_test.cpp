// The launcher: cleanup after its end, recovery from failures, and rejected requests.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>

#include "base/fd.h"
#include "fixture.h"
#include "sandbox/launcher_client.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

std::size_t count_descriptors(pid_t pid) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    ++count;
  }
  return count;
}

TEST(Launcher, TwoHundredJobsLeaveNothing) {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // Prewarmed sandboxes would add processes to the counts.
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid");
  EXPECT_TRUE(
      // Only the zygote that serves runs exists; the zygote of the canary has ended.
      eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 1; }));
  const auto initial_mounts = host_mounts();
  const std::size_t agent_descriptors = count_descriptors(::getpid());
  const std::size_t launcher_descriptors = count_descriptors(dedicated_sandbox.launcher);
  const std::size_t process_count = find_descendants(dedicated_sandbox.launcher).size();
  const std::size_t group_count = count_cgroups(dedicated_sandbox.launcher);
  for (int i = 0; i < 200; ++i) {
    RunSpec spec = make_spec(i % 20 == 3 ? 5 : 20000);
    spec.limits.exec = i % 2 == 0;
    run_attempts(*dedicated_sandbox.sandbox, spec,
                 i % 10 == 0   ? "call ptrace"
                 : i % 10 == 2 ? "daemonize"
                               : "write /tmp/x y");
  }
  EXPECT_EQ(host_mounts(), initial_mounts);
  EXPECT_EQ(count_descriptors(::getpid()), agent_descriptors);
  EXPECT_TRUE(eventually([&] { return count_descriptors(dedicated_sandbox.launcher) <= launcher_descriptors; }));
  EXPECT_TRUE(eventually([&] { return find_descendants(dedicated_sandbox.launcher).size() == process_count; }));
  EXPECT_TRUE(eventually([&] { return count_cgroups(dedicated_sandbox.launcher) == group_count; }))
      << count_cgroups(dedicated_sandbox.launcher);
  dedicated_sandbox.sandbox.reset();
  EXPECT_TRUE(is_reaped(dedicated_sandbox.launcher));
  EXPECT_EQ(count_cgroups(dedicated_sandbox.launcher), 0U);
}

TEST(Launcher, KilledLauncherLosesItsRunsAndIsRestarted) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const auto process_tree = find_descendants(dedicated_sandbox.launcher);
  EXPECT_GE(process_tree.size(), 3U);  // At least the zygote, init and the job.
  ::kill(dedicated_sandbox.launcher, SIGKILL);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
  EXPECT_FALSE(dedicated_sandbox.sandbox->alive());
  EXPECT_FALSE(dedicated_sandbox.sandbox->launch(make_spec()));
  for (pid_t pid : process_tree) EXPECT_TRUE(is_reaped(pid)) << pid << " still exists, and its run may begin elsewhere";
  ASSERT_TRUE(dedicated_sandbox.sandbox->restart());
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  EXPECT_EQ(count_cgroups(dedicated_sandbox.launcher), 0U)
      << "the groups of the dead launcher are removed at the next start";  // SX11
}

// Regression test: the timer for unkillable runs kept firing after their processes had ended, so the loop of the agent
// never slept again.
TEST(Launcher, KilledLauncherCausesNoWakeUps) {
  SandboxConfig config = make_test_config();
  config.unkillable_ms = 1000;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  ::kill(dedicated_sandbox.launcher, SIGKILL);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
  ASSERT_TRUE(dedicated_sandbox.sandbox->restart());
  pollfd events{dedicated_sandbox.sandbox->event_fd(), POLLIN, 0};
  EXPECT_TRUE(eventually([&] {
    dedicated_sandbox.sandbox->read_ended();
    return ::poll(&events, 1, 1500) == 0;
  }));
}

TEST(Launcher, EndsWithTheAgent) {
  int pid_pipe[2];
  ASSERT_EQ(::pipe(pid_pipe), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
    StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
    wait_for_output(started, "up");
    std::vector<pid_t> process_tree = find_descendants(dedicated_sandbox.launcher);
    process_tree.push_back(dedicated_sandbox.guardian);
    process_tree.push_back(dedicated_sandbox.launcher);
    (void)!::write(pid_pipe[1], process_tree.data(), process_tree.size() * sizeof(pid_t));
    ::pause();
    ::_exit(0);
  }
  pid_t process_tree[16] = {};
  const ssize_t size = ::read(pid_pipe[0], process_tree, sizeof process_tree);
  ASSERT_GE(size, static_cast<ssize_t>(4 * sizeof(pid_t)));
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(size) / sizeof(pid_t); ++i) {
    EXPECT_TRUE(eventually([&] { return is_reaped(process_tree[i]); })) << process_tree[i];
  }
  EXPECT_TRUE(
      eventually([&] { return count_cgroups(process_tree[static_cast<std::size_t>(size) / sizeof(pid_t) - 1]) == 0; }));
  ::close(pid_pipe[0]);
  ::close(pid_pipe[1]);
}

TEST(Launcher, KilledZygoteLosesItsRunsAndIsReplaced) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  for (pid_t zygote : find_children(dedicated_sandbox.launcher)) ::kill(zygote, SIGKILL);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
}

TEST(Launcher, FenceHoldsWhileTheLauncherIsStopped) {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec spec = make_spec();
  spec.fence_boot_ms = now_boot_ms() + 500;
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, spec, "ignore_signals\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  ::kill(dedicated_sandbox.launcher, SIGSTOP);
  const auto zygotes = find_children(dedicated_sandbox.launcher);
  EXPECT_TRUE(eventually([&] {
    for (pid_t zygote : zygotes) {
      if (!find_children(zygote).empty()) return false;
    }
    return true;
  })) << "init has not ended its namespace";
  ::kill(dedicated_sandbox.launcher, SIGCONT);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
}

TEST(Launcher, ZygotesAreReplacedWithoutAPause) {
  SandboxConfig config = make_test_config();
  config.max_zygote_runs = 5;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid");
  const auto first_zygotes = find_children(dedicated_sandbox.launcher);
  for (int i = 0; i < 30; ++i) {
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  }
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 1; }));
  EXPECT_NE(find_children(dedicated_sandbox.launcher), first_zygotes);
}

TEST(Launcher, ContextsHaveZygotesOfTheirOwn) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  for (ContextId context : {1U, 2U, 3U}) {
    RunSpec spec = make_spec();
    spec.context = context;
    EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, spec, "getpid").outcome.status), "ok");
  }
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 3; }));
}

TEST(Launcher, UnusedZygotesEndAboveTheLimit) {
  SandboxConfig config = make_test_config();
  config.max_zygotes = 2;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec long_run = make_spec();
  long_run.context = 1;
  StartedRun active = start_attempts(*dedicated_sandbox.sandbox, long_run, "print up\nsleep 60000");
  wait_for_output(active, "up");
  for (int round = 0; round < 2; ++round) {
    for (ContextId context : {2U, 3U, 4U}) {
      RunSpec spec = make_spec();
      spec.context = context;
      const Outcome outcome = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid").outcome;
      EXPECT_EQ(to_string(outcome.status), "ok") << outcome.reason;
    }
  }
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 2; }));
  dedicated_sandbox.sandbox->kill(long_run.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, active).outcome.status), "cancelled")
      << "the zygote of an active run has ended";
}

TEST(Launcher, InitialZygotesStartUpToTheLimit) {
  SandboxConfig config = make_test_config();
  config.max_zygotes = 2;
  for (ContextId context : {1U, 2U, 3U, 4U}) config.initial_zygotes.emplace_back(make_spec().host, context);
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 2; }));
  RunSpec spec = make_spec();
  spec.context = 4;
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, spec, "getpid").outcome.status), "ok");
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 2; }));
}

TEST(Launcher, WaitingRunCanBeCancelled) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  RunSpec spec = make_spec();
  spec.context = 9;  // The zygote of this context has not been started.
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, spec, "sleep 60000");
  dedicated_sandbox.sandbox->kill(spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "cancelled");
}

// SI5, SI14, and hosts that do not start.
TEST(Launcher, HostsThatViolateTheirContractAreRejected) {
  char folder[] = "/tmp/mycojobs-hosts-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  ::chmod(folder, 0755);
  SandboxConfig config = make_test_config();
  for (const char* name : {"lie", "babble", "die", "thread", "file"}) {
    const std::string path = std::string(folder) + "/" + name;
    std::filesystem::create_symlink(mj::test::program_path("bad_host"), path);
    config.hosts.push_back({name, path});
  }
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  for (const auto& host : config.hosts) {
    const std::string& name = host.name;
    if (name == "attempt") continue;
    RunSpec spec = make_spec();
    spec.host = name;
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "setup_error") << name << ": " << result.outcome.reason;
    if (name != "lie" || !result.outcome.setup_error) continue;
    EXPECT_EQ(result.outcome.setup_error->step, "zygote_warm_up") << "the zygote is rejected because of its answer";
    EXPECT_EQ(result.outcome.setup_error->error, EPROTO);
  }
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  std::filesystem::remove_all(folder);
}

// SH1: the failing step affects the canary job first, so no real job ever runs.
TEST(Launcher, FailedSetupStepPreventsTheStartByName) {
  for (const char* step : {"zygote_files",
                           "zygote_parent",
                           "zygote_parent_again",
                           "zygote_maps",
                           "zygote_ids",
                           "zygote_session",
                           "zygote_hostname",
                           "zygote_root",
                           "zygote_pivot",
                           "zygote_userns_limit",
                           "zygote_descriptors",
                           "zygote_write_maps",
                           "parent",
                           "signals",
                           "session",
                           "cgroups",
                           "descriptors",
                           "namespaces",
                           "keyring",
                           "folders",
                           "proc",
                           "cwd",
                           "rlimits",
                           "rank",
                           "domain",
                           "last_filter",
                           "host",
                           "unblock",
                           "rights",
                           "nproc",
                           "parent_again",
                           "dumpable",
                           "no_new_privs",
                           "landlock",
                           "seccomp"}) {
    SandboxConfig config = make_test_config();
    config.fail_step = step;
    const auto sandbox = start_sandbox(config);
    ASSERT_FALSE(sandbox) << step;
    EXPECT_EQ(sandbox.error().code, Code::unsupported);
    EXPECT_NE(sandbox.error().message.find(std::string("sandbox: ") + step + ": "), std::string::npos)
        << step << " in " << sandbox.error().message;
  }
}

// A new zygote waits for its launcher, without limit if it inherited the launcher's end of their socket. Every process
// of the family has the pipe open, so its end of file shows that all of them have ended.
TEST(Launcher, NoZygoteSurvivesLauncherAndGuard) {
  constexpr int kRounds = 100;
  const auto seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::vector<pid_t> other_processes = descendants(::getpid());
  for (int round = 0; round < kRounds; ++round) {
    int pipe_ends[2] = {-1, -1};
    ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    const Fd read_end(pipe_ends[0]);
    Fd write_end(pipe_ends[1]);
    SandboxConfig config = make_test_config();
    config.alive_fd = write_end.get();
    // otherwise the parent-death signal of the kernel would hide most surviving processes
    config.disabled_steps = {"zygote_parent"};
    std::thread start_thread([&config] { (void)start_sandbox(config); });
    ::usleep(static_cast<useconds_t>(random() % 12000));
    std::vector<pid_t> process_tree =
        descendants(::getpid());  // The first two processes are the guardian and the launcher.
    std::erase_if(process_tree, [&](pid_t pid) {
      return std::find(other_processes.begin(), other_processes.end(), pid) != other_processes.end();
    });
    process_tree.resize(std::min<std::size_t>(process_tree.size(), 2));
    for (const pid_t pid : process_tree) ::kill(pid, SIGKILL);
    start_thread.join();
    write_end.reset();
    pollfd pipe_closed{read_end.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&pipe_closed, 1, 20000), 1) << "a process remains; seed " << seed << ", round " << round;
  }
}

// SH2
TEST(Launcher, UnknownLayerNameIsRejected) {
  for (const char* layer : {"cgroups", "seccomp", ""}) {
    SandboxConfig config = make_test_config();
    config.allow_missing = {layer};
    EXPECT_FALSE(start_sandbox(config)) << layer;
  }
}

TEST(Launcher, MissingProgramIsOneClearError) {
  SandboxConfig config = make_test_config();
  config.libexec_dir = "/nonexistent";
  const auto sandbox = start_sandbox(config);
  ASSERT_FALSE(sandbox);
  EXPECT_NE(sandbox.error().message.find("/nonexistent/mycojobs-launcher"), std::string::npos)
      << sandbox.error().message;
}

TEST(Launcher, ProbeReportsEveryLayer) {
  const auto layers = probe_layers(make_test_config());
  ASSERT_TRUE(layers) << layers.error().message;
  for (const char* name : {"userns", "pidns", "mountns", "netns", "ipcns", "utsns", "cgroupns", "uid", "seccomp",
                           "landlock", "cgroup:memory", "cgroup:pids", "canary"}) {
    const auto position =
        std::find_if(layers->begin(), layers->end(), [&](const auto& layer) { return layer.name == name; });
    ASSERT_NE(position, layers->end()) << name;
    EXPECT_FALSE(position->detail.empty());
    EXPECT_EQ(position->ok, position->remedy.empty()) << name;
  }
}

// Regression test: the next launcher had checked before the old launcher and its jobs had ended. The groups remained
// until a third launcher started.
TEST(Launcher, GroupsOfALateDeadLauncherAreRemoved) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const DedicatedSandbox old_sandbox = start_dedicated_sandbox();
  const DedicatedSandbox next_sandbox = start_dedicated_sandbox();
  ASSERT_GT(count_cgroups(old_sandbox.launcher), 0U);
  ::kill(old_sandbox.guardian, SIGKILL);
  EXPECT_TRUE(eventually([&] { return count_cgroups(old_sandbox.launcher) == 0; }));
  EXPECT_GT(count_cgroups(next_sandbox.launcher), 0U);
}

}  // namespace
}  // namespace mycojobs::test
