// A job written only with redis-cli runs, and its record contains the result.
#include "e2e/world.h"

namespace mycojobs::test {
namespace {

TEST(PlainClient, JobRunsAndItsHashHoldsTheOutcome) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 20);
  ASSERT_TRUE(wait_until_registered(redis, 20)) << agent.err();
  PlainJob job{.id = 2001, .script = "import os\nprint('hello', os.environ['WHO'])\nresult['answer'] = 6 * 7"};
  job.extra_fields = {"env_vars", R"({"WHO":"world"})", "a_field_of_somebody_else", "kept"};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, job, "detail"), "ok");
  EXPECT_EQ(read_field(redis, job, "result"), R"({"answer":"42"})");
  EXPECT_EQ(read_field(redis, job, "runner_id"), "20");
  EXPECT_EQ(read_field(redis, job, "attempt"), "1");
  EXPECT_EQ(read_field(redis, job, "a_field_of_somebody_else"), "kept");
  EXPECT_NE(read_field(redis, job, "layers").find("seccomp"), std::string::npos);
  for (const char* name : {"started_ms", "ended_ms", "usage", "receipt", "epoch"})
    EXPECT_NE(read_field(redis, job, name), "") << name;
  EXPECT_EQ(read_job_log(folder, redis, job), "hello world\n");
}

TEST(PlainClient, FailureCarriesErrorAndTraceback) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  PlainJob job{.script = "x = 1\nx / 0\n"};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "error") << agent.err();
  EXPECT_EQ(read_field(redis, job, "detail"), "exception");
  EXPECT_NE(read_field(redis, job, "error").find("ZeroDivisionError"), std::string::npos);
  EXPECT_NE(read_field(redis, job, "error_info").find("line 2"), std::string::npos);
}

TEST(PlainClient, JobPushedBeforeTheAgentStartsRuns) {
  TempDir folder;
  RedisServer redis(folder);
  PlainJob job;
  submit(redis, job);
  Process agent = start_agent(folder, redis, 1);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
}

TEST(Agents, ShareQueuesAndRunEachJobOnce) {
  TempDir folder;
  RedisServer redis(folder);
  Process first_agent = start_agent(folder, redis, 1);
  Process second_agent = start_agent(folder, redis, 2);
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(redis, 2));
  std::string commands;
  constexpr int kJobs = 60;
  for (int id = 1; id <= kJobs; ++id) {
    const std::string key = "job:3:" + std::to_string(id);
    commands += "HSET " + key + " id " + std::to_string(id) +
                " caller_id 3 context_id 1 script_type python timeout 20 script " +
                "\"import time; time.sleep(0.05); result['pid'] = 1\"\nLPUSH queue:python " + key + "\n";
  }
  redis.cli(1, {}, commands);
  for (int id = 1; id <= kJobs; ++id) {
    PlainJob job{.caller = 3, .id = id};
    EXPECT_EQ(wait_for_status(redis, job), "finished") << job.key() << " " << read_field(redis, job, "error");
    EXPECT_EQ(read_field(redis, job, "deliveries"), "1");
  }
  std::map<std::string, int> by_runner;
  for (int id = 1; id <= kJobs; ++id) ++by_runner[read_field(redis, PlainJob{.caller = 3, .id = id}, "runner_id")];
  EXPECT_GT(by_runner["1"], 0);
  EXPECT_GT(by_runner["2"], 0);
}

TEST(Agents, OneAgentServesSeveralContexts) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1, {"--context", "1,3"});
  PlainJob job_in_context_1{.context = 1};
  PlainJob job_in_context_3{.context = 3, .script = "result['here'] = 3"};
  submit(redis, job_in_context_1);
  submit(redis, job_in_context_3);
  EXPECT_EQ(wait_for_status(redis, job_in_context_1), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, job_in_context_3), "finished") << agent.err();
}

TEST(Topic, PublishedMessageRunsOnItsRunnerOnce) {
  TempDir folder;
  RedisServer redis(folder);
  Process other_agent = start_agent(folder, redis, 21);
  Process agent = start_agent(folder, redis, 20, {"--no-local"});
  ASSERT_TRUE(wait_until_registered(redis, 20) && wait_until_registered(redis, 21));
  redis.cli(
      1,
      {"HSET", "message:12:101", "id", "101", "caller_id", "12", "context_id", "1", "message_type", "job", "status",
       "dispatched", "job",
       R"([{"id":7,"caller_id":12,"context_id":1,"script":"result['by'] = 'message'","script_type":"python","timeout":20}])"});
  redis.cli(1, {"PUBLISH", "runner20", "message:12:101"});
  redis.cli(1, {"PUBLISH", "runner20", "message:12:101"});
  PlainJob job{.id = 7};
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, job, "runner_id"), "20");
  EXPECT_EQ(read_field(redis, job, "deliveries"), "1");
  EXPECT_TRUE(eventually([&] { return redis.cli(1, {"HGET", "message:12:101", "status"}) == "processed"; }));
}

TEST(Topic, DurableListIsReadWithoutAHint) {
  TempDir folder;
  RedisServer redis(folder);
  redis.cli(1, {"LPUSH", "mj:topic:runner20", "message:12:404"});  // the record of this message is never written
  redis.cli(1, {"LPUSH", "mj:topic:runner20", "message:12:9"});
  redis.cli(1, {"HSET", "message:12:9", "id", "9", "caller_id", "12", "context_id", "1", "message_type", "job", "job",
                R"([{"id":8,"script":"pass","script_type":"python","timeout":20}])"});
  Process agent = start_agent(folder, redis, 20);
  EXPECT_EQ(wait_for_status(redis, {.id = 8}), "finished") << agent.err();
  EXPECT_TRUE(eventually([&] { return redis.cli(1, {"LLEN", "mj:topic:runner20"}) == "0"; })) << agent.err();
}

TEST(Topic, UnusableMessageEndsAsErrorWithItsReason) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 20);
  ASSERT_TRUE(wait_until_registered(redis, 20));
  redis.cli(1, {"HSET", "message:12:5", "id", "5", "caller_id", "12", "context_id", "1", "message_type", "job", "job",
                "[{\"id\":1}]"});
  redis.cli(1, {"PUBLISH", "runner20", "message:12:5"});
  EXPECT_TRUE(eventually([&] { return redis.cli(1, {"HGET", "message:12:5", "status"}) == "error"; })) << agent.err();
  EXPECT_NE(redis.cli(1, {"HGET", "message:12:5", "error"}).find("script"), std::string::npos);
}

}  // namespace
}  // namespace mycojobs::test
