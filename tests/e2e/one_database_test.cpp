// The programs on servers like managed services: database 0 alone, and without CLIENT, CONFIG and SELECT. A second
// context on a database is refused under each of its addresses.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "e2e/client.h"

namespace mycojobs::test {
namespace {

std::uint16_t find_unused_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// Context 3 is in database 0, the only one, beside the actors.
class OneDatabaseE2e : public ::testing::Test {
 protected:
  explicit OneDatabaseE2e(std::vector<std::string> options = {}) : redis_(folder_, add_options(std::move(options))) {}

  // Writes a configuration in which the context has this address.
  std::string write_config(int context, const std::string& url) const {
    const std::string id = std::to_string(context);
    return folder_.write("context" + id + ".toml", "redis = \"" + default_url() + "\"\ncontext = [" + id +
                                                       "]\n[contexts." + id + "]\nredis = \"" + url + "\"\n");
  }
  std::string default_url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  std::vector<std::string> make_argv(std::vector<std::string> words, const std::string& config) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--config", config, "--state-dir", folder_ / words[1]});
    return words;
  }
  ProcessResult run_with(const std::string& config, std::vector<std::string> words, std::string input = "") const {
    return run(folder_, make_argv(std::move(words), config), {}, std::move(input));
  }
  Process start_with(const std::string& config, std::vector<std::string> words) const {
    return Process(folder_, make_argv(std::move(words), config));
  }
  Process start_agent_with(const std::string& config) const {
    Process agent = start_with(config, {"agent", "--runner", "20", "--lease", "2s"});
    EXPECT_TRUE(wait_until_registered(redis_, 20, 0)) << agent.err();
    return agent;
  }
  // Runs a job and a flow as an operator.
  void expect_work_is_done(const std::string& config, const Process& agent) const {
    const ProcessResult job = run_with(config, {"job", "submit", "-", "--type", "python", "--follow"}, "print('done')");
    EXPECT_EQ(job.code, 0) << job.out << job.err << agent.err();
    EXPECT_NE(job.out.find("done"), std::string::npos) << job.out;
    const std::string file = folder_.write(
        "flow.json",
        R"({"name":"two","jobs":{"a":{"type":"python","script":"pass"},"b":{"type":"python","script":"pass","needs":["a"]}}})");
    const ProcessResult flow = run_with(config, {"flow", "start", file, "--follow"});
    EXPECT_EQ(flow.code, 0) << flow.out << flow.err << agent.err();
  }
  nlohmann::json run_doctor(const std::string& config) const {
    return nlohmann::json::parse(run_with(config, {"doctor", "--json"}).out, nullptr, false);
  }

  TempDir folder_;
  const std::uint16_t port_ = find_unused_port();
  RedisServer redis_;

 private:
  std::vector<std::string> add_options(std::vector<std::string> options) const {
    options.insert(options.begin(), {"--databases", "1", "--bind", "127.0.0.1", "--port", std::to_string(port_)});
    return options;
  }
};

// A server that forbids the commands that managed services forbid.
class LimitedServerE2e : public OneDatabaseE2e {
 protected:
  LimitedServerE2e()
      : OneDatabaseE2e({"--rename-command", "CONFIG", "", "--rename-command", "CLIENT", "", "--rename-command",
                        "SELECT", "", "--rename-command", "BGREWRITEAOF", "", "--rename-command", "ACL", ""}) {}
};

nlohmann::json find_check(const nlohmann::json& checks, const std::string& name) {
  for (const auto& check : checks) {
    if (check.value("name", "") == name) return check;
  }
  return nlohmann::json::object();
}

std::size_t count_text(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST_F(OneDatabaseE2e, ContextRunsBesideTheActors) {
  const std::string config = write_config(3, default_url() + "/0");
  Process agent = start_agent_with(config);
  Process coordinator = start_with(config, {"coordinator", "--coordinator-lease", "1s", "--api-listen", ""});
  const std::string key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
  ASSERT_EQ(run_with(config, {"actor", "create", "--id", "30", "--key", key}).code, 0);
  ASSERT_EQ(run_with(config, {"context", "create", "3", "--admin", "30"}).code, 0);
  expect_work_is_done(config, agent);
  const ProcessResult actors = run_with(config, {"actor", "list", "--json"});
  EXPECT_NE(actors.out.find(key), std::string::npos) << actors.out << actors.err;
  EXPECT_NE(run_with(config, {"actor", "delete", "30"}).code, 0) << "the actor is an admin of context 3";
  EXPECT_NE(run_with(config, {"context", "list"}).out.find("3"), std::string::npos);
  EXPECT_EQ(redis_.cli(0, {"HGET", "mj:format", "context"}), "3");
  const nlohmann::json doctor = run_doctor(config);
  EXPECT_EQ(find_check(doctor, "format of context 3").value("state", ""), "ok") << doctor;
  EXPECT_EQ(find_check(doctor, "leader").value("state", "ok"), "ok") << doctor;
  const ProcessResult rebuild = run_with(config, {"doctor", "--rebuild", "--dry-run"});
  EXPECT_EQ(rebuild.code, 0) << rebuild.out << rebuild.err;
  const ProcessResult verify = run_with(config, {"verify"});
  EXPECT_EQ(verify.code, 0) << verify.out << verify.err;
}

// Without --context, a coordinator finds the context in database 0 by its address.
TEST_F(OneDatabaseE2e, CoordinatorFindsTheContext) {
  const std::string config = folder_.write(
      "all.toml", "redis = \"" + default_url() + "\"\n[contexts.3]\nredis = \"" + default_url() + "/0\"\n");
  Process coordinator = start_with(config, {"coordinator", "--coordinator-lease", "1s", "--api-listen", ""});
  EXPECT_TRUE(eventually([&] {
    return !redis_.cli(0, {"HGET", "mj:coordinator", "where"}).empty();
  })) << coordinator.err();
  EXPECT_EQ(redis_.cli(0, {"HGET", "mj:format", "context"}), "3");
}

TEST_F(OneDatabaseE2e, SecondContextIsRefusedUnderEachAddress) {
  const std::string first = write_config(3, default_url() + "/0");
  ASSERT_EQ(run_with(first, {"job", "submit", "-", "--type", "python"}, "pass").code, 0);
  const std::string keys = redis_.cli(0, {"DBSIZE"});
  for (const std::string& alias :
       {"redis://localhost:" + std::to_string(port_) + "/0", redis_.url() + "?db=0", default_url() + "/0"}) {
    const std::string config = write_config(5, alias);
    for (std::vector<std::string> words : {std::vector<std::string>{"job", "list"},
                                           {"agent", "--runner", "21"},
                                           {"coordinator", "--api-listen", ""},
                                           {"verify"}}) {
      const ProcessResult refused = run_with(config, words);
      EXPECT_EQ(refused.code, 77) << alias << ' ' << words[0] << refused.out << refused.err;
      EXPECT_NE(refused.err.find("context 5: its database belongs to context 3"), std::string::npos)
          << alias << ' ' << words[0] << refused.err;
    }
    const nlohmann::json check = find_check(run_doctor(config), "format of context 5");
    EXPECT_EQ(check.value("state", ""), "error") << alias;
    EXPECT_NE(check.value("detail", "").find("contexts.5.redis or contexts.3.redis"), std::string::npos) << check;
  }
  EXPECT_EQ(redis_.cli(0, {"DBSIZE"}), keys);
}

TEST_F(OneDatabaseE2e, EqualAddressesAreFoundInTheConfiguration) {
  const std::string config =
      folder_.write("both.toml", "redis = \"" + default_url() + "\"\ncontext = [3, 5]\n[contexts.3]\nredis = \"" +
                                     default_url() + "/0\"\n[contexts.5]\nredis = \"" + default_url() + "/0\"\n");
  const ProcessResult check = run_with(config, {"config", "check"});
  EXPECT_NE(check.code, 0);
  EXPECT_NE((check.out + check.err).find("contexts.3.redis: names database 0 of Redis at"), std::string::npos)
      << check.out << check.err;
}

// Connections begin in database 0, so that each user of the server reaches the context there.
TEST_F(OneDatabaseE2e, Database0OfASharedServerIsRefused) {
  const auto write = [&](const std::string& contexts) {
    return folder_.write("shared.toml", "redis = \"" + default_url() + "\"\ncontext = " + contexts +
                                            "\n[contexts.3]\nredis = \"" + default_url() + "/0\"\n");
  };
  const std::string refusal = "contexts.3.redis: names database 0 of Redis at";
  const std::string config = write("[3, 5]");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"config", "check"},
                                                {"agent", "--runner", "21"},
                                                {"coordinator", "--api-listen", ""}}) {
    const ProcessResult refused = run_with(config, words);
    EXPECT_NE(refused.code, 0) << words[0];
    EXPECT_NE((refused.out + refused.err).find(refusal), std::string::npos) << words[0] << refused.out << refused.err;
  }
  const ProcessResult alone = run_with(write("[3]"), {"config", "check"});
  EXPECT_EQ((alone.out + alone.err).find(refusal), std::string::npos) << alone.out << alone.err;
}

// A tenant that changes the format of its own database stops no other context of the same programs.
TEST(RejectedDatabaseE2e, OtherContextsAreServedUntilItIsRepaired) {
  TempDir folder;
  RedisServer redis(folder);
  const auto start = [&](std::vector<std::string> words) {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", redis.url(), "--context", "3,7", "--state-dir", folder / words[1]});
    return Process(folder, words);
  };
  for (const std::vector<std::string>& planted :
       {std::vector<std::string>{"version", "99"}, std::vector<std::string>{"version", "2", "context", "9"}}) {
    redis.cli(0, {"FLUSHALL"});
    std::vector<std::string> command{"HSET", "mj:format"};
    command.insert(command.end(), planted.begin(), planted.end());
    redis.cli(3, command);
    Process agent = start({"agent", "--runner", "20", "--lease", "2s"});
    Process coordinator = start({"coordinator", "--coordinator-lease", "1s", "--api-listen", ""});
    EXPECT_TRUE(wait_until_registered(redis, 20, 7)) << agent.err();
    EXPECT_TRUE(eventually([&] {
      return !redis.cli(7, {"HGET", "mj:coordinator", "where"}).empty();
    })) << coordinator.err();
    for (const Process* program : {&agent, &coordinator})
      EXPECT_NE(program->err().find("context 3: its "), std::string::npos) << program->err();
    EXPECT_EQ(redis.cli(3, {"DBSIZE"}), "1") << "nothing was written";
    redis.cli(3, {"DEL", "mj:format"});
    EXPECT_TRUE(wait_until_registered(redis, 20, 3)) << agent.err();
    EXPECT_TRUE(eventually([&] {
      return !redis.cli(3, {"HGET", "mj:coordinator", "where"}).empty();
    })) << coordinator.err();
  }
}

TEST_F(LimitedServerE2e, ContextRunsWithoutForbiddenCommands) {
  const std::string config = write_config(3, default_url() + "/0");
  Process agent = start_agent_with(config);
  Process coordinator = start_with(config, {"coordinator", "--coordinator-lease", "1s", "--api-listen", ""});
  expect_work_is_done(config, agent);
  for (const Process* program : {&agent, &coordinator}) {
    EXPECT_EQ(count_text(program->err(), "forbids CLIENT"), 1U) << program->err();
    EXPECT_EQ(count_text(program->err(), "forbids CONFIG"), 1U) << program->err();
  }
  const nlohmann::json doctor = run_doctor(config);
  EXPECT_EQ(find_check(doctor, "command CLIENT").value("state", ""), "warning") << doctor;
  EXPECT_EQ(find_check(doctor, "command CONFIG").value("state", ""), "warning") << doctor;
  const std::string other = write_config(4, default_url() + "/7");
  const ProcessResult refused = run_with(other, {"job", "list"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("the server forbids SELECT"), std::string::npos) << refused.err;
  EXPECT_EQ(refused.err.find("forbids CLIENT"), std::string::npos) << "commands do not repeat the warnings";
}

}  // namespace
}  // namespace mycojobs::test
