// Notifications of ends arrive although processes are killed: real agents and coordinators, and an independent receiver
// of webhooks.
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
  std::string receiver(int refusals = 0) {
    const std::string script = folder_ / "receiver.py";
    std::ofstream(script) << kReceiver;
    receivers_.emplace_back(folder_, std::vector<std::string>{"/usr/bin/python3", script, folder_.path().string(),
                                                              kSecret, std::to_string(refusals)});
    std::string port;
    EXPECT_TRUE(eventually([&] { return static_cast<bool>(std::ifstream(folder_ / "port") >> port); }))
        << receivers_.back().err();
    return "http://127.0.0.1:" + port;
  }
  Process coordinator(const std::string& name = "coordinator") {
    std::ofstream(folder_ / "secrets") << kSecret << "\n";
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-webhooks",
                             "http://127.0.0.1:*", "--coordinator-webhook-secrets", folder_ / "secrets",
                             "--coordinator-lease", "1s", "--api-listen", "", "--state-dir", folder_ / name});
  }
  std::vector<nlohmann::json> heard() const {
    std::vector<nlohmann::json> rows;
    std::ifstream file(folder_ / "heard");
    for (std::string line; std::getline(file, line);) {
      auto row = nlohmann::json::parse(line, nullptr, false);
      if (!row.is_discarded()) rows.push_back(std::move(row));
    }
    return rows;
  }
  // Counts the accepted calls for this job or flow.
  std::size_t taken(const std::string& key) const {
    std::size_t count = 0;
    for (const auto& row : heard()) count += row["code"] == 200 && row["body"]["data"]["key"] == key ? 1 : 0;
    return count;
  }
  bool hears(const std::string& key) const {
    return eventually([&] { return taken(key) > 0; });
  }

 private:
  std::vector<Process> receivers_;
};

TEST_F(Notify, WebhookJobAndTopicReceiveTheEndOfAJob) {
  const std::string url = receiver(2);
  const Process leads = coordinator();
  const Process runs = agent(20);
  const std::string script = "import os, json\nprint(json.loads(os.environ['MYCOJOBS_NOTICE'])['data']['key'])";
  const std::string submits = json{{"job", {{"script_type", "python"}, {"script", script}}}}.dump();
  const std::string errors = json{{"webhook", url + "/errors"}, {"on", "error"}}.dump();
  const std::string ops = json{{"topic", "ops"}}.dump();
  const std::string job = mycojobs_.submit(
      "result = {'n': 7}", {"--notify", url + "/all", "--notify", errors, "--notify", ops, "--notify", submits});
  ASSERT_TRUE(hears(job)) << leads.err();
  const auto rows = heard();
  ASSERT_EQ(rows.size(), 3U) << "two refusals, then it is taken";
  for (const auto& row : rows) {
    EXPECT_EQ(row["path"], "/all");
    EXPECT_EQ(row["id"], rows[0]["id"]) << "the same at each try";
    EXPECT_EQ(row["signed"], true);
    EXPECT_EQ(row["body"]["type"], "job.ended");
    EXPECT_EQ(row["body"]["data"]["result"]["n"], 7);
  }
  std::string follower;
  ASSERT_TRUE(eventually([&] {
    for (const auto& row : mycojobs_.json({"job", "list"})) {
      if (row.value("name", "") == "notice of " + job) follower = row.value("key", "");
    }
    return !follower.empty();
  }));
  EXPECT_TRUE(mycojobs_.wait_for_value(follower, "status", "finished"));
  EXPECT_EQ(mycojobs_({"job", "logs", follower}).out, job + "\n");
  std::istringstream messages(redis_.cli(1, {"KEYS", "message:1:*"}));
  std::string message, more;
  messages >> message >> more;
  EXPECT_TRUE(!message.empty() && more.empty()) << "one, though the notice was tried three times";
  EXPECT_EQ(json::parse(redis_.cli(1, {"HGET", message, "message"}))["data"]["key"], job);
  EXPECT_EQ(redis_.cli(1, {"HGET", message, "topic"}), "ops");
  EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"ZCARD", "mj:notices"}) == "0"; }));
  expect_says(mycojobs_({"verify"}), 0, "");
}

TEST_F(Notify, EndsOfFlowAndContextAreReported) {
  const std::string url = receiver();
  const Process leads = coordinator();
  const Process runs = agent(20);
  EXPECT_EQ(mycojobs_({"context", "grant", "1", "--admin", "1"}).code, 0);
  EXPECT_EQ(mycojobs_({"context", "notify", "1", "--target", url + "/context"}).code, 0);
  std::ofstream(folder_ / "flow.yaml")
      << "name: told\nnotify: " << url
      << "/flow\njobs:\n  a: {script: 'result = {\"x\": 1}', "
         "type: python}\n  b: {script: 'raise ValueError(3)', type: python, needs: a}\n";
  EXPECT_EQ(mycojobs_({"flow", "start", folder_ / "flow.yaml", "--follow"}).code, 1);
  ASSERT_TRUE(eventually([&] { return taken("flow:1") == 2; })) << leads.err();
  std::vector<std::string> paths;
  for (const auto& row : heard()) {
    paths.push_back(row["path"]);
    EXPECT_EQ(row["body"]["type"], "flow.ended");
    EXPECT_EQ(row["body"]["data"]["status"], "error");
    EXPECT_EQ(row["body"]["data"]["result"]["a.x"], 1);
  }
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(paths, (std::vector<std::string>{"/context", "/flow"})) << "once each, and nothing of its jobs";
}

TEST_F(Notify, KilledCoordinatorsLoseNothing) {
  const std::string url = receiver(5);
  const Process runs = agent(20);
  std::vector<std::string> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back(mycojobs_.submit("pass", {"--notify", url + "/x"}));
  for (int i = 0; i < 3; ++i) {
    Process one = coordinator("coordinator" + std::to_string(i));
    const std::size_t before = heard().size();
    EXPECT_TRUE(eventually([&] { return heard().size() > before; })) << one.err();
    one.signal(SIGKILL);
    // Makes all notices due, as if the claim of the killed coordinator had expired.
    const std::string entries = redis_.cli(1, {"ZRANGE", "mj:notices", "0", "-1"});
    std::istringstream lines(entries);
    for (std::string entry; std::getline(lines, entry);) {
      if (!entry.empty()) redis_.cli(1, {"ZADD", "mj:notices", "1", entry});
    }
  }
  const Process last = coordinator("last");
  for (const std::string& job : jobs) EXPECT_TRUE(hears(job)) << job << last.err();
  EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"ZCARD", "mj:notices"}) == "0"; }));
}

TEST_F(Notify, TargetsOutsideTheOperatorsListAreNotCalled) {
  const std::string url = receiver();
  std::ofstream(folder_ / "secrets") << kSecret << "\n";
  const Process leads(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-webhooks",
                                url + "/allowed/", "--api-listen", "", "--state-dir", folder_ / "strict"});
  const Process runs = agent(20);
  const std::string bad = mycojobs_.submit("pass", {"--notify", url + "/secret"});
  const std::string good = mycojobs_.submit("pass", {"--notify", url + "/allowed/x"});
  ASSERT_TRUE(hears(good)) << leads.err();
  EXPECT_TRUE(eventually([&] { return leads.err().find("coordinator.webhooks allows") != std::string::npos; }));
  EXPECT_EQ(taken(bad), 0U);
  const std::string greedy = R"({"script_type": "python", "script": "pass", "policy": {"memory": "2 GiB"}})";
  mycojobs_.submit("pass", {"--notify", R"({"job": )" + greedy + "}"});
  EXPECT_TRUE(eventually([&] { return leads.err().find("policy.memory: 2 GiB is more than") != std::string::npos; }))
      << leads.err();
  expect_says(mycojobs_({"job", "submit", "-", "--type", "python", "--notify", "file:///etc/passwd"}, "pass"), 65,
              "--notify");
}

// A running coordinator checks prerequisites with its own settings, on its own host.
TEST_F(Notify, CoordinatorsCheckPrerequisites) {
  const std::string ready = folder_ / "ready";
  const Process leads(folder_,
                      {program_path(), "coordinator", "--redis", redis_.url(), "--prerequisites-allow",
                       "file:" + folder_.path().string(), "--api-listen", "", "--state-dir", folder_ / "looks"});
  ASSERT_TRUE(eventually([&] { return redis_.cli(1, {"EXISTS", "mj:looking"}) == "1"; })) << leads.err();
  const Process runs = agent(20);  // allows no files, so this agent would reject the prerequisite
  const std::string job = mycojobs_.submit("pass", {"--prerequisite", "file:" + ready});
  EXPECT_TRUE(mycojobs_.wait_for_value(job, "detail", "prerequisite"));
  std::ofstream{ready} << "x";
  EXPECT_TRUE(mycojobs_.wait_for_value(job, "status", "finished")) << leads.err();
}

}  // namespace
}  // namespace mycojobs::test
