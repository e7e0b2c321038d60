// Commands that follow output end when its reader closes the pipe, even while they write nothing.
#include "e2e/client.h"

namespace mycojobs::test {
namespace {

constexpr int kSigpipe = 141;

class ClosedPipe : public Operator {
 protected:
  Process start_coordinator() {
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--context", "1", "--state-dir",
                             folder_ / "coordinator"});
  }
  // Starts a flow with two nodes: the first writes a line, the second is a pause. Returns the id of the flow.
  std::string start_waiting_flow() {
    const std::string file = folder_.write(
        "flow.yaml",
        "name: waits\njobs:\n  a: {script: \"print('up')\", type: python}\n  b: {needs: a, pause: wait}\n");
    const std::string key = mycojobs_({"flow", "start", file, "--detach"}).out;
    const std::string id = key.substr(5, key.find('\n') - 5);
    EXPECT_TRUE(eventually([&] {
      return mycojobs_.run_json({"flow", "show", id}).value("detail", "") == "waiting";
    })) << mycojobs_({"flow", "show", id}).out;
    return id;
  }
};

TEST_F(ClosedPipe, EndsFollowersOfFlows) {
  Process coordinator = start_coordinator();
  Process agent = start_registered_agent(20);
  const std::string flow = start_waiting_flow();
  for (const auto& words : {std::vector<std::string>{"flow", "watch", flow},
                            {"flow", "watch", flow, "--json"},
                            {"flow", "journal", flow, "--follow"},
                            {"flow", "logs", flow, "--follow"},
                            {"flow", "start", folder_ / "flow.yaml", "--follow"}}) {
    for (const char* reader : {"head -1", "true"})
      EXPECT_EQ(mycojobs_.run_piped(words, reader).code, kSigpipe) << words[1] << " | " << reader;
  }
}

TEST_F(ClosedPipe, EndsJobLogsAndCancelsTheJobOfRun) {
  Process agent = start_registered_agent(20);
  const std::string job = mycojobs_.submit(kSleepScript);
  for (const char* reader : {"head -1", "true"})
    EXPECT_EQ(mycojobs_.run_piped({"job", "logs", job, "--follow"}, reader).code, kSigpipe) << reader;
  EXPECT_EQ(mycojobs_.read_field(job, "status"), "started") << "`job logs` must not end the job";
  EXPECT_EQ(mycojobs_.run_piped({"run", folder_.write("job.py", kSleepScript)}, "head -1").code, 130);
}

TEST_F(ClosedPipe, EndsMessageFollow) {
  redis_.cli(1, {"HSET", "message:12:101", "id", "101", "caller_id", "12", "context_id", "1", "message_type", "text",
                 "message", "m", "status", "dispatched"});
  EXPECT_EQ(mycojobs_.run_piped({"message", "follow", "12:101"}, "true").code, 75);
}

TEST_F(ClosedPipe, EndsFlowStartWithItsPrivateRedis) {
  const std::string file = folder_.write("flow.yaml", "name: waits\njobs:\n  a: {pause: wait}\n");
  const ProcessResult result =
      run(folder_, {"bash", "-c", "timeout 60 \"$@\" 2>&1 | head -1; exit ${PIPESTATUS[0]}", "bash", program_path(),
                    "flow", "start", file, "--state-dir", folder_ / "state"});
  EXPECT_EQ(result.code, kSigpipe) << result.out << result.err;
}

}  // namespace
}  // namespace mycojobs::test
