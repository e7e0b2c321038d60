// Warm scripts (docs/warm.md) with real Redis, agents and sandboxes.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

// Reports a token of the process, the values kept by earlier runs, and data of this run.
constexpr const char* kScript = R"(
import mycojobs, os, sys, time
token = os.urandom(8).hex()
kept = []
def main(job):
    result['token'] = token
    result['kept'] = ' '.join(kept)
    result['job'] = str(job.id)
    kept.append(str(job.id))
    print('run', job.id, flush=True)
)";

bool is_gone(pid_t pid) { return !std::filesystem::exists("/proc/" + std::to_string(pid)); }
char read_process_state(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto end = text.rfind(')');
  return end == std::string::npos ? '?' : text[end + 2];
}
std::size_t stopped_below(pid_t of) {
  std::size_t count = 0;
  for (const pid_t pid : descendants(of)) count += read_process_state(pid) == 'T' ? 1 : 0;
  return count;
}

class WarmE2e : public Operator {
 protected:
  const std::string policy_ = folder_.write("policy.toml", "warm = {runs = 1000, idle = \"60s\"}\n");
  std::string config(const std::string& more = "") const {
    return folder_.write("c.toml",
                         "secrets_dir = \"" + folder_ / "secrets" + "\"\n[ceiling]\nwarm.runs = 1000\n" + more);
  }
  Process warm_agent(const std::string& more = "") { return agent(1, {"--slots", "4", "--config", config(more)}); }

  std::string submit(const std::string& script, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"job", "submit", "-", "--policy", policy_, "--config", config()});
    if (std::find(more.begin(), more.end(), "--type") == more.end()) more.insert(more.end(), {"--type", "python"});
    ProcessResult command_result = mycojobs_(more, script);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    return command_result.out.substr(0, command_result.out.find('\n'));
  }
  json result(const std::string& job, const std::string& status = "finished") const {
    EXPECT_TRUE(eventually([&] {
      const std::string now = mycojobs_.field(job, "status");
      return now == "finished" || now == "error";
    }));
    EXPECT_EQ(mycojobs_.field(job, "status"), status) << mycojobs_.field(job, "error");
    return json::parse(mycojobs_.field(job, "result"), nullptr, false);
  }
  int reused(const std::string& job) const {
    const json receipt = json::parse(mycojobs_.field(job, "receipt"), nullptr, false);
    return receipt.is_object() ? receipt.value("reused", -1) : -2;
  }
  // Reports whether this host can keep a warm process, which needs cgroups.
  bool stays() const {
    for (int i = 0; i < 2; ++i) {
      const std::string job = submit("def main(job): pass");
      result(job);
      if (reused(job) == 1) return true;
    }
    return false;
  }
};

TEST_F(WarmE2e, OneProcessServesTheJobsOfOneScript) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string first = submit(kScript);
  const std::string token = result(first)["token"];
  EXPECT_EQ(reused(first), 0);
  for (int i = 1; i <= 20; ++i) {
    const std::string job = submit(kScript);
    const json got = result(job);
    EXPECT_EQ(got["token"], token) << "the process is the same";
    EXPECT_EQ(reused(job), i);
    const std::string id = job.substr(job.rfind(':') + 1);
    EXPECT_EQ(got["job"], id);
    EXPECT_EQ(mycojobs_({"job", "logs", job}).out, "run " + id + "\n");
  }
  expect_says(mycojobs_({"job", "explain", first}), 0, "its process had served 0 jobs before");
  EXPECT_GE(stopped_below(running.pid()), 1U) << "between its runs it stands still";
  const std::string other = mycojobs_.submit("result['a'] = 'b'");
  EXPECT_TRUE(mycojobs_.wait_for_value(other, "status", "finished"));
  EXPECT_EQ(reused(other), -1) << "a receipt that is of no warm job does not speak of it";
}

TEST_F(WarmE2e, IsRejectedWithoutACeilingThatAllowsIt) {
  Process running = agent(1, {"--config", folder_.write("plain.toml", "")});
  const ProcessResult here = mycojobs_({"job", "submit", "-", "--type", "python", "--policy", policy_}, kScript);
  expect_says(here, 65, "policy.warm.runs: warm scripts are not allowed for context 1");
  const PlainJob job{.script = kScript, .extra_fields = {"policy", R"({"warm":{"runs":10}})"}};
  test::submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "error");
  EXPECT_EQ(field(redis_, job, "detail"), "policy_refused");
  EXPECT_EQ(field(redis_, job, "error").find("policy.warm.runs: warm scripts are not allowed"), 0U)
      << field(redis_, job, "error");
}

TEST_F(WarmE2e, IsRejectedForScriptsThatHaveNoWarmProcess) {
  const std::string with = config("[executors.bash]\ncommand = [\"/bin/bash\", \"{script}\"]\n");
  Process running = agent(1, {"--config", with});
  const PlainJob job{.script = "true", .type = "bash", .extra_fields = {"policy", R"({"warm":{"runs":10}})"}};
  test::submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "error");
  EXPECT_EQ(field(redis_, job, "detail"), "policy_refused");
  EXPECT_EQ(field(redis_, job, "error"),
            "policy.warm.runs: bash has no warm processes (python, sal, osis have): omit it");
  const ProcessResult here =
      mycojobs_({"job", "submit", "-", "--type", "bash", "--policy", policy_, "--config", with}, "true");
  expect_says(here, 65, "policy.warm.runs: command has no warm processes");
}

TEST_F(WarmE2e, LuaScriptsHaveWarmProcesses) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script =
      "calls = 0\nfunction main(job)\n  calls = calls + 1\n  result.calls = calls\n"
      "  result.job = job.id\n  print('run', job.id)\nend\n";
  for (int i = 1; i <= 5; ++i) {
    const std::string job = submit(script, {"--type", "sal"});
    const json got = result(job);
    EXPECT_EQ(got["calls"], std::to_string(i));
    EXPECT_EQ(reused(job), i - 1);
    EXPECT_EQ(mycojobs_({"job", "logs", job}).out, "run\t" + job.substr(job.rfind(':') + 1) + "\n");
  }
}

TEST_F(WarmE2e, PolicyShowAndCheckReportIt) {
  const ProcessResult show = mycojobs_({"policy", "show", "--config", config()});
  EXPECT_NE(show.out.find("warm.runs"), std::string::npos) << show.out;
  EXPECT_NE(show.out.find("1000"), std::string::npos) << show.out;
  expect_says(mycojobs_({"policy", "check", policy_, "--config", config()}), 0, "warm.runs");
  expect_says(mycojobs_({"policy", "check", policy_, "--type", "bash", "--config",
                         folder_.write("bash.toml",
                                       "[ceiling]\nwarm.runs = 9999\nexec = true\n[executors.bash]\n"
                                       "command = [\"/bin/bash\", \"{script}\"]\n")}),
              65, "policy.warm.runs: bash has no warm processes");
}

TEST_F(WarmE2e, ManualRunCallsMain) {
  Process running = warm_agent();
  const std::string file = folder_.write("by_hand.py", kScript);
  expect_says(mycojobs_({"run", file, "--policy", policy_, "--config", config()}), 0, "reused 0");
  const ProcessResult tried = run(folder_, {program_path(), "sandbox", "run", file, "--policy", policy_});
  EXPECT_EQ(tried.code, 0) << tried.out << tried.err;
  EXPECT_NE(tried.out.find("run 1"), std::string::npos) << tried.out << tried.err;
  const ProcessResult learnt = run(folder_, {program_path(), "policy", "learn", file, "--policy", policy_});
  EXPECT_EQ(learnt.code, 0) << learnt.out << learnt.err;
}

// A job of another caller, script, environment or context must not be able to read anything of the first process.
TEST_F(WarmE2e, ProcessIsNeverSharedWithOtherCallers) {
  Process running = agent(1, {"--slots", "4", "--context", "1,2", "--config", config()});
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string hides = std::string(kScript) + R"(
    import json, builtins
    json.left = builtins.left = globals()['left'] = 'mine'
    os.environ['LEFT'] = 'mine'
    sys.modules['left'] = json
    main.file = open('/tmp/left', 'w+'); main.file.write('mine'); main.file.flush()
    main.again = os.dup(1)
)";
  const std::string checks_done = R"(
    import json, builtins
    seen = [hasattr(json, 'left'), hasattr(builtins, 'left'), 'left' in globals(), 'LEFT' in os.environ,
            'left' in sys.modules, os.path.exists('/tmp/left'), hasattr(main, 'file'),
            len([fd for fd in os.listdir('/proc/self/fd') if int(fd) > 6])]
    result['seen'] = str(seen)
)";
  const std::string policy = R"({"warm":{"runs":1000}})";
  int id = 1;
  const auto run = [&](PlainJob job) {
    job.id = id++;
    job.extra_fields.insert(job.extra_fields.end(), {"policy", policy});
    test::submit(redis_, job);
    EXPECT_EQ(wait_for_status(redis_, job), "finished") << field(redis_, job, "error");
    return std::pair(json::parse(field(redis_, job, "result")), json::parse(field(redis_, job, "receipt")));
  };
  const PlainJob mine{.script = hides + checks_done};
  const std::string token = run(mine).first["token"];
  const auto again = run(mine);
  EXPECT_EQ(again.first["token"], token) << "within a key all of it is shared, but environment and files";
  EXPECT_EQ(again.second["reused"], 1);
  const PlainJob others[] = {
      {.caller = 13, .script = mine.script},
      {.script = mine.script + "\n#"},
      {.context = 2, .script = mine.script},
      {.script = mine.script, .extra_fields = {"env_vars", R"({"A":"1"})"}},
  };
  for (PlainJob other : others) {
    // In the same process, the job would see the first job's token and hidden values before it hides its own.
    const auto [got, receipt] = run(other);
    EXPECT_NE(got["token"], token);
    EXPECT_EQ(receipt["reused"], 0);
    EXPECT_EQ(got["kept"], "");
  }
  const PlainJob looker{.caller = 14, .script = std::string(kScript) + checks_done};
  const auto [got, receipt] = run(looker);
  EXPECT_EQ(got["seen"], "[False, False, False, False, False, False, False, 0]");
  EXPECT_EQ(run(mine).first["token"], token) << "they have not ended the first one";
}

TEST_F(WarmE2e, CancelledRunEndsOnlyItsProcess) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script = std::string(kScript) + "    time.sleep(600 if len(kept) == 2 else 0)\n";
  const std::string first = submit(script);
  const std::string token = result(first)["token"];
  const std::string second = submit(script);  // waits for the warm process
  EXPECT_TRUE(eventually([&] { return mycojobs_({"job", "logs", second}).out.find("run") == 0; }));
  EXPECT_EQ(mycojobs_({"job", "cancel", second}).code, 0);
  EXPECT_TRUE(mycojobs_.wait_for_value(second, "detail", "cancelled"));
  EXPECT_EQ(reused(second), 1);
  const std::string third = submit(script);
  EXPECT_NE(result(third)["token"], token);
  EXPECT_EQ(reused(third), 0);
}

TEST_F(WarmE2e, RunOverItsTimeEndsItsProcess) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script = std::string(kScript) + "    time.sleep(600 if len(kept) == 2 else 0)\n";
  const std::string token = result(submit(script))["token"];
  const std::string second = submit(script, {"--timeout", "2s"});
  result(second, "error");
  EXPECT_EQ(mycojobs_.field(second, "detail"), "timeout");
  EXPECT_EQ(reused(second), 1);
  EXPECT_NE(result(submit(script))["token"], token);
}

TEST_F(WarmE2e, TwoConcurrentRunsHaveTwoProcesses) {
  Process running = warm_agent();
  const std::string script = std::string(kScript) + "    time.sleep(1.5)\n";
  const std::string one = submit(script), two = submit(script);
  EXPECT_NE(result(one)["token"], result(two)["token"]);
}

TEST_F(WarmE2e, NextRunSeesAChangedSecret) {
  std::filesystem::create_directories(folder_ / "secrets/1");
  const auto put = [&](const std::string& value) {
    std::ofstream(folder_ / "secrets/1/db") << value;
    std::filesystem::permissions(folder_ / "secrets/1/db", std::filesystem::perms(0600));
  };
  put("hunter2-of-the-test");
  const std::string with = config("secrets = [\"db\"]\n");
  Process running = agent(1, {"--config", with});
  const std::string policy = folder_.write("secret.toml", "warm.runs = 100\nsecrets = [\"db\"]\n");
  const std::string script =
      std::string(kScript) +
      "    result['as_text'] = str(len(mycojobs.secret('db')))\n    print(mycojobs.secret('db'))\n";
  const auto run = [&] { return mycojobs_.submit(script, {"--policy", policy, "--config", with}); };
  const std::string first = run();
  const std::string token = result(first)["token"];
  const std::string second = run();
  EXPECT_EQ(result(second)["as_text"], "19");
  EXPECT_EQ(mycojobs_({"job", "logs", second}).out.find("hunter2"), std::string::npos);
  put("correct-horse-battery-staple");
  EXPECT_TRUE(eventually([&] {
    const json got = result(run());
    return got["as_text"] == "28" && got["token"] != token;
  }));
}

TEST_F(WarmE2e, RevokedSecretEndsItsIdleProcess) {
  std::filesystem::create_directories(folder_ / "secrets/1");
  std::ofstream(folder_ / "secrets/1/db") << "hunter2-of-the-test";
  std::filesystem::permissions(folder_ / "secrets/1/db", std::filesystem::perms(0600));
  const std::string with = folder_.write(
      "with.toml", "secrets_dir = \"" + folder_ / "secrets" + "\"\n[ceiling]\nwarm.runs = 1000\nsecrets = [\"db\"]\n");
  Process running = agent(1, {"--config", with});
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string policy = folder_.write("secret.toml", "warm = {runs = 100, idle = \"10m\"}\nsecrets = [\"db\"]\n");
  const auto run = [&] { return mycojobs_.submit(kScript, {"--policy", policy, "--config", with}); };
  const json first = result(run()), second = result(run());
  EXPECT_EQ(second["token"], first["token"]);
  EXPECT_EQ(stopped_below(running.pid()), 2U) << "with the one of stays(), which holds no secret";
  std::filesystem::remove(folder_ / "secrets/1/db");
  EXPECT_TRUE(eventually([&] { return stopped_below(running.pid()) == 1; }));
  const std::string refused = run();
  result(refused, "error");
  EXPECT_NE(mycojobs_.field(refused, "error").find("does not exist on this host"), std::string::npos)
      << mycojobs_.field(refused, "error");
}

// Each job sees its own denials, independent of denials of earlier jobs in the same process.
TEST_F(WarmE2e, EachJobSeesItsDeniedRequests) {
  const std::string open = folder_.write("open.toml", "[ceiling]\nwarm.runs = 1000\nnet = [\"b.example:80\"]\n");
  Process running = agent(1, {"--config", open});
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string policy = folder_.write("net.toml", "warm.runs = 100\nnet = [\"b.example:80\"]\n");
  const std::string script = R"(
import urllib.error, urllib.request
def main(job):
    for i in range(25):
        try: urllib.request.urlopen(f'http://a.example:{job.id * 100 + i}/')
        except urllib.error.URLError: pass
)";
  const auto format_result = [&](const std::string& job) {
    EXPECT_EQ(mycojobs_.field(job, "status"), "finished") << mycojobs_.field(job, "error");
    const ProcessResult logs = mycojobs_({"job", "logs", job});
    const std::string lines = logs.out + logs.err;
    int count = 0;
    for (std::size_t at = lines.find("is not on this job's list"); at != std::string::npos; ++count)
      at = lines.find("is not on this job's list", at + 1);
    return count;
  };
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(mycojobs_.submit(script, {"--policy", policy, "--config", open}));
    result(jobs.back());
  }
  EXPECT_EQ(reused(jobs[2]), 2);
  EXPECT_EQ(format_result(jobs[0]), 20);
  EXPECT_EQ(format_result(jobs[1]), 20);
  EXPECT_EQ(format_result(jobs[2]), 20);
}

TEST_F(WarmE2e, KilledAgentLeavesNothing) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  for (const char* more : {"", "#1", "#2"}) result(submit(std::string(kScript) + more));
  const std::string busy = submit(std::string(kScript) + "    time.sleep(600)\n");
  EXPECT_TRUE(mycojobs_.wait_for_value(busy, "status", "started"));
  EXPECT_GE(stopped_below(running.pid()), 3U);
  const auto all = descendants(running.pid());
  running.signal(SIGKILL);
  for (const pid_t pid : all) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  Process next = agent(2, {"--slots", "4", "--config", config()});
  const std::string token = result(submit(kScript))["token"];
  EXPECT_FALSE(token.empty());
}

TEST_F(WarmE2e, LauncherEndsItsIdleProcesses) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string token = result(submit(kScript))["token"];
  const auto all = descendants(running.pid());
  const auto launcher = std::find_if(all.begin(), all.end(), [](pid_t pid) {
    std::string name;
    std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
    return name.starts_with("mycojobs-launch");
  });
  ASSERT_NE(launcher, all.end());
  ASSERT_EQ(::kill(*launcher, SIGKILL), 0);
  for (const pid_t pid : all) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  const std::string next = submit(kScript);
  EXPECT_NE(result(next)["token"], token);
  EXPECT_EQ(reused(next), 0);
}

TEST_F(WarmE2e, KilledStoppedProcessIsReplaced) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string token = result(submit(kScript))["token"];
  for (const pid_t pid : descendants(running.pid())) {
    if (read_process_state(pid) == 'T') ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return stopped_below(running.pid()) == 0; }));
  EXPECT_TRUE(eventually([&] {
    const std::string next = submit(kScript);
    return result(next)["token"] != token && reused(next) == 0;
  }));
}

TEST_F(WarmE2e, StoppedAgentEndsAllProcesses) {
  Process running = warm_agent();
  if (!stays()) GTEST_SKIP() << "no group for memory and processes can be made here";
  result(submit(kScript));
  const auto all = descendants(running.pid());
  running.signal(SIGTERM);
  EXPECT_EQ(running.wait().code, 0);
  for (const pid_t pid : all) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
}

TEST_F(WarmE2e, ArtifactsAndInputsBelongToEachRun) {
  Process running = warm_agent();
  const std::string script = std::string(kScript) +
                             "    (mycojobs.artifacts / f'of-{job.id}').write_text('x')\n"
                             "    open('/tmp/f', 'x').close()\n";
  std::string before;
  for (int i = 0; i < 3; ++i) {
    const std::string job = submit(script);
    result(job);
    const std::string artifacts = mycojobs_.field(job, "artifacts");
    EXPECT_NE(artifacts.find("of-" + job.substr(job.rfind(':') + 1)), std::string::npos) << artifacts;
    EXPECT_TRUE(before.empty() || artifacts.find(before) == std::string::npos) << artifacts;
    before = "of-" + job.substr(job.rfind(':') + 1) + "\"";
  }
}

}  // namespace
}  // namespace mycojobs::test
