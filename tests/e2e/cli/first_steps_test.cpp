// Errors of first-time use: unknown words, unreadable files, types without an agent, receipts.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/pty.h"
#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class FirstSteps : public ::testing::Test {
 protected:
  ProcessResult run_mycojobs(std::vector<std::string> words, std::string input = "") const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--state-dir", folder_ / "state"});
    return run(folder_, std::move(words), {"LC_ALL=C.UTF-8"}, std::move(input));
  }
  static void expect_result(const ProcessResult& result, int code, const std::string& words) {
    EXPECT_EQ(result.code, code) << result.out << result.err;
    EXPECT_NE((result.out + result.err).find(words), std::string::npos) << words << " in:\n"
                                                                        << result.out << result.err;
  }
  TempDir folder_;
};

// Runs as a user without access to the folder, because root can enter all folders.
class UnreadableFile : public FirstSteps {
 protected:
  void SetUp() override {
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(::mkdir((folder_ / "own").c_str(), 0777), 0);
    ASSERT_EQ(::mkdir((folder_ / "closed").c_str(), 0777), 0);
    folder_.write("closed/job.py", "pass");
    folder_.write("closed/flow.yaml", "name: f\njobs:\n  a: {file: job.py}\n");
    folder_.write("closed/policy.toml", "");
    folder_.write("flow.yaml", "name: f\njobs:\n  a: {file: closed/job.py}\n");
    folder_.write("job.py", "pass");
    ASSERT_EQ(::chmod((folder_ / "own").c_str(), 0777), 0);
    ASSERT_EQ(::chmod((folder_ / "closed").c_str(), 0), 0);
  }
  void TearDown() override { ::chmod((folder_ / "closed").c_str(), 0700); }
  ProcessResult as_user(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    if (::geteuid() == 0)
      words.insert(words.begin(), {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"});
    return run(folder_, std::move(words),
               {"HOME=" + (folder_ / "own"), "MYCOJOBS_STATE_DIR=" + (folder_ / "own/state"), "LC_ALL=C.UTF-8",
                "MYCOJOBS_SANDBOX_ALLOW_MISSING=cgroup:memory,cgroup:pids"});
  }
};

TEST_F(UnreadableFile, IsReportedInOneLineByEveryCommand) {
  const std::string job = folder_ / "closed/job.py", flow = folder_ / "closed/flow.yaml",
                    closed_folder = folder_ / "closed";
  struct Case {
    std::vector<std::string> words;
    int code;
  };
  for (const Case& test_case :
       std::vector<Case>{{{"run", job}, 74},
                         {{"job", "submit", job}, 74},
                         {{"sandbox", "run", job}, 74},
                         {{"policy", "learn", job}, 74},
                         {{"run", folder_ / "job.py", "--policy", closed_folder + "/policy.toml"}, 74},
                         {{"policy", "check", closed_folder + "/policy.toml"}, 74},
                         {{"flow", "check", flow}, 74},
                         {{"flow", "check", folder_ / "flow.yaml"}, 65},
                         {{"flow", "start", flow}, 74},
                         {{"flow", "create", flow}, 74},
                         {{"flow", "graph", flow}, 74},
                         {{"flow", "schedule", "add", "x", flow, "--cron", "@daily"}, 74},
                         {{"program", "add", job}, 74},
                         {{"program", "list", "--state-dir", closed_folder}, 74},
                         {{"secret", "list", "--secrets-dir", closed_folder}, 74},
                         {{"config", "check", closed_folder + "/config.toml"}, 74},
                         {{"version", "--config", closed_folder + "/config.toml"}, 74},
                         {{"executor", "check", "python", "--samples", closed_folder}, 65},
                         {{"run", folder_ / "job.py", "--state-dir", closed_folder}, 74}}) {
    SCOPED_TRACE(::testing::PrintToString(test_case.words));
    const ProcessResult result = as_user(test_case.words);
    EXPECT_EQ(result.code, test_case.code) << result.out << result.err;
    EXPECT_NE((result.out + result.err).find("ermission denied"), std::string::npos) << result.out << result.err;
    EXPECT_NE((result.out + result.err).find("closed"), std::string::npos)
        << "the error must name the path: " << result.err;
    EXPECT_EQ(result.err.find("terminate"), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("a bug"), std::string::npos) << result.err;
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 2) << result.err;
  }
}

TEST_F(FirstSteps, UnservedTypesAreRejectedWithAReason) {
  const std::string script = folder_.write("x.sh", "echo hello\n");
  expect_result(run_mycojobs({"run", script, "--type", "bash"}), 69,
                "no executor here runs \"bash\"; there is: python");
  expect_result(run_mycojobs({"run", script, "--type", "pyhton"}), 69, "did you mean \"python\"?");
  const std::string config = folder_.write(
      "config.toml", "[v]\ncompiler = \"/nowhere/v\"\n[executors.bash]\ncommand = [\"/nowhere/bash\", \"{script}\"]\n");
  expect_result(run_mycojobs({"run", script, "--type", "bash", "--config", config}), 69, "/nowhere/bash: ENOENT");
  expect_result(run_mycojobs({"run", folder_.write("x.v", "fn main() {}"), "--config", config}), 69,
                "v: /nowhere/v: ENOENT");
  const std::string flow = folder_.write("flow.yaml",
                                         "name: f\njobs:\n  a: {script: pass, type: python}\n"
                                         "  b: {needs: [a], flow: {name: g, jobs: {c: {script: x, type: bash}}}}\n");
  expect_result(run_mycojobs({"flow", "start", flow, "--config", config}), 69, "/nowhere/bash: ENOENT");
  ASSERT_EQ(run_mycojobs({"flow", "create", flow}).code, 0);
  expect_result(run_mycojobs({"flow", "start", "1", "--config", config}), 69, "/nowhere/bash: ENOENT");
  EXPECT_EQ(run_mycojobs({"job", "list", "--json"}).out.find("\"bash\""), std::string::npos)
      << "a rejected job must not be stored";
}

TEST_F(FirstSteps, DevRejectsTypesItDoesNotServe) {
  Process dev(folder_, {program_path(), "dev", "--api-listen", "", "--state-dir", folder_ / "state"});
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  const std::string script = folder_.write("x.sh", "echo hello\n");
  expect_result(run_mycojobs({"run", script, "--type", "bash"}), 69, "no executor here runs \"bash\"");
  const std::string config =
      folder_.write("config.toml", "[executors.bash]\ncommand = [\"/bin/bash\", \"{script}\"]\n");
  expect_result(run_mycojobs({"run", script, "--type", "bash", "--config", config}), 69,
                "does not accept jobs of type bash");
  EXPECT_EQ(run_mycojobs({"run", folder_.write("x.py", "pass")}).code, 0);
}

TEST_F(FirstSteps, AddressInUseIsReportedFirst) {
  Process dev(folder_, {program_path(), "dev", "--api-listen", "127.0.0.1:0", "--state-dir", folder_ / "first"});
  ASSERT_TRUE(eventually([&] { return dev.err().find("JSON-RPC at http://") != std::string::npos; })) << dev.err();
  const std::string log = dev.err();
  const std::size_t address_begin = log.find("JSON-RPC at http://") + 19;
  const std::string address =
      log.substr(address_begin, log.find_first_not_of("0123456789.:", address_begin) - address_begin);
  const ProcessResult second_dev =
      run(folder_, {program_path(), "dev", "--api-listen", address, "--state-dir", folder_ / "second"});
  EXPECT_EQ(second_dev.code, 75) << second_dev.err;
  EXPECT_NE(second_dev.err.find("another program listens there; choose another port with --api-listen"),
            std::string::npos)
      << second_dev.err;
  EXPECT_EQ(second_dev.err.find('\n'), second_dev.err.size() - 1)
      << "the error must be the only line: " << second_dev.err;
}

TEST_F(FirstSteps, InvalidScriptsAreNamedBeforeAnyWrite) {
  const std::string empty_script = folder_.write("empty.py", "");
  const std::string latin_1_script = folder_.write("latin.py", "# gr\xc3\xbc\xc3\x9f\nprint('\xe9')\n");
  expect_result(run_mycojobs({"run", empty_script}), 65, "empty.py: is empty");
  expect_result(run_mycojobs({"job", "submit", empty_script}), 65, "empty.py: is empty");
  expect_result(run_mycojobs({"run", latin_1_script}), 65, "latin.py: byte 16 (0xe9, in line 2) is not UTF-8");
  expect_result(run_mycojobs({"job", "submit", "-", "--type", "python"}, "ab\xff"), 65,
                "standard input: byte 2 (0xff, in line 1)");
  expect_result(run_mycojobs({"sandbox", "run", latin_1_script}), 65, "byte 16");
  const std::string flow = folder_.write("flow.yaml", "name: f\njobs:\n  a: {file: latin.py}\n  b: {file: empty.py}\n");
  const ProcessResult check_result = run_mycojobs({"flow", "check", flow});
  expect_result(check_result, 65, "flow.yaml:3:7: jobs.a.file: ");
  expect_result(check_result, 65, "latin.py: byte 16");
  expect_result(check_result, 65, "empty.py: is empty");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "state/redis"));
}

TEST_F(FirstSteps, FlowCheckRejectsAMistypedType) {
  const std::string flow = folder_.write(
      "flow.yaml", "name: f\njobs:\n  a: {script: pass, type: pyhton}\n  b: {script: pass, type: fortran}\n");
  const ProcessResult check_result = run_mycojobs({"flow", "check", flow});
  expect_result(check_result, 65,
                "flow.yaml:3:21: jobs.a.type: no executor here runs \"pyhton\"; did you mean \"python\"?");
  EXPECT_EQ(check_result.out.find("fortran"), std::string::npos)
      << "an unknown type without a similar name may be served by another host";
  const std::string config = folder_.write("config.toml", "script_types = [\"pyhton\"]\n");
  EXPECT_EQ(run_mycojobs({"flow", "check", flow, "--config", config}).code, 0);
}

TEST_F(FirstSteps, MistypedWordIsReportedWithTheRightOne) {
  expect_result(run_mycojobs({"rum", "x.py"}), 64, "did you mean \"run\"?");
  expect_result(run_mycojobs({"flow", "shwo", "1"}), 64, "did you mean \"show\"?");
  expect_result(run_mycojobs({"run", "x.py", "--tpye", "v"}), 64, "takes no \"--tpye\"; did you mean \"--type\"?");
  expect_result(run_mycojobs({"run", "x.py", "--nonsense=3"}), 64, "takes no \"--nonsense\"");
}

TEST_F(FirstSteps, HelpFitsTheTerminalAndHasGroups) {
  for (const unsigned short width : {std::uint16_t{60}, std::uint16_t{80}, std::uint16_t{120}}) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"--help"}, {"run", "--help"}, {"flow", "--help"}, {"agent", "--help"}}) {
      std::vector<std::string> argv{program_path()};
      argv.insert(argv.end(), words.begin(), words.end());
      Pty help(argv, width, {"LC_ALL=C.UTF-8"});
      EXPECT_EQ(help.wait(), 0);
      std::istringstream lines(help.read_screen());
      std::size_t count = 0;
      for (std::string line; std::getline(lines, line); ++count) {
        if (line.ends_with('\r')) line.pop_back();
        EXPECT_LE(line.size(), width) << line;
      }
      EXPECT_GT(count, 8U) << help.read_screen();
    }
  }
  const ProcessResult help_output = run_mycojobs({"--help"});
  for (const char* group : {"To begin:\n  run ", "Jobs and flows:\n  job ", "This program:\n"})
    EXPECT_NE(help_output.out.find(group), std::string::npos) << group << help_output.out;
  EXPECT_EQ(help_output.out.find("Others:"), std::string::npos);
  const ProcessResult agent_help = run_mycojobs({"agent", "--help"}), full_help = run_mycojobs({"agent", "--help-all"});
  EXPECT_LE(std::count(agent_help.out.begin(), agent_help.out.end(), '\n'), 40) << "settings are listed by name";
  EXPECT_NE(full_help.out.find("(MYCOJOBS_SLOTS)"), std::string::npos) << full_help.out;
  // A pager does not report the width of its terminal.
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"--help"}, {"run", "--help"}}) {
    const ProcessResult piped_help = run_mycojobs(words);
    std::istringstream lines(piped_help.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
    EXPECT_EQ(piped_help.out.find("\n\n\n"), std::string::npos)
        << "the help must not contain two consecutive empty lines";
  }
}

TEST_F(FirstSteps, ReceiptsAreNarrowAndStartALine) {
  const ProcessResult result =
      run_mycojobs({"run", folder_.write("x.py", "print('no end', end='')"), "--caller", "4294967295"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "no end");
  std::istringstream lines(result.err);
  // The separator "·" has two bytes, so a line of 80 columns can be longer than 80 bytes.
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 84U) << line;
  expect_result(result, 0, "all layers");
  const ProcessResult combined_output = run(
      folder_,
      {"sh", "-c", program_path() + " run " + (folder_ / "x.py") + " --state-dir " + (folder_ / "state") + " 2>&1"});
  EXPECT_NE(combined_output.out.find("no end\njob:1:"), std::string::npos) << combined_output.out;
  const ProcessResult stderr_result =
      run_mycojobs({"run", folder_.write("y.py", "import sys\nsys.stderr.write('no end')")});
  EXPECT_NE(stderr_result.err.find("no end\njob:1:"), std::string::npos) << stderr_result.err;
}

TEST_F(FirstSteps, SecretsAndProgramsAreFoundByTheirSettings) {
  ASSERT_EQ(::mkdir((folder_ / "secrets").c_str(), 0700), 0);
  ASSERT_EQ(::mkdir((folder_ / "secrets/1").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder_.write("secrets/1/token", "abc").c_str(), 0600), 0);
  expect_result(run_mycojobs({"secret", "list", "--secrets-dir", folder_ / "secrets"}), 0, "token");
  expect_result(run_mycojobs({"program", "list"}), 0, "has no programs");
  expect_result(run_mycojobs({"program", "add", folder_ / "none"}), 66, "none: No such file");
}

}  // namespace
}  // namespace mycojobs::test
