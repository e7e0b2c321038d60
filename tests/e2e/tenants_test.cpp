// Work is sent from bob's context to alice's, and its results return: with two Redis servers, two coordinators and real
// agents. Requests without permission get an error.
#include "e2e/tenants.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "e2e/client.h"
#include "messaging/envelope.h"
#include "messaging/message_receiver.h"
#include "messaging/transport/transport.h"
#include "model/codec.h"
#include "support/mycelium_mesh.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

std::uint64_t now_s() { return static_cast<std::uint64_t>(::time(nullptr)); }

class TenantsE2e : public ::testing::Test {
 protected:
  void SetUp() override {
    both_.start_both();
    alice_.work();
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext)) << alice_.agents.front()->err();
  }
  std::vector<std::string> send(std::vector<std::string> what, std::vector<std::string> more = {}) const {
    what.insert(what.begin(), {"message", "send"});
    what.insert(what.end(), {"--key", "bob", "--caller", "12", "--to", "9", "--address", alice_.url()});
    what.insert(what.end(), more.begin(), more.end());
    return what;
  }
  std::string script(const std::string& text) {
    return bob_.folder.write("script" + std::to_string(++scripts_) + ".py", text);
  }
  // Runs the command and returns the name of the message, for example "12:1".
  std::string sent(const std::vector<std::string>& words) const {
    const ProcessResult command_result = bob_(words);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    return command_result.out.substr(0, command_result.out.find('\n'));
  }
  bool ends(const std::string& message, const std::string& as = "processed") const {
    const bool ended = bob_.wait_for_value("message:" + message, "status", as);
    EXPECT_TRUE(ended) << message << " is " << bob_.field("message:" + message, "status") << ": "
                       << bob_.field("message:" + message, "error") << "\n"
                       << bob_.coordinator->err() << alice_.coordinator->err();
    return ended;
  }
  // Writes a message with these jobs, only with redis-cli.
  void write_message(int id, const json& jobs, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"HSET",
                                   "message:12:" + std::to_string(id),
                                   "id",
                                   std::to_string(id),
                                   "caller_id",
                                   "12",
                                   "context_id",
                                   "7",
                                   "message_type",
                                   "job",
                                   "status",
                                   "dispatched",
                                   "target_context",
                                   "9",
                                   "target_address",
                                   alice_.url(),
                                   "job",
                                   jobs.dump()};
    words.insert(words.end(), more.begin(), more.end());
    bob_.cli(words);
    expect_says(bob_({"message", "sign", "12:" + std::to_string(id), "--key", "bob"}), 0, "is signed");
    bob_.cli({"LPUSH", "msg_out", "message:12:" + std::to_string(id)});
  }
  static json plain_job(int id, const std::string& script) {
    return {{"id", id}, {"caller_id", 12}, {"context_id", 7}, {"script", script}, {"script_type", "python"}};
  }
  void TearDown() override {
    bob_.expect_verified();
    alice_.expect_verified();
  }

  Tenants both_;
  Tenant &bob_ = both_.bob, &alice_ = both_.alice;
  int scripts_ = 0;
};

// ---- use cases ----

TEST_F(TenantsE2e, JobSentWithRedisCliRunsAndReturnsItsResult) {
  write_message(101, json::array({plain_job(500, "print('from there')\nresult = {'n': '7'}")}));
  ASSERT_TRUE(ends("12:101"));
  EXPECT_EQ(bob_.msg_in(), std::vector<std::string>{"message:12:101"});
  EXPECT_EQ(bob_.field("message:12:101", "transport_status"), "read");
  EXPECT_TRUE(bob_.wait_for_value("message:12:101", "transport_id", "9 message:5:101"));
  EXPECT_EQ(bob_.field("job:12:500", "status"), "finished");
  EXPECT_EQ(bob_.field("job:12:500", "result"), R"({"n":"7"})");
  EXPECT_EQ(bob_.cli({"LLEN", "msg_out"}), "0");
  EXPECT_EQ(bob_.cli({"LLEN", "msg_out_coordinator"}), "0");
  const auto there = alice_.find_keys("job:*");
  ASSERT_EQ(there.size(), 1U);
  EXPECT_TRUE(there[0].starts_with("job:5:")) << there[0];
  EXPECT_EQ(alice_.field(there[0], "runner_id"), "20");
  EXPECT_EQ(alice_.field("message:5:101", "status"), "processed");
  const std::string key = alice_.field("runner:20", "pubkey");
  const ProcessResult receipt = bob_({"receipt", "verify", "job:12:500", "--key", key});
  EXPECT_EQ(receipt.code, 0) << receipt.out << receipt.err;
  bob_.cli({"HSET", "job:12:500", "result", R"({"n":"8"})"});
  EXPECT_EQ(bob_({"receipt", "verify", "job:12:500", "--key", key}).code, 1);
}

TEST_F(TenantsE2e, MessageSendFollowsTheMessageToItsEnd) {
  const ProcessResult command_result =
      bob_(send({script("print('a line of there')\nresult = {'x': '42'}"), "--follow"}));
  expect_says(command_result, 0, "a line of there");
  expect_says(command_result, 0, "x = 42");
  const ProcessResult failed = bob_(send({script("raise ValueError('not like this')"), "--follow"}));
  expect_says(failed, 1, "not like this");
  expect_says(failed, 1, "1 of its jobs failed");
}

TEST_F(TenantsE2e, WaitShowsTheStateOfAMessage) {
  const ProcessResult unsigned_yet = bob_(send({script("result = {}")}, {"--key", "supervisor"}));
  expect_says(unsigned_yet, 65, "is not the key of actor 12");
  expect_says(bob_(send({"--text", "hello", "--env", "A=1"})), 65, "--env: is for a script (FILE) alone");
  alice_.coordinator->signal(SIGKILL);
  alice_.coordinator->wait();
  Process follower = bob_.start(send({script("result = {'x': '42'}"), "--follow"}));
  EXPECT_TRUE(eventually([&] { return follower.err().find("is tried again: ") != std::string::npos; }));
  follower.signal(SIGINT);
  EXPECT_EQ(follower.wait().code, 75);
  EXPECT_NE(follower.err().find("message follow 12:1 --context 7"), std::string::npos) << follower.err();
  bob_.coordinator->signal(SIGKILL);
  bob_.coordinator->wait();
  Process second = bob_.start({"message", "follow", "12:1"});
  EXPECT_TRUE(eventually([&] { return second.err().find("no coordinator leads context 7") != std::string::npos; }));
  alice_.start_coordinator();
  bob_.start_coordinator();
  EXPECT_EQ(second.wait().code, 0) << second.err();
}

TEST_F(TenantsE2e, RpcCreatesAndSendsAMessage) {
  const std::string token = [&] {
    const ProcessResult made = bob_({"key", "token", "--actor", "12", "--api-tokens", bob_.folder / "tokens"});
    EXPECT_EQ(made.code, 0) << made.err;
    return made.out.substr(0, made.out.find('\n'));
  }();
  HttpWire wire(bob_.port);
  const auto call = [&](const std::string& method, const json& params) {
    const auto reply =
        wire.post("/", json{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}}.dump(),
                  "Authorization: Bearer " + token + "\r\n");
    const json answer = json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(answer.is_object() && answer.contains("result")) << method << reply.status << reply.body;
    return answer.is_object() ? answer.value("result", json::object()) : json::object();
  };
  const json made = call("message.create", {{"context_id", 7},
                                            {"message_type", "job"},
                                            {"target_context", 9},
                                            {"target_address", alice_.url()},
                                            {"job", {{{"script", "result = {'n': '9'}"}, {"script_type", "python"}}}}});
  auto message = decode_json<Message>(made).record;
  message.created_at = static_cast<std::uint32_t>(now_s());
  ASSERT_TRUE(sign(message, bob_.key("bob")));
  call("message.send", {{"id", message.id},
                        {"context_id", 7},
                        {"signature", message.signature},
                        {"signer", message.signer},
                        {"algorithm", message.algorithm},
                        {"created_at", message.created_at}});
  ASSERT_TRUE(ends("12:" + std::to_string(message.id)));
  EXPECT_EQ(
      call("job.result", {{"id", message.job.at(0).id}, {"caller_id", 12}, {"context_id", 7}})["result"].value("n", ""),
      "9");
}

TEST_F(TenantsE2e, MessageToARunnersTopicRunsThere) {
  alice_.work(21);
  ASSERT_TRUE(wait_until_registered(alice_.redis, 21, kAlicesContext));
  for (const std::string runner : {"21", "20", "21"}) {
    const auto before = alice_.find_keys("job:*");
    ASSERT_TRUE(ends(sent(send({script("result = {}")}, {"--topic", "runner" + runner}))));
    for (const std::string& job : alice_.find_keys("job:*")) {
      if (std::find(before.begin(), before.end(), job) != before.end()) continue;
      EXPECT_EQ(alice_.field(job, "runner_id"), runner) << job;
    }
  }
  const std::string nowhere = sent(send({script("result = {}")}, {"--topic", "runner77"}));
  ASSERT_TRUE(ends(nowhere, "error"));
  EXPECT_NE(bob_.field("message:" + nowhere, "error").find("runner77"), std::string::npos);
}

TEST_F(TenantsE2e, DependentJobsAreSentTogether) {
  json second = plain_job(11, "result = {'n': '2'}"), third = plain_job(12, "result = {'n': '3'}");
  second["dependends"] = {10};
  third["dependends"] = {10, 11};
  write_message(1, json::array({third, second, plain_job(10, "import time\ntime.sleep(0.3)\nresult = {'n': '1'}")}));
  ASSERT_TRUE(ends("12:1"));
  for (int id = 10; id <= 12; ++id)
    EXPECT_EQ(bob_.field("job:12:" + std::to_string(id), "result"), R"({"n":")" + std::to_string(id - 9) + R"("})");

  json after = plain_job(21, "result = {'n': '2'}");
  after["dependends"] = {20};
  write_message(2, json::array({plain_job(20, "1/0"), after}));
  ASSERT_TRUE(ends("12:2", "error"));
  EXPECT_EQ(bob_.field("job:12:20", "detail"), "exception");
  EXPECT_EQ(bob_.field("job:12:21", "detail"), "dependency_failed");

  json of_others = plain_job(30, "result = {}");
  of_others["dependends"] = {1};
  write_message(3, json::array({of_others}));
  ASSERT_TRUE(ends("12:3", "error"));
  EXPECT_NE(bob_.field("message:12:3", "error").find("dependends"), std::string::npos);
}

TEST_F(TenantsE2e, FlowIsSentAsAWhole) {
  const json flow{
      {"name", "far"},
      {"env", {{"REGION", "of the flow"}, {"OWN", "of the flow"}}},
      {"jobs",
       {{"one", {{"script", "result = {'n': '1'}"}, {"type", "python"}}},
        {"two",
         {{"needs", {"one"}},
          {"env", {{"OWN", "of the job"}}},
          {"script", "import os\nresult = {'n': '2', 'region': os.environ['REGION'], 'own': os.environ['OWN']}"},
          {"type", "python"}}}}}};
  const std::string file = bob_.folder.write("flow.json", flow.dump());
  const ProcessResult command_result = bob_(send({"--flow", file, "--follow"}));
  for (const char* each : {"two.n = 2", "two.region = of the flow", "two.own = of the job"})
    expect_says(command_result, 0, each);
  EXPECT_EQ(alice_.find_keys("flow:*").size(), 1U);
  EXPECT_TRUE(bob_.find_keys("flow:*").empty());
}

// A node of bob's flow runs at alice, named as one of bob's runners. It receives the files of its predecessor and
// passes its files to its successor.
class TenantsFiles : public TenantsE2e {
 protected:
  void SetUp() override {
    bob_.shares_state = alice_.shares_state = true;
    TenantsE2e::SetUp();
    bob_.work(30);
    ASSERT_TRUE(wait_until_registered(bob_.redis, 30, kBobsContext));
    ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", both_.bobs_supervisor, "--address", bob_.url()}).code,
              0);
    ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
    ASSERT_EQ(bob_({"runner", "update", "50", "--target-context", "9"}).code, 0);
  }
};

TEST_F(TenantsFiles, RemoteNodeReadsAndWritesArtifacts) {
  const auto leaves = [](const std::string& name, const std::string& bytes) {
    return "(mycojobs.artifacts / '" + name + "').write_text(" + bytes + ")\nresult = {'n': '1'}";
  };
  const json flow{
      {"name", "far"},
      {"jobs",
       {{"build", {{"type", "python"}, {"script", "import mycojobs\n" + leaves("app", "'program ' * 100000")}}},
        {"far",
         {{"type", "python"},
          {"needs", {"build"}},
          {"inputs", {"build/app"}},
          {"supervisor_url", "runner:50"},
          {"script", "import mycojobs\n" + leaves("out.txt",
                                                  "open('/job/inputs/build/app').read() + 'ran with ' + "
                                                  "mycojobs.inputs['build']['n']")}}},
        {"last",
         {{"type", "python"},
          {"needs", {"far"}},
          {"inputs", {"far/out.txt"}},
          {"script",
           "text = open('/job/inputs/far/out.txt').read()\nresult = {'size': len(text), 'end': text[-10:]}"}}}}}};
  const ProcessResult begun = bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"});
  ASSERT_EQ(begun.code, 0) << begun.err;
  const std::string key = bob_.find_keys("flow:*").at(0);
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished", Seconds(90)))
      << bob_.field(key, "error") << bob_.field(key, "result") << bob_.coordinator->err() << alice_.coordinator->err();
  const json result = json::parse(bob_.field(key, "result"));
  EXPECT_EQ(result.value("last.end", ""), "ran with 1") << result;
  EXPECT_EQ(result.value("last.size", ""), "800010") << result;
  ASSERT_EQ(alice_.find_keys("job:15:*").size(), 1U);
  EXPECT_TRUE(alice_.find_keys("flow:*").empty());

  // The receipt of alice's runner is stored here, too.
  const std::vector<std::string> jobs = bob_.find_keys("job:*");
  const auto far =
      std::find_if(jobs.begin(), jobs.end(), [&](const auto& each) { return bob_.field(each, "name") == "far"; });
  ASSERT_NE(far, jobs.end());
  EXPECT_EQ(bob_.field(*far, "ran_as"), "9 " + alice_.find_keys("job:15:*").at(0));
  const ProcessResult verified =
      bob_({"receipt", "verify", far->substr(4), "--key", alice_.key("runner").public_key()});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  bob_.cli({"HSET", *far, "ran_as", "9 job:15:77"});
  EXPECT_NE(bob_({"receipt", "verify", far->substr(4), "--key", alice_.key("runner").public_key()}).code, 0)
      << "it is of that job alone";
}

// The remote agent signs its effect, and the workflow here accepts the signature.
TEST_F(TenantsFiles, RemoteEffectIsSentAsAMessage) {
  const json manifest{
      {"name", "bob/far@1"},
      {"schemas",
       {{"bob/Asked@1", {{"type", "object"}, {"required", {"n"}}, {"properties", {{"n", {{"type", "integer"}}}}}}},
        {"bob/Event@1",
         {{"oneOf",
           {{{"title", "Asked"}, {"$ref", "bob/Asked@1"}},
            {{"title", "Receipt"}, {"$ref", "sys/EffectReceiptEnvelope@1"}}}}}}}},
      {"state", json::object()},
      {"event", "bob/Event@1"},
      {"effects_emitted", {"bob/double@1"}},
      {"impl", {{"module", "far.lua"}, {"entrypoint", "step"}}},
      {"effects",
       {{{"name", "bob/double@1"},
         {"runner", "runner:50"},
         {"params", json::object()},
         {"receipt", json::object()},
         {"script", "import json, os\nresult = {'n': json.loads(os.environ['MYCOJOBS_PARAMS'])['n'] * 2}"}}}},
      {"routing", {{"subscriptions", {{{"event", "bob/Asked@1"}, {"workflow", "bob/far@1"}}}}}}};
  bob_.folder.write("far.lua", R"lua(
function step(state, event)
  local value = event.value['$value']
  if event.value['$tag'] == 'Asked' then return {}, nil, {{kind = 'bob/double@1', params = {n = value.n}}} end
  return {status = value.status, n = value.payload.n}
end
)lua");
  const std::string far = bob_.folder.write("far.json", manifest.dump());
  expect_says(bob_({"workflow", "apply", far}), 77, "owner: actor 1 may not create jobs in context 7");
  const ProcessResult applied = bob_({"workflow", "apply", far, "--owner", "12"});
  ASSERT_EQ(applied.code, 0) << applied.err;
  expect_says(bob_({"workflow", "send", "bob/Asked", R"({"n": 21})"}), 0, "bob/far@1");
  const auto state = [&] {  // until its event is processed, there is nothing to show
    const json instance = json::parse(bob_({"workflow", "show", "far", "--json"}).out, nullptr, false);
    return instance.is_object() ? instance.value("state", json::object()) : json::object();
  };
  EXPECT_TRUE(eventually([&] { return state().contains("status"); }, Seconds(60)))
      << bob_.coordinator->err() << bob_({"workflow", "explain", "far"}).out;
  EXPECT_EQ(state(), json({{"status", "ok"}, {"n", 42}}));
  EXPECT_EQ(alice_.find_keys("job:15:*").size(), 1U);
  const std::string there = alice_.find_keys("job:15:*").at(0);
  EXPECT_NE(alice_.field(there, "receipt").find("signature"), std::string::npos);
}

TEST_F(TenantsFiles, ArtifactsOfAMessageAreReceived) {
  const std::string name =
      sent(send({script("import mycojobs\n(mycojobs.artifacts / 'a.txt').write_text('from afar')")}));
  ASSERT_TRUE(ends(name));
  const std::string job = bob_.find_keys("job:12:*").at(0).substr(4);
  expect_says(bob_({"job", "artifacts", job, "a.txt"}), 0, "from afar");
  expect_says(bob_({"message", "show", name}), 0, "over");
}

// The two sides share only a Mycelium network: neither has a port that the other can reach.
class TenantsMycelium : public TenantsE2e {
 protected:
  void SetUp() override {
    bob_.shares_state = alice_.shares_state = true;
    const auto at = [this](std::size_t node) {
      return std::vector<std::string>{"--mycelium-url", mesh_[node].rest, "--coordinator-networks", ""};
    };
    bob_.start_coordinator(at(0));
    alice_.start_coordinator(at(1));
    both_.create_peer_records(address(0), address(1));
    ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", both_.bobs_supervisor, "--address", address(0)}).code,
              0);
    ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
    ASSERT_EQ(bob_({"runner", "update", "50", "--target-context", "9"}).code, 0);
    alice_.work();
    bob_.work(30);
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext) &&
                wait_until_registered(bob_.redis, 30, kBobsContext));
  }
  std::string address(std::size_t node) const { return "mycelium://" + mesh_[node].key; }
  std::vector<std::string> over_mycelium(const std::string& text, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"message", "send", script(text), "--key",     "bob",     "--caller",
                                   "12",      "--to", "9",          "--address", address(1)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  MyceliumMesh mesh_{2};
};

TEST_F(TenantsMycelium, MessageReturnsLinesResultAndArtifacts) {
  const ProcessResult command_result = bob_(over_mycelium(
      "import mycojobs\nprint('a line of there')\n(mycojobs.artifacts / 'a.txt').write_text('from afar')\nresult = "
      "{'x': '42'}",
      {"--follow"}));
  expect_says(command_result, 0, "a line of there");
  expect_says(command_result, 0, "x = 42");
  const std::string job = bob_.find_keys("job:12:*").at(0);
  expect_says(bob_({"job", "artifacts", job.substr(4), "a.txt"}), 0, "from afar");
  EXPECT_EQ(bob_({"receipt", "verify", job, "--key", alice_.field("runner:20", "pubkey")}).code, 0);
}

TEST_F(TenantsMycelium, MessagesLostOrDelayedByTheNodeArrive) {
  const std::string slow = sent(over_mycelium("import time\ntime.sleep(3)\nresult = {'n': '1'}"));
  ASSERT_TRUE(bob_.wait_for_value("message:" + slow, "status", "acknowledged"));
  mesh_.control(0, "stop");  // stopped with unread messages in its inbox
  const std::string waiting = sent(over_mycelium("result = {'n': '2'}"));
  ASSERT_TRUE(bob_.wait_for_value("message:" + waiting, "transport_status", "queued"));
  mesh_.control(1, "lose", 2);
  mesh_.control(0, "start");
  EXPECT_TRUE(ends(slow) && ends(waiting));
  EXPECT_EQ(alice_.find_keys("job:*").size(), 2U);
}

TEST_F(TenantsMycelium, NodeOfAFlowRunsRemotely) {
  const json flow{{"name", "far"},
                  {"jobs",
                   {{"far", {{"type", "python"}, {"supervisor_url", "runner:50"}, {"script", "result = {'n': '7'}"}}},
                    {"near", {{"type", "python"}, {"needs", {"far"}}, {"script", "result = {'n': '8'}"}}}}}};
  const ProcessResult command_result = bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--follow"});
  EXPECT_EQ(command_result.code, 0) << command_result.out << command_result.err << bob_.coordinator->err()
                                    << alice_.coordinator->err();
  EXPECT_EQ(alice_.find_keys("job:15:*").size(), 1U);
}

TEST_F(TenantsE2e, ContextsOfOneRedisNeedNoAddress) {
  bob_.work(30);
  ASSERT_TRUE(wait_until_registered(bob_.redis, 30, 8));
  const auto local = [&](const std::string& to) {
    return bob_({"message", "send", script("print('near')\nresult = {'at': '" + to + "'}"), "--key", "bob", "--caller",
                 "12", "--to", to, "--follow"});
  };
  expect_says(local("8"), 0, "at = 8");
  expect_says(local("8"), 0, "near");
  expect_says(local("7"), 0, "at = 7");
  EXPECT_TRUE(alice_.find_keys("message:*").empty());
  EXPECT_EQ(bob_({"verify", "--context", "8"}).code, 0);
}

TEST_F(TenantsE2e, ChatAndMailAreReadAndNeverRun) {
  const std::string chat = sent(send({"--text", "**hello** <script>alert(1)</script>"}));
  const std::string mail = sent(send({"--text", "a letter", "--mail"}));
  EXPECT_TRUE(ends(chat) && ends(mail));
  const json there = alice_.json({"message", "list"});
  ASSERT_EQ(there.size(), 2U) << there;
  for (const json& each : there) EXPECT_EQ(each.value("caller_id", 0U), kBobAtAlice) << each;
  EXPECT_EQ(alice_.msg_in().size(), 2U);
  const std::string id = chat.substr(3);
  expect_says(alice_({"message", "show", "5:" + id}), 0, "**hello** <script>");
  EXPECT_TRUE(alice_.find_keys("job:*").empty());
}

TEST_F(TenantsE2e, LinesArriveDuringTheRun) {
  const std::string message = sent(send(
      {script("import time\nfor i in range(300):\n  print('line', i, flush=True)\ntime.sleep(600)")}, {"--stream"}));
  const std::string job = "job:12:1";
  EXPECT_TRUE(eventually([&] {
    return bob_({"job", "logs", job}).out.find("line 299\n") != std::string::npos;
  })) << bob_({"job", "logs", job}).out;
  const std::string log = bob_({"job", "logs", job}).out;
  for (int i = 0, at = 0; i < 300; ++i) {
    const auto found = log.find("line " + std::to_string(i) + "\n", static_cast<std::size_t>(at));
    ASSERT_NE(found, std::string::npos) << i;
    at = static_cast<int>(found);
  }
  EXPECT_EQ(bob_.field("message:" + message, "status"), "acknowledged");
  EXPECT_EQ(bob_({"job", "cancel", job}).code, 0);
  ends(message, "error");
}

TEST_F(TenantsE2e, CancellingTheLocalJobCancelsTheRemoteJob) {
  write_message(1,
                json::array({plain_job(1, kSleeps), plain_job(2, "import time\ntime.sleep(5)\nresult = {'n': '2'}")}));
  const auto there = [&](const std::string& field, const std::string& value) {
    const auto jobs = alice_.find_keys("job:*");
    return std::count_if(jobs.begin(), jobs.end(),
                         [&](const std::string& job) { return alice_.field(job, field) == value; });
  };
  ASSERT_TRUE(eventually([&] { return there("status", "started") == 2; }));
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  EXPECT_TRUE(eventually([&] { return there("detail", "cancelled") == 1; })) << alice_.coordinator->err();
  ASSERT_TRUE(ends("12:1", "error"));
  EXPECT_EQ(bob_.field("job:12:1", "detail"), "cancelled");
  EXPECT_EQ(bob_.field("job:12:2", "status"), "finished") << "its neighbour goes on";
}

TEST_F(TenantsE2e, CancellingTheMessageCancelsAllItsJobs) {
  write_message(1, json::array({plain_job(1, kSleeps), plain_job(2, kSleeps)}));
  const auto there = [&](const std::string& field, const std::string& value) {
    const auto jobs = alice_.find_keys("job:*");
    return std::count_if(jobs.begin(), jobs.end(),
                         [&](const std::string& job) { return alice_.field(job, field) == value; });
  };
  ASSERT_TRUE(eventually([&] { return there("status", "started") == 2; }));
  const ProcessResult output = bob_({"message", "cancel", "12:1"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_NE(output.out.find("message:12:1 is requested to end"), std::string::npos) << output.out;
  EXPECT_TRUE(eventually([&] { return there("detail", "cancelled") == 2; })) << alice_.coordinator->err();
  ASSERT_TRUE(ends("12:1", "error"));
  const ProcessResult again = bob_({"message", "cancel", "12:1"});
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.out, "message:12:1 had ended before: it is error\n");
  EXPECT_NE(bob_({"message", "cancel", "12:99"}).code, 0);
}

TEST_F(TenantsE2e, MessageCancelledBeforeArrivalIsCancelledOnArrival) {
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  write_message(1, json::array({plain_job(1, kSleeps), plain_job(2, "result = {'n': '2'}")}));
  ASSERT_TRUE(bob_.wait_for_value("job:12:1", "detail", "away"));
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  ::kill(alice_.coordinator->pid(), SIGCONT);
  ASSERT_TRUE(ends("12:1", "error"));
  EXPECT_EQ(bob_.field("job:12:2", "status"), "finished");
  for (const std::string& job : alice_.find_keys("job:*")) EXPECT_NE(alice_.field(job, "ended_ms"), "") << job;
}

TEST_F(TenantsE2e, EachTimeoutHasItsOwnReason) {
  const std::string late = sent(send({script(kSleeps)}, {"--result-within", "2s"}));
  ASSERT_TRUE(ends(late, "error"));
  EXPECT_TRUE(bob_.field("message:" + late, "error").starts_with("timeout_result:"));
  EXPECT_TRUE(eventually([&] {
    const auto jobs = alice_.find_keys("job:*");
    return jobs.size() == 1 && alice_.field(jobs[0], "detail") == "cancelled";
  })) << "asked to be cancelled there";
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  const std::string undelivered = sent(send({script("result = {}")}, {"--deliver-within", "1s"}));
  const std::string unacknowledged = sent(send({script("result = {}")}, {"--ack-within", "1s"}));
  EXPECT_TRUE(ends(undelivered, "error") && ends(unacknowledged, "error"));
  EXPECT_TRUE(bob_.field("message:" + undelivered, "error").starts_with("timeout:"));
  EXPECT_TRUE(bob_.field("message:" + unacknowledged, "error").starts_with("timeout_ack:"));
  EXPECT_EQ(bob_.field("message:" + undelivered, "transport_status"), "failed");
  ::kill(alice_.coordinator->pid(), SIGCONT);
  EXPECT_TRUE(ends(sent(send({script("result = {}")}))));
}

}  // namespace
}  // namespace mycojobs::test
