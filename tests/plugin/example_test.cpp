// The steps of an integrator: installs mycojobs below a folder, builds the example with CMake alone, copies it to the
// plugin folder, and runs its jobs with a real agent.
#include <filesystem>

#include "plugin/plugins.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

class Example : public ::testing::Test {
 protected:
  // Runs a program and returns its output, which is printed on failure.
  ProcessResult succeed(const std::vector<std::string>& argv) {
    Process process(folder_, argv);
    ProcessResult result = process.wait(Seconds(240));
    EXPECT_EQ(result.code, 0) << argv[0] << ' ' << argv[1] << ":\n" << result.out << result.err;
    return result;
  }
  ProcessResult mycojobs(std::vector<std::string> words) {
    words.insert(words.begin(), folder_ / "prefix/bin/mycojobs");
    return run(folder_, words, {"MYCOJOBS_STATE_DIR=" + folder_ / "state"});
  }
  void install_and_build() {
    const std::string prefix = folder_ / "prefix";
    succeed({"cmake", "--install", MYCOJOBS_BUILD, "--prefix", prefix});
    succeed({"cmake", "-S", mj::test::source_path("examples/plugin"), "-B", folder_ / "build", "-G", "Ninja",
             "-DCMAKE_PREFIX_PATH=" + prefix});
    succeed({"cmake", "--build", folder_ / "build"});
  }

  TempDir folder_;
};

TEST_F(Example, BuildsOutsideTheTreeAndRunsItsJobs) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  install_and_build();
  ASSERT_FALSE(HasFailure());
  const std::string plugins = folder_ / "prefix/libexec/mycojobs/plugins";
  std::filesystem::create_directories(plugins);
  std::filesystem::copy_file(folder_ / "build/awk.so", plugins + "/awk.so");

  const ProcessResult checked = mycojobs({"plugin", "check", plugins + "/awk.so"});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  const ProcessResult listed = mycojobs({"plugin", "list", "--json"});
  EXPECT_NE(listed.out.find("\"state\": \"works\""), std::string::npos) << listed.out << listed.err;

  const std::string jobs = mj::test::source_path("examples/plugin/jobs/");
  const ProcessResult primes = mycojobs({"run", "--type", "awk", jobs + "primes.awk", "--json"});
  EXPECT_EQ(primes.code, 0) << primes.out << primes.err;
  EXPECT_NE(primes.out.find("\"count\": \"25\""), std::string::npos) << primes.out;
  const ProcessResult broken = mycojobs({"run", "--type", "awk", jobs + "broken.awk"});
  EXPECT_EQ(broken.code, 1) << broken.out << broken.err;
  EXPECT_NE(broken.err.find("AwkError: runaway string constant"), std::string::npos) << broken.err;
  EXPECT_NE(broken.err.find("(line 3)"), std::string::npos) << broken.err;
  const ProcessResult empty = mycojobs({"run", "--type", "awk", folder_.write("empty.awk", "\n")});
  EXPECT_EQ(empty.code, 1) << empty.out << empty.err;
  EXPECT_NE(empty.err.find("script: there is nothing in it"), std::string::npos) << empty.err;
}

// Each plugin fails in prepare while the agent also serves python.
TEST_F(Example, BrokenPluginsDoNotAffectOtherJobs) {
  const std::string plugins = folder_ / "plugins";
  std::filesystem::create_directories(plugins);
  const auto local = [&](std::vector<std::string> words) {
    words.insert(words.begin(), mj::test::program_path("mycojobs"));
    return run(folder_, words, {"MYCOJOBS_STATE_DIR=" + folder_ / "state", "MYCOJOBS_PLUGINS_DIR=" + plugins});
  };
  for (const char* name : {"load_crash", "no_symbol", "taken_type", "crashes"}) {
    std::filesystem::copy_file(get_plugin_path(name), plugins + "/" + name + ".so");
    std::filesystem::permissions(plugins + "/" + name + ".so", std::filesystem::perms(0644));
  }
  const std::string script = folder_.write("job.cat", "x\n");
  const ProcessResult crashed = local({"run", "--type", "cat", script});
  EXPECT_EQ(crashed.code, 1) << crashed.out << crashed.err;
  EXPECT_NE(crashed.err.find("plugin cat: it crashed: signal SIGSEGV (prepare)"), std::string::npos) << crashed.err;
  const ProcessResult python = local({"run", folder_.write("job.py", "print('still here')\n")});
  EXPECT_EQ(python.code, 0) << python.err;
  EXPECT_NE(python.out.find("still here"), std::string::npos) << python.out;
  const ProcessResult listed = local({"plugin", "list"});
  EXPECT_NE(listed.out.find("another executor serves"), std::string::npos) << listed.out;
}

}  // namespace
}  // namespace mycojobs::test
