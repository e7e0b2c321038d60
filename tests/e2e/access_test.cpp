// `mycojobs context acl`: the test loads its output into a real Redis, runs each program as the user of its role, and
// checks that each role is denied the commands that it must not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

struct User {
  std::string name, password;
};

class Access : public Operator {
 protected:
  // Prints the ACL, loads it, and stores the passwords.
  void SetUp() override {
    const ProcessResult acl_output = run(folder_, {program_path(), "context", "acl", "1", "--caller", "12",
                                                   "--passwords", "--state-dir", folder_ / "client"});
    ASSERT_EQ(acl_output.code, 0) << acl_output.err;
    ASSERT_EQ(redis_.cli(0, {}, acl_output.out), "OK\nOK\nOK\nOK\nOK");
    std::istringstream lines(acl_output.out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string acl, subcommand, name;
      words >> acl >> subcommand >> name;
      const auto position = line.find('>') + 1;
      users_[name.substr(9, name.find('-', 9) - 9)] = {name,
                                                       line.substr(position, line.find(' ', position) - position)};
    }
    ASSERT_EQ(users_.size(), 5U) << acl_output.out;
  }
  std::string url(const std::string& role) const {
    const User& user = users_.at(role);
    return "unix://" + user.name + ":" + user.password + "@" + redis_.url().substr(7);
  }
  // Returns the output of redis-cli as this role, including an error of SELECT.
  std::string run_as(const std::string& role, std::vector<std::string> words, int database = 1) const {
    const User& user = users_.at(role);
    words.insert(words.begin(), {"--user", user.name, "--pass", user.password, "--no-auth-warning"});
    return redis_.cli(database, std::move(words));
  }
  ProcessResult run_mycojobs_as(const std::string& role, std::vector<std::string> words,
                                const std::string& input = "") const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", url(role), "--state-dir", folder_ / "client"});
    return run(folder_, std::move(words), {}, input);
  }
  // Checks the commands that the server has refused since the last call. Only three refusals are permitted: the search
  // for contexts tries each other database once, programs continue without reading the server's settings, and an agent
  // leaves the owner of a new database to a program that may write it.
  void expect_no_other_denials() const {
    const auto log = nlohmann::json::parse(redis_.cli(0, {"--json", "ACL", "LOG"}));
    for (const auto& entry : log) {
      const std::string object = entry.value("object", "");
      EXPECT_TRUE(object == "select" || object == "config|get" || object == "mj:format") << entry;
    }
    redis_.cli(0, {"ACL", "LOG", "RESET"});
  }
  Process start_agent_as_user() {
    Process agent(folder_, {program_path(), "agent", "--redis", url("agent"), "--runner", "20", "--slots", "2",
                            "--lease", "2s", "--state-dir", folder_ / "agent"});
    EXPECT_TRUE(wait_until_registered(redis_, 20)) << agent.err();
    return agent;
  }
  Process start_coordinator_as_user() {
    return Process(folder_, {program_path(), "coordinator", "--redis", url("coordinator"), "--coordinator-lease", "1s",
                             "--state-dir", folder_ / "coordinator"});
  }
  // Submits a job as docs/protocol.md describes it for any client.
  void submit_as_submitter(int id, const std::string& script, const std::string& type = "python") {
    const std::string key = "job:12:" + std::to_string(id);
    run_as("submitter", {"HSET", key, "id", std::to_string(id), "caller_id", "12", "context_id", "1", "script", script,
                         "script_type", type, "timeout", "20", "status", "dispatched"});
    EXPECT_EQ(run_as("submitter", {"LPUSH", "queue:" + type, key}), "1");
  }
  bool wait_for_value(const std::string& key, const std::string& status) {
    return eventually([&] { return run_as("submitter", {"HGET", key, "status"}) == status; });
  }

  std::map<std::string, User> users_;
};

// Tests with a Redis that has an aclfile.
class AccessSetup : public ::testing::Test {
 protected:
  std::string run_as_admin(std::vector<std::string> words, const std::string& input = "") const {
    words.insert(words.begin(), {"--user", "admin", "--pass", "secret", "--no-auth-warning"});
    return redis_.cli(0, std::move(words), input);
  }
  TempDir folder_;
  RedisServer redis_{folder_, {"--aclfile", folder_.write("users.acl", "")}};
};

const std::string kFlow =
    R"json({"name":"two","jobs":{"a":{"type":"python","script":"print(1)"},"b":{"type":"python","script":"print(2)","needs":["a"]}}})json";

TEST_F(Access, EachProgramWorksAsTheUserOfItsRole) {
  for (const int other_database : {2, 3}) redis_.cli(other_database, {"SET", "somebody", "else's"});
  Process agent = start_agent_as_user();
  Process coordinator = start_coordinator_as_user();
  ASSERT_EQ(run_mycojobs_as("operator", {"context", "create", "1", "--admin", "12", "--submitter", "13"}).code, 0);

  submit_as_submitter(1, "print('hello')");
  EXPECT_TRUE(wait_for_value("job:12:1", "finished")) << agent.err();
  submit_as_submitter(2, "raise SystemExit(3)");
  EXPECT_TRUE(wait_for_value("job:12:2", "error")) << agent.err();
  submit_as_submitter(3, "local o = osis.put('note', {text = 'x'})\nreturn osis.list('note')", "osis");
  EXPECT_TRUE(eventually([&] { return run_as("submitter", {"HGET", "job:12:3", "ended_ms"}) != ""; })) << agent.err();

  run_as("submitter", {"HSET", "message:12:101", "id", "101", "caller_id", "12", "context_id", "1", "message_type",
                       "job", "message", "m", "topic", "runner20", "status", "dispatched", "job",
                       R"([{"id":9,"caller_id":12,"context_id":1,"script":"pass","script_type":"python"}])"});
  EXPECT_EQ(run_as("submitter", {"PUBLISH", "runner20", "message:12:101"}), "1");
  EXPECT_TRUE(wait_for_value("job:12:9", "finished")) << agent.err();

  const std::string file = folder_.write("flow.json", kFlow);
  ProcessResult flow = run_mycojobs_as("operator", {"flow", "start", file, "--follow", "--caller", "12"});
  EXPECT_EQ(flow.code, 0) << flow.out << flow.err << coordinator.err();
  EXPECT_EQ(coordinator.err().find("NOPERM"), std::string::npos) << coordinator.err();
  EXPECT_EQ(agent.err().find("NOPERM"), std::string::npos) << agent.err();
  expect_no_other_denials();

  for (std::vector<std::string> words : {std::vector<std::string>{"job", "list"},
                                         {"job", "show", "12:9"},
                                         {"job", "logs", "12:9"},
                                         {"job", "explain", "12:9"},
                                         {"flow", "list"},
                                         {"flow", "show", "1"},
                                         {"queue", "list"},
                                         {"queue", "dead"},
                                         {"runner", "list"},
                                         {"context", "show", "1"},
                                         {"message", "list"},
                                         {"verify"}}) {
    for (const char* role : {"operator", "reader"}) {
      const ProcessResult result = run_mycojobs_as(role, words);
      EXPECT_EQ(result.code, 0) << role << ' ' << words[0] << ' ' << words[1] << result.out << result.err;
    }
  }
  const std::string script = folder_.write("script.py", "print('seen')");
  const ProcessResult run_result = run_mycojobs_as("operator", {"run", script, "--caller", "12"});
  EXPECT_EQ(run_result.code, 0) << run_result.err;
  EXPECT_NE((run_result.out + run_result.err).find("seen"), std::string::npos) << run_result.out << run_result.err;
  submit_as_submitter(20, kSleepScript);
  EXPECT_TRUE(wait_for_value("job:12:20", "started"));
  EXPECT_EQ(run_mycojobs_as("operator", {"job", "cancel", "12:20"}).code, 0);
  EXPECT_TRUE(wait_for_value("job:12:20", "error")) << agent.err();
  EXPECT_EQ(run_mycojobs_as("operator", {"queue", "pause", "python"}).code, 0);
  EXPECT_EQ(run_mycojobs_as("operator", {"queue", "resume", "python"}).code, 0);
  EXPECT_EQ(run_mycojobs_as("operator", {"job", "delete", "12:2"}).code, 0);
  EXPECT_EQ(run_mycojobs_as("operator", {"actor", "create", "--id", "40"}).code, 0);
  EXPECT_EQ(run_mycojobs_as("operator", {"actor", "delete", "40"}).code, 0);
  EXPECT_EQ(run_mycojobs_as("operator", {"doctor", "--rebuild", "--dry-run"}).code, 0);
  expect_no_other_denials();
  coordinator.signal(SIGTERM);
  EXPECT_EQ(coordinator.wait().code, 0) << coordinator.err();
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait().code, 0) << agent.err();
  expect_no_other_denials();
}

using Words = std::vector<std::string>;

// Commands that no role may run: access to another database, changes of the server, and observation of other clients.
const std::vector<Words> kForbiddenForAllRoles{
    {"COPY", "job:12:1", "job:12:1", "DB", "2"},
    {"MOVE", "job:12:1", "2"},
    {"SWAPDB", "1", "2"},
    {"SELECT", "2"},
    {"EVAL", "return redis.call('SELECT', '2')", "0"},
    {"EVAL", "return redis.call('MOVE', 'job:12:1', '2')", "0"},
    {"EVAL", "return redis.call('COPY', 'job:12:1', 'job:12:1', 'DB', '2')", "0"},
    {"EVAL", "return redis.call('FLUSHALL')", "0"},
    {"FLUSHDB"},
    {"FLUSHALL"},
    {"KEYS", "*"},
    {"RENAME", "job:12:1", "job:12:2"},
    {"DUMP", "job:12:1"},
    {"RESTORE", "job:12:1", "0", "x"},
    {"MIGRATE", "127.0.0.1", "1", "job:12:1", "0", "1"},
    {"SORT", "mj:queues", "BY", "nosort", "GET", "other:*"},
    {"CONFIG", "SET", "appendonly", "no"},
    {"CONFIG", "REWRITE"},
    {"ACL", "LIST"},
    {"ACL", "SETUSER", "default", "on"},
    {"SCRIPT", "FLUSH"},
    {"FUNCTION", "LIST"},
    {"SHUTDOWN"},
    {"REPLICAOF", "NO", "ONE"},
    {"REPLCONF", "capa", "eof"},
    {"CLUSTER", "INFO"},
    {"MODULE", "LIST"},
    {"CLIENT", "LIST"},
    {"CLIENT", "PAUSE", "1"},
    {"MONITOR"},
    {"SLOWLOG", "GET"},
    {"LATENCY", "RESET"},
    {"SAVE"},
    {"BGSAVE"},
    {"GET", "other:1"},
    {"SET", "other:1", "x"},
    {"PUBLISH", "other", "x"},
    {"PSUBSCRIBE", "*"},
    {"SUBSCRIBE", "other"},
};

// Further commands that a single role may not run.
const std::map<std::string, std::vector<Words>> kForbiddenForRole{
    {"agent",
     {{"HSET", "context:1", "admins", "[99]"},
      {"DEL", "context:1"},
      {"EVAL", "return redis.call('HSET', 'context:1', 'admins', '[99]')", "0"},
      {"HSET", "actor:12", "pubkey", "x"},
      {"DEL", "actor:12"},
      {"CONFIG", "GET", "requirepass"},
      {"XADD", "mj:flow-journal:1", "1-0", "f", "x"},
      {"XRANGE", "mj:flow-journal:1", "-", "+"},
      {"HSET", "mj:flow-checkpoint:1", "at", "1"},
      {"HSET", "mj:definition:x", "text", "x"},
      {"HSET", "mj:schedule:nightly", "cron", "* * * * *"},
      {"SADD", "mj:schedules", "nightly"},
      {"HSET", "mj:coordinator", "instance", "x"},
      {"SADD", "mj:paused", "queue:python"},
      {"XADD", "mj:refusals", "*", "actor", "1"},
      {"DEL", "mj:refusals"},
      {"SET", "mj:next:12", "1"},
      {"LPUSH", "mj:queue:router", "job:12:1"},
      {"LPUSH", "mj:queue:router:there:1", "job:12:1"},
      {"LPUSH", "msg_out", "message:12:1"},
      {"LPUSH", "msg_out_coordinator", "message:12:1"},
      {"SUBSCRIBE", "mj:flows:changed"},
      {"PUBLISH", "mj:router", "x"}}},
    {"coordinator", {{"CONFIG", "GET", "requirepass"}, {"LPUSH", "other", "x"}, {"DEL", "other:1"}}},
    {"operator", {{"BLMOVE", "queue:python", "queue:python", "RIGHT", "RIGHT", "1"}, {"DEL", "other:1"}}},
    {"reader",
     {{"HSET", "job:12:1", "status", "finished"},
      {"EVAL", "return redis.call('HSET', 'job:12:1', 'status', 'finished')", "0"},
      {"DEL", "job:12:1"},
      {"UNLINK", "mj:claim:job:12:1"},
      {"LPUSH", "queue:python", "job:12:1"},
      {"RPOP", "queue:python"},
      {"RPOP", "msg_in"},
      {"LPUSH", "msg_out", "message:12:1"},
      {"SADD", "mj:paused", "queue:python"},
      {"XADD", "mj:log:job:12:1", "*", "text", "x"},
      {"ZADD", "mj:leases", "1", "x"},
      {"PUBLISH", "runner20", "message:12:1"},
      {"PUBLISH", "mj:wake", "queue:python"},
      {"SUBSCRIBE", "runner20"},
      {"CLIENT", "KILL", "ID", "1"},
      {"CONFIG", "GET", "requirepass"},
      {"BGREWRITEAOF"},
      {"WAIT", "0", "1"}}},
    {"submitter",
     {{"HSET", "job:13:1", "script", "x"},
      {"HGETALL", "job:13:1"},
      {"HSET", "message:13:1", "message", "x"},
      {"HSET", "flow:1", "status", "finished"},
      {"HSET", "context:1", "admins", "[12]"},
      {"HGETALL", "context:1"},
      {"HSET", "actor:12", "pubkey", "x"},
      {"HGETALL", "runner:20"},
      {"HGETALL", "mj:claim:job:12:1"},
      {"XRANGE", "mj:log:job:12:1", "-", "+"},
      {"LPUSH", "mj:queue:runner20", "job:12:1"},
      {"LPUSH", "msg_in", "message:12:1"},
      {"LPUSH", "msg_out_coordinator", "message:12:1"},
      {"RPOP", "msg_out"},
      {"RPOP", "queue:python"},
      {"LRANGE", "queue:python", "0", "-1"},
      {"DEL", "job:12:1"},
      {"DEL", "queue:python"},
      {"HDEL", "job:12:1", "script"},
      {"EVAL", "return 1", "0"},
      {"EVALSHA", "0123456789012345678901234567890123456789", "0"},
      {"SCRIPT", "LOAD", "return 1"},
      {"SCAN", "0"},
      {"INFO"},
      {"SUBSCRIBE", "runner20"},
      {"PUBLISH", "mj:wake", "queue:python"},
      {"CLIENT", "KILL", "ID", "1"},
      {"CONFIG", "GET", "requirepass"}}},
};

bool is_refusal(const std::string& reply) {
  return reply.starts_with("NOPERM") ||
         reply.find("The user executing the script can't") != std::string::npos ||  // a call within a script
         // a call within a script, Redis 7.2 and later
         reply.starts_with("ERR ACL failure in script: ");
}

TEST_F(Access, EachRoleIsDeniedForbiddenCommands) {
  std::size_t attempt_count = 0;
  for (const auto& [role, role_commands] : kForbiddenForRole) {
    std::vector<Words> commands = kForbiddenForAllRoles;
    commands.insert(commands.end(), role_commands.begin(), role_commands.end());
    for (const Words& words : commands) {
      const std::string reply = run_as(role, words);
      EXPECT_TRUE(is_refusal(reply)) << role << ": " << ::testing::PrintToString(words) << " answers " << reply;
      ++attempt_count;
    }
  }
  EXPECT_GT(attempt_count, 250U);
  EXPECT_EQ(redis_.cli(0, {"INFO", "keyspace"}).find("db"), std::string::npos) << "no command was executed";
}

TEST_F(Access, PlainClientHasTheAccessOfTheProtocolPage) {
  EXPECT_EQ(run_as("submitter", {"HSET", "job:12:1", "script", "pass"}), "1");
  EXPECT_EQ(run_as("submitter", {"HGETALL", "job:12:1"}), "script\npass");
  EXPECT_EQ(run_as("submitter", {"LPUSH", "queue:python", "job:12:1"}), "1");
  EXPECT_EQ(run_as("submitter", {"HSET", "message:12:1", "message", "x"}), "1");
  EXPECT_EQ(run_as("submitter", {"LPUSH", "msg_out", "message:12:1"}), "1");
  redis_.cli(1, {"LPUSH", "msg_in", "message:12:1"});
  EXPECT_EQ(run_as("submitter", {"RPOP", "msg_in"}), "message:12:1");
  EXPECT_EQ(run_as("submitter", {"PUBLISH", "runner20", "message:12:1"}), "0");
}

TEST_F(Access, DoctorWarnsOfAnOpenDefaultUser) {
  const auto read_check_state = [&](const std::string& address) {
    const ProcessResult result =
        run(folder_, {program_path(), "doctor", "--redis", address, "--state-dir", folder_ / "client", "--json"});
    for (const auto& check : nlohmann::json::parse(result.out, nullptr, false)) {
      if (check["name"] == "default user") return check["state"].get<std::string>();
    }
    return std::string("absent");
  };
  EXPECT_EQ(read_check_state(redis_.url()), "warning");
  EXPECT_EQ(read_check_state(url("operator")), "warning");
  redis_.cli(0, {"ACL", "SETUSER", "default", "off"});
  EXPECT_EQ(read_check_state(url("operator")), "ok");
}

// The steps of docs/operations.md, followed by a restart of Redis.
TEST_F(AccessSetup, IsSafeInTheOrderOfTheManual) {
  const ProcessResult acl_output =
      run(folder_, {program_path(), "context", "acl", "1", "--passwords", "--state-dir", folder_ / "c"});
  ASSERT_EQ(acl_output.code, 0) << acl_output.err;
  std::size_t position = 0;
  for (const char* step : {"ACL SETUSER admin on", "the lines above", "default off", "ACL SAVE", "check: "}) {
    const std::size_t found = acl_output.err.find(step, position);
    ASSERT_NE(found, std::string::npos) << step << " is not behind the others in\n" << acl_output.err;
    position = found;
  }
  EXPECT_EQ(redis_.cli(0, {"ACL", "SETUSER", "admin", "on", ">secret", "~*", "&*", "+@all"}), "OK");
  EXPECT_EQ(run_as_admin({}, acl_output.out), "OK\nOK\nOK\nOK\nOK");
  EXPECT_EQ(run_as_admin({"ACL", "SETUSER", "default", "off"}), "OK");
  EXPECT_EQ(run_as_admin({"ACL", "SAVE"}), "OK");
  redis_.kill();
  redis_.start();
  EXPECT_TRUE(redis_.cli(0, {"ACL", "WHOAMI"}).starts_with("NOAUTH"));
  EXPECT_EQ(run_as_admin({"ACL", "WHOAMI"}), "admin");
}

TEST_F(Access, LineWithoutAPasswordIsRejectedByRedis) {
  const ProcessResult acl_output = mycojobs_({"context", "acl", "7", "--role", "agent"});
  EXPECT_EQ(acl_output.code, 0) << acl_output.err;
  EXPECT_EQ(std::count(acl_output.out.begin(), acl_output.out.end(), '\n'), 1) << acl_output.out;
  EXPECT_NE(redis_.cli(0, {}, acl_output.out).find("ERR"), std::string::npos);
  EXPECT_EQ(redis_.cli(0, {"ACL", "GETUSER", "mycojobs-agent-7"}), "");
  std::string as_user = acl_output.out;
  as_user.replace(as_user.find("#PASSWORD"), 9, ">secret");
  EXPECT_EQ(redis_.cli(0, {}, as_user), "OK");
}

TEST_F(Access, UsersOfSeveralContextsSelectOnlyTheirDatabases) {
  const auto users = mycojobs_.run_json({"context", "acl", "--context", "2,5", "--role", "reader", "--passwords"});
  ASSERT_EQ(users.size(), 1U) << users;
  EXPECT_EQ(users[0].value("user", ""), "mycojobs-reader-2-5");
  EXPECT_EQ(users[0].value("password", "").size(), 64U);
  const std::string rules = users[0].at("rules").dump();
  EXPECT_NE(rules.find("\"+select|2\",\"+select|5\""), std::string::npos) << rules;
  EXPECT_EQ(rules.find("\"+select\""), std::string::npos) << rules;
}

}  // namespace
}  // namespace mycojobs::test
