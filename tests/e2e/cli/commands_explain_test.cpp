// `job explain` with a real store, for every state of a job.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Explain : public Operator {
 protected:
  // Returns the text of `job explain` once it names the cause.
  std::string wait_for_explanation(const std::string& job, const std::string& cause) {
    EXPECT_TRUE(mycojobs_.wait_for_cause(job, cause)) << mycojobs_({"job", "explain", job}).out;
    return mycojobs_({"job", "explain", job}).out;
  }
  void expect_contains(const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << "no \"" << words << "\" in\n" << text;
  }
};

TEST_F(Explain, JobThatWasNeverQueued) {
  expect_contains(wait_for_explanation("job:12:7", "no_such_job"), "context 1 has no data of job:12:7");
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script", "pass"});
  expect_contains(wait_for_explanation("job:12:7", "no_script_type"), "HSET job:12:7 script_type");
  redis_.cli(1, {"HSET", "job:12:7", "script_type", "python"});
  expect_contains(wait_for_explanation("job:12:7", "not_queued"), "redis-cli -n 1 LPUSH queue:python job:12:7");
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  expect_contains(wait_for_explanation("job:12:7", "no_runner"), "position 1 of 1 in queue:python");
  redis_.cli(1, {"DEL", "job:12:7"});
  redis_.cli(1, {"RPUSH", "job:12:7", "x"});
  expect_contains(wait_for_explanation("job:12:7", "wrong_type"), "redis-cli -n 1 DEL job:12:7");
}

TEST_F(Explain, JobWrittenToTheDefaultDatabase) {
  redis_.cli(0, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script", "pass", "script_type",
                 "python"});
  redis_.cli(0, {"LPUSH", "queue:python", "job:12:7"});
  expect_contains(wait_for_explanation("job:12:7", "in_database_0"),
                  "`redis-cli MOVE job:12:7 1`, then `redis-cli -n 1 LPUSH queue:python job:12:7`");
  EXPECT_EQ(mycojobs_({"job", "explain", "job:12:7"}).code, 66);
  redis_.cli(0, {"MOVE", "job:12:7", "1"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  Process agent = start_registered_agent(20);
  EXPECT_TRUE(mycojobs_.wait_for_value("job:12:7", "status", "finished"));
}

TEST_F(Explain, JobWithoutAnExecutor) {
  const std::string key = mycojobs_.submit("pass", {"--type", "cobol"});
  expect_contains(wait_for_explanation(key, "no_runner"), "no runner of this context is alive");
  Process agent = start_registered_agent(20);
  expect_contains(wait_for_explanation(key, "no_runner"), "live runners serve queue:native, queue:osis, queue:python");
  expect_contains(wait_for_explanation(key, "no_runner"), "start an agent that runs cobol");
}

TEST_F(Explain, QueuedJob) {
  Process agent = start_registered_agent(20, {"--slots", "1"});
  mycojobs_({"queue", "pause", "python"});
  const std::string first_job = mycojobs_.submit(kSleepScript);
  const std::string second_job = mycojobs_.submit("pass");
  expect_contains(wait_for_explanation(first_job, "queue_paused"), "queue resume python");
  mycojobs_({"queue", "resume", "python"});
  expect_contains(wait_for_explanation(first_job, "running"), "runner 20 on ");
  expect_contains(wait_for_explanation(second_job, "slots_busy"), "1 of 1 slots busy");
  expect_contains(wait_for_explanation(second_job, "slots_busy"), "position 1 of 1");
}

TEST_F(Explain, JobOnARunnerThatIsThenLost) {
  Process agent = start_registered_agent(20);
  const std::string key = mycojobs_.submit(kSleepScript);
  expect_contains(wait_for_explanation(key, "running"), "its lease ends in");
  agent.signal(SIGSTOP);
  expect_contains(wait_for_explanation(key, "lease_over"), "start an agent");
  Process second_agent = start_registered_agent(21);
  EXPECT_TRUE(mycojobs_.wait_for_value(key, "runner_id", "21")) << second_agent.err();
  expect_contains(wait_for_explanation(key, "running"), "runner 21");
  agent.signal(SIGCONT);
}

TEST_F(Explain, JobCancelledWhileRunning) {
  Process agent = start_registered_agent(20, {"--lease", "1m"});
  const std::string key = mycojobs_.submit(kSleepScript);
  wait_for_explanation(key, "running");
  agent.signal(SIGSTOP);  // prevents the agent from forwarding the request
  mycojobs_({"job", "cancel", key});
  expect_contains(wait_for_explanation(key, "cancelling"), "a cancellation was requested");
  agent.signal(SIGCONT);
  expect_contains(wait_for_explanation(key, "cancelled"), "submit it again");
}

TEST_F(Explain, DelayedJob) {
  const std::string key = mycojobs_.submit("pass", {"--delay", "1h"});
  expect_contains(wait_for_explanation(key, "postponed"), "due in 59 min");
  const std::string due_job = mycojobs_.submit("pass", {"--delay", "2s"});  // the job is due as soon as it is stored
  expect_contains(wait_for_explanation(due_job, "due"), "no agent is alive to queue it");
}

TEST_F(Explain, JobBetweenAttempts) {
  Process agent = start_registered_agent(20, {"--retry-min", "1h", "--retry-max", "1h"});
  const std::string key = mycojobs_.submit("1/0", {"--retries", "3"});
  const std::string output = wait_for_explanation(key, "retry_wait");
  expect_contains(output, "attempt 2 of 4 is due in");
  expect_contains(output, "last error: ZeroDivisionError");
}

TEST_F(Explain, JobWaitingForDependencies) {
  Process agent = start_registered_agent(20);
  const std::string running_job = mycojobs_.submit(kSleepScript);
  const std::string id = running_job.substr(running_job.rfind(':') + 1);
  const std::string dependent = mycojobs_.submit("pass", {"--depends", id});
  expect_contains(wait_for_explanation(dependent, "dependencies"), running_job + " is live");
  const std::string job_with_absent_dependency = mycojobs_.submit("pass", {"--depends", "888", "--depends", id});
  expect_contains(wait_for_explanation(job_with_absent_dependency, "dependency_absent"),
                  "job:1:888, which does not exist");
  mycojobs_.submit("pass", {"--id", "500", "--depends", "501"});
  mycojobs_.submit("pass", {"--id", "501", "--depends", "502"});
  mycojobs_.submit("pass", {"--id", "502", "--depends", "501"});
  expect_contains(wait_for_explanation("job:1:500", "cycle"), "job:1:500 -> job:1:501 -> job:1:502 -> job:1:501");
  mycojobs_({"job", "cancel", running_job});
  expect_contains(wait_for_explanation(dependent, "dependency_failed"), running_job);
}

TEST_F(Explain, JobWaitingForPrerequisites) {
  const std::string key = mycojobs_.submit("pass", {"--prerequisite", "redis:ready"});
  Process agent = start_registered_agent(20);
  expect_contains(wait_for_explanation(key, "not_met"), "redis:ready");
  agent.signal(SIGKILL);
  expect_contains(wait_for_explanation(key, "not_checked"), "start an agent");
}

TEST_F(Explain, JobHeldByItsConcurrencyKey) {
  Process agent = start_registered_agent(20);
  const std::string first_job = mycojobs_.submit(kSleepScript, {"--concurrency-key", "db"});
  wait_for_explanation(first_job, "running");
  const std::string second_job = mycojobs_.submit("pass", {"--concurrency-key", "db"});
  const std::string output = wait_for_explanation(second_job, "slots_taken");
  expect_contains(output, "runs: " + first_job);
  expect_contains(output, "1 of 1 job that concurrency key db allows");
  mycojobs_({"job", "cancel", first_job});
  wait_for_explanation(second_job, "finished");
}

TEST_F(Explain, EndedJob) {
  Process agent = start_registered_agent(20);
  expect_contains(wait_for_explanation(mycojobs_.submit("pass"), "finished"), "job show");
  expect_contains(wait_for_explanation(mycojobs_.submit("1/0"), "failed"),
                  "fix the script and submit it again; `mycojobs job retry");
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "caller_id", "12", "context_id", "1", "script_type", "python", "script",
                 "pass", "timeout", "0"});
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:7"});
  expect_contains(wait_for_explanation("job:12:7", "dead_letter"), "timeout");
  redis_.cli(1, {"LPUSH", "queue:python", "job:12:8"});
  expect_contains(wait_for_explanation("job:12:8", "record_never_came"), "queue dead --requeue");
}

TEST_F(Explain, JobChangedByAnotherClient) {
  redis_.cli(1, {"HSET", "job:12:7", "id", "7", "script_type", "python", "status", "finished"});
  wait_for_explanation("job:12:7", "ended_elsewhere");
  const std::string queued_job = mycojobs_.submit("pass");
  redis_.cli(1, {"RPOP", "queue:python"});
  expect_contains(wait_for_explanation(queued_job, "place_lost"), "doctor --rebuild");
  expect_result(mycojobs_({"doctor", "--rebuild"}), 0, queued_job);
  wait_for_explanation(queued_job, "no_runner");
}

TEST_F(Explain, FollowedJobReportsWhyItWaits) {
  Process follower(folder_, mycojobs_.make_argv({"run", folder_.write("x.v", "x")}));
  EXPECT_TRUE(eventually([&] { return follower.err().find("no runner serves queue:v") != std::string::npos; }))
      << follower.err();
  follower.signal(SIGINT);
  EXPECT_EQ(follower.wait().code, 130) << follower.err();
}

}  // namespace
}  // namespace mycojobs::test
