// Commands that create, list, show, change and delete actors, contexts, runners, messages and jobs.
#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Records : public Operator {
 protected:
  std::string make_key(const std::string& name) {
    const ProcessResult result = run(folder_, {program_path(), "key", "new", name, "--keys-dir", folder_ / "keys"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(0, result.out.find('\n'));
  }
  nlohmann::json run_json_with_keys(std::vector<std::string> words) {
    words.insert(words.end(), {"--keys-dir", folder_ / "keys"});
    return mycojobs_.run_json(std::move(words));
  }
};

TEST_F(Records, KeyBecomesAnActorAndItsNameARole) {
  const std::string alice = make_key("alice"), new_key = make_key("alice2");
  EXPECT_EQ(run_json_with_keys({"actor", "create", "--key", "alice", "--id", "12", "--address", "unix:/run/a"})
                .value("id", 0),
            12);
  EXPECT_EQ(run_json_with_keys({"actor", "create", "--key", make_key("bob")}).value("id", 0), 1);
  EXPECT_EQ(mycojobs_.run_json({"actor", "show", "12"}).value("pubkey", ""), alice);
  expect_result(mycojobs_({"actor", "create", "--key", alice}), 65, "another actor has this key");
  expect_result(mycojobs_({"actor", "create", "--address", "nowhere"}), 65, "--address");
  EXPECT_EQ(mycojobs_.run_json({"actor", "list"}).size(), 2U);

  const auto context =
      run_json_with_keys({"context", "create", "7", "--admin", "alice", "--submitter", "bob", "--reader", "31"});
  EXPECT_EQ(context.value("admins", nlohmann::json()), nlohmann::json({12}));
  EXPECT_EQ(context.value("submitters", nlohmann::json()), nlohmann::json({1}));
  EXPECT_EQ(context.value("readers", nlohmann::json()), nlohmann::json({31}));
  expect_result(mycojobs_({"context", "list"}), 0, "7");
  expect_result(mycojobs_({"actor", "delete", "12"}), 65, "admins of context 7");

  expect_result(mycojobs_({"actor", "update", "12", "--key", new_key, "--actor", "1"}), 77, "actor 1 may not");
  EXPECT_EQ(mycojobs_.run_json({"actor", "update", "12", "--key", new_key, "--actor", "12"}).value("pubkey", ""),
            new_key);
  EXPECT_FALSE(mycojobs_.run_json({"actor", "update", "12", "--no-key"}).contains("pubkey"));
  EXPECT_EQ(mycojobs_.run_json({"actor", "show", "12"})["address"][0], "unix:/run/a")
      << "a field that is not named must not change";
}

TEST_F(Records, ActiveObjectsAreNotDeleted) {
  ASSERT_EQ(mycojobs_({"context", "create", "1", "--admin", "12"}).code, 0);
  const std::string job = mycojobs_.submit("pass");
  expect_result(mycojobs_({"context", "delete", "1"}), 65, job);
  expect_result(mycojobs_({"job", "delete", job}), 65, "it lives");
  EXPECT_EQ(mycojobs_({"runner", "create", "--id", "20", "--topic", "here"}).code, 0);
  {
    Process agent = start_registered_agent(20);
    ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
    expect_result(mycojobs_({"runner", "delete", "20"}), 65, "is this runner");
  }
  EXPECT_EQ(mycojobs_.run_json({"runner", "update", "20", "--queues", "yes"})["local"], true);
  EXPECT_EQ(mycojobs_.run_json({"runner", "show", "20"}).value("id", 0), 20);
  EXPECT_TRUE(eventually([&] { return mycojobs_({"runner", "delete", "20"}).code == 0; }));
  expect_result(mycojobs_({"runner", "show", "20"}), 66, "runner:20");
  expect_result(mycojobs_({"job", "delete", job, "--actor", "31"}), 77, "actor 31 may not administer");
  const auto refusals = mycojobs_.run_json({"context", "refusals"});
  ASSERT_EQ(refusals.size(), 1U) << refusals;
  EXPECT_EQ(refusals[0].value("actor", 0), 31);
  EXPECT_EQ(refusals[0].value("list", ""), "admins");
  expect_result(mycojobs_({"job", "delete", job}), 0, job + " is deleted");
  EXPECT_EQ(redis_.cli(1, {"EXISTS", job, "mj:claim:" + job, "mj:log:" + job}), "0");
  redis_.cli(1, {"HSET", "message:12:5", "message_type", "chat", "message", "hello"});
  redis_.cli(1, {"LPUSH", "msg_out", "message:12:5"});
  expect_result(mycojobs_({"message", "delete", "12:5"}), 65, "msg_out");
  redis_.cli(1, {"RPOP", "msg_out"});
  expect_result(mycojobs_({"message", "delete", "12:5"}), 0, "message:12:5 is deleted");
  expect_result(mycojobs_({"verify"}), 0, "clean");
  expect_result(mycojobs_({"context", "delete", "1"}), 0, "context:1 is deleted");
  expect_result(mycojobs_({"context", "delete", "1"}), 66, "has no record");
}

}  // namespace
}  // namespace mycojobs::test
