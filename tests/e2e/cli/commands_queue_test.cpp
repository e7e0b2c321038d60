// The commands queue list, pause, resume, purge and dead, and runner list.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Queue : public Operator {
 protected:
  nlohmann::json find_queue(const std::string& queue) {
    for (const auto& entry : mycojobs_.run_json({"queue", "list"})) {
      if (entry["queue"] == queue) return entry;
    }
    return {};
  }
  void push_entry(const std::string& key) { redis_.cli(1, {"LPUSH", "queue:python", key}); }
  std::string wait_for_dead_letter(const std::string& job) {
    std::string id;
    eventually([&] {
      for (const auto& entry : mycojobs_.run_json({"queue", "dead"})) {
        if (entry["job"] == job) id = entry["id"];
      }
      return !id.empty();
    });
    return id;
  }
};

TEST_F(Queue, ListShowsWaitingJobsAndTheirRunners) {
  EXPECT_EQ(mycojobs_.run_json({"queue", "list"}), nlohmann::json::array());
  mycojobs_.submit("pass", {"--type", "v"});
  mycojobs_.submit("pass", {"--type", "v", "--priority", "3"});
  Process agent = start_registered_agent(20);
  const auto v = find_queue("queue:v");
  EXPECT_EQ(v["entries"], 1);
  EXPECT_EQ(v["prioritised"], 1);
  EXPECT_EQ(v["paused"], false);
  EXPECT_EQ(v["facts"], 2);
  EXPECT_EQ(v["runners"], nlohmann::json::array());
  EXPECT_EQ(find_queue("queue:python")["runners"], nlohmann::json({20}));
  EXPECT_NE(mycojobs_({"queue", "list"}).out.find("none"), std::string::npos);
}

TEST_F(Queue, PausedQueueStartsNothingUntilResumed) {
  expect_result(mycojobs_({"queue", "pause", "python"}), 0, "warning");
  Process agent = start_registered_agent(20);
  const std::string key = mycojobs_.submit("pass");
  const std::string other_job = mycojobs_.submit("pass");
  expect_result(mycojobs_({"queue", "pause", "queue:python"}), 0, "already");
  EXPECT_EQ(find_queue("queue:python")["paused"], true);
  ASSERT_TRUE(mycojobs_.wait_for_cause(key, "queue_paused"));
  expect_result(mycojobs_({"queue", "resume", "python"}), 0, "is open");
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << agent.err();
  EXPECT_TRUE(mycojobs_.wait_for_value(other_job, "status", "finished"));
  expect_result(mycojobs_({"queue", "resume", "python"}), 0, "was not paused");
}

TEST_F(Queue, InvalidNamesAreRejectedOrWarnedOf) {
  for (const char* verb : {"pause", "resume", "purge"}) {
    expect_result(mycojobs_({"queue", verb, "job:1:1"}), 65, "queue list");
    expect_result(mycojobs_({"queue", verb}), 64, "QUEUE");
  }
  expect_result(mycojobs_({"queue", "pause", "pyhton"}), 0, "no live runner serves it");
  expect_result(mycojobs_({"queue", "purge", "pyhton", "--yes"}), 0, "is empty");
}

TEST_F(Queue, PurgeAsksAndThenCancelsWaitingJobs) {
  std::string commands;
  for (int id = 1; id <= 1200; ++id) {
    const std::string key = "job:3:" + std::to_string(id);
    commands += "HSET " + key + " id " + std::to_string(id) +
                " caller_id 3 context_id 1 script_type python script pass\n" + "LPUSH queue:python " + key + "\n";
  }
  redis_.cli(1, {}, commands);
  const std::string priority_job = mycojobs_.submit("pass", {"--priority", "9"});
  expect_result(mycojobs_({"queue", "purge", "python"}), 65, "give --yes");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "1200");
  EXPECT_EQ(mycojobs_.run_json({"queue", "purge", "python", "--yes"})["purged"], 1201);
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "0");
  EXPECT_EQ(mycojobs_.read_field("job:3:777", "detail"), "cancelled");
  EXPECT_EQ(mycojobs_.read_field(priority_job, "detail"), "cancelled");
  expect_result(mycojobs_({"queue", "purge", "python", "--yes"}), 0, "is empty");
  expect_result(mycojobs_({"verify"}), 0, "clean");
}

TEST_F(Queue, PurgeOnATerminalAcceptsYes) {
  const std::string key = mycojobs_.submit("pass");
  std::string command_line;
  for (const std::string& word : mycojobs_.make_argv({"queue", "purge", "python"})) command_line += word + " ";
  expect_result(run(folder_, {"script", "-qec", command_line, "/dev/null"}, {}, "no\n"), 65, "nothing was changed");
  EXPECT_EQ(mycojobs_.read_field(key, "status"), "dispatched");
  expect_result(run(folder_, {"script", "-qec", command_line, "/dev/null"}, {}, "yes\n"), 0,
                "1 entries of queue:python");
  EXPECT_EQ(mycojobs_.read_field(key, "detail"), "cancelled");
}

TEST_F(Queue, PurgeKeepsRunningAndParkedJobs) {
  Process agent = start_registered_agent(20, {"--slots", "1"});
  const std::string running = mycojobs_.submit(kSleepScript);
  ASSERT_TRUE(mycojobs_.wait_for_cause(running, "running"));
  const std::string delayed = mycojobs_.submit("pass", {"--delay", "1h"});
  const std::string queued = mycojobs_.submit("pass");
  ASSERT_EQ(mycojobs_({"queue", "purge", "python", "--yes"}).code, 0);
  EXPECT_EQ(mycojobs_.read_field(queued, "detail"), "cancelled");
  EXPECT_EQ(mycojobs_.read_field(running, "status"), "started");
  EXPECT_EQ(mycojobs_.read_field(delayed, "detail"), "delayed");
}

TEST_F(Queue, DeadLetterWithoutARecordRunsAfterRepair) {
  Process agent = start_registered_agent(20);
  push_entry("job:12:404");
  const std::string id = wait_for_dead_letter("job:12:404");
  ASSERT_NE(id, "");
  expect_result(mycojobs_({"queue", "dead"}), 0, "no_record");
  redis_.cli(1, {"HSET", "job:12:404", "id", "404", "caller_id", "12", "context_id", "1", "script_type", "python",
                 "script", "pass", "timeout", "20"});
  expect_result(mycojobs_({"queue", "dead", "--requeue", id}), 0, "is requeued");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:404", "status", "finished")) << agent.err();
  expect_result(mycojobs_({"queue", "dead", "--requeue", id}), 66, "lists all dead letters");
  EXPECT_EQ(mycojobs_.run_json({"queue", "dead"}).size(), 0U);
}

TEST_F(Queue, InvalidRecordRunsAfterRepair) {
  Process agent = start_registered_agent(20);
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
                 "pass", "timeout", "0"});
  push_entry("job:12:7");
  ASSERT_NE(wait_for_dead_letter("job:12:7"), "");
  redis_.cli(1, {"HSET", "job:12:7", "timeout", "20"});
  expect_result(mycojobs_({"job", "retry", "12:7"}), 0, "queued again");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:7", "status", "finished")) << agent.err();
  EXPECT_EQ(mycojobs_.run_json({"queue", "dead"}).size(), 0U) << "its dead letter is struck off";
}

TEST_F(Queue, DeadLettersAreSettledSinglyOrAll) {
  Process agent = start_registered_agent(20);
  for (const char* entry : {"no job", "job:12:1", "job:12:2"}) push_entry(entry);
  ASSERT_TRUE(eventually([&] { return mycojobs_.run_json({"queue", "dead"}).size() == 3; })) << agent.err();
  expect_result(mycojobs_({"queue", "dead", "--limit", "1"}), 0, "older ones");
  expect_result(mycojobs_({"queue", "dead", "--drop", wait_for_dead_letter("job:12:2")}), 0, "is dropped");
  expect_result(mycojobs_({"queue", "dead", "--drop", "soon"}), 65, "give an id such as");
  expect_result(mycojobs_({"queue", "dead", "--drop", "1-1", "--requeue-all"}), 65, "one of them");
  for (int id : {1, 2}) {
    redis_.cli(1, {"HSET", "job:12:" + std::to_string(id), "id", std::to_string(id), "caller_id", "12", "context_id",
                   "1", "script_type", "python", "script", "pass", "timeout", "20"});
  }
  expect_result(mycojobs_({"queue", "dead", "--requeue-all"}), 1, "1 requeued, 1 left");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:1", "status", "finished")) << agent.err();
  EXPECT_EQ(mycojobs_.read_field("job:12:2", "status"), "") << "it was dropped";
  EXPECT_EQ(mycojobs_.run_json({"queue", "dead", "--requeue-all"})["refused"].size(), 1U);
}

class Runners : public Operator {
 protected:
  std::string read_runner_state(int id) {
    for (const auto& entry : mycojobs_.run_json({"runner", "list"})) {
      if (entry["id"] == id) return entry["state"];
    }
    return "";
  }
};

TEST_F(Runners, ListShowsLiveSilentAndStopped) {
  Process agent = start_registered_agent(20);
  Process second_agent = start_registered_agent(21, {"--slots", "3"});
  EXPECT_EQ(read_runner_state(20), "live");
  const auto rows = mycojobs_.run_json({"runner", "list"});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["slots"], 3);
  EXPECT_EQ(rows[0]["pid"], agent.pid());
  EXPECT_EQ(rows[0]["executors"][0], "python");
  const std::string key = mycojobs_.submit(kSleepScript);
  EXPECT_TRUE(eventually([&] {
    const auto runners = mycojobs_.run_json({"runner", "list"});
    return runners[0]["claims"].get<int>() + runners[1]["claims"].get<int>() == 1;
  }));
  second_agent.signal(SIGKILL);
  second_agent.wait();
  EXPECT_TRUE(eventually([&] { return read_runner_state(21) == "silent"; }));
  EXPECT_NE(mycojobs_({"runner", "list"}).out.find("silent for"), std::string::npos);
  mycojobs_({"job", "cancel", key});
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait().code, 0) << agent.err();
  EXPECT_EQ(read_runner_state(20), "left");
}

}  // namespace
}  // namespace mycojobs::test
