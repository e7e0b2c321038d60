// The commands job submit, list, cancel and retry, with valid and invalid arguments.
#include <csignal>
#include <cstdint>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Submit : public Operator {};
class Job : public Operator {};

TEST_F(Submit, PrintsTheKeyOfAJobThatAnAgentThenRuns) {
  const std::string key = mycojobs_.submit("import os\nresult['who'] = os.environ['WHO']", {"--env", "WHO=me"});
  EXPECT_EQ(key, "job:1:1");
  EXPECT_EQ(mycojobs_.read_field(key, "status"), "dispatched");
  Process agent = start_registered_agent(1);
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << agent.err();
  EXPECT_EQ(mycojobs_.read_field(key, "result"), R"({"who":"me"})");
}

TEST_F(Submit, FollowedSubmitExitsLikeTheJob) {
  Process agent = start_registered_agent(1);
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--follow"}, "print('seen')"), 0, "seen");
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--follow"}, "1/0"), 1, "ZeroDivisionError");
}

TEST_F(Submit, EveryFlagIsStoredInTheRecord) {
  mycojobs_.submit("pass", {"--id", "9"});
  const auto job = mycojobs_.run_json({"job",
                                       "submit",
                                       folder_.write("x.py", "pass"),
                                       "--caller",
                                       "1",
                                       "--id",
                                       "70",
                                       "--name",
                                       "seventy",
                                       "--timeout",
                                       "2s",
                                       "--retries",
                                       "3",
                                       "--run-at",
                                       "2040-01-01T00:00:00Z",
                                       "--priority",
                                       "-5",
                                       "--queue-timeout",
                                       "1h",
                                       "--depends",
                                       "9",
                                       "--depends",
                                       "1:8",
                                       "--prerequisite",
                                       "wait:1s",
                                       "--concurrency-key",
                                       "db",
                                       "--concurrency-limit",
                                       "2",
                                       "--idempotency-key",
                                       "once"});
  EXPECT_EQ(job["key"], "job:1:70");
  EXPECT_EQ(job["name"], "seventy");
  EXPECT_EQ(job["timeout"], 2);
  EXPECT_EQ(job["retries"], 3);
  EXPECT_EQ(job["run_at_ms"], 2208988800000);
  EXPECT_EQ(job["priority"], -5);
  EXPECT_EQ(job["queue_timeout_ms"], 3600000);
  EXPECT_EQ(job["dependends"], nlohmann::json({9, 8}));
  EXPECT_EQ(job["prerequisites"], nlohmann::json({"wait:1s"}));
  EXPECT_EQ(job["concurrency_key"], "db");
  EXPECT_EQ(job["concurrency_limit"], 2);
  EXPECT_EQ(job["idempotency_key"], "once");
}

TEST_F(Submit, UnknownTypeIsReportedAndSent) {
  const std::string script = folder_.write("x.py", "pass");
  const ProcessResult result = mycojobs_({"job", "submit", script, "--type", "pyhton"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("did you mean \"python\"?"), std::string::npos) << result.err;
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:pyhton"}), "1");
  EXPECT_EQ(mycojobs_({"job", "submit", script, "--type", "python"}).err.find("did you mean"), std::string::npos);
}

TEST_F(Submit, DelayIsCountedByTheClockOfRedis) {
  const auto job = mycojobs_.run_json({"job", "submit", folder_.write("x.py", "pass"), "--delay", "1h"});
  EXPECT_GE(job["run_at_ms"], job["queued_ms"].get<std::uint64_t>() + 3590000);
  EXPECT_LE(job["run_at_ms"], job["queued_ms"].get<std::uint64_t>() + 3600000);
  EXPECT_EQ(job["detail"], "delayed");
}

TEST_F(Submit, ErrorsAreReportedBeforeAnythingIsStored) {
  const std::string file = folder_.write("job.py", "pass");
  struct Case {
    std::vector<std::string> flags;
    int code;
    std::string expected_text;
  };
  for (const Case& test_case :
       std::vector<Case>{{{"--id", "0"}, 65, "--id"},
                         {{"--id", "4294967296"}, 65, "--id"},
                         {{"--caller", "me"}, 65, "--caller"},
                         {{"--retries", "256"}, 65, "255"},
                         {{"--retries", "-1"}, 65, "--retries"},
                         {{"--delay", "10"}, 65, "10s"},
                         {{"--delay", "1s", "--run-at", "2040-01-01T00:00:00Z"}, 65, "one of them"},
                         {{"--run-at", "tomorrow"}, 65, "2030-01-31T12:00:00Z"},
                         {{"--run-at", "2040-02-30T00:00:00Z"}, 65, "calendar"},
                         {{"--priority", "101"}, 65, "-100 to 100"},
                         {{"--priority", "high"}, 65, "-100 to 100"},
                         {{"--queue-timeout", "0s"}, 65, "--queue-timeout"},
                         {{"--timeout", "0s"}, 65, "--timeout"},
                         {{"--depends", "12:4"}, 65, "caller 1"},
                         {{"--depends", "x"}, 65, "--depends"},
                         {{"--id", "5", "--depends", "5"}, 65, "itself"},
                         {{"--concurrency-limit", "2"}, 65, "concurrency_key"},
                         {{"--concurrency-limit", "0"}, 65, "--concurrency-limit"},
                         {{"--idempotency-key", ""}, 65, "--idempotency-key"},
                         {{"--idempotency-key", std::string(300, 'k')}, 65, "--idempotency-key"},
                         {{"--type", "Python 3"}, 65, "--type"},
                         {{"--env", "=x"}, 65, "NAME=VALUE"},
                         {{"--nonsense"}, 64, "nonsense"}}) {
    std::vector<std::string> words{"job", "submit", file};
    words.insert(words.end(), test_case.flags.begin(), test_case.flags.end());
    SCOPED_TRACE(test_case.flags[0]);
    expect_result(mycojobs_(words), test_case.code, test_case.expected_text);
  }
  expect_result(mycojobs_({"job", "submit", folder_ / "none.py"}), 66, "no such file");
  expect_result(mycojobs_({"job", "submit", "-"}, "pass"), 65, "--type");
  expect_result(mycojobs_({"job", "submit"}), 64, "FILE");
  EXPECT_EQ(redis_.cli(1, {"KEYS", "job:*"}), "");
}

TEST_F(Submit, DependencyOnTheFirstJobIsValid) {
  const std::string first = mycojobs_.submit("pass");
  EXPECT_EQ(first, "job:1:1");
  EXPECT_EQ(mycojobs_.submit("pass", {"--depends", "1"}), "job:1:2");
}

TEST_F(Submit, SameIdOrKeyIsOneJob) {
  EXPECT_EQ(mycojobs_.submit("pass", {"--id", "7"}), "job:1:7");
  EXPECT_EQ(mycojobs_.submit("pass", {"--id", "7"}), "job:1:7");
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--id", "7"}, "1/0"), 65, "other content");
  const std::string job_with_key = mycojobs_.submit("pass", {"--idempotency-key", "nightly"});
  EXPECT_EQ(mycojobs_.submit("pass", {"--idempotency-key", "nightly"}), job_with_key);
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--idempotency-key", "nightly"}, "1/0"), 65,
                "other content");
  EXPECT_NE(mycojobs_.submit("pass", {"--idempotency-key", "nightly", "--caller", "2"}), job_with_key);
  EXPECT_NE(mycojobs_.submit("pass"), mycojobs_.submit("pass"));
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "5");
}

// Redis has stored the job, but the submitter receives an error because no replica has acknowledged it.
TEST_F(Submit, LostReplyCreatesNoSecondJob) {
  Process submitter(
      folder_, mycojobs_.make_argv({"job", "submit", folder_.write("x.py", "pass"), "--redis-wait-replicas", "1"}));
  ASSERT_TRUE(eventually([&] {
    return redis_.cli(0, {"INFO", "commandstats"}).find("cmdstat_wait:calls=2") != std::string::npos;
  })) << submitter.err();
  submitter.signal(SIGINT);
  const ProcessResult result = submitter.wait();
  expect_result(result, 69, "--idempotency-key ");
  EXPECT_EQ(redis_.cli(1, {"KEYS", "job:*"}), "job:1:1");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "1");
  const auto key_begin = result.err.find("--idempotency-key ") + 18;
  const std::string key = result.err.substr(key_begin, result.err.find(' ', key_begin) - key_begin);
  const ProcessResult second_result = mycojobs_({"job", "submit", folder_ / "x.py", "--idempotency-key", key});
  EXPECT_EQ(second_result.out, "job:1:1\n") << second_result.err;
}

TEST_F(Submit, InvalidAddressIsReportedAtOnce) {
  const std::string file = folder_.write("x.py", "pass");
  ProcessResult result =
      run(folder_, {program_path(), "job", "submit", file, "--redis", "unix:" + (folder_ / "none.sock")});
  expect_result(result, 69, "none.sock");
  EXPECT_EQ(result.err.find("trying again"), std::string::npos) << result.err;
}

TEST(SubmitPrivateRedis, KeepsTheJobForTheNextRunOnTheSameFolder) {
  TempDir folder;
  const std::vector<std::string> state{"--state-dir", folder / "state"};
  const auto make_argv = [&](std::vector<std::string> words) {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), state.begin(), state.end());
    return words;
  };
  const ProcessResult submit_result =
      run(folder, make_argv({"job", "submit", folder.write("a.py", "result['kept'] = 1")}));
  expect_result(submit_result, 0, "job:1:1 waits in");
  expect_result(run(folder, make_argv({"run", folder.write("b.py", "pass")})), 0, "job:1:2");
  EXPECT_TRUE(eventually([&] {
    return run(folder, make_argv({"run", folder / "b.py"})).code == 0 &&
           run(folder, make_argv({"job", "show", "1"})).out.find("kept") != std::string::npos;
  }));
}

TEST_F(Job, ListReadsNoScriptsOrResults) {
  const std::string large_script(4 << 20, '#');
  for (int i = 0; i < 5; ++i) mycojobs_.submit(large_script.substr(1));
  const auto read_output_bytes = [&] {
    const std::string info = redis_.cli(0, {"INFO", "stats"});
    return std::stoull(info.substr(info.find("total_net_output_bytes:") + 23));
  };
  const auto bytes_before = read_output_bytes();
  EXPECT_EQ(mycojobs_.run_json({"job", "list"}).size(), 5U);
  EXPECT_LT(read_output_bytes() - bytes_before, 1U << 20);
}

TEST_F(Job, ListShowsTheNewestOfAStatus) {
  for (int i = 0; i < 7; ++i) mycojobs_.submit("pass");
  mycojobs_({"job", "cancel", "3"});
  const auto newest = mycojobs_.run_json({"job", "list", "--status", "dispatched", "--limit", "2"});
  ASSERT_EQ(newest.size(), 2U);
  EXPECT_EQ(newest[0]["key"], "job:1:7");
  EXPECT_EQ(newest[1]["key"], "job:1:6");
  expect_result(mycojobs_({"job", "list", "--limit", "2"}), 0, "there are more");
  expect_result(mycojobs_({"job", "list", "--limit", "0"}), 65, "--limit: must be a whole number, 1 or more");
  expect_result(mycojobs_({"queue", "dead", "--limit", "0"}), 65, "--limit: must be a whole number, 1 or more");
  expect_result(mycojobs_({"job", "list", "--status", "lost"}), 65, "dispatched");
  redis_.cli(1, {"SET", "job:1:1", "text"});
  redis_.cli(1, {"HSET", "job:1:2", "status", "??", "created_at", "x"});
  EXPECT_EQ(mycojobs_.run_json({"job", "list"}).size(), 7U) << "an invalid record must not hide other jobs";
}

TEST_F(Job, CancelEndsQueuedAndRunningJobs) {
  const std::string queued = mycojobs_.submit("pass");
  expect_result(mycojobs_({"job", "cancel", "1"}), 0, "is cancelled");
  expect_result(mycojobs_({"job", "cancel", "1:1"}), 0, "is cancelled");
  Process agent = start_registered_agent(1, {"--lease", "1m"});
  const std::string running = mycojobs_.submit(kSleepScript);
  ASSERT_TRUE(mycojobs_.wait_for_cause(running, "running"));
  agent.signal(SIGSTOP);  // prevents the job from ending before the command reads its state
  expect_result(mycojobs_({"job", "cancel", running}), 0, "is requested to end");
  EXPECT_EQ(mycojobs_.read_field(running, "status"), "started");
  agent.signal(SIGCONT);
  EXPECT_TRUE(mycojobs_.wait_for_value(running, "detail", "cancelled")) << agent.err();
  expect_result(mycojobs_({"job", "cancel", running}), 0, "is cancelled");
  expect_result(mycojobs_({"job", "retry", running}), 65, "permanent");
  EXPECT_EQ(mycojobs_.read_field(queued, "attempt"), "") << "a cancelled job never started";
}

TEST_F(Job, CancelOfAnEndedJobChangesNothing) {
  Process agent = start_registered_agent(1);
  const std::string key = mycojobs_.submit("pass");
  ASSERT_TRUE(mycojobs_.wait_for_value(key, "status", "finished"));
  expect_result(mycojobs_({"job", "cancel", key}), 0, "had ended before as finished");
  EXPECT_EQ(mycojobs_.read_field(key, "detail"), "ok");
}

TEST_F(Job, RetryRunsAFailedJobAgainAsItsNextAttempt) {
  Process agent = start_registered_agent(1);
  const std::string key = mycojobs_.submit("import mycojobs\nresult['n'] = 1 / (mycojobs.job.attempt - 1)");
  ASSERT_TRUE(mycojobs_.wait_for_value(key, "status", "error")) << agent.err();
  expect_result(mycojobs_({"job", "retry", key}), 0, "queued again");
  ASSERT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << mycojobs_.read_field(key, "error");
  EXPECT_EQ(mycojobs_.read_field(key, "attempt"), "2");
  expect_result(mycojobs_({"job", "retry", key}), 65, "has finished");
}

TEST_F(Job, RetryRejectsActiveJobs) {
  const std::string queued = mycojobs_.submit("pass", {"--type", "v"});
  expect_result(mycojobs_({"job", "retry", queued}), 65, "has not ended");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:v"}), "1");
}

TEST_F(Job, RestartWithTheSameIdempotencyKeyCreatesOneJob) {
  const std::string ended = mycojobs_.submit("pass");
  mycojobs_({"job", "cancel", ended});
  const ProcessResult first = mycojobs_({"job", "restart", ended, "--idempotency-key", "again"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out, mycojobs_({"job", "restart", ended}).out);
  EXPECT_EQ(first.out, mycojobs_({"job", "restart", ended, "--idempotency-key", "again"}).out);
  EXPECT_EQ(mycojobs_.run_json({"job", "list", "--status", "dispatched"}).size(), 2U);
}

TEST_F(Job, InvalidIdsAreNamed) {
  for (const char* verb : {"cancel", "retry", "show", "logs"}) {
    expect_result(mycojobs_({"job", verb, "1:404"}), 66, "job:1:404");
    expect_result(mycojobs_({"job", verb, "one"}), 65, "CALLER:ID");
    expect_result(mycojobs_({"job", verb, ""}), 65, "CALLER:ID");
    expect_result(mycojobs_({"job", verb}), 64, "JOB");
  }
  expect_result(mycojobs_({"job", "explain", "1:404"}), 66, "no_such_job");
  expect_result(mycojobs_({"job", "explain", "0:1"}), 65, "CALLER:ID");
}

// ---- all commands ----

class AnyCommand : public Operator {
 protected:
  // Runs the command in a shell, so the line can contain redirections.
  ProcessResult run_in_shell(const std::string& line) const {
    return run(folder_, {"/bin/sh", "-c", "exec " + program_path() + " " + line + " --redis " + redis_.url()});
  }
};

TEST_F(AnyCommand, SettingsMayPrecedeTheCommand) {
  expect_result(run(folder_, {program_path(), "--redis", redis_.url(), "--context", "3", "context", "show", "3"}), 0,
                "context 3");
  expect_result(run(folder_, {program_path(), "--json", "version"}), 0, "{\"version\":");
  expect_result(run(folder_, {program_path(), "--version"}), 0, "mycojobs ");
  EXPECT_EQ(run(folder_, {program_path(), "--redis", redis_.url(), "jbo", "list"}).code, 64);
  expect_result(run(folder_, {program_path()}), 64, "name a command");
  const std::string file = folder_.write("says.py", "import sys\nprint(sys.argv)");
  EXPECT_EQ(run(folder_, {program_path(), "--verbose", "version"}).code, 64);
}

TEST_F(AnyCommand, UnwritableOutputIsAnError) {
  expect_result(run_in_shell("key token --operator --api-tokens " + (folder_ / "tokens") + " >/dev/full"), 74,
                "ENOSPC");
  expect_result(run_in_shell("job list --json >/dev/full"), 74, "could not be written");
  expect_result(run_in_shell("job list >&-"), 74, "EBADF");
  EXPECT_EQ(run_in_shell("job list").code, 0);
}

TEST_F(AnyCommand, InvalidFlagValueIsReportedWithValidOnes) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"runner", "create", "--queues", "true"},
                                                {"runner", "create", "--type", "perl"},
                                                {"context", "acl", "1", "--role", "agnt"}}) {
    expect_result(mycojobs_(words), 65, " is not one of: ");
  }
  EXPECT_EQ(mycojobs_({"runner", "list"}).out.find("50"), std::string::npos);
}

TEST_F(AnyCommand, MissingFileIsNamedWithExitCode66) {
  const std::string script = folder_.write("job.py", "pass\n"), missing_file = folder_ / "gone.toml";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"version", "--config", missing_file},
                                                {"config", "check", missing_file},
                                                {"policy", "check", missing_file},
                                                {"policy", "diff", missing_file, missing_file},
                                                {"job", "submit", script, "--policy", missing_file},
                                                {"executor", "check", "python", "--samples", missing_file}}) {
    expect_result(mycojobs_(words), 66, missing_file + ": no such f");
  }
  expect_result(mycojobs_({"job", "submit", script, "--policy", folder_ / "gone"}), 66, "gone: no such file");
}

TEST_F(AnyCommand, InvalidCommandLineSuggestsTheRightOne) {
  expect_result(mycojobs_({"flow", "schedule"}), 64,
                "name a command of flow schedule: `mycojobs flow schedule --help`");
  expect_result(mycojobs_({"job", "get", "1:1"}), 64, "did you mean \"show\"?");
  expect_result(mycojobs_({"context", "rm", "1"}), 64, "did you mean \"delete\"?");
  expect_result(mycojobs_({"context", "grant", "foo", "1"}), 64,
                "1 is one word too many: `mycojobs context grant` takes ID");
  expect_result(mycojobs_({"runner", "create"}), 65, "name the runner: --address URL");
}

TEST_F(AnyCommand, MissingObjectIsReportedWithAHint) {
  const ProcessResult actor = mycojobs_({"actor", "show", "99"});
  expect_result(actor, 66, "actor:99 does not exist\n");
  const ProcessResult context = mycojobs_({"context", "delete", "1"});
  expect_result(context, 66, "there is nothing to delete");
  EXPECT_EQ(context.err.find("grant"), std::string::npos) << context.err;
  expect_result(mycojobs_({"rpc", "job.list", "--url", "http://127.0.0.1:9"}), 69, "the setting api.listen");
  expect_result(mycojobs_({"health", "--url", "http://127.0.0.1:9"}), 1, "health.listen");
}

TEST_F(AnyCommand, ConfigCheckRejectsWhatProgramsReject) {
  const auto check_config = [&](const std::string& text) {
    return mycojobs_({"config", "check", folder_.write("config.toml", text)});
  };
  for (const auto& [setting, value] :
       std::vector<std::pair<std::string, std::string>>{{"redis", "\"http://x\""},
                                                        {"redis", "\"redis://h:99999\""},
                                                        {"redis", "\"redis://h/3\""},
                                                        {"redis", "\"unix:rel\""},
                                                        {"contexts.7.redis", "\"http://x\""},
                                                        {"api.listen", "\"foo\""},
                                                        {"api.listen", "\"127.0.0.1:99999\""},
                                                        {"health.listen", "\"foo\""},
                                                        {"coordinator.networks", "[\"foo\"]"},
                                                        {"coordinator.webhooks", "[\"ftp://x\"]"},
                                                        {"prerequisites.allow", "[\"xyz\"]"},
                                                        {"trace.endpoint", "\"foo\""}}) {
    expect_result(check_config(setting + " = " + value), 65, "config.toml:1:");
    expect_result(check_config(setting + " = " + value), 65, ": " + setting + ": ");
  }
  for (const std::string setting : {"runner_key", "coordinator.webhook_secrets"}) {
    const ProcessResult result = check_config(setting + " = \"/nowhere/file\"");
    EXPECT_EQ(result.code, 66);  // the file does not exist
    EXPECT_NE(result.err.find(": " + setting + ": "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("/nowhere/file"), std::string::npos) << result.err;
  }
  expect_result(check_config("secrets_dir = \"/nowhere/secrets\""), 66,
                ": secrets_dir: /nowhere/secrets: there is no such folder");
  expect_result(check_config("[contexts.7.python]\nvenv = \"/nowhere/venv\""), 66, "config.toml:2:");
  expect_result(check_config("[contexts.7.python]\nvenv = \"/tmp\""), 65, "it has no pyvenv.cfg");
  expect_result(check_config("redis = \"http://x\"\ntrace.endpoint = \"foo\""), 65, "config.toml:2:");
  expect_result(check_config("executors.sh.command = [\"/nonexist\", \"{script}\"]"), 0,
                "executors.sh: is missing here");
  expect_result(check_config("[retry]\nmin = \"5m\"\nmax = \"1s\""), 0, "retry.min is above retry.max");
  EXPECT_EQ(check_config("redis = \"redis://127.0.0.1:6379\"\napi.listen = \"127.0.0.1:9652\"").err, "");
}

TEST_F(AnyCommand, PublicKeysAreShownAgain) {
  const std::vector<std::string> keys{"--keys-dir", folder_ / "keys"};
  const auto run_with_keys = [&](std::vector<std::string> words) {
    words.insert(words.end(), keys.begin(), keys.end());
    return mycojobs_(words);
  };
  const ProcessResult result = run_with_keys({"key", "new", "ann"});
  EXPECT_EQ(run_with_keys({"key", "show", "ann"}).out, result.out);
  expect_result(run_with_keys({"key", "list"}), 0, "ann   " + result.out);
  EXPECT_EQ(run_with_keys({"key", "show", "bob"}).code, 66);
}

TEST_F(AnyCommand, RemoteSupervisorsAreListedAsRemote) {
  const ProcessResult result = mycojobs_({"runner", "create", "--id", "50", "--address", "http://127.0.0.1:9652"});
  ASSERT_EQ(result.code, 0) << result.err;
  const ProcessResult listed = mycojobs_({"runner", "list"});
  expect_result(listed, 0, "elsewhere");
  expect_result(listed, 0, "http://127.0.0.1:9652");
}

}  // namespace
}  // namespace mycojobs::test
