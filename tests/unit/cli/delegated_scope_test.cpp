#include "cli/delegated_scope.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/process.h"

namespace mycojobs::test {
namespace {

constexpr const char* kSession = "0::/user.slice/session-1.scope\n";

// A folder that imitates the cgroup v2 mount, with the group of kSession.
class DelegatedCgroup : public ::testing::Test {
 protected:
  DelegatedCgroup() { std::filesystem::create_directories(group_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(group_ / name) << text; }
  void enable_controllers(const std::string& controllers) const {
    write("cgroup.controllers", controllers + "\n");
    write("cgroup.procs", "");
    write("cgroup.subtree_control", "");
  }
  bool detects_delegation(const std::string& groups = kSession, bool is_root = false) const {
    return has_delegated_cgroup(groups, folder_.path(), is_root);
  }

  TempDir folder_;
  std::filesystem::path group_ = folder_.path() / "user.slice/session-1.scope";
};

TEST_F(DelegatedCgroup, Version1OrAContainerIsLeftToTheLauncher) {
  EXPECT_TRUE(detects_delegation("4:memory:/somewhere\n8:pids:/\n0::/\n"));
  EXPECT_TRUE(detects_delegation("5:cpu,memory:/somewhere\n"));
  EXPECT_TRUE(detects_delegation("0::/\n"));
  EXPECT_TRUE(detects_delegation(""));
  EXPECT_FALSE(detects_delegation("1:name=systemd:/\n0::/user.slice/session-1.scope\n"))
      << "a hierarchy without controllers";
}

TEST_F(DelegatedCgroup, NeedsBothControllersAndTheRightToWrite) {
  enable_controllers("cpu memory pids");
  EXPECT_TRUE(detects_delegation());
  EXPECT_TRUE(detects_delegation("0::/user.slice/session-1.scope/mycojobs-self\n"))
      << "the process can be in a subgroup that a launcher created";
  EXPECT_FALSE(detects_delegation(kSession, true))
      << "root can write to every group, so the group must be marked as delegated";
  enable_controllers("cpu memory");
  EXPECT_FALSE(detects_delegation());
  enable_controllers("cpu memory pids");
  std::filesystem::remove(group_ / "cgroup.subtree_control");
  EXPECT_FALSE(detects_delegation());
}

TEST(DelegatedScope, IsSuggestedAsACompleteCommand) {
  EXPECT_EQ(format_scope_command({"build/bin/mycojobs", "run", "hello.py"}, true),
            "systemd-run --scope -p Delegate=yes build/bin/mycojobs run hello.py");
  EXPECT_EQ(format_scope_command({"mycojobs", "run", "my job.py", "--env", "A='b'"}, false),
            "systemd-run --user --scope -p Delegate=yes mycojobs run 'my job.py' --env 'A='\\''b'\\'''");
}

TEST(DelegatedScope, IsNotSuggestedForOtherErrors) {
  EXPECT_EQ(make_scope_remedy("sandbox: landlock: missing", {"mycojobs", "run", "a.py"}), "");
}

}  // namespace
}  // namespace mycojobs::test
