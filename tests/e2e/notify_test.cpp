// Notifications of the ends of jobs and flows arrive although processes are killed. With real agents and coordinators,
// and a webhook receiver in Python.
#include <signal.h>

#include <algorithm>
#include <fstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

constexpr const char* kReceiver = R"py(
import base64, hashlib, hmac, http.server, json, os, sys
folder, secret, refusals, seen = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global seen
        body = self.rfile.read(int(self.headers['Content-Length']))
        signed = self.headers['webhook-id'] + '.' + self.headers['webhook-timestamp'] + '.'
        digest = hmac.new(secret, signed.encode() + body, hashlib.sha256).digest()
        ours = 'v1,' + base64.b64encode(digest).decode()
        seen += 1
        code = 503 if seen <= refusals else 200
        row = {'path': self.path, 'code': code, 'id': self.headers['webhook-id'], 'body': json.loads(body),
               'signed': hmac.compare_digest(ours, self.headers.get('webhook-signature', ''))}
        with open(folder + '/heard', 'a') as heard:
            heard.write(json.dumps(row) + '\n')
        self.send_response(code)
        if self.path == '/moved':
            self.send_header('Location', '/elsewhere')
        self.end_headers()
    def log_message(self, *words): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
with open(folder + '/port.new', 'w') as port:
    port.write(str(server.server_port))
os.rename(folder + '/port.new', folder + '/port')
server.serve_forever()
)py";

class Notify : public Operator {
 protected:
  static constexpr const char* kSecret = "a secret of some length";

  Notify() { redis_.cli(1, {"SET", "here", "1"}); }
  // Starts a receiver that refuses the first `refusals` calls. Returns its address.
  std::string start_receiver(int refusals = 0) {
    const std::string script = folder_ / "receiver.py";
    std::ofstream(script) << kReceiver;
    receivers_.emplace_back(folder_, std::vector<std::string>{"/usr/bin/python3", script, folder_.path().string(),
                                                              kSecret, std::to_string(refusals)});
    std::string port;
    EXPECT_TRUE(eventually([&] { return static_cast<bool>(std::ifstream(folder_ / "port") >> port); }))
        << receivers_.back().err();
    return "http://127.0.0.1:" + port;
  }
  Process start_coordinator(const std::string& name = "coordinator") {
    std::ofstream(folder_ / "secrets") << kSecret << "\n";
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-webhooks",
                             "http://127.0.0.1:*", "--coordinator-webhook-secrets", folder_ / "secrets",
                             "--coordinator-lease", "1s", "--api-listen", "", "--state-dir", folder_ / name});
  }
  std::vector<nlohmann::json> read_requests() const {
    std::vector<nlohmann::json> rows;
    std::ifstream file(folder_ / "heard");
    for (std::string line; std::getline(file, line);) {
      auto row = nlohmann::json::parse(line, nullptr, false);
      if (!row.is_discarded()) rows.push_back(std::move(row));
    }
    return rows;
  }
  // Counts the accepted calls for this job or flow.
  std::size_t count_accepted(const std::string& key) const {
    std::size_t count = 0;
    for (const auto& row : read_requests()) count += row["code"] == 200 && row["body"]["data"]["key"] == key ? 1 : 0;
    return count;
  }
  bool wait_for_notice(const std::string& key) const {
    return eventually([&] { return count_accepted(key) > 0; });
  }

 private:
  std::vector<Process> receivers_;
};

TEST_F(Notify, WebhookJobAndTopicReceiveTheEndOfAJob) {
  const std::string url = start_receiver(2);
  const Process coordinator = start_coordinator();
  const Process agent = start_registered_agent(20);
  const std::string script = "import os, json\nprint(json.loads(os.environ['MYCOJOBS_NOTICE'])['data']['key'])";
  const std::string job_target = json{{"job", {{"script_type", "python"}, {"script", script}}}}.dump();
  const std::string error_target = json{{"webhook", url + "/errors"}, {"on", "error"}}.dump();
  const std::string topic_target = json{{"topic", "ops"}}.dump();
  const std::string job = mycojobs_.submit("result = {'n': 7}", {"--notify", url + "/all", "--notify", error_target,
                                                                 "--notify", topic_target, "--notify", job_target});
  ASSERT_TRUE(wait_for_notice(job)) << coordinator.err();
  const auto rows = read_requests();
  ASSERT_EQ(rows.size(), 3U) << "the receiver refuses twice and then accepts";
  for (const auto& row : rows) {
    EXPECT_EQ(row["path"], "/all");
    EXPECT_EQ(row["id"], rows[0]["id"]) << "all attempts must have the same id";
    EXPECT_EQ(row["signed"], true);
    EXPECT_EQ(row["body"]["type"], "job.ended");
    EXPECT_EQ(row["body"]["data"]["result"]["n"], 7);
  }
  std::string follower;
  ASSERT_TRUE(eventually([&] {
    for (const auto& row : mycojobs_.run_json({"job", "list"})) {
      if (row.value("name", "") == "notice of " + job) follower = row.value("key", "");
    }
    return !follower.empty();
  }));
  EXPECT_TRUE(mycojobs_.wait_for_value(follower, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", follower}).out, job + "\n");
  std::istringstream messages(redis_.cli(1, {"KEYS", "message:1:*"}));
  std::string message, second_message;
  messages >> message >> second_message;
  EXPECT_TRUE(!message.empty() && second_message.empty()) << "one message, although the notice was sent three times";
  EXPECT_EQ(json::parse(redis_.cli(1, {"HGET", message, "message"}))["data"]["key"], job);
  EXPECT_EQ(redis_.cli(1, {"HGET", message, "topic"}), "ops");
  EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"ZCARD", "mj:notices"}) == "0"; }));
  expect_result(mycojobs_({"verify"}), 0, "");
}

TEST_F(Notify, EndsOfFlowAndContextAreReported) {
  const std::string url = start_receiver();
  const Process coordinator = start_coordinator();
  const Process agent = start_registered_agent(20);
  EXPECT_EQ(mycojobs_({"context", "grant", "1", "--admin", "1"}).code, 0);
  EXPECT_EQ(mycojobs_({"context", "notify", "1", "--target", url + "/context"}).code, 0);
  std::ofstream(folder_ / "flow.yaml")
      << "name: told\nnotify: " << url
      << "/flow\njobs:\n  a: {script: 'result = {\"x\": 1}', "
         "type: python}\n  b: {script: 'raise ValueError(3)', type: python, needs: a}\n";
  EXPECT_EQ(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"}).code, 1);
  ASSERT_TRUE(eventually([&] { return count_accepted("flow:1") == 2; })) << coordinator.err();
  std::vector<std::string> paths;
  for (const auto& row : read_requests()) {
    paths.push_back(row["path"]);
    EXPECT_EQ(row["body"]["type"], "flow.ended");
    EXPECT_EQ(row["body"]["data"]["status"], "error");
    EXPECT_EQ(row["body"]["data"]["result"]["a.x"], 1);
  }
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{"/context", "/flow"}))
      << "one request for each target, and no request for the jobs of the flow";
}

TEST_F(Notify, KilledCoordinatorsLoseNothing) {
  const std::string url = start_receiver(5);
  const Process agent = start_registered_agent(20);
  std::vector<std::string> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back(mycojobs_.submit("pass", {"--notify", url + "/x"}));
  for (int i = 0; i < 3; ++i) {
    Process coordinator = start_coordinator("coordinator" + std::to_string(i));
    const std::size_t requests_before = read_requests().size();
    EXPECT_TRUE(eventually([&] { return read_requests().size() > requests_before; })) << coordinator.err();
    coordinator.signal(SIGKILL);
    // Makes all notices due, as if the claim of the killed coordinator had expired.
    const std::string entries = redis_.cli(1, {"ZRANGE", "mj:notices", "0", "-1"});
    std::istringstream lines(entries);
    for (std::string entry; std::getline(lines, entry);) {
      if (!entry.empty()) redis_.cli(1, {"ZADD", "mj:notices", "1", entry});
    }
  }
  const Process last_coordinator = start_coordinator("last");
  for (const std::string& job : jobs) EXPECT_TRUE(wait_for_notice(job)) << job << last_coordinator.err();
  EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"ZCARD", "mj:notices"}) == "0"; }));
}

TEST_F(Notify, TargetsOutsideTheOperatorsListAreNotCalled) {
  const std::string url = start_receiver();
  std::ofstream(folder_ / "secrets") << kSecret << "\n";
  const Process coordinator(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-webhooks",
                                      url + "/allowed/", "--api-listen", "", "--state-dir", folder_ / "strict"});
  const Process agent = start_registered_agent(20);
  const std::string disallowed_job = mycojobs_.submit("pass", {"--notify", url + "/secret"});
  const std::string allowed_job = mycojobs_.submit("pass", {"--notify", url + "/allowed/x"});
  ASSERT_TRUE(wait_for_notice(allowed_job)) << coordinator.err();
  EXPECT_TRUE(eventually([&] { return coordinator.err().find("coordinator.webhooks allows") != std::string::npos; }));
  EXPECT_EQ(count_accepted(disallowed_job), 0U);
  const std::string greedy_job = R"({"script_type": "python", "script": "pass", "policy": {"memory": "2 GiB"}})";
  mycojobs_.submit("pass", {"--notify", R"({"job": )" + greedy_job + "}"});
  EXPECT_TRUE(eventually([&] {
    return coordinator.err().find("policy.memory: 2 GiB is more than") != std::string::npos;
  })) << coordinator.err();
  expect_result(mycojobs_({"job", "submit", "-", "--type", "python", "--notify", "file:///etc/passwd"}, "pass"), 65,
                "--notify");
}

// A running coordinator checks prerequisites with its own settings, on its own host.
TEST_F(Notify, CoordinatorsCheckPrerequisites) {
  const std::string ready = folder_ / "ready";
  const Process coordinator(folder_,
                            {program_path(), "coordinator", "--redis", redis_.url(), "--prerequisites-allow",
                             "file:" + folder_.path().string(), "--api-listen", "", "--state-dir", folder_ / "looks"});
  ASSERT_TRUE(eventually([&] {
    return redis_.cli(1, {"EXISTS", "mj:prerequisite-checker"}) == "1";
  })) << coordinator.err();
  const Process agent = start_registered_agent(20);  // allows no files, so this agent would reject the prerequisite
  const std::string job = mycojobs_.submit("pass", {"--prerequisite", "file:" + ready});
  EXPECT_TRUE(mycojobs_.wait_for_value(job, "detail", "prerequisite"));
  std::ofstream{ready} << "x";
  EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << coordinator.err();
}

}  // namespace
}  // namespace mycojobs::test
