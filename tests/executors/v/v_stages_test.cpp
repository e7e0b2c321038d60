// The grants and limits of the two runs of a V job, without a sandbox.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executors/run_specs.h"
#include "executors/v/v_executor.h"
#include "security/ceilings.h"
#include "v_driver.h"

namespace mycojobs::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PolicyRequest parse_request(const std::string& text) { return read_policy(text, "policy").request; }

TEST(VStages, CompileUsesOnlyTheLimitsOfTheJobsPolicy) {
  const CompilerFolder compiler;
  const VExecutor executor(compiler.program(), {}, "/nowhere");
  const auto staged = stage_runs(
      executor, {},
      parse_request(
          R"({"fs.read": ["/srv/a"], "fs.write": ["/srv/b"], "net": "loopback", "pids": 9, "secrets": ["s"]})"),
      nullptr, 5000);
  ASSERT_TRUE(staged) << staged.error().message;
  const RunSpec &compile = staged->specs.at(0), &run = staged->specs.at(1);
  EXPECT_THAT(compile.grants.fs_read, ElementsAre(compiler.path()));
  EXPECT_THAT(compile.grants.fs_write, IsEmpty());
  EXPECT_EQ(compile.grants.network, Network::none);
  EXPECT_EQ(compile.limits.pids, 9U);
  EXPECT_EQ(compile.limits.memory_bytes, 1ULL << 30);
  EXPECT_THAT(run.grants.fs_read, ElementsAre("/srv/a")) << "the compiler is not the program's";
  EXPECT_EQ(run.grants.network, Network::loopback);
  EXPECT_EQ(run.limits.memory_bytes, 256ULL << 20);
  EXPECT_TRUE(run.limits.exec);
}

TEST(VStages, CompilerFolderIsAvailableUnderAnyCeiling) {
  const CompilerFolder compiler;
  const VExecutor executor(compiler.program(), {}, "/nowhere");
  Ceiling ceiling;  // all fields are set
  ceiling.max = default_ceiling();
  ceiling.max.exec = true;
  const auto staged = stage_runs(executor, {}, {}, &ceiling, 5000);
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_THAT(staged->specs.at(0).grants.fs_read, ElementsAre(compiler.path()));
}

TEST(VStages, LimitsLoweredByTheCeilingAreReported) {
  const CompilerFolder compiler;
  const VExecutor executor(compiler.program(), {}, "/nowhere");
  Ceiling ceiling;
  ceiling.max = default_ceiling();
  ceiling.max.exec = true;
  ceiling.written_fields.reset();
  auto staged = stage_runs(executor, {}, {}, &ceiling, 5000);
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_THAT(staged->lowered, testing::IsEmpty());
  ceiling.max.pids = 7;
  ceiling.written_fields.set(static_cast<std::size_t>(PolicyField::pids));
  staged = stage_runs(executor, {}, {}, &ceiling, 5000);
  ASSERT_TRUE(staged) << staged.error().message;
  EXPECT_EQ(staged->policy.pids, 7U);
  EXPECT_THAT(staged->lowered, ElementsAre("pids"));
}

TEST(VStages, CompilerBesideTheAgentsFilesIsRejected) {
  const CompilerFolder compiler;
  const VExecutor executor(compiler.program(), {}, "/nowhere");
  Ceiling ceiling;
  ceiling.max = default_ceiling();
  ceiling.written_fields.reset();
  ceiling.agent_folders = {compiler.path() + "/state"};
  const auto staged = stage_runs(executor, {}, {}, &ceiling, 5000);
  ASSERT_FALSE(staged);
  EXPECT_EQ(staged.error().code, Code::denied);
  EXPECT_THAT(staged.error().message, HasSubstr("leads to the agent's own folder"));
}

}  // namespace
}  // namespace mycojobs::test
