// Invalid entries in queues and invalid records: the user gets one clear error for each, and the next job runs.
#include <cstdint>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class BadInput : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  Process agent_ = start_agent(folder_, redis_, 1);

  void SetUp() override { ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent_.err(); }
  void TearDown() override {
    PlainJob next{.caller = 99, .id = 99};
    submit(redis_, next);
    EXPECT_EQ(wait_for_status(redis_, next), "finished") << "the next job must run\n" << agent_.err();
    EXPECT_TRUE(agent_.is_running());
  }
  void expect_error(const PlainJob& job, const std::string& detail, const std::string& words) {
    EXPECT_EQ(wait_for_status(redis_, job), "error") << agent_.err();
    EXPECT_EQ(read_field(redis_, job, "detail"), detail);
    EXPECT_NE(read_field(redis_, job, "error").find(words), std::string::npos) << read_field(redis_, job, "error");
  }
  std::string read_dead_letters() { return redis_.cli(1, {"XRANGE", "mj:dead-letters", "-", "+"}); }
};

TEST_F(BadInput, InvalidRecordsBecomeDeadLettersThatNameTheField) {
  struct Case {
    PlainJob job;
    std::string words;
  };
  const std::string large_script(10 << 20, '#');
  std::vector<Case> cases{
      {{.id = 1, .timeout = "0"}, "timeout"},
      {{.id = 2, .timeout = "-1"}, "timeout"},
      {{.id = 3, .timeout = "4294967296"}, "timeout"},
      {{.id = 4, .script = ""}, "script"},
      {{.id = 5, .extra_fields = {"env_vars", R"({"A=B":"1"})"}}, "env_vars"},
      {{.id = 6, .extra_fields = {"env_vars", R"({"A\u0000B":"1"})"}}, "env_vars"},
      {{.id = 7, .extra_fields = {"env_vars", "[1,2]"}}, "env_vars"},
      {{.id = 8, .extra_fields = {"script_type", "cobol"}}, "script_type"},
      {{.id = 9, .extra_fields = {"id", "10"}}, "id"},
      {{.id = 11, .extra_fields = {"caller_id", "4294967297"}}, "caller_id"},
      {{.id = 12, .extra_fields = {"context_id", "2"}}, "context_id"},
      {{.id = 13, .extra_fields = {"retries", "many"}}, "retries"},
  };
  for (const Case& test_case : cases) submit(redis_, test_case.job);
  for (const Case& test_case : cases) {
    SCOPED_TRACE(test_case.job.key());
    expect_error(test_case.job, "dead_letter", test_case.words);
    EXPECT_NE(read_dead_letters().find(test_case.job.key()), std::string::npos);
  }
}

TEST_F(BadInput, MissingTypeAndUnreadableScriptAreNamed) {
  redis_.cli(1, {"HSET", "job:12:1", "id", "1", "caller_id", "12", "context_id", "1", "script", "pass"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:1"});
  expect_error({.id = 1}, "dead_letter", "script_type");
  PlainJob latin_1_job{.id = 2, .script = "print('\xe9')"};
  submit(redis_, latin_1_job);
  expect_error(latin_1_job, "dead_letter", "UTF-8");
}

TEST_F(BadInput, TenMebibyteScriptIsRejectedByTheNamedLimit) {
  PlainJob job{.id = 1};
  redis_.cli(1, {"HSET", job.key(), "id", "1", "caller_id", "12", "context_id", "1", "script_type", "python", "timeout",
                 "20"});
  redis_.cli(1, {"-x", "HSET", job.key(), "script"}, std::string(10 << 20, '#'));
  redis_.cli(1, {"LPUSH", "queue:python", job.key()});
  expect_error(job, "dead_letter", "max_script_bytes");
}

TEST_F(BadInput, TenMebibyteResultFailsWithAReason) {
  PlainJob job{.script = "result['big'] = 'x' * (10 << 20)"};
  submit(redis_, job);
  expect_error(job, "result_too_large", "1048576");
  EXPECT_EQ(read_field(redis_, job, "result"), "");
}

TEST_F(BadInput, FloodOfOutputIsCountedAndItsMiddleDropped) {
  PlainJob job{
      .script =
          "import sys\nline = 'x' * 1023 + '\\n'\nfor _ in range(1 << 17): sys.stdout.write(line)\nprint('the end')"};
  job.timeout = "120";
  submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job, Seconds(60)), "finished") << read_field(redis_, job, "error");
  const ProcessResult log = run(folder_, {program_path(), "job", "logs", job.key(), "--redis", redis_.url()});
  EXPECT_TRUE(log.out.ends_with("the end\n"));
  EXPECT_LE(log.out.size(), 66U << 20) << "job.log_bytes";
  const std::uint64_t written = (1ULL << 27) + 8;
  EXPECT_EQ(sum_output_gaps(log.err), written - log.out.size()) << log.err;
}

TEST_F(BadInput, EntriesWithoutAUsableRecordBecomeDeadLetters) {
  redis_.cli(1, {"SET", "job:12:1", "not a hash"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:1"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:404"});
  redis_.cli(1, {"LPUSH", "queue:python", "nonsense \x01\xff"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:4294967296:1"});
  for (const char* reason : {"wrong_type", "no_record", "bad_key"}) {
    EXPECT_TRUE(eventually([&] { return read_dead_letters().find(reason) != std::string::npos; }))
        << reason << "\n"
        << read_dead_letters();
  }
}

TEST_F(BadInput, LateRecordStillRuns) {
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  eventually([] { return false; }, Seconds(0.5));
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script", "pass", "script_type",
                 "python", "timeout", "5"});
  EXPECT_EQ(wait_for_status(redis_, {.id = 7}), "finished");
}

TEST_F(BadInput, SecondEntryOfAJobDoesNotRunItAgain) {
  PlainJob job{.script = "print('once')"};
  submit(redis_, job);
  ASSERT_EQ(wait_for_status(redis_, job), "finished");
  redis_.cli(1, {"HSET", job.key(), "status", "dispatched"});
  redis_.cli(1, {"LPUSH", "queue:python", job.key()});
  EXPECT_TRUE(eventually([&] {
    return redis_.cli(1, {"XRANGE", "mj:anomalies", "-", "+"}).find(job.key()) != std::string::npos;
  }));
  EXPECT_EQ(read_job_log(folder_, redis_, job), "once\n");
}

TEST(BadServer, WrongPasswordIsReportedAtOnce) {
  TempDir folder;
  RedisServer redis(folder, {"--requirepass", "secret"});
  ProcessResult agent = start_agent(folder, redis, 1).wait();
  EXPECT_EQ(agent.code, 77) << agent.err;
  EXPECT_NE(agent.err.find("password"), std::string::npos) << agent.err;
  EXPECT_EQ(agent.err.find("secret"), std::string::npos);
}

TEST(BadServer, ContextAboveDatabasesNamesTheSetting) {
  TempDir folder;
  RedisServer redis(folder);
  ProcessResult agent = start_agent(folder, redis, 1, {"--context", "16"}).wait();
  EXPECT_EQ(agent.code, 69) << agent.err;
  EXPECT_NE(agent.err.find("databases"), std::string::npos) << agent.err;
}

TEST(BadServer, SecondAgentWithTheSameRunnerIdIsRejected) {
  TempDir folder;
  RedisServer redis(folder);
  Process first = start_agent(folder, redis, 5);
  ASSERT_TRUE(wait_until_registered(redis, 5)) << first.err();
  ProcessResult second = start_agent(folder, redis, 5).wait();
  EXPECT_EQ(second.code, 75) << second.err;
  EXPECT_NE(second.err.find("--runner"), std::string::npos) << second.err;
  EXPECT_NE(second.err.find(std::to_string(first.pid())), std::string::npos) << second.err;
  PlainJob job;
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "finished");
}

}  // namespace
}  // namespace mycojobs::test
