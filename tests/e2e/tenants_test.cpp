// Bob sends messages to Alice's context and receives the results, with two Redis servers, two coordinators and real
// agents. Requests without permission are rejected.
#include "e2e/tenants.h"

#include <gmock/gmock.h>
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
    tenants_.start_both();
    alice_.start_runner();
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext)) << alice_.agents.front()->err();
  }
  // Returns the words of a `message send` command from Bob to Alice.
  std::vector<std::string> make_send_command(std::vector<std::string> words,
                                             std::vector<std::string> more_options = {}) const {
    words.insert(words.begin(), {"message", "send"});
    words.insert(words.end(), {"--key", "bob", "--caller", "12", "--to", "9", "--address", alice_.url()});
    words.insert(words.end(), more_options.begin(), more_options.end());
    return words;
  }
  std::string write_script(const std::string& text) {
    return bob_.folder.write("script" + std::to_string(++script_count_) + ".py", text);
  }
  // Runs a `message send` command and returns the name of the message, for example "12:1".
  std::string run_send(const std::vector<std::string>& words) const {
    const ProcessResult command_result = bob_(words);
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    return command_result.out.substr(0, command_result.out.find('\n'));
  }
  // Waits until Bob's message has this status. Returns false after a time-out, which is a test failure.
  bool wait_for_end(const std::string& message, const std::string& status = "processed") const {
    const bool ended = bob_.wait_for_value("message:" + message, "status", status);
    EXPECT_TRUE(ended) << message << " is " << bob_.read_field("message:" + message, "status") << ": "
                       << bob_.read_field("message:" + message, "error") << "\n"
                       << bob_.coordinator->err() << alice_.coordinator->err();
    return ended;
  }
  // Writes a message with these jobs using redis-cli, signs it, and adds it to msg_out.
  void write_message(int id, const json& jobs, std::vector<std::string> more_fields = {}) const {
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
    words.insert(words.end(), more_fields.begin(), more_fields.end());
    bob_.cli(words);
    expect_result(bob_({"message", "sign", "12:" + std::to_string(id), "--key", "bob"}), 0, "is signed");
    bob_.cli({"LPUSH", "msg_out", "message:12:" + std::to_string(id)});
  }
  static json make_job(int id, const std::string& script) {
    return {{"id", id}, {"caller_id", 12}, {"context_id", 7}, {"script", script}, {"script_type", "python"}};
  }
  void TearDown() override {
    bob_.expect_verify_succeeds();
    alice_.expect_verify_succeeds();
  }

  Tenants tenants_;
  Tenant &bob_ = tenants_.bob, &alice_ = tenants_.alice;
  int script_count_ = 0;
};

// ---- use cases ----

TEST_F(TenantsE2e, JobSentWithRedisCliRunsAndReturnsItsResult) {
  write_message(101, json::array({make_job(500, "print('from there')\nresult = {'n': '7'}")}));
  ASSERT_TRUE(wait_for_end("12:101"));
  EXPECT_EQ(bob_.list_msg_in(), std::vector<std::string>{"message:12:101"});
  EXPECT_EQ(bob_.read_field("message:12:101", "transport_status"), "read");
  EXPECT_TRUE(bob_.wait_for_value("message:12:101", "transport_id", "9 message:5:101"));
  EXPECT_EQ(bob_.read_field("job:12:500", "status"), "finished");
  EXPECT_EQ(bob_.read_field("job:12:500", "result"), R"({"n":"7"})");
  EXPECT_EQ(bob_.cli({"LLEN", "msg_out"}), "0");
  EXPECT_EQ(bob_.cli({"LLEN", "msg_out_coordinator"}), "0");
  const auto remote_jobs = alice_.find_keys("job:*");
  ASSERT_EQ(remote_jobs.size(), 1U);
  EXPECT_TRUE(remote_jobs[0].starts_with("job:5:")) << remote_jobs[0];
  EXPECT_EQ(alice_.read_field(remote_jobs[0], "runner_id"), "20");
  EXPECT_EQ(alice_.read_field("message:5:101", "status"), "processed");
  const std::string key = alice_.read_field("runner:20", "pubkey");
  const ProcessResult receipt = bob_({"receipt", "verify", "job:12:500", "--key", key});
  EXPECT_EQ(receipt.code, 0) << receipt.out << receipt.err;
  bob_.cli({"HSET", "job:12:500", "result", R"({"n":"8"})"});
  EXPECT_EQ(bob_({"receipt", "verify", "job:12:500", "--key", key}).code, 1);
}

TEST_F(TenantsE2e, MessageSendFollowsTheMessageToItsEnd) {
  const ProcessResult command_result =
      bob_(make_send_command({write_script("print('a line of there')\nresult = {'x': '42'}"), "--follow"}));
  expect_result(command_result, 0, "a line of there");
  expect_result(command_result, 0, "x = 42");
  const ProcessResult failed = bob_(make_send_command({write_script("raise ValueError('not like this')"), "--follow"}));
  expect_result(failed, 1, "not like this");
  expect_result(failed, 1, "1 of its jobs failed");
}

TEST_F(TenantsE2e, WaitShowsTheStateOfAMessage) {
  const ProcessResult wrong_key_result =
      bob_(make_send_command({write_script("result = {}")}, {"--key", "supervisor"}));
  expect_result(wrong_key_result, 65, "is not the key of actor 12");
  expect_result(bob_(make_send_command({"--text", "hello", "--env", "A=1"})), 65,
                "--env: is for a script (FILE) alone");
  alice_.coordinator->signal(SIGKILL);
  alice_.coordinator->wait();
  Process follower = bob_.start_command(make_send_command({write_script("result = {'x': '42'}"), "--follow"}));
  EXPECT_TRUE(eventually([&] { return follower.err().find("is tried again: ") != std::string::npos; }));
  follower.signal(SIGINT);
  EXPECT_EQ(follower.wait().code, 75);
  EXPECT_NE(follower.err().find("message follow 12:1 --context 7"), std::string::npos) << follower.err();
  bob_.coordinator->signal(SIGKILL);
  bob_.coordinator->wait();
  Process second_follower = bob_.start_command({"message", "follow", "12:1"});
  EXPECT_TRUE(
      eventually([&] { return second_follower.err().find("no coordinator leads context 7") != std::string::npos; }));
  alice_.start_coordinator();
  bob_.start_coordinator();
  EXPECT_EQ(second_follower.wait().code, 0) << second_follower.err();
}

TEST_F(TenantsE2e, RpcCreatesAndSendsAMessage) {
  const std::string token = [&] {
    const ProcessResult result = bob_({"key", "token", "--actor", "12", "--api-tokens", bob_.folder / "tokens"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(0, result.out.find('\n'));
  }();
  HttpConnection connection(bob_.port);
  const auto call = [&](const std::string& method, const json& params) {
    const auto reply =
        connection.post("/", json{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}}.dump(),
                        "Authorization: Bearer " + token + "\r\n");
    const json answer = json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(answer.is_object() && answer.contains("result")) << method << reply.status << reply.body;
    return answer.is_object() ? answer.value("result", json::object()) : json::object();
  };
  const json created =
      call("message.create", {{"context_id", 7},
                              {"message_type", "job"},
                              {"target_context", 9},
                              {"target_address", alice_.url()},
                              {"job", {{{"script", "result = {'n': '9'}"}, {"script_type", "python"}}}}});
  auto message = decode_json<Message>(created).record;
  message.created_at = static_cast<std::uint32_t>(now_s());
  ASSERT_TRUE(sign(message, bob_.load_key("bob")));
  call("message.send", {{"id", message.id},
                        {"context_id", 7},
                        {"signature", message.signature},
                        {"signer", message.signer},
                        {"algorithm", message.algorithm},
                        {"created_at", message.created_at}});
  ASSERT_TRUE(wait_for_end("12:" + std::to_string(message.id)));
  EXPECT_EQ(
      call("job.result", {{"id", message.job.at(0).id}, {"caller_id", 12}, {"context_id", 7}})["result"].value("n", ""),
      "9");
}

TEST_F(TenantsE2e, MessageToARunnersTopicRunsThere) {
  alice_.start_runner(21);
  ASSERT_TRUE(wait_until_registered(alice_.redis, 21, kAlicesContext));
  for (const std::string runner : {"21", "20", "21"}) {
    const auto jobs_before = alice_.find_keys("job:*");
    ASSERT_TRUE(
        wait_for_end(run_send(make_send_command({write_script("result = {}")}, {"--topic", "runner" + runner}))));
    for (const std::string& job : alice_.find_keys("job:*")) {
      if (std::find(jobs_before.begin(), jobs_before.end(), job) != jobs_before.end()) continue;
      EXPECT_EQ(alice_.read_field(job, "runner_id"), runner) << job;
    }
  }
  const std::string message_to_unknown_topic =
      run_send(make_send_command({write_script("result = {}")}, {"--topic", "runner77"}));
  ASSERT_TRUE(wait_for_end(message_to_unknown_topic, "error"));
  EXPECT_NE(bob_.read_field("message:" + message_to_unknown_topic, "error").find("runner77"), std::string::npos);
}

TEST_F(TenantsE2e, DependentJobsAreSentTogether) {
  json second = make_job(11, "result = {'n': '2'}"), third = make_job(12, "result = {'n': '3'}");
  second["dependends"] = {10};
  third["dependends"] = {10, 11};
  write_message(1, json::array({third, second, make_job(10, "import time\ntime.sleep(0.3)\nresult = {'n': '1'}")}));
  ASSERT_TRUE(wait_for_end("12:1"));
  for (int id = 10; id <= 12; ++id)
    EXPECT_EQ(bob_.read_field("job:12:" + std::to_string(id), "result"),
              R"({"n":")" + std::to_string(id - 9) + R"("})");

  json dependent = make_job(21, "result = {'n': '2'}");
  dependent["dependends"] = {20};
  write_message(2, json::array({make_job(20, "1/0"), dependent}));
  ASSERT_TRUE(wait_for_end("12:2", "error"));
  EXPECT_EQ(bob_.read_field("job:12:20", "detail"), "exception");
  EXPECT_EQ(bob_.read_field("job:12:21", "detail"), "dependency_failed");

  json job_with_unknown_dependency = make_job(30, "result = {}");
  job_with_unknown_dependency["dependends"] = {1};
  write_message(3, json::array({job_with_unknown_dependency}));
  ASSERT_TRUE(wait_for_end("12:3", "error"));
  EXPECT_NE(bob_.read_field("message:12:3", "error").find("dependends"), std::string::npos);
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
  const ProcessResult command_result = bob_(make_send_command({"--flow", file, "--follow"}));
  for (const char* line : {"two.n = 2", "two.region = of the flow", "two.own = of the job"})
    expect_result(command_result, 0, line);
  EXPECT_EQ(alice_.find_keys("flow:*").size(), 1U);
  EXPECT_TRUE(bob_.find_keys("flow:*").empty());
}

// Bob's runner record 50 refers to Alice's coordinator, so a node of Bob's flow with this runner runs on Alice's host.
// The node receives the files of its predecessor and passes files to its successor.
class TenantsFiles : public TenantsE2e {
 protected:
  void SetUp() override { start(true); }
  // has_shared_folders: the coordinator and the agents of a tenant have one state folder.
  void start(bool has_shared_folders) {
    bob_.has_shared_state_dir = alice_.has_shared_state_dir = has_shared_folders;
    TenantsE2e::SetUp();
    bob_.start_runner(30);
    ASSERT_TRUE(wait_until_registered(bob_.redis, 30, kBobsContext));
    ASSERT_EQ(
        alice_({"actor", "create", "--id", "15", "--key", tenants_.bobs_supervisor, "--address", bob_.url()}).code, 0);
    ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
    ASSERT_EQ(bob_({"runner", "update", "50", "--target-context", "9"}).code, 0);
  }
  // Runs a flow of Bob whose second node runs at Alice's and has files of the first node; the third one has its files.
  void run_flow_with_artifacts();
};

TEST_F(TenantsFiles, RemoteNodeReadsAndWritesArtifacts) { run_flow_with_artifacts(); }

// The coordinators receive the files of the message and of its answer, and their agents fetch the files from them.
class TenantsFilesOfCoordinators : public TenantsFiles {
 protected:
  void SetUp() override { start(false); }
};

TEST_F(TenantsFilesOfCoordinators, RemoteNodeReadsAndWritesArtifacts) {
  run_flow_with_artifacts();
  const std::string sent_job = alice_.find_keys("job:15:*").at(0);
  EXPECT_THAT(alice_.cli({"HGET", "mj:job-files:" + sent_job, "holder"}), testing::MatchesRegex("[0-9a-f]{24}@.*"));
  EXPECT_FALSE(alice_.cli({"HKEYS", "mj:file-holders"}).empty());
}

void TenantsFiles::run_flow_with_artifacts() {
  const auto make_artifact_script = [](const std::string& name, const std::string& bytes) {
    return "(mycojobs.artifacts / '" + name + "').write_text(" + bytes + ")\nresult = {'n': '1'}";
  };
  const json flow{
      {"name", "far"},
      {"jobs",
       {{"build",
         {{"type", "python"}, {"script", "import mycojobs\n" + make_artifact_script("app", "'program ' * 100000")}}},
        {"far",
         {{"type", "python"},
          {"needs", {"build"}},
          {"inputs", {"build/app"}},
          {"supervisor_url", "runner:50"},
          {"script", "import mycojobs\n" + make_artifact_script("out.txt",
                                                                "open('/job/inputs/build/app').read() + 'ran with ' + "
                                                                "mycojobs.inputs['build']['n']")}}},
        {"last",
         {{"type", "python"},
          {"needs", {"far"}},
          {"inputs", {"far/out.txt"}},
          {"script",
           "text = open('/job/inputs/far/out.txt').read()\nresult = {'size': len(text), 'end': text[-10:]}"}}}}}};
  const ProcessResult started = bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"});
  ASSERT_EQ(started.code, 0) << started.err;
  const std::string key = bob_.find_keys("flow:*").at(0);
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished", Seconds(90)))
      << bob_.read_field(key, "error") << bob_.read_field(key, "result") << bob_.coordinator->err()
      << alice_.coordinator->err();
  const json result = json::parse(bob_.read_field(key, "result"));
  EXPECT_EQ(result.value("last.end", ""), "ran with 1") << result;
  EXPECT_EQ(result.value("last.size", ""), "800010") << result;
  ASSERT_EQ(alice_.find_keys("job:15:*").size(), 1U);
  EXPECT_TRUE(alice_.find_keys("flow:*").empty());

  // The receipt of Alice's runner is also stored in Bob's Redis.
  const std::vector<std::string> jobs = bob_.find_keys("job:*");
  const auto remote_node =
      std::find_if(jobs.begin(), jobs.end(), [&](const auto& job) { return bob_.read_field(job, "name") == "far"; });
  ASSERT_NE(remote_node, jobs.end());
  EXPECT_EQ(bob_.read_field(*remote_node, "ran_as"), "9 " + alice_.find_keys("job:15:*").at(0));
  const ProcessResult verified =
      bob_({"receipt", "verify", remote_node->substr(4), "--key", alice_.load_key("runner").public_key()});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  bob_.cli({"HSET", *remote_node, "ran_as", "9 job:15:77"});
  EXPECT_NE(bob_({"receipt", "verify", remote_node->substr(4), "--key", alice_.load_key("runner").public_key()}).code,
            0)
      << "the receipt must not be valid for another job";
}

// The remote agent signs the result of the effect, and Bob's workflow accepts the signature.
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
  const std::string manifest_path = bob_.folder.write("far.json", manifest.dump());
  expect_result(bob_({"workflow", "apply", manifest_path}), 77, "owner: actor 1 may not create jobs in context 7");
  const ProcessResult applied = bob_({"workflow", "apply", manifest_path, "--owner", "12"});
  ASSERT_EQ(applied.code, 0) << applied.err;
  expect_result(bob_({"workflow", "send", "bob/Asked", R"({"n": 21})"}), 0, "bob/far@1");
  const auto read_state = [&] {  // `workflow show` fails until the first event is processed
    const json instance = json::parse(bob_({"workflow", "show", "far", "--json"}).out, nullptr, false);
    return instance.is_object() ? instance.value("state", json::object()) : json::object();
  };
  EXPECT_TRUE(eventually([&] { return read_state().contains("status"); }, Seconds(60)))
      << bob_.coordinator->err() << bob_({"workflow", "explain", "far"}).out;
  EXPECT_EQ(read_state(), json({{"status", "ok"}, {"n", 42}}));
  EXPECT_EQ(alice_.find_keys("job:15:*").size(), 1U);
  const std::string remote_job = alice_.find_keys("job:15:*").at(0);
  EXPECT_NE(alice_.read_field(remote_job, "receipt").find("signature"), std::string::npos);
}

TEST_F(TenantsFiles, ArtifactsOfAMessageAreReceived) {
  const std::string name = run_send(
      make_send_command({write_script("import mycojobs\n(mycojobs.artifacts / 'a.txt').write_text('from afar')")}));
  ASSERT_TRUE(wait_for_end(name));
  const std::string job = bob_.find_keys("job:12:*").at(0).substr(4);
  expect_result(bob_({"job", "artifacts", job, "a.txt"}), 0, "from afar");
  expect_result(bob_({"message", "show", name}), 0, "over");
}

// Alice's coordinator and agent have separate state folders.
class TenantsSeparateFolders : public TenantsE2e {
 protected:
  void SetUp() override {
    bob_.has_shared_state_dir = true;
    TenantsE2e::SetUp();
  }
};

TEST_F(TenantsSeparateFolders, CoordinatorFetchesTheArtifactsOfItsAgent) {
  const std::string name = run_send(
      make_send_command({write_script("import mycojobs\n(mycojobs.artifacts / 'a.txt').write_text('from afar')\n"
                                      "(mycojobs.artifacts / 'large').write_bytes(b'x' * 3000000)")}));
  ASSERT_TRUE(wait_for_end(name));
  const std::string job = bob_.find_keys("job:12:*").at(0).substr(4);
  expect_result(bob_({"job", "artifacts", job, "a.txt"}), 0, "from afar");
  EXPECT_EQ(bob_({"job", "artifacts", job, "large"}).out, std::string(3000000, 'x'));
}

// The two tenants can reach each other only over a Mycelium network.
class TenantsMycelium : public TenantsE2e {
 protected:
  void SetUp() override {
    bob_.has_shared_state_dir = alice_.has_shared_state_dir = true;
    const auto make_options = [this](std::size_t node) {
      return std::vector<std::string>{"--mycelium-url", mesh_[node].rest_url, "--coordinator-networks", ""};
    };
    bob_.start_coordinator(make_options(0));
    alice_.start_coordinator(make_options(1));
    tenants_.create_peer_records(address(0), address(1));
    ASSERT_EQ(
        alice_({"actor", "create", "--id", "15", "--key", tenants_.bobs_supervisor, "--address", address(0)}).code, 0);
    ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
    ASSERT_EQ(bob_({"runner", "update", "50", "--target-context", "9"}).code, 0);
    alice_.start_runner();
    bob_.start_runner(30);
    ASSERT_TRUE(wait_until_registered(alice_.redis, 20, kAlicesContext) &&
                wait_until_registered(bob_.redis, 30, kBobsContext));
  }
  std::string address(std::size_t node) const { return "mycelium://" + mesh_[node].key; }
  std::vector<std::string> make_mycelium_send_command(const std::string& text,
                                                      std::vector<std::string> more_options = {}) {
    std::vector<std::string> words{"message", "send", write_script(text), "--key",   "bob", "--caller", "12",
                                   "--to",    "9",    "--address",        address(1)};
    words.insert(words.end(), more_options.begin(), more_options.end());
    return words;
  }

  MyceliumMesh mesh_{2};
};

TEST_F(TenantsMycelium, MessageReturnsLinesResultAndArtifacts) {
  const ProcessResult command_result = bob_(make_mycelium_send_command(
      "import mycojobs\nprint('a line of there')\n(mycojobs.artifacts / 'a.txt').write_text('from afar')\nresult = "
      "{'x': '42'}",
      {"--follow"}));
  expect_result(command_result, 0, "a line of there");
  expect_result(command_result, 0, "x = 42");
  const std::string job = bob_.find_keys("job:12:*").at(0);
  expect_result(bob_({"job", "artifacts", job.substr(4), "a.txt"}), 0, "from afar");
  EXPECT_EQ(bob_({"receipt", "verify", job, "--key", alice_.read_field("runner:20", "pubkey")}).code, 0);
}

TEST_F(TenantsMycelium, MessagesLostOrDelayedByTheNodeArrive) {
  const std::string slow_message =
      run_send(make_mycelium_send_command("import time\ntime.sleep(3)\nresult = {'n': '1'}"));
  ASSERT_TRUE(bob_.wait_for_value("message:" + slow_message, "status", "acknowledged"));
  mesh_.control(0, "stop");  // stopped with unread messages in its inbox
  const std::string queued_message = run_send(make_mycelium_send_command("result = {'n': '2'}"));
  ASSERT_TRUE(bob_.wait_for_value("message:" + queued_message, "transport_status", "queued"));
  mesh_.control(1, "lose", 2);
  mesh_.control(0, "start");
  EXPECT_TRUE(wait_for_end(slow_message) && wait_for_end(queued_message));
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
  bob_.start_runner(30);
  ASSERT_TRUE(wait_until_registered(bob_.redis, 30, 8));
  const auto send_locally = [&](const std::string& target_context) {
    return bob_({"message", "send", write_script("print('near')\nresult = {'at': '" + target_context + "'}"), "--key",
                 "bob", "--caller", "12", "--to", target_context, "--follow"});
  };
  expect_result(send_locally("8"), 0, "at = 8");
  expect_result(send_locally("8"), 0, "near");
  expect_result(send_locally("7"), 0, "at = 7");
  EXPECT_TRUE(alice_.find_keys("message:*").empty());
  EXPECT_EQ(bob_({"verify", "--context", "8"}).code, 0);
}

TEST_F(TenantsE2e, ChatAndMailAreReadAndNeverRun) {
  const std::string chat = run_send(make_send_command({"--text", "**hello** <script>alert(1)</script>"}));
  const std::string mail = run_send(make_send_command({"--text", "a letter", "--mail"}));
  EXPECT_TRUE(wait_for_end(chat) && wait_for_end(mail));
  const json remote_messages = alice_.run_json({"message", "list"});
  ASSERT_EQ(remote_messages.size(), 2U) << remote_messages;
  for (const json& message : remote_messages) EXPECT_EQ(message.value("caller_id", 0U), kBobsActorAtAlice) << message;
  EXPECT_EQ(alice_.list_msg_in().size(), 2U);
  const std::string id = chat.substr(3);
  expect_result(alice_({"message", "show", "5:" + id}), 0, "**hello** <script>");
  EXPECT_TRUE(alice_.find_keys("job:*").empty());
}

TEST_F(TenantsE2e, LinesArriveDuringTheRun) {
  const std::string message = run_send(make_send_command(
      {write_script("import time\nfor i in range(300):\n  print('line', i, flush=True)\ntime.sleep(600)")},
      {"--stream"}));
  const std::string job = "job:12:1";
  EXPECT_TRUE(eventually([&] {
    return bob_({"job", "logs", job}).out.find("line 299\n") != std::string::npos;
  })) << bob_({"job", "logs", job}).out;
  const std::string log = bob_({"job", "logs", job}).out;
  std::size_t position = 0;
  for (int i = 0; i < 300; ++i) {
    position = log.find("line " + std::to_string(i) + "\n", position);
    ASSERT_NE(position, std::string::npos) << i;
  }
  EXPECT_EQ(bob_.read_field("message:" + message, "status"), "acknowledged");
  EXPECT_EQ(bob_({"job", "cancel", job}).code, 0);
  wait_for_end(message, "error");
}

TEST_F(TenantsE2e, CancellingTheLocalJobCancelsTheRemoteJob) {
  write_message(
      1, json::array({make_job(1, kSleepScript), make_job(2, "import time\ntime.sleep(5)\nresult = {'n': '2'}")}));
  const auto count_remote_jobs = [&](const std::string& field, const std::string& value) {
    const auto jobs = alice_.find_keys("job:*");
    return std::count_if(jobs.begin(), jobs.end(),
                         [&](const std::string& job) { return alice_.read_field(job, field) == value; });
  };
  ASSERT_TRUE(eventually([&] { return count_remote_jobs("status", "started") == 2; }));
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  EXPECT_TRUE(eventually([&] { return count_remote_jobs("detail", "cancelled") == 1; })) << alice_.coordinator->err();
  ASSERT_TRUE(wait_for_end("12:1", "error"));
  EXPECT_EQ(bob_.read_field("job:12:1", "detail"), "cancelled");
  EXPECT_EQ(bob_.read_field("job:12:2", "status"), "finished") << "the other job of the message must not be cancelled";
}

TEST_F(TenantsE2e, CancellingTheMessageCancelsAllItsJobs) {
  write_message(1, json::array({make_job(1, kSleepScript), make_job(2, kSleepScript)}));
  const auto count_remote_jobs = [&](const std::string& field, const std::string& value) {
    const auto jobs = alice_.find_keys("job:*");
    return std::count_if(jobs.begin(), jobs.end(),
                         [&](const std::string& job) { return alice_.read_field(job, field) == value; });
  };
  ASSERT_TRUE(eventually([&] { return count_remote_jobs("status", "started") == 2; }));
  ::kill(alice_.coordinator->pid(), SIGSTOP);  // prevents the message from ending before the command reads its state
  const ProcessResult cancelled = bob_({"message", "cancel", "12:1"});
  ::kill(alice_.coordinator->pid(), SIGCONT);
  EXPECT_EQ(cancelled.code, 0) << cancelled.err;
  EXPECT_NE(cancelled.out.find("message:12:1 is requested to end"), std::string::npos) << cancelled.out;
  EXPECT_TRUE(eventually([&] { return count_remote_jobs("detail", "cancelled") == 2; })) << alice_.coordinator->err();
  ASSERT_TRUE(wait_for_end("12:1", "error"));
  const ProcessResult second_cancel = bob_({"message", "cancel", "12:1"});
  EXPECT_EQ(second_cancel.code, 0);
  EXPECT_EQ(second_cancel.out, "message:12:1 had ended before: it is error\n");
  EXPECT_NE(bob_({"message", "cancel", "12:99"}).code, 0);
}

TEST_F(TenantsE2e, MessageCancelledBeforeArrivalIsCancelledOnArrival) {
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  write_message(1, json::array({make_job(1, kSleepScript), make_job(2, "result = {'n': '2'}")}));
  ASSERT_TRUE(bob_.wait_for_value("job:12:1", "detail", "away"));
  EXPECT_EQ(bob_({"job", "cancel", "job:12:1"}).code, 0);
  ::kill(alice_.coordinator->pid(), SIGCONT);
  ASSERT_TRUE(wait_for_end("12:1", "error"));
  EXPECT_EQ(bob_.read_field("job:12:2", "status"), "finished");
  for (const std::string& job : alice_.find_keys("job:*")) EXPECT_NE(alice_.read_field(job, "ended_ms"), "") << job;
}

TEST_F(TenantsE2e, EachTimeoutHasItsOwnReason) {
  const std::string late_message = run_send(make_send_command({write_script(kSleepScript)}, {"--result-within", "2s"}));
  ASSERT_TRUE(wait_for_end(late_message, "error"));
  EXPECT_TRUE(bob_.read_field("message:" + late_message, "error").starts_with("timeout_result:"));
  EXPECT_TRUE(eventually([&] {
    const auto jobs = alice_.find_keys("job:*");
    return jobs.size() == 1 && alice_.read_field(jobs[0], "detail") == "cancelled";
  })) << "the remote job must be cancelled";
  ::kill(alice_.coordinator->pid(), SIGSTOP);
  const std::string undelivered_message =
      run_send(make_send_command({write_script("result = {}")}, {"--deliver-within", "1s"}));
  const std::string unacknowledged_message =
      run_send(make_send_command({write_script("result = {}")}, {"--ack-within", "1s"}));
  EXPECT_TRUE(wait_for_end(undelivered_message, "error") && wait_for_end(unacknowledged_message, "error"));
  EXPECT_TRUE(bob_.read_field("message:" + undelivered_message, "error").starts_with("timeout:"));
  EXPECT_TRUE(bob_.read_field("message:" + unacknowledged_message, "error").starts_with("timeout_ack:"));
  EXPECT_EQ(bob_.read_field("message:" + undelivered_message, "transport_status"), "failed");
  ::kill(alice_.coordinator->pid(), SIGCONT);
  EXPECT_TRUE(wait_for_end(run_send(make_send_command({write_script("result = {}")}))));
}

}  // namespace
}  // namespace mycojobs::test
