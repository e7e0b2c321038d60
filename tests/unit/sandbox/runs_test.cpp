// Tests RunTable with a socket in place of a zygote: the ids of jobs, the check of their processes, and the distinction
// of set-up failures of the host and of the job.
#include "sandbox/launcher/runs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "sandbox/pidfd.h"

namespace mycojobs::sandbox {
namespace {

class RunsTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kIdCount = 3, kFirstId = 1000;  // Smaller ids are reserved.

  void SetUp() override {
    RunsSettings settings;
    settings.ids = {2000000000, kFirstId + kIdCount};
    runs_.configure(settings);
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    launcher_socket_.reset(pair[0]);
    zygote_socket_.reset(pair[1]);
  }
  sandbox::SandboxRun& add_run() {
    RunSpec spec;
    spec.run = ++last_run_id_;
    const auto open_null = [] { return Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)); };
    return runs_.add(spec, {open_null(), open_null(), open_null(), open_null()});
  }
  // Returns the id that the zygote is to give to the job, or 0 if the run was not forked.
  std::uint32_t fork_and_get_id(sandbox::SandboxRun& run) {
    if (!runs_.fork(run, launcher_socket_.get())) return 0;
    RawFrame frame;
    ForkRequest request;
    EXPECT_EQ(receive_raw(zygote_socket_.get(), frame, MSG_DONTWAIT), ReceiveResult::frame);
    EXPECT_TRUE(decode(frame, request));
    return request.uid;
  }

  EventLoop loop_;
  Cgroups cgroups_;
  HostChildren children_{loop_};
  std::vector<Outcome> outcomes_;
  RunTable runs_{loop_, cgroups_, children_, [this](sandbox::SandboxRun& run) { outcomes_.push_back(run.outcome); },
                 [](const sandbox::SandboxRun&, const Outcome&) {}};
  Fd launcher_socket_, zygote_socket_;
  std::uint64_t last_run_id_ = 0;
};

TEST_F(RunsTest, IdBelongsToOneRunAtATimeAndIsReused) {
  std::set<std::uint32_t> ids;
  sandbox::SandboxRun& first = add_run();
  const std::uint32_t id = fork_and_get_id(first);
  ids.insert(id);
  for (std::uint32_t i = 1; i < kIdCount; ++i) ids.insert(fork_and_get_id(add_run()));
  EXPECT_EQ(ids, (std::set<std::uint32_t>{kFirstId, kFirstId + 1, kFirstId + 2}));
  EXPECT_EQ(fork_and_get_id(add_run()), 0U) << "all ids are in use";
  ASSERT_EQ(outcomes_.size(), 1U);
  EXPECT_NE(outcomes_[0].reason.find("sandbox.uid_range"), std::string::npos) << outcomes_[0].reason;
  for (int i = 0; i < 5; ++i) {
    runs_.finish_run(*runs_.find_by_run(i == 0 ? 1 : last_run_id_));
    EXPECT_EQ(fork_and_get_id(add_run()), id) << "the id of the run that has ended";
  }
}

// The launcher kills the process by this descriptor.
TEST_F(RunsTest, OnlyAChildOfTheZygoteIsAcceptedAsItsProcess) {
  const pid_t zygote = ::getpid();
  sandbox::SandboxRun& run = add_run();
  ASSERT_NE(fork_and_get_id(run), 0U);
  for (const pid_t other : {::getppid(), zygote}) {
    EXPECT_FALSE(runs_.on_forked(run, RunForked{run.id, 0}, Fd(::pidfd_open(other, 0)), zygote)) << other;
    EXPECT_FALSE(run.pidfd);
  }
  EXPECT_FALSE(runs_.on_forked(run, RunForked{run.id, 0}, Fd(), zygote)) << "no descriptor";
  EXPECT_FALSE(runs_.on_forked(run, RunForked{run.id, 0}, Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)), zygote));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_TRUE(runs_.on_forked(run, RunForked{run.id, 0}, Fd(::pidfd_open(child, 0)), zygote));
  EXPECT_FALSE(runs_.on_forked(run, RunForked{run.id, 0}, Fd(::pidfd_open(child, 0)), zygote)) << "already answered";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// A set-up that exceeds the limits of the job fails on every host. A host without free descriptors is no error of the
// job.
TEST_F(RunsTest, DescriptorLimitOfAJobIsNoHostShortage) {
  sandbox::SandboxRun& limited = add_run();
  runs_.fail_setup(limited, "folders", EMFILE, {}, true);
  EXPECT_EQ(limited.outcome.status, RunStatus::setup_error);
  EXPECT_FALSE(limited.outcome.never_started);
  sandbox::SandboxRun& unlimited = add_run();
  runs_.fail_setup(unlimited, "folders", EMFILE, {}, false);
  EXPECT_EQ(unlimited.outcome.status, RunStatus::lost);
  EXPECT_TRUE(unlimited.outcome.never_started);
}

// A job can end as if nothing had happened though the kernel has killed one of its processes.
TEST_F(RunsTest, OomKillIsReportedForASuccessfulJob) {
  for (const int wait_status : {0, 3 << 8}) {
    sandbox::SandboxRun& run = add_run();
    run.spec.limits.memory_bytes = 32U << 20;
    set_outcome_by_wait_status(run, wait_status);
    RunUsage usage;
    usage.oom_kills = 1;
    apply_usage(run, usage);
    EXPECT_EQ(run.outcome.status, RunStatus::oom);
    EXPECT_NE(run.outcome.reason.find("32 MiB"), std::string::npos) << run.outcome.reason;
  }
}

}  // namespace
}  // namespace mycojobs::sandbox
