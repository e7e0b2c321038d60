// The identity of jobs on the host: user ids that no other launcher assigns, and the nice value inherited from the
// agent.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fixture.h"
#include "sandbox/launcher/id_map.h"

namespace mycojobs::test {
namespace {

using sandbox::choose_ids;
using sandbox::IdRegistry;
using sandbox::IdSpan;

constexpr std::uint32_t kBase = 2000000000, kCount = 4096;

class Ids : public ::testing::Test {
 protected:
  Ids() {
    char path[] = "/tmp/mycojobs-ids-XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~Ids() override { std::filesystem::remove_all(folder_); }
  IdRegistry open_registry() const { return IdRegistry::open(folder_ + "/ids"); }
  std::string folder_;
};

std::uint32_t choose_base(IdRegistry& registry, std::uint32_t base = kBase, std::uint32_t count = kCount) {
  const auto ids = choose_ids(base, count, registry);
  EXPECT_TRUE(ids) << ids.error().message;
  return ids ? ids->range.base : 0;
}

TEST_F(Ids, LiveRangesNeverOverlap) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  auto first = open_registry(), second = open_registry(), third = open_registry();
  ASSERT_EQ(first.problem(), "");
  EXPECT_EQ(choose_base(first), kBase);
  EXPECT_EQ(choose_base(second), kBase + kCount);
  EXPECT_EQ(choose_base(third, kBase + 100, 2048),
            kBase + 2 * kCount);  // This range has another size and would start within the first range.
  EXPECT_EQ(choose_base(first), kBase) << "a registry's own range is not an overlap";
  second = IdRegistry();
  auto fourth = open_registry();
  EXPECT_EQ(choose_base(fourth), kBase + kCount) << "the range was released";
}

TEST_F(Ids, RangeOfAKilledLauncherIsFree) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    auto registry = open_registry();
    const std::uint32_t base = choose_base(registry);
    (void)!::write(pipe[1], &base, sizeof base);
    ::pause();
    ::_exit(0);
  }
  std::uint32_t base = 0;
  ASSERT_EQ(::read(pipe[0], &base, sizeof base), static_cast<ssize_t>(sizeof base));
  EXPECT_EQ(base, kBase);
  auto second = open_registry();
  EXPECT_EQ(choose_base(second), kBase + kCount);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  auto third = open_registry();
  EXPECT_EQ(choose_base(third), kBase);
}

TEST_F(Ids, FolderWritableByOthersIsIgnored) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  std::filesystem::create_directory(folder_ + "/ids");
  ::chmod((folder_ + "/ids").c_str(), 0777);
  auto registry = open_registry();
  EXPECT_NE(registry.problem().find(folder_), std::string::npos) << registry.problem();
  EXPECT_EQ(choose_base(registry), kBase) << "same as without a registry";
}

TEST_F(Ids, ExhaustionIsReportedWithItsRemedy) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  auto first = open_registry(), second = open_registry();
  constexpr std::uint32_t kMaxBase = 0xfffffffe - kCount;
  EXPECT_EQ(choose_base(first, kMaxBase), kMaxBase);
  const auto ids = choose_ids(kMaxBase, kCount, second);
  ASSERT_FALSE(ids);
  EXPECT_NE(ids.error().message.find("sandbox.uid_range"), std::string::npos) << ids.error().message;
}

IdSpan read_id_span(const DedicatedSandbox& dedicated_sandbox) {
  const std::string map = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "read /proc/self/uid_map")
                              .get_result("read /proc/self/uid_map");
  unsigned long long inner_base = 1, base = 0, count = 0;
  EXPECT_EQ(std::sscanf(map.c_str(), "%llu %llu %llu", &inner_base, &base, &count), 3) << map;
  EXPECT_EQ(inner_base, 0U);
  return {base, count};
}

TEST(Identity, TwoLaunchersOfAHostHaveNoIdInCommon) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  const DedicatedSandbox first_sandbox = start_dedicated_sandbox();
  const DedicatedSandbox second_sandbox = start_dedicated_sandbox();
  const IdSpan first = read_id_span(first_sandbox), second = read_id_span(second_sandbox);
  EXPECT_FALSE(first.overlaps(second)) << first.base << ", " << second.base;
}

// Returns the nice values of launcher and init relative to the agent, followed by the nice value of the job.
std::string measure_nice_values() {
  const DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "inherited\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  std::string nice_values;
  const pid_t zygote = find_children(dedicated_sandbox.launcher).at(0), init = find_children(zygote).at(0);
  const int agent_nice = ::getpriority(PRIO_PROCESS, 0);
  for (const pid_t pid : {dedicated_sandbox.launcher, init})
    nice_values += std::to_string(::getpriority(PRIO_PROCESS, static_cast<id_t>(pid)) - agent_nice) + " ";
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  wait_for_end(*dedicated_sandbox.sandbox, started);
  const std::string job = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "inherited").get_result("inherited");
  return nice_values + job.substr(job.find("nice="));
}

TEST(Identity, JobInheritsTheNiceValueOfItsAgent) {
  const int own_nice = ::getpriority(PRIO_PROCESS, 0);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t agent = ::fork();  // An unprivileged process cannot undo a change of its nice value.
  if (agent == 0) {
    ::setpriority(PRIO_PROCESS, 0, own_nice + 5);
    const std::string nice_values = measure_nice_values();
    (void)!::write(pipe[1], nice_values.data(), nice_values.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  char text[256] = {};
  (void)!::read(pipe[0], text, sizeof text - 1);
  ::waitpid(agent, nullptr, 0);
  // As root, launcher and init run 10 below the agent, so that they can react while jobs use the whole CPU.
  const std::string launcher_and_init = ::geteuid() == 0 ? "-10 -10 " : "0 0 ";
  EXPECT_EQ(text, launcher_and_init + "nice=" + std::to_string(own_nice + 5));
}

}  // namespace
}  // namespace mycojobs::test
