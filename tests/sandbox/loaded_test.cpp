// Zygotes are replaced after an update of their files, and load only files that other users cannot write.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "fixture.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder that is mounted at /extra for the hosts and contains one library.
class Extra {
 public:
  Extra() {
    char name[] = "/tmp/mj-loaded-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::chmod(folder_.c_str(), 0755);
    write("library", "one");
  }
  Extra(const Extra&) = delete;
  Extra& operator=(const Extra&) = delete;
  ~Extra() { fs::remove_all(folder_); }
  const std::string& path() const { return folder_; }
  // Writes a file as a package manager does: into a new file, which is then renamed.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name, beside = path + ".new";
    std::ofstream(beside) << text;
    ::chmod(beside.c_str(), 0644);
    fs::rename(beside, path);
    return path;
  }
  std::string folder(const std::string& name) const {
    fs::create_directory(folder_ + "/" + name);
    ::chmod((folder_ + "/" + name).c_str(), 0755);
    return folder_ + "/" + name;
  }
  SandboxConfig config(const std::string& loaded = "/extra/library") const {
    SandboxConfig config = test_config();
    config.hosts[0].context = 1;
    config.hosts[0].arguments = {loaded};
    config.hosts[0].folders = {{folder_, "/extra"}};
    return config;
  }

 private:
  std::string folder_;
};

std::string read_status(Sandbox& sandbox) {
  const RunResult result = run_attempts(sandbox, spec_with(), "getpid");
  return std::string(to_string(result.outcome.status)) +
         (result.outcome.setup_error ? ": " + result.outcome.setup_error->remedy : "");
}

// Returns the children of the launcher without the process that opens granted folders.
std::vector<pid_t> find_zygotes(pid_t launcher) {
  std::vector<pid_t> children = find_children(launcher);
  std::erase_if(children, [](pid_t pid) { return read_process_name(pid) == "mycojobs-folder"; });
  return children;
}

TEST(ZygotePreload, ZygoteFromBeforeAnUpdateIsReplaced) {
  const Extra extra;
  OwnSandbox own = own_sandbox(extra.config());
  ASSERT_EQ(read_status(*own.sandbox), "ok");
  ASSERT_TRUE(eventually([&] { return find_zygotes(own.launcher).size() == 1; }));
  const pid_t first = find_zygotes(own.launcher)[0];
  RunSpec long_one = spec_with(40000);
  StartedRun under_way = start_attempts(*own.sandbox, long_one, "sleep 8000");
  extra.write("library", "two");
  EXPECT_TRUE(eventually([&] {
    const auto now = find_zygotes(own.launcher);
    return now.size() == 1 && now[0] != first;
  })) << "it still serves";
  EXPECT_NE(to_string(wait_for(*own.sandbox, under_way).outcome.status), "lost");
  EXPECT_EQ(read_status(*own.sandbox), "ok");
}

// Without the watching process, updates would not be detected.
TEST(ZygotePreload, ZygoteWithUnwatchedFoldersIsReplaced) {
  const Extra extra;
  OwnSandbox own = own_sandbox(extra.config());
  ASSERT_EQ(read_status(*own.sandbox), "ok");
  ASSERT_TRUE(eventually([&] { return find_zygotes(own.launcher).size() == 1; }));
  const pid_t first = find_zygotes(own.launcher)[0];
  for (const pid_t child : find_children(own.launcher)) {
    if (child != first) ::kill(child, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] {
    const auto now = find_zygotes(own.launcher);
    return now.size() == 1 && now[0] != first;
  }));
  EXPECT_EQ(read_status(*own.sandbox), "ok");
  EXPECT_EQ(find_children(own.launcher).size(), 2U) << "one stands by the new one";
}

// Attack: a file that other users can write would run with more rights than a job.
TEST(ZygotePreload, FileWritableByOthersIsNotLoaded) {
  struct Row {
    const char* what;
    std::function<std::string(const Extra&)> spoil;  // returns the path that the error must name
  };
  const Row rows[] = {
      {"a folder deep below",
       [](const Extra& e) {
         e.folder("lib");
         auto p = e.folder("lib/site-packages");
         ::chmod(p.c_str(), 0777);
         return p;
       }},
      {"with the sticky bit",
       [](const Extra& e) {
         auto p = e.folder("lib");
         ::chmod(p.c_str(), 01777);
         return p;
       }},
      {"a file",
       [](const Extra& e) {
         auto p = e.write("module.py", "");
         ::chmod(p.c_str(), 0666);
         return p;
       }},
      {"a file of a group",
       [](const Extra& e) {
         auto p = e.write("module.py", "");
         ::chmod(p.c_str(), 0664);
         return p;
       }},
      {"a link to what others own",
       [](const Extra& e) {
         const std::string target = e.path() + ".target";
         std::ofstream(target) << "";
         ::chmod(target.c_str(), 0666);
         fs::create_symlink(target, e.path() + "/module.py");
         return target;
       }},
      {"by way of a folder of others",
       [](const Extra& e) {
         const std::string open = e.path() + ".target";
         fs::create_directory(open);
         ::chmod(open.c_str(), 0777);
         std::ofstream(open + "/module.py") << "";
         fs::create_symlink(open + "/module.py", e.path() + "/module.py");
         return open;
       }},
      {"a link that goes round",
       [](const Extra& e) {
         fs::create_symlink("round", e.path() + "/round");
         return e.path() + "/round";
       }},
  };
  for (const Row& row : rows) {
    const Extra extra;
    const std::string named = row.spoil(extra);
    OwnSandbox own = own_sandbox(extra.config());
    const std::string status = read_status(*own.sandbox);
    EXPECT_THAT(status, HasSubstr("setup_error")) << row.what;
    EXPECT_THAT(status, HasSubstr(named + ": ")) << row.what;
    fs::remove_all(extra.path() + ".target");
  }
}

TEST(ZygotePreload, FileOfAnotherUserIsNotPreloaded) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const Extra foreign;
  const std::string file = foreign.write("module.py", "");
  ASSERT_EQ(::chown(file.c_str(), 54321, 54321), 0);
  EXPECT_THAT(read_status(*own_sandbox(foreign.config()).sandbox), HasSubstr(file + ": belongs to user 54321"));
}

TEST(ZygotePreload, LinksWithinAndIntoTheSystemAreAccepted) {
  const Extra extra;
  extra.folder("lib");
  fs::create_symlink("lib", extra.path() + "/lib64");
  fs::create_symlink("/usr/bin/env", extra.path() + "/env");
  fs::create_symlink("/nowhere/at/all", extra.path() + "/dangling");
  EXPECT_EQ(read_status(*own_sandbox(extra.config()).sandbox), "ok");
}

}  // namespace
}  // namespace mycojobs::test
