// The command line of the program.
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/world.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

std::vector<std::string> make_mycojobs_argv(const TempDir& folder, std::vector<std::string> words) {
  words.insert(words.begin(), program_path());
  words.insert(words.end(), {"--state-dir", folder / "state"});
  return words;
}

TEST(Run, PrivateRedisGivesOutputResultAndReceipt) {
  TempDir folder;
  const std::string file = folder.write("hello.py", "import os\nprint('hello', os.environ['WHO'])\nresult['n'] = 3\n");
  ProcessResult result = run(folder, make_mycojobs_argv(folder, {"run", file, "--env", "WHO=you"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "hello you\n");
  EXPECT_NE(result.err.find("n = 3"), std::string::npos);
  EXPECT_NE(result.err.find("finished ok"), std::string::npos);
  EXPECT_NE(result.err.find("all layers"), std::string::npos);
}

TEST(Run, ExitCodeReflectsTheEndOfTheJob) {
  TempDir folder;
  Process dev(folder, make_mycojobs_argv(folder, {"dev"}));
  struct Case {
    std::string script;
    int code;
    std::vector<std::string> flags;
  };
  const std::vector<Case> cases{{"pass", 0, {}},
                                {"1/0", 1, {}},
                                {"raise SystemExit(7)", 1, {}},
                                {"while True: pass", 124, {"--timeout", "1s"}},
                                {"import ctypes; ctypes.CDLL(None).syscall(101, 0, 0, 0, 0)", 126, {}},
                                {"x = []\nwhile True: x.append(bytearray(b'x') * (16 << 20))", 137, {}}};
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  for (const Case& test_case : cases) {
    auto words = make_mycojobs_argv(folder, {"run", folder.write("job.py", test_case.script)});
    words.insert(words.end(), test_case.flags.begin(), test_case.flags.end());
    ProcessResult result = run(folder, words);
    EXPECT_EQ(result.code, test_case.code) << test_case.script << "\n" << result.err;
  }
  dev.signal(SIGTERM);
  EXPECT_EQ(dev.wait().code, 0) << dev.err();
}

TEST(Run, ScriptWithOnlyMainGetsAHint) {
  TempDir folder;
  const auto run_and_check_hint = [&](const std::string& script) {
    const ProcessResult result = run(folder, make_mycojobs_argv(folder, {"run", folder.write("main.py", script)}));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err.find("defines main(job), which nothing has called") != std::string::npos;
  };
  EXPECT_TRUE(run_and_check_hint("import json\n\ndef main(job):\n    result['x'] = 1\n"));
  EXPECT_FALSE(run_and_check_hint("def main(job=None):\n    pass\n\nmain()\n"));
  EXPECT_FALSE(run_and_check_hint("def main(job):\n    pass\n\nresult['x'] = 1\n"))
      << "a script that sets a result gets no hint";
}

TEST(Run, JsonIsOneDocumentWithLogAndReceipt) {
  TempDir folder;
  ProcessResult result =
      run(folder,
          make_mycojobs_argv(folder, {"run", folder.write("a.py", "print('one')\nresult['x'] = [1, 2]"), "--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object["status"], "finished");
  EXPECT_EQ(object["result"]["x"], json({1, 2}));
  EXPECT_EQ(object["logs"][0]["text"], "one\n");
  EXPECT_TRUE(object["usage"].is_object());
  EXPECT_TRUE(object["receipt"].is_object());
}

TEST(Run, InterruptCancelsTheJob) {
  TempDir folder;
  Process running(
      folder, make_mycojobs_argv(
                  folder, {"run", folder.write("long.py", "import time\nprint('up', flush=True)\ntime.sleep(600)")}));
  ASSERT_TRUE(eventually([&] { return running.out() == "up\n"; })) << running.err();
  running.signal(SIGINT);
  EXPECT_EQ(running.wait().code, 130) << running.err();
}

TEST(Run, ErrorsAreReportedBeforeAnythingStarts) {
  TempDir folder;
  const std::string file = folder.write("job.py", "pass");
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string expected_text;
  };
  for (const Case& test_case : std::vector<Case>{{{"run", folder / "none.py"}, 66, "none.py"},
                                                 {{"run", folder.write("job.xyz", "pass")}, 65, "--type"},
                                                 {{"run", file, "--env", "nothing"}, 65, "NAME=VALUE"},
                                                 {{"run", file, "--timeout", "10"}, 65, "10s"},
                                                 {{"run", file, "--nonsense"}, 64, "nonsense"},
                                                 {{"job", "show", "x"}, 65, "CALLER:ID"}}) {
    ProcessResult result = run(folder, make_mycojobs_argv(folder, test_case.words));
    EXPECT_EQ(result.code, test_case.code) << result.err;
    EXPECT_NE(result.err.find(test_case.expected_text), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "state/redis/redis.sock"));
  }
}

// The programs run in a network namespace of their own, in which no server answers.
TEST(Run, ProgramsUseTheLocalRedisByDefault) {
  TempDir folder;
  for (const char* command : {"agent", "coordinator"}) {
    Process started(
        folder, {"unshare", ::geteuid() == 0 ? "-n" : "-rn", program_path(), command, "--state-dir", folder / command});
    EXPECT_TRUE(eventually([&] { return started.err().find("Redis at 127.0.0.1:6379") != std::string::npos; }))
        << started.err();
    EXPECT_NE(started.err().find("no Redis is named"), std::string::npos) << started.err();
    started.signal(SIGKILL);
    started.wait();
  }
}

TEST(Jobs, ListShowAndLogsReadTheEndedRun) {
  TempDir folder;
  ASSERT_EQ(
      run(folder, make_mycojobs_argv(folder, {"run", folder.write("a.py", "print('kept')"), "--name", "first"})).code,
      0);
  ASSERT_EQ(run(folder, make_mycojobs_argv(folder, {"run", folder.write("b.py", "1/0")})).code, 1);
  const json list = json::parse(run(folder, make_mycojobs_argv(folder, {"job", "list", "--json"})).out);
  ASSERT_EQ(list.size(), 2U);
  const ProcessResult table = run(folder, make_mycojobs_argv(folder, {"job", "list"}));
  EXPECT_NE(table.out.find("first"), std::string::npos);
  EXPECT_NE(table.out.find("ZeroDivisionError"), std::string::npos);
  EXPECT_EQ(run(folder, make_mycojobs_argv(folder, {"job", "logs", "1:1"})).out, "kept\n");
  const ProcessResult shown = run(folder, make_mycojobs_argv(folder, {"job", "show", "2"}));
  EXPECT_NE(shown.out.find("exception"), std::string::npos) << shown.err;
  const ProcessResult absent = run(folder, make_mycojobs_argv(folder, {"job", "show", "9"}));
  EXPECT_EQ(absent.code, 66);
}

TEST(Doctor, FindsEveryLayerAndReportsInJson) {
  TempDir folder;
  ProcessResult result = run(folder, make_mycojobs_argv(folder, {"doctor", "--json"}));
  const json findings = json::parse(result.out);
  std::map<std::string, std::string> by_area;
  for (const json& finding : findings) {
    by_area[finding["area"]] += finding["name"].get<std::string>() + " ";
    EXPECT_NE(finding["state"], "error") << finding.dump();
  }
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(by_area["sandbox"].find("seccomp"), std::string::npos);
  EXPECT_NE(by_area["redis"].find("maxmemory-policy"), std::string::npos);
  EXPECT_NE(by_area["executor"].find("python"), std::string::npos);
}

TEST(Examples, HelloJobsEndAsListed) {
  TempDir folder;
  Process dev(folder, make_mycojobs_argv(folder, {"dev"}));
  std::istringstream rows(read_file(mj::test::source_path("examples/hello/jobs.txt")));
  int job_count = 0;
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  for (std::string row; std::getline(rows, row);) {
    if (row.empty() || row[0] == '#') continue;
    std::istringstream words(row);
    std::string file;
    int code = -1;
    words >> file >> code;
    std::vector<std::string> command{"run", mj::test::source_path("examples/hello/") + file};
    for (std::string flag; words >> flag;) command.push_back(flag);
    EXPECT_EQ(run(folder, make_mycojobs_argv(folder, command)).code, code) << file;
    ++job_count;
  }
  EXPECT_EQ(job_count, 5);
}

TEST(Dev, LeavesNothingBehindWhenKilled) {
  TempDir folder;
  Process dev(folder, make_mycojobs_argv(folder, {"dev"}));
  ASSERT_TRUE(eventually([&] { return dev.err().find("serves") != std::string::npos; })) << dev.err();
  // All descendants: helpers, Redis, and their children.
  std::vector<pid_t> processes{dev.pid()};
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const ProcessResult children = run(folder, {"pgrep", "-P", std::to_string(processes[i])});
    std::istringstream pids(children.out);
    for (pid_t pid = 0; pids >> pid;) processes.push_back(pid);
  }
  EXPECT_GE(processes.size(), 3U);
  dev.signal(SIGKILL);
  dev.wait();
  for (pid_t pid : processes) {
    EXPECT_TRUE(eventually([&] { return ::kill(pid, 0) != 0; })) << "process " << pid << " is still there";
  }
}

}  // namespace
}  // namespace mycojobs::test
