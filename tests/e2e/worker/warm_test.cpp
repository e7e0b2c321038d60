// Warm scripts (docs/warm.md): one process serves several runs of a script. With real Redis, agents and sandboxes.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

// Reports a random token of the process, the ids of earlier jobs of the process, and the id of this job.
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
// Counts the stopped processes below a process.
std::size_t count_stopped(pid_t root) {
  std::size_t count = 0;
  for (const pid_t pid : descendants(root)) count += read_process_state(pid) == 'T' ? 1 : 0;
  return count;
}

class WarmE2e : public Operator {
 protected:
  const std::string policy_ = folder_.write("policy.toml", "warm = {runs = 1000, idle = \"60s\"}\n");
  std::string write_config(const std::string& more_toml = "") const {
    return folder_.write("c.toml",
                         "secrets_dir = \"" + folder_ / "secrets" + "\"\n[ceiling]\nwarm.runs = 1000\n" + more_toml);
  }
  Process start_warm_agent(const std::string& more_toml = "") {
    return start_registered_agent(1, {"--slots", "4", "--config", write_config(more_toml)});
  }

  std::string submit(const std::string& script, std::vector<std::string> more_options = {}) const {
    more_options.insert(more_options.begin(), {"job", "submit", "-", "--policy", policy_, "--config", write_config()});
    if (std::find(more_options.begin(), more_options.end(), "--type") == more_options.end())
      more_options.insert(more_options.end(), {"--type", "python"});
    ProcessResult command_result = mycojobs_(more_options, script);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    return command_result.out.substr(0, command_result.out.find('\n'));
  }
  // Waits for the end of the job, checks the status and returns the result.
  json wait_for_result(const std::string& job, const std::string& status = "finished") const {
    EXPECT_TRUE(eventually([&] {
      const std::string current_status = mycojobs_.read_field(job, "status");
      return current_status == "finished" || current_status == "error";
    }));
    EXPECT_EQ(mycojobs_.read_field(job, "status"), status) << mycojobs_.read_field(job, "error");
    return json::parse(mycojobs_.read_field(job, "result"), nullptr, false);
  }
  // Returns how many jobs the process of this job had served before; -1: the receipt has no such field, -2: no receipt.
  int read_reused_count(const std::string& job) const {
    const json receipt = json::parse(mycojobs_.read_field(job, "receipt"), nullptr, false);
    return receipt.is_object() ? receipt.value("reused", -1) : -2;
  }
  // Returns whether a second job uses the process of the first, for which the host needs cgroups.
  bool can_reuse_process() const {
    for (int i = 0; i < 2; ++i) {
      const std::string job = submit("def main(job): pass");
      wait_for_result(job);
      if (read_reused_count(job) == 1) return true;
    }
    return false;
  }
};

TEST_F(WarmE2e, OneProcessServesTheJobsOfOneScript) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string first = submit(kScript);
  const std::string token = wait_for_result(first)["token"];
  EXPECT_EQ(read_reused_count(first), 0);
  for (int i = 1; i <= 20; ++i) {
    const std::string job = submit(kScript);
    const json result = wait_for_result(job);
    EXPECT_EQ(result["token"], token) << "all runs must share one process";
    EXPECT_EQ(read_reused_count(job), i);
    const std::string id = job.substr(job.rfind(':') + 1);
    EXPECT_EQ(result["job"], id);
    EXPECT_EQ(mycojobs_({"job", "logs", job}).out, "run " + id + "\n");
  }
  expect_result(mycojobs_({"job", "explain", first}), 0, "its process had served 0 jobs before");
  EXPECT_GE(count_stopped(agent.pid()), 1U) << "the process is stopped between its runs";
  const std::string plain_job = mycojobs_.submit("result['a'] = 'b'");
  EXPECT_TRUE(mycojobs_.wait_for_value(plain_job, "status", "finished"));
  EXPECT_EQ(read_reused_count(plain_job), -1) << "the receipt of a job that is not warm has no such field";
}

TEST_F(WarmE2e, IsRejectedWithoutACeilingThatAllowsIt) {
  Process agent = start_registered_agent(1, {"--config", folder_.write("plain.toml", "")});
  const ProcessResult submit_result =
      mycojobs_({"job", "submit", "-", "--type", "python", "--policy", policy_}, kScript);
  expect_result(submit_result, 65, "policy.warm.runs: warm scripts are not allowed for context 1");
  const PlainJob job{.script = kScript, .extra_fields = {"policy", R"({"warm":{"runs":10}})"}};
  test::submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "error");
  EXPECT_EQ(read_field(redis_, job, "detail"), "policy_refused");
  EXPECT_EQ(read_field(redis_, job, "error").find("policy.warm.runs: warm scripts are not allowed"), 0U)
      << read_field(redis_, job, "error");
}

TEST_F(WarmE2e, IsRejectedForScriptsThatHaveNoWarmProcess) {
  const std::string config_path = write_config("[executors.bash]\ncommand = [\"/bin/bash\", \"{script}\"]\n");
  Process agent = start_registered_agent(1, {"--config", config_path});
  const PlainJob job{.script = "true", .type = "bash", .extra_fields = {"policy", R"({"warm":{"runs":10}})"}};
  test::submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "error");
  EXPECT_EQ(read_field(redis_, job, "detail"), "policy_refused");
  EXPECT_EQ(read_field(redis_, job, "error"),
            "policy.warm.runs: bash has no warm processes (python, sal, osis have): omit it");
  const ProcessResult submit_result =
      mycojobs_({"job", "submit", "-", "--type", "bash", "--policy", policy_, "--config", config_path}, "true");
  expect_result(submit_result, 65, "policy.warm.runs: command has no warm processes");
}

TEST_F(WarmE2e, LuaScriptsHaveWarmProcesses) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script =
      "calls = 0\nfunction main(job)\n  calls = calls + 1\n  result.calls = calls\n"
      "  result.job = job.id\n  print('run', job.id)\nend\n";
  for (int i = 1; i <= 5; ++i) {
    const std::string job = submit(script, {"--type", "sal"});
    const json result = wait_for_result(job);
    EXPECT_EQ(result["calls"], std::to_string(i));
    EXPECT_EQ(read_reused_count(job), i - 1);
    EXPECT_EQ(mycojobs_({"job", "logs", job}).out, "run\t" + job.substr(job.rfind(':') + 1) + "\n");
  }
}

TEST_F(WarmE2e, PolicyShowAndCheckReportIt) {
  const ProcessResult show = mycojobs_({"policy", "show", "--config", write_config()});
  EXPECT_NE(show.out.find("warm.runs"), std::string::npos) << show.out;
  EXPECT_NE(show.out.find("1000"), std::string::npos) << show.out;
  expect_result(mycojobs_({"policy", "check", policy_, "--config", write_config()}), 0, "warm.runs");
  expect_result(mycojobs_({"policy", "check", policy_, "--type", "bash", "--config",
                           folder_.write("bash.toml",
                                         "[ceiling]\nwarm.runs = 9999\nexec = true\n[executors.bash]\n"
                                         "command = [\"/bin/bash\", \"{script}\"]\n")}),
                65, "policy.warm.runs: bash has no warm processes");
}

TEST_F(WarmE2e, ManualRunCallsMain) {
  Process agent = start_warm_agent();
  const std::string file = folder_.write("by_hand.py", kScript);
  expect_result(mycojobs_({"run", file, "--policy", policy_, "--config", write_config()}), 0, "reused 0");
  const ProcessResult sandbox_result = run(folder_, {program_path(), "sandbox", "run", file, "--policy", policy_});
  EXPECT_EQ(sandbox_result.code, 0) << sandbox_result.out << sandbox_result.err;
  EXPECT_NE(sandbox_result.out.find("run 1"), std::string::npos) << sandbox_result.out << sandbox_result.err;
  const ProcessResult learn_result = run(folder_, {program_path(), "policy", "learn", file, "--policy", policy_});
  EXPECT_EQ(learn_result.code, 0) << learn_result.out << learn_result.err;
}

// A job of another caller, script, environment or context must not be able to read anything of the first process.
TEST_F(WarmE2e, ProcessIsNeverSharedWithOtherCallers) {
  Process agent = start_registered_agent(1, {"--slots", "4", "--context", "1,2", "--config", write_config()});
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string hiding_script = std::string(kScript) + R"(
    import json, builtins
    json.left = builtins.left = globals()['left'] = 'mine'
    os.environ['LEFT'] = 'mine'
    sys.modules['left'] = json
    main.file = open('/tmp/left', 'w+'); main.file.write('mine'); main.file.flush()
    main.again = os.dup(1)
)";
  const std::string checking_code = R"(
    import json, builtins
    seen = [hasattr(json, 'left'), hasattr(builtins, 'left'), 'left' in globals(), 'LEFT' in os.environ,
            'left' in sys.modules, os.path.exists('/tmp/left'), hasattr(main, 'file'),
            len([fd for fd in os.listdir('/proc/self/fd') if int(fd) > 7])]
    result['seen'] = str(seen)
)";
  const std::string policy = R"({"warm":{"runs":1000}})";
  int id = 1;
  const auto run = [&](PlainJob job) {
    job.id = id++;
    job.extra_fields.insert(job.extra_fields.end(), {"policy", policy});
    test::submit(redis_, job);
    EXPECT_EQ(wait_for_status(redis_, job), "finished") << read_field(redis_, job, "error");
    return std::pair(json::parse(read_field(redis_, job, "result")), json::parse(read_field(redis_, job, "receipt")));
  };
  const PlainJob own_job{.script = hiding_script + checking_code};
  const std::string token = run(own_job).first["token"];
  const auto second_run = run(own_job);
  EXPECT_EQ(second_run.first["token"], token)
      << "runs with the same key share the process, but not environment and files";
  EXPECT_EQ(second_run.second["reused"], 1);
  const PlainJob jobs_of_other_keys[] = {
      {.caller = 13, .script = own_job.script},
      {.script = own_job.script + "\n#"},
      {.context = 2, .script = own_job.script},
      {.script = own_job.script, .extra_fields = {"env_vars", R"({"A":"1"})"}},
  };
  for (PlainJob plain_job : jobs_of_other_keys) {
    // In the same process, the job would see the first job's token and hidden values before it hides its own.
    const auto [result, receipt] = run(plain_job);
    EXPECT_NE(result["token"], token);
    EXPECT_EQ(receipt["reused"], 0);
    EXPECT_EQ(result["kept"], "");
  }
  const PlainJob checking_job{.caller = 14, .script = std::string(kScript) + checking_code};
  const auto [result, receipt] = run(checking_job);
  EXPECT_EQ(result["seen"], "[False, False, False, False, False, False, False, 0]");
  EXPECT_EQ(run(own_job).first["token"], token) << "the other jobs have not ended the first process";
}

TEST_F(WarmE2e, CancelledRunEndsOnlyItsProcess) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script = std::string(kScript) + "    time.sleep(600 if len(kept) == 2 else 0)\n";
  const std::string first = submit(script);
  const std::string token = wait_for_result(first)["token"];
  const std::string second = submit(script);  // waits for the warm process
  EXPECT_TRUE(eventually([&] { return mycojobs_({"job", "logs", second}).out.find("run") == 0; }));
  EXPECT_EQ(mycojobs_({"job", "cancel", second}).code, 0);
  EXPECT_TRUE(mycojobs_.wait_for_value(second, "detail", "cancelled"));
  EXPECT_EQ(read_reused_count(second), 1);
  const std::string third = submit(script);
  EXPECT_NE(wait_for_result(third)["token"], token);
  EXPECT_EQ(read_reused_count(third), 0);
}

TEST_F(WarmE2e, RunOverItsTimeEndsItsProcess) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string script = std::string(kScript) + "    time.sleep(600 if len(kept) == 2 else 0)\n";
  const std::string token = wait_for_result(submit(script))["token"];
  const std::string second = submit(script, {"--timeout", "2s"});
  wait_for_result(second, "error");
  EXPECT_EQ(mycojobs_.read_field(second, "detail"), "timeout");
  EXPECT_EQ(read_reused_count(second), 1);
  EXPECT_NE(wait_for_result(submit(script))["token"], token);
}

TEST_F(WarmE2e, TwoConcurrentRunsHaveTwoProcesses) {
  Process agent = start_warm_agent();
  const std::string script = std::string(kScript) + "    time.sleep(1.5)\n";
  const std::string first_job = submit(script), second_job = submit(script);
  EXPECT_NE(wait_for_result(first_job)["token"], wait_for_result(second_job)["token"]);
}

TEST_F(WarmE2e, NextRunSeesAChangedSecret) {
  std::filesystem::create_directories(folder_ / "secrets/1");
  const auto write_secret = [&](const std::string& value) {
    std::ofstream(folder_ / "secrets/1/db") << value;
    std::filesystem::permissions(folder_ / "secrets/1/db", std::filesystem::perms(0600));
  };
  write_secret("hunter2-of-the-test");
  const std::string config_path = write_config("secrets = [\"db\"]\n");
  Process agent = start_registered_agent(1, {"--config", config_path});
  const std::string policy = folder_.write("secret.toml", "warm.runs = 100\nsecrets = [\"db\"]\n");
  const std::string script =
      std::string(kScript) +
      "    result['as_text'] = str(len(mycojobs.secret('db')))\n    print(mycojobs.secret('db'))\n";
  const auto run = [&] { return mycojobs_.submit(script, {"--policy", policy, "--config", config_path}); };
  const std::string first = run();
  const std::string token = wait_for_result(first)["token"];
  const std::string second = run();
  EXPECT_EQ(wait_for_result(second)["as_text"], "19");
  EXPECT_EQ(mycojobs_({"job", "logs", second}).out.find("hunter2"), std::string::npos);
  write_secret("correct-horse-battery-staple");
  EXPECT_TRUE(eventually([&] {
    const json result = wait_for_result(run());
    return result["as_text"] == "28" && result["token"] != token;
  }));
}

TEST_F(WarmE2e, RevokedSecretEndsItsIdleProcess) {
  std::filesystem::create_directories(folder_ / "secrets/1");
  std::ofstream(folder_ / "secrets/1/db") << "hunter2-of-the-test";
  std::filesystem::permissions(folder_ / "secrets/1/db", std::filesystem::perms(0600));
  const std::string config_path = folder_.write(
      "with.toml", "secrets_dir = \"" + folder_ / "secrets" + "\"\n[ceiling]\nwarm.runs = 1000\nsecrets = [\"db\"]\n");
  Process agent = start_registered_agent(1, {"--config", config_path});
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string policy = folder_.write("secret.toml", "warm = {runs = 100, idle = \"10m\"}\nsecrets = [\"db\"]\n");
  const auto run = [&] { return mycojobs_.submit(kScript, {"--policy", policy, "--config", config_path}); };
  const json first = wait_for_result(run()), second = wait_for_result(run());
  EXPECT_EQ(second["token"], first["token"]);
  EXPECT_EQ(count_stopped(agent.pid()), 2U) << "one of them is the process of can_keep_process(), which has no secret";
  std::filesystem::remove(folder_ / "secrets/1/db");
  EXPECT_TRUE(eventually([&] { return count_stopped(agent.pid()) == 1; }));
  const std::string refused_job = run();
  wait_for_result(refused_job, "error");
  EXPECT_NE(mycojobs_.read_field(refused_job, "error").find("does not exist on this host"), std::string::npos)
      << mycojobs_.read_field(refused_job, "error");
}

// Each job sees its own denials, independent of denials of earlier jobs in the same process.
TEST_F(WarmE2e, EachJobSeesItsDeniedRequests) {
  const std::string config_path = folder_.write("open.toml", "[ceiling]\nwarm.runs = 1000\nnet = [\"b.example:80\"]\n");
  Process agent = start_registered_agent(1, {"--config", config_path});
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string policy = folder_.write("net.toml", "warm.runs = 100\nnet = [\"b.example:80\"]\n");
  const std::string script = R"(
import urllib.error, urllib.request
def main(job):
    for i in range(25):
        try: urllib.request.urlopen(f'http://a.example:{job.id * 100 + i}/')
        except urllib.error.URLError: pass
)";
  const auto count_denials = [&](const std::string& job) {
    EXPECT_EQ(mycojobs_.read_field(job, "status"), "finished") << mycojobs_.read_field(job, "error");
    const ProcessResult logs = mycojobs_({"job", "logs", job});
    const std::string lines = logs.out + logs.err;
    int count = 0;
    for (std::size_t at = lines.find("is not on this job's list"); at != std::string::npos; ++count)
      at = lines.find("is not on this job's list", at + 1);
    return count;
  };
  std::vector<std::string> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(mycojobs_.submit(script, {"--policy", policy, "--config", config_path}));
    wait_for_result(jobs.back());
  }
  EXPECT_EQ(read_reused_count(jobs[2]), 2);
  EXPECT_EQ(count_denials(jobs[0]), 20);
  EXPECT_EQ(count_denials(jobs[1]), 20);
  EXPECT_EQ(count_denials(jobs[2]), 20);
}

TEST_F(WarmE2e, KilledAgentLeavesNothing) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  for (const char* comment : {"", "#1", "#2"}) wait_for_result(submit(std::string(kScript) + comment));
  const std::string running_job = submit(std::string(kScript) + "    time.sleep(600)\n");
  EXPECT_TRUE(mycojobs_.wait_for_value(running_job, "status", "started"));
  EXPECT_GE(count_stopped(agent.pid()), 3U);
  const auto processes = descendants(agent.pid());
  agent.signal(SIGKILL);
  for (const pid_t pid : processes) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  Process second_agent = start_registered_agent(2, {"--slots", "4", "--config", write_config()});
  const std::string token = wait_for_result(submit(kScript))["token"];
  EXPECT_FALSE(token.empty());
}

TEST_F(WarmE2e, LauncherEndsItsIdleProcesses) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string token = wait_for_result(submit(kScript))["token"];
  const auto processes = descendants(agent.pid());
  const auto launcher = std::find_if(processes.begin(), processes.end(),
                                     [](pid_t pid) { return read_process_name(pid).starts_with("mycojobs-launch"); });
  ASSERT_NE(launcher, processes.end());
  ASSERT_EQ(::kill(*launcher, SIGKILL), 0);
  for (const pid_t pid : processes) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  const std::string next_job = submit(kScript);
  EXPECT_NE(wait_for_result(next_job)["token"], token);
  EXPECT_EQ(read_reused_count(next_job), 0);
}

TEST_F(WarmE2e, KilledStoppedProcessIsReplaced) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  const std::string token = wait_for_result(submit(kScript))["token"];
  for (const pid_t pid : descendants(agent.pid())) {
    if (read_process_state(pid) == 'T') ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return count_stopped(agent.pid()) == 0; }));
  EXPECT_TRUE(eventually([&] {
    const std::string next_job = submit(kScript);
    return wait_for_result(next_job)["token"] != token && read_reused_count(next_job) == 0;
  }));
}

TEST_F(WarmE2e, StoppedAgentEndsAllProcesses) {
  Process agent = start_warm_agent();
  if (!can_reuse_process()) GTEST_SKIP() << "no group for memory and processes can be made here";
  wait_for_result(submit(kScript));
  const auto processes = descendants(agent.pid());
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait().code, 0);
  for (const pid_t pid : processes) EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
}

TEST_F(WarmE2e, ArtifactsAndInputsBelongToEachRun) {
  Process agent = start_warm_agent();
  const std::string script = std::string(kScript) +
                             "    (mycojobs.artifacts / f'of-{job.id}').write_text('x')\n"
                             "    open('/tmp/f', 'x').close()\n";
  std::string previous_artifact;
  for (int i = 0; i < 3; ++i) {
    const std::string job = submit(script);
    wait_for_result(job);
    const std::string artifacts = mycojobs_.read_field(job, "artifacts");
    EXPECT_NE(artifacts.find("of-" + job.substr(job.rfind(':') + 1)), std::string::npos) << artifacts;
    EXPECT_TRUE(previous_artifact.empty() || artifacts.find(previous_artifact) == std::string::npos) << artifacts;
    previous_artifact = "of-" + job.substr(job.rfind(':') + 1) + "\"";
  }
}

}  // namespace
}  // namespace mycojobs::test
