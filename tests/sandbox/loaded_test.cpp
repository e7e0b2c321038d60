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
class ExtraFolder {
 public:
  ExtraFolder() {
    char name[] = "/tmp/mj-loaded-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::chmod(folder_.c_str(), 0755);
    write("library", "one");
  }
  ExtraFolder(const ExtraFolder&) = delete;
  ExtraFolder& operator=(const ExtraFolder&) = delete;
  ~ExtraFolder() { fs::remove_all(folder_); }
  const std::string& path() const { return folder_; }
  // Writes a file as a package manager does: into a new file, which is then renamed.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name, new_path = path + ".new";
    std::ofstream(new_path) << text;
    ::chmod(new_path.c_str(), 0644);
    fs::rename(new_path, path);
    return path;
  }
  std::string create_folder(const std::string& name) const {
    fs::create_directory(folder_ + "/" + name);
    ::chmod((folder_ + "/" + name).c_str(), 0755);
    return folder_ + "/" + name;
  }
  SandboxConfig make_config(const std::string& loaded_file = "/extra/library") const {
    SandboxConfig config = make_test_config();
    config.hosts[0].context = 1;
    config.hosts[0].arguments = {loaded_file};
    config.hosts[0].folders = {{folder_, "/extra"}};
    return config;
  }

 private:
  std::string folder_;
};

std::string run_and_get_status(Sandbox& sandbox) {
  const RunResult result = run_attempts(sandbox, make_spec(), "getpid");
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
  const ExtraFolder extra;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(extra.make_config());
  ASSERT_EQ(run_and_get_status(*dedicated_sandbox.sandbox), "ok");
  ASSERT_TRUE(eventually([&] { return find_zygotes(dedicated_sandbox.launcher).size() == 1; }));
  const pid_t first_zygote = find_zygotes(dedicated_sandbox.launcher)[0];
  RunSpec spec = make_spec(40000);
  StartedRun running = start_attempts(*dedicated_sandbox.sandbox, spec, "sleep 8000");
  extra.write("library", "two");
  EXPECT_TRUE(eventually([&] {
    const auto zygotes = find_zygotes(dedicated_sandbox.launcher);
    return zygotes.size() == 1 && zygotes[0] != first_zygote;
  })) << "the old zygote still serves";
  EXPECT_NE(to_string(wait_for_end(*dedicated_sandbox.sandbox, running).outcome.status), "lost");
  EXPECT_EQ(run_and_get_status(*dedicated_sandbox.sandbox), "ok");
}

// Without the watching process, updates would not be detected.
TEST(ZygotePreload, ZygoteWithUnwatchedFoldersIsReplaced) {
  const ExtraFolder extra;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(extra.make_config());
  ASSERT_EQ(run_and_get_status(*dedicated_sandbox.sandbox), "ok");
  ASSERT_TRUE(eventually([&] { return find_zygotes(dedicated_sandbox.launcher).size() == 1; }));
  const pid_t first_zygote = find_zygotes(dedicated_sandbox.launcher)[0];
  for (const pid_t child : find_children(dedicated_sandbox.launcher)) {
    if (child != first_zygote) ::kill(child, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] {
    const auto zygotes = find_zygotes(dedicated_sandbox.launcher);
    return zygotes.size() == 1 && zygotes[0] != first_zygote;
  }));
  EXPECT_EQ(run_and_get_status(*dedicated_sandbox.sandbox), "ok");
  EXPECT_EQ(find_children(dedicated_sandbox.launcher).size(), 2U)
      << "the new zygote has a child that watches its folders";
}

// Attack: a file that other users can write would run with more rights than a job.
TEST(ZygotePreload, FileWritableByOthersIsNotLoaded) {
  struct UnsafeFile {
    const char* description;
    std::function<std::string(const ExtraFolder&)> make_unsafe;  // Returns the path that the error must name.
  };
  const UnsafeFile unsafe_files[] = {
      {"a nested folder",
       [](const ExtraFolder& extra) {
         extra.create_folder("lib");
         auto path = extra.create_folder("lib/site-packages");
         ::chmod(path.c_str(), 0777);
         return path;
       }},
      {"a folder with the sticky bit",
       [](const ExtraFolder& extra) {
         auto path = extra.create_folder("lib");
         ::chmod(path.c_str(), 01777);
         return path;
       }},
      {"a file that all users can write",
       [](const ExtraFolder& extra) {
         auto path = extra.write("module.py", "");
         ::chmod(path.c_str(), 0666);
         return path;
       }},
      {"a file that a group can write",
       [](const ExtraFolder& extra) {
         auto path = extra.write("module.py", "");
         ::chmod(path.c_str(), 0664);
         return path;
       }},
      {"a link to a file that others can write",
       [](const ExtraFolder& extra) {
         const std::string target = extra.path() + ".target";
         std::ofstream(target) << "";
         ::chmod(target.c_str(), 0666);
         fs::create_symlink(target, extra.path() + "/module.py");
         return target;
       }},
      {"a link through a folder that others can write",
       [](const ExtraFolder& extra) {
         const std::string target = extra.path() + ".target";
         fs::create_directory(target);
         ::chmod(target.c_str(), 0777);
         std::ofstream(target + "/module.py") << "";
         fs::create_symlink(target + "/module.py", extra.path() + "/module.py");
         return target;
       }},
      {"a circular link",
       [](const ExtraFolder& extra) {
         fs::create_symlink("round", extra.path() + "/round");
         return extra.path() + "/round";
       }},
  };
  for (const UnsafeFile& unsafe_file : unsafe_files) {
    const ExtraFolder extra;
    const std::string unsafe_path = unsafe_file.make_unsafe(extra);
    DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(extra.make_config());
    const std::string status = run_and_get_status(*dedicated_sandbox.sandbox);
    EXPECT_THAT(status, HasSubstr("setup_error")) << unsafe_file.description;
    EXPECT_THAT(status, HasSubstr(unsafe_path + ": ")) << unsafe_file.description;
    fs::remove_all(extra.path() + ".target");
  }
}

TEST(ZygotePreload, FileOfAnotherUserIsNotPreloaded) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const ExtraFolder extra;
  const std::string file = extra.write("module.py", "");
  ASSERT_EQ(::chown(file.c_str(), 54321, 54321), 0);
  EXPECT_THAT(run_and_get_status(*start_dedicated_sandbox(extra.make_config()).sandbox),
              HasSubstr(file + ": belongs to user 54321"));
}

TEST(ZygotePreload, LinksWithinAndIntoTheSystemAreAccepted) {
  const ExtraFolder extra;
  extra.create_folder("lib");
  fs::create_symlink("lib", extra.path() + "/lib64");
  fs::create_symlink("/usr/bin/env", extra.path() + "/env");
  fs::create_symlink("/nowhere/at/all", extra.path() + "/dangling");
  EXPECT_EQ(run_and_get_status(*start_dedicated_sandbox(extra.make_config()).sandbox), "ok");
}

}  // namespace
}  // namespace mycojobs::test
