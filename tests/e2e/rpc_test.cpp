// The JSON-RPC interface of a coordinator, called with curl, and flows whose nodes run on a second host.
#include <nlohmann/json.hpp>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

// Returns the address from the server's log.
std::string wait_for_address(const Process& process) {
  std::string url;
  EXPECT_TRUE(eventually([&] {
    const std::string text = process.err();
    const auto at = text.find("JSON-RPC at http://");
    if (at == std::string::npos) return false;
    url = text.substr(at + 12, text.find_first_of("\"\n ", at + 12) - at - 12);
    return true;
  })) << process.err();
  return url;
}

json find_node(const json& dag, const std::string& name) {
  for (const json& node : dag.at("nodes")) {
    if (node.value("name", "") == name) return node;
  }
  ADD_FAILURE() << "no node " << name << " in " << dag;
  return json::object();
}

class Host {
 public:
  explicit Host(const std::string& token_note) {
    const ProcessResult result = run(
        folder, {program_path(), "key", "token", "--operator", "--note", token_note, "--api-tokens", tokens_path()});
    EXPECT_EQ(result.code, 0) << result.err;
    token = result.out.substr(0, result.out.find('\n'));
  }
  std::string tokens_path() const { return folder / "tokens"; }
  Process start_coordinator() const {
    return Process(folder, {program_path(), "coordinator", "--redis", redis.url(), "--context", "1", "--api-listen",
                            "127.0.0.1:0", "--api-tokens", tokens_path(), "--state-dir", folder / "state"});
  }
  Process start_api_agent(std::vector<std::string> more_options = {}) const {
    more_options.insert(more_options.end(), {"--api-tokens", tokens_path()});
    return start_agent(folder, redis, 20, more_options);
  }
  ProcessResult curl(const std::string& url, const std::string& body, const std::string& bearer) const {
    return run(folder,
               {"curl", "-s", "-w", "\n%{http_code}", url, "-H", "Authorization: Bearer " + bearer, "-d", body});
  }
  json call(const std::string& url, const std::string& method, const json& params) const {
    const json body{{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}};
    const ProcessResult command_result = curl(url, body.dump(), token);
    const json reply = json::parse(command_result.out.substr(0, command_result.out.rfind('\n')), nullptr, false);
    EXPECT_TRUE(reply.is_object() && reply.contains("result")) << method << " " << command_result.out;
    return reply.is_object() ? reply.value("result", json::object()) : json::object();
  }

  TempDir folder;
  RedisServer redis{folder};
  std::string token;
};

TEST(Rpc, CurlClientRunsAFlow) {
  const Host host("the story");
  Process coordinator = host.start_coordinator();
  Process agent = host.start_api_agent();
  const std::string url = wait_for_address(coordinator);
  ASSERT_FALSE(url.empty());
  ASSERT_TRUE(wait_until_registered(host.redis, 20)) << agent.err();

  host.call(url, "actor.create", {{"id", 12}});
  host.call(url, "context.create", {{"id", 1}, {"admins", {12}}});
  const json first = host.call(url, "job.create", json::parse(R"({"params": {"caller_id": 12, "name": "first",
      "payload": "result = {'n': '7'}", "executor": "python"}})"));
  const json second = host.call(url, "job.create",
                                {{"caller_id", 12},
                                 {"name", "second"},
                                 {"script", "print('line 1\\nsecond')"},
                                 {"script_type", "python"},
                                 {"depends", {first.at("id")}}});
  const json flow =
      host.call(url, "flow.create",
                json::array({{{"caller_id", 12}, {"name", "story"}, {"jobs", {first.at("id"), second.at("id")}}}}));
  const json id{{"id", flow.at("id")}};
  EXPECT_EQ(host.call(url, "flow.start", id).value("status", ""), "started");
  EXPECT_TRUE(eventually([&] { return host.call(url, "flow.result", id).value("ended", false); }));
  const json result = host.call(url, "flow.result", id);
  EXPECT_EQ(result.value("status", ""), "finished") << result << host.call(url, "flow.explain", id);
  EXPECT_EQ(result.at("result").value("first.n", ""), "7") << result;
  const json dag = host.call(url, "flow.dag", id);
  ASSERT_EQ(dag.at("nodes").size(), 2U);
  EXPECT_EQ(dag["nodes"][1].value("node_status", ""), "completed") << dag;
  EXPECT_EQ(dag["edges"].size(), 1U);
  const json log = host.call(url, "job.logs", {{"id", second.at("id")}, {"caller_id", 12}});
  EXPECT_EQ(log.at("lines").at(0).value("text", ""), "line 1\nsecond\n") << log;
  const json last_line =
      host.call(url, "job.logs", {{"id", second.at("id")}, {"caller_id", 12}, {"tail", 1}, {"since_ms", 1}});
  EXPECT_EQ(last_line.at("lines").at(0).value("text", ""), "second\n") << last_line;
  EXPECT_EQ(last_line.at("after_seq"), log.at("after_seq"));
  const json future =
      host.call(url, "job.logs", {{"id", second.at("id")}, {"caller_id", 12}, {"since_ms", 4102444800000}});
  EXPECT_TRUE(future.at("lines").empty() && future.at("ended")) << future;
  EXPECT_EQ(host.call(url, "job.run", {{"script", "result = {'x': 'y'}"}, {"script_type", "python"}})
                .at("result")
                .value("x", ""),
            "y");

  // The command-line client, a batch, a notification, and a client without a token.
  const std::vector<std::string> with_token{"MYCOJOBS_TOKEN=" + host.token, "COORDINATOR_URL=" + url};
  const ProcessResult info_result = run(host.folder, {program_path(), "rpc", "system.info"}, with_token);
  EXPECT_EQ(info_result.code, 0) << info_result.err;
  EXPECT_EQ(json::parse(info_result.out).value("role", ""), "coordinator");
  EXPECT_NE(run(host.folder, {program_path(), "rpc", "job.get", R"({"id": 999})"}, with_token).code, 0);
  EXPECT_NE(run(host.folder, {program_path(), "rpc", "system.info"}, {"COORDINATOR_URL=" + url}).code, 0);
  EXPECT_TRUE(host.curl(url, R"({"jsonrpc":"2.0","method":"system.ping"})", host.token).out.ends_with("204"));
  EXPECT_TRUE(
      host.curl(url, R"([{"jsonrpc":"2.0","id":1,"method":"system.ping"},1])", host.token).out.ends_with("200"));
  EXPECT_TRUE(host.curl(url, R"({"jsonrpc":"2.0","id":1,"method":"system.ping"})", "mj_wrong").out.ends_with("401"));
  EXPECT_EQ(coordinator.err().find(host.token), std::string::npos);
}

TEST(Rpc, NodeRunsOnAnotherHost) {
  const Host local_host("here"), remote_host("there");
  Process coordinator = local_host.start_coordinator();
  const std::string url = wait_for_address(coordinator);
  const ProcessResult key_result =
      run(remote_host.folder, {program_path(), "key", "new", "runner", "--keys-dir", remote_host.folder / "keys"});
  ASSERT_EQ(key_result.code, 0) << key_result.err;
  Process agent = remote_host.start_api_agent(
      {"--supervisor-listen", "127.0.0.1:0", "--runner-key", remote_host.folder / "keys/runner.key"});
  const std::string supervisor = wait_for_address(agent);
  ASSERT_FALSE(url.empty() || supervisor.empty());
  local_host.call(url, "runner.create", {{"id", 77}, {"address", supervisor}, {"secret", remote_host.token}});
  const json definition{
      {"name", "far"},
      {"jobs",
       {{"far",
         {{"script", "print('far away')\nresult = {'n': '7'}"}, {"type", "python"}, {"supervisor_url", supervisor}}},
        {"bad",
         {{"needs", {"far"}},
          {"script", "1/0"},
          {"type", "python"},
          {"supervisor_url", supervisor},
          {"on_error", "continue"}}},
        {"said", {{"needs", {"bad"}}, {"log", "done"}}}}}};
  const json flow = local_host.call(url, "flow.create", {{"definition", definition}});
  const json id{{"id", flow.at("id")}};
  local_host.call(url, "flow.start", id);
  EXPECT_TRUE(eventually([&] { return local_host.call(url, "flow.result", id).value("ended", false); }, Seconds(60)))
      << local_host.call(url, "flow.dag", id) << coordinator.err() << agent.err();
  const json result = local_host.call(url, "flow.result", id);
  EXPECT_EQ(result.value("status", ""), "finished") << local_host.call(url, "flow.dag", id);
  EXPECT_EQ(result.at("result").value("far.n", ""), "7") << result;
  const json dag = local_host.call(url, "flow.dag", id);
  const json remote_node = find_node(dag, "far"), failing_node = find_node(dag, "bad");
  EXPECT_EQ(remote_node.value("supervisor_url", ""), supervisor);
  const json log = local_host.call(url, "job.logs", {{"id", remote_node.at("id")}});
  EXPECT_NE(log.dump().find("far away"), std::string::npos) << log;
  EXPECT_EQ(local_host.call(url, "job.result", {{"id", failing_node.at("id")}}).value("detail", ""), "exception");
  EXPECT_EQ(remote_host.redis.cli(1, {"KEYS", "flow:*"}), "");
  for (const json& node : {remote_node, failing_node}) {
    const json job = local_host.call(url, "job.get", {{"id", node.at("id")}});
    const std::string key = job.at("caller_id").dump() + ':' + job.at("id").dump();
    const ProcessResult verified =
        run(local_host.folder,
            {program_path(), "receipt", "verify", key, "--redis", local_host.redis.url(), "--key",
             key_result.out.substr(0, key_result.out.find('\n')), "--state-dir", local_host.folder / "client"});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  }
  const json command_result =
      remote_host.call(supervisor, "job.run", {{"script", "result = {'x': 'y'}"}, {"script_type", "python"}});
  EXPECT_EQ(command_result.at("result").value("x", ""), "y") << "the answer has the job's result";
}

TEST(Rpc, CancellingAFlowReachesTheOtherHost) {
  const Host local_host("here"), remote_host("there");
  Process coordinator = local_host.start_coordinator();
  const std::string url = wait_for_address(coordinator);
  Process agent = remote_host.start_api_agent({"--supervisor-listen", "127.0.0.1:0", "--grace", "1s"});
  const std::string supervisor = wait_for_address(agent);
  ASSERT_FALSE(url.empty() || supervisor.empty());
  local_host.call(url, "runner.create", {{"id", 77}, {"address", supervisor}, {"secret", remote_host.token}});
  const json definition{
      {"name", "far"},
      {"jobs", {{"far", {{"script", kSleepScript}, {"type", "python"}, {"supervisor_url", supervisor}}}}}};
  const json id{{"id", local_host.call(url, "flow.create", {{"definition", definition}}).at("id")}};
  local_host.call(url, "flow.start", id);
  ASSERT_TRUE(eventually([&] {
    return remote_host.redis.cli(1, {"HGET", "job:1:1", "status"}) == "started";
  })) << coordinator.err();
  local_host.call(url, "flow.cancel", id);
  EXPECT_TRUE(eventually([&] { return local_host.call(url, "flow.result", id).value("ended", false); }, Seconds(40)));
  EXPECT_EQ(local_host.call(url, "flow.result", id).value("detail", ""), "cancelled");
  EXPECT_EQ(remote_host.redis.cli(1, {"HGET", "job:1:1", "detail"}), "cancelled");
}

}  // namespace
}  // namespace mycojobs::test
