// `job explain` with a real store, for every state of a job.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Explain : public Operator {
 protected:
  // Returns the text of `job explain` once it names the cause.
  std::string text(const std::string& job, const std::string& cause) {
    EXPECT_TRUE(mycojobs_.wait_for_cause(job, cause)) << mycojobs_({"job", "explain", job}).out;
    return mycojobs_({"job", "explain", job}).out;
  }
  void expect_in(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << "no \"" << words << "\" in\n" << text;
  }
};

TEST_F(Explain, JobThatWasNeverQueued) {
  expect_in(text("job:12:7", "no_such_job"), "context 1 has no data of job:12:7");
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script", "pass"});
  expect_in(text("job:12:7", "no_script_type"), "HSET job:12:7 script_type");
  redis_.cli(1, {"HSET", "job:12:7", "script_type", "python"});
  expect_in(text("job:12:7", "not_queued"), "redis-cli -n 1 LPUSH queue:python job:12:7");
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  expect_in(text("job:12:7", "no_runner"), "position 1 of 1 in queue:python");
  redis_.cli(1, {"DEL", "job:12:7"});
  redis_.cli(1, {"RPUSH", "job:12:7", "x"});
  expect_in(text("job:12:7", "wrong_type"), "redis-cli -n 1 DEL job:12:7");
}

TEST_F(Explain, JobWrittenToTheDefaultDatabase) {
  redis_.cli(0, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script", "pass", "script_type",
                 "python"});
  redis_.cli(0, {"LPUSH", "queue:python", "job:12:7"});
  expect_in(text("job:12:7", "in_database_0"),
            "`redis-cli MOVE job:12:7 1`, then `redis-cli -n 1 LPUSH queue:python job:12:7`");
  EXPECT_EQ(mycojobs_({"job", "explain", "job:12:7"}).code, 66);
  redis_.cli(0, {"MOVE", "job:12:7", "1"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  Process one = agent(20);
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:7", "status", "finished"));
}

TEST_F(Explain, JobWithoutAnExecutor) {
  const std::string key = mycojobs_.submit("pass", {"--type", "cobol"});
  expect_in(text(key, "no_runner"), "no runner of this context is alive");
  Process one = agent(20);
  expect_in(text(key, "no_runner"), "live runners serve queue:native, queue:osis, queue:python");
  expect_in(text(key, "no_runner"), "start an agent that runs cobol");
}

TEST_F(Explain, QueuedJob) {
  Process one = agent(20, {"--slots", "1"});
  mycojobs_({"queue", "pause", "python"});
  const std::string first = mycojobs_.submit(kSleeps);
  const std::string second = mycojobs_.submit("pass");
  expect_in(text(first, "queue_paused"), "queue resume python");
  mycojobs_({"queue", "resume", "python"});
  expect_in(text(first, "running"), "runner 20 on ");
  expect_in(text(second, "slots_busy"), "1 of 1 slots busy");
  expect_in(text(second, "slots_busy"), "position 1 of 1");
}

TEST_F(Explain, JobOnARunnerThatIsThenLost) {
  Process one = agent(20);
  const std::string key = mycojobs_.submit(kSleeps);
  expect_in(text(key, "running"), "its lease ends in");
  one.signal(SIGSTOP);
  expect_in(text(key, "lease_over"), "start an agent");
  Process two = agent(21);
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "runner_id", "21")) << two.err();
  expect_in(text(key, "running"), "runner 21");
  one.signal(SIGCONT);
}

TEST_F(Explain, JobCancelledWhileRunning) {
  Process one = agent(20);
  const std::string key = mycojobs_.submit(kSleeps);
  text(key, "running");
  one.signal(SIGSTOP);  // prevents the agent from forwarding the request
  mycojobs_({"job", "cancel", key});
  expect_in(text(key, "cancelling"), "a cancellation was requested");
  one.signal(SIGCONT);
  expect_in(text(key, "cancelled"), "submit it again");
}

TEST_F(Explain, DelayedJob) {
  const std::string key = mycojobs_.submit("pass", {"--delay", "1h"});
  expect_in(text(key, "postponed"), "due in 59 min");
  const std::string due = mycojobs_.submit("pass", {"--delay", "2s"});  // the job is due as soon as it is stored
  expect_in(text(due, "due"), "no agent is alive to queue it");
}

TEST_F(Explain, JobBetweenAttempts) {
  Process one = agent(20, {"--retry-min", "1h", "--retry-max", "1h"});
  const std::string key = mycojobs_.submit("1/0", {"--retries", "3"});
  const std::string output = text(key, "retry_wait");
  expect_in(output, "attempt 2 of 4 is due in");
  expect_in(output, "last error: ZeroDivisionError");
}

TEST_F(Explain, JobWaitingForDependencies) {
  Process one = agent(20);
  const std::string running = mycojobs_.submit(kSleeps);
  const std::string id = running.substr(running.rfind(':') + 1);
  const std::string after = mycojobs_.submit("pass", {"--depends", id});
  expect_in(text(after, "dependencies"), running + " is live");
  const std::string orphan = mycojobs_.submit("pass", {"--depends", "888", "--depends", id});
  expect_in(text(orphan, "dependency_absent"), "job:1:888, which does not exist");
  mycojobs_.submit("pass", {"--id", "500", "--depends", "501"});
  mycojobs_.submit("pass", {"--id", "501", "--depends", "502"});
  mycojobs_.submit("pass", {"--id", "502", "--depends", "501"});
  expect_in(text("job:1:500", "cycle"), "job:1:500 -> job:1:501 -> job:1:502 -> job:1:501");
  mycojobs_({"job", "cancel", running});
  expect_in(text(after, "dependency_failed"), running);
}

TEST_F(Explain, JobWaitingForPrerequisites) {
  const std::string key = mycojobs_.submit("pass", {"--prerequisite", "redis:ready"});
  Process one = agent(20);
  expect_in(text(key, "not_met"), "redis:ready");
  one.signal(SIGKILL);
  expect_in(text(key, "not_checked"), "start an agent");
}

TEST_F(Explain, JobHeldByItsConcurrencyKey) {
  Process one = agent(20);
  const std::string first = mycojobs_.submit(kSleeps, {"--concurrency-key", "db"});
  text(first, "running");
  const std::string second = mycojobs_.submit("pass", {"--concurrency-key", "db"});
  const std::string output = text(second, "slots_taken");
  expect_in(output, "runs: " + first);
  expect_in(output, "1 of 1 job that concurrency key db allows");
  mycojobs_({"job", "cancel", first});
  text(second, "finished");
}

TEST_F(Explain, EndedJob) {
  Process one = agent(20);
  expect_in(text(mycojobs_.submit("pass"), "finished"), "job show");
  expect_in(text(mycojobs_.submit("1/0"), "failed"), "fix the script and submit it again; `mycojobs job retry");
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
                 "pass", "timeout", "0"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  expect_in(text("job:12:7", "dead_letter"), "timeout");
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:8"});
  expect_in(text("job:12:8", "record_never_came"), "queue dead --requeue");
}

TEST_F(Explain, JobChangedByAnotherClient) {
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "script_type", "python", "status", "finished"});
  text("job:12:7", "ended_elsewhere");
  const std::string queued = mycojobs_.submit("pass");
  redis_.cli(1, {"RPOP", "queue:python"});
  expect_in(text(queued, "place_lost"), "doctor --rebuild");
  expect_says(mycojobs_({"doctor", "--rebuild"}), 0, queued);
  text(queued, "no_runner");
}

TEST_F(Explain, FollowedJobReportsWhyItWaits) {
  Process running(folder_, mycojobs_.line({"run", folder_.write("x.v", "x")}));
  EXPECT_TRUE(eventually([&] { return running.err().find("no runner serves queue:v") != std::string::npos; }))
      << running.err();
  running.signal(SIGINT);
  EXPECT_EQ(running.wait().code, 130) << running.err();
}

}  // namespace
}  // namespace mycojobs::test
