// The commands queue list, pause, resume, purge and dead, and runner list.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Queue : public Operator {
 protected:
  nlohmann::json row(const std::string& queue) {
    for (const auto& each : mycojobs_.json({"queue", "list"})) {
      if (each["queue"] == queue) return each;
    }
    return {};
  }
  void push_bare(const std::string& key) { redis_.cli(1, {"LPUSH", "queue:python", key}); }
  std::string dead_id(const std::string& job) {
    std::string id;
    eventually([&] {
      for (const auto& each : mycojobs_.json({"queue", "dead"})) {
        if (each["job"] == job) id = each["id"];
      }
      return !id.empty();
    });
    return id;
  }
};

TEST_F(Queue, ListShowsWaitingJobsAndTheirRunners) {
  EXPECT_EQ(mycojobs_.json({"queue", "list"}), nlohmann::json::array());
  mycojobs_.submit("pass", {"--type", "v"});
  mycojobs_.submit("pass", {"--type", "v", "--priority", "3"});
  Process one = agent(20);
  const auto v = row("queue:v");
  EXPECT_EQ(v["entries"], 1);
  EXPECT_EQ(v["prioritised"], 1);
  EXPECT_EQ(v["paused"], false);
  EXPECT_EQ(v["facts"], 2);
  EXPECT_EQ(v["runners"], nlohmann::json::array());
  EXPECT_EQ(row("queue:python")["runners"], nlohmann::json({20}));
  EXPECT_NE(mycojobs_({"queue", "list"}).out.find("none"), std::string::npos);
}

TEST_F(Queue, PausedQueueStartsNothingUntilResumed) {
  expect_says(mycojobs_({"queue", "pause", "python"}), 0, "warning");
  Process one = agent(20);
  const std::string key = mycojobs_.submit("pass");
  const std::string other = mycojobs_.submit("pass");
  expect_says(mycojobs_({"queue", "pause", "queue:python"}), 0, "already");
  EXPECT_EQ(row("queue:python")["paused"], true);
  ASSERT_TRUE(mycojobs_.wait_for_cause(key, "queue_paused"));
  expect_says(mycojobs_({"queue", "resume", "python"}), 0, "is open");
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "status", "finished")) << one.err();
  EXPECT_TRUE(mycojobs_.wait_for_value(other, "status", "finished"));
  expect_says(mycojobs_({"queue", "resume", "python"}), 0, "was not paused");
}

TEST_F(Queue, InvalidNamesAreRejectedOrWarnedOf) {
  for (const char* verb : {"pause", "resume", "purge"}) {
    expect_says(mycojobs_({"queue", verb, "job:1:1"}), 65, "queue list");
    expect_says(mycojobs_({"queue", verb}), 64, "QUEUE");
  }
  expect_says(mycojobs_({"queue", "pause", "pyhton"}), 0, "no live runner serves it");
  expect_says(mycojobs_({"queue", "purge", "pyhton", "--yes"}), 0, "is empty");
}

TEST_F(Queue, PurgeAsksAndThenCancelsWaitingJobs) {
  std::string commands;
  for (int id = 1; id <= 1200; ++id) {
    const std::string key = "job:3:" + std::to_string(id);
    commands += "HSET " + key + " id " + std::to_string(id) +
                " caller_id 3 context_id 1 script_type python script pass\n" + "LPUSH queue:python " + key + "\n";
  }
  redis_.cli(1, {}, commands);
  const std::string high = mycojobs_.submit("pass", {"--priority", "9"});
  expect_says(mycojobs_({"queue", "purge", "python"}), 65, "give --yes");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "1200");
  EXPECT_EQ(mycojobs_.json({"queue", "purge", "python", "--yes"})["purged"], 1201);
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "0");
  EXPECT_EQ(mycojobs_.field("job:3:777", "detail"), "cancelled");
  EXPECT_EQ(mycojobs_.field(high, "detail"), "cancelled");
  expect_says(mycojobs_({"queue", "purge", "python", "--yes"}), 0, "is empty");
  expect_says(mycojobs_({"verify"}), 0, "clean");
}

TEST_F(Queue, PurgeOnATerminalAcceptsYes) {
  const std::string key = mycojobs_.submit("pass");
  std::string line;
  for (const std::string& word : mycojobs_.line({"queue", "purge", "python"})) line += word + " ";
  expect_says(run(folder_, {"script", "-qec", line, "/dev/null"}, {}, "no\n"), 65, "nothing was changed");
  EXPECT_EQ(mycojobs_.field(key, "status"), "dispatched");
  expect_says(run(folder_, {"script", "-qec", line, "/dev/null"}, {}, "yes\n"), 0, "1 entries of queue:python");
  EXPECT_EQ(mycojobs_.field(key, "detail"), "cancelled");
}

TEST_F(Queue, PurgeKeepsRunningAndParkedJobs) {
  Process one = agent(20, {"--slots", "1"});
  const std::string running = mycojobs_.submit(kSleeps);
  ASSERT_TRUE(mycojobs_.wait_for_cause(running, "running"));
  const std::string delayed = mycojobs_.submit("pass", {"--delay", "1h"});
  const std::string queued = mycojobs_.submit("pass");
  ASSERT_EQ(mycojobs_({"queue", "purge", "python", "--yes"}).code, 0);
  EXPECT_EQ(mycojobs_.field(queued, "detail"), "cancelled");
  EXPECT_EQ(mycojobs_.field(running, "status"), "started");
  EXPECT_EQ(mycojobs_.field(delayed, "detail"), "delayed");
}

TEST_F(Queue, DeadLetterWithoutARecordRunsAfterRepair) {
  Process one = agent(20);
  push_bare("job:12:404");
  const std::string id = dead_id("job:12:404");
  ASSERT_NE(id, "");
  expect_says(mycojobs_({"queue", "dead"}), 0, "no_record");
  redis_.cli(1, {"HSET", "job:12:404", "id", "404", "caller_id", "12", "context_id", "1", "script_type", "python",
                 "script", "pass", "timeout", "20"});
  expect_says(mycojobs_({"queue", "dead", "--requeue", id}), 0, "is requeued");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:404", "status", "finished")) << one.err();
  expect_says(mycojobs_({"queue", "dead", "--requeue", id}), 66, "lists all dead letters");
  EXPECT_EQ(mycojobs_.json({"queue", "dead"}).size(), 0U);
}

TEST_F(Queue, InvalidRecordRunsAfterRepair) {
  Process one = agent(20);
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
                 "pass", "timeout", "0"});
  push_bare("job:12:7");
  ASSERT_NE(dead_id("job:12:7"), "");
  redis_.cli(1, {"HSET", "job:12:7", "timeout", "20"});
  expect_says(mycojobs_({"job", "retry", "12:7"}), 0, "queued again");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:7", "status", "finished")) << one.err();
  EXPECT_EQ(mycojobs_.json({"queue", "dead"}).size(), 0U) << "its dead letter is struck off";
}

TEST_F(Queue, DeadLettersAreSettledSinglyOrAll) {
  Process one = agent(20);
  for (const char* entry : {"no job", "job:12:1", "job:12:2"}) push_bare(entry);
  ASSERT_TRUE(eventually([&] { return mycojobs_.json({"queue", "dead"}).size() == 3; })) << one.err();
  expect_says(mycojobs_({"queue", "dead", "--limit", "1"}), 0, "older ones");
  expect_says(mycojobs_({"queue", "dead", "--drop", dead_id("job:12:2")}), 0, "is dropped");
  expect_says(mycojobs_({"queue", "dead", "--drop", "soon"}), 65, "give an id such as");
  expect_says(mycojobs_({"queue", "dead", "--drop", "1-1", "--requeue-all"}), 65, "one of them");
  for (int id : {1, 2}) {
    redis_.cli(1, {"HSET", "job:12:" + std::to_string(id), "id", std::to_string(id), "caller_id", "12", "context_id",
                   "1", "script_type", "python", "script", "pass", "timeout", "20"});
  }
  expect_says(mycojobs_({"queue", "dead", "--requeue-all"}), 1, "1 requeued, 1 left");
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:1", "status", "finished")) << one.err();
  EXPECT_EQ(mycojobs_.field("job:12:2", "status"), "") << "it was dropped";
  EXPECT_EQ(mycojobs_.json({"queue", "dead", "--requeue-all"})["refused"].size(), 1U);
}

class Runners : public Operator {
 protected:
  std::string state(int id) {
    for (const auto& each : mycojobs_.json({"runner", "list"})) {
      if (each["id"] == id) return each["state"];
    }
    return "";
  }
};

TEST_F(Runners, ListShowsLiveSilentAndStopped) {
  Process one = agent(20);
  Process two = agent(21, {"--slots", "3"});
  EXPECT_EQ(state(20), "live");
  const auto rows = mycojobs_.json({"runner", "list"});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["slots"], 3);
  EXPECT_EQ(rows[0]["pid"], one.pid());
  EXPECT_EQ(rows[0]["executors"][0], "python");
  const std::string key = mycojobs_.submit(kSleeps);
  EXPECT_TRUE(eventually([&] {
    const auto now = mycojobs_.json({"runner", "list"});
    return now[0]["claims"].get<int>() + now[1]["claims"].get<int>() == 1;
  }));
  two.signal(SIGKILL);
  two.wait();
  EXPECT_TRUE(eventually([&] { return state(21) == "silent"; }));
  EXPECT_NE(mycojobs_({"runner", "list"}).out.find("silent for"), std::string::npos);
  mycojobs_({"job", "cancel", key});
  one.signal(SIGTERM);
  EXPECT_EQ(one.wait().code, 0) << one.err();
  EXPECT_EQ(state(20), "left");
}

}  // namespace
}  // namespace mycojobs::test
