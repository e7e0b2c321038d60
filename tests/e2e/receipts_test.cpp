// Receipts, which are signatures of a runner over the end of a job, and signatures of messages.
#include "e2e/client.h"
#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class SignedReceipts : public Operator {
 protected:
  std::string make_key(const std::string& name) {
    const ProcessResult result = run(folder_, {program_path(), "key", "new", folder_ / name});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(0, result.out.find('\n'));
  }
  // Returns the names of the failed checks, such as "result log".
  std::string list_failed_checks(const std::string& job, std::vector<std::string> more_options = {}) {
    std::vector<std::string> words{"receipt", "verify", job};
    words.insert(words.end(), more_options.begin(), more_options.end());
    std::string failed_checks;
    for (const auto& check : run_json(words).value("checks", nlohmann::json::array())) {
      if (!check.value("holds", false)) failed_checks += (failed_checks.empty() ? "" : " ") + check.value("what", "?");
    }
    return failed_checks;
  }
  nlohmann::json run_json(std::vector<std::string> words) { return mycojobs_.run_json(std::move(words)); }
};

TEST_F(SignedReceipts, DetectChangedRecords) {
  const std::string pubkey = make_key("runner.key");
  ASSERT_EQ(pubkey.size(), 64U);
  Process agent = start_agent(folder_, redis_, 20, {"--runner-key", folder_ / "runner.key"});
  const std::string job = mycojobs_.submit("print('one')\nprint('two')\nresult = {'n': 1}");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_EQ(mycojobs_({"receipt", "verify", job}).code, 0);
  EXPECT_EQ(list_failed_checks(job), "");
  EXPECT_EQ(list_failed_checks(job, {"--key", pubkey}), "");
  EXPECT_EQ(list_failed_checks(job, {"--key", make_key("other.key")}), "signature");

  redis_.cli(1, {"HSET", job, "result", R"({"n":"2"})"});
  EXPECT_EQ(list_failed_checks(job), "result");
  EXPECT_EQ(mycojobs_({"receipt", "verify", job}).code, 1);
  redis_.cli(1, {"HSET", job, "result", R"({"n":"1"})"});
  EXPECT_EQ(list_failed_checks(job), "");
  const std::string receipt = mycojobs_.read_field(job, "receipt");
  std::string forged = receipt;
  forged.replace(forged.find("\"wall_us\":"), 10, "\"wall_us\":1");
  redis_.cli(1, {"HSET", job, "receipt", forged});
  EXPECT_EQ(list_failed_checks(job), "signature");
  redis_.cli(1, {"HSET", job, "receipt", receipt, "status", "error"});
  EXPECT_EQ(list_failed_checks(job), "end");

  const std::string other_job = mycojobs_.submit("print('one')");
  ASSERT_TRUE(mycojobs_.wait_for_value(other_job, "status", "finished"));
  redis_.cli(1, {"HSET", other_job, "receipt", receipt});
  EXPECT_EQ(list_failed_checks(other_job), "job result log") << "the receipt of another job must not be valid";
}

TEST_F(SignedReceipts, CoverTheStoredPartsOfALongLog) {
  make_key("runner.key");
  Process agent = start_agent(folder_, redis_, 20, {"--runner-key", folder_ / "runner.key"});
  const std::string job = mycojobs_.submit(
      "import time\nfor i in range(40):\n  print('x' * 99999, flush=True)\n  time.sleep(0.05)\nprint('last')");
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "finished"));
  EXPECT_EQ(list_failed_checks(job), "");
}

TEST_F(SignedReceipts, CoverTheLastAttemptAndFailures) {
  make_key("runner.key");
  Process agent = start_agent(folder_, redis_, 20,
                              {"--runner-key", folder_ / "runner.key", "--retry-min", "1ms", "--retry-max", "1ms"});
  const std::string job = mycojobs_.submit("print('attempt')\nraise ValueError('no')", {"--retries", "2"});
  ASSERT_TRUE(mycojobs_.wait_for_value(job, "status", "error"));
  EXPECT_EQ(list_failed_checks(job), "");
}

TEST_F(SignedReceipts, RunnerNeedsAPrivateKeyToSign) {
  const std::string job = [&] {
    Process agent = start_agent(folder_, redis_, 20);
    const std::string submitted = mycojobs_.submit("print(1)");
    EXPECT_TRUE(mycojobs_.wait_for_value(submitted, "status", "finished"));
    return submitted;
  }();
  const ProcessResult unsigned_receipt = mycojobs_({"receipt", "verify", job});
  EXPECT_NE(unsigned_receipt.code, 0);
  EXPECT_NE(unsigned_receipt.err.find("mycojobs key new"), std::string::npos) << unsigned_receipt.err;
  make_key("open.key");
  std::filesystem::permissions(folder_ / "open.key", std::filesystem::perms(0644));
  Process agent = start_agent(folder_, redis_, 21, {"--runner-key", folder_ / "open.key"});
  const ProcessResult rejected_start = agent.wait();
  EXPECT_NE(rejected_start.code, 0);
  EXPECT_NE(rejected_start.err.find("chmod 600"), std::string::npos) << rejected_start.err;
}

TEST_F(SignedReceipts, MessageBelongsToItsSignerAndTarget) {
  const std::string pubkey = make_key("bob.key");
  redis_.cli(0, {"HSET", "actor:12", "id", "12", "pubkey", pubkey});
  redis_.cli(1, {"HSET", "message:12:101", "id", "101", "caller_id", "12", "context_id", "1", "message_type", "chat",
                 "message", "hello"});
  expect_result(mycojobs_({"message", "verify", "12:101"}), 1, "signature: is missing");
  expect_result(mycojobs_({"message", "sign", "12:101", "--key", folder_ / "bob.key"}), 65, "target_context");
  expect_result(mycojobs_({"message", "sign", "12:101", "--key", folder_ / "bob.key", "--to", "7"}), 0, "15 min");
  expect_result(mycojobs_({"message", "verify", "12:101"}), 0, "holds");
  expect_result(mycojobs_({"message", "list"}), 0, "12:101");
  EXPECT_EQ(run_json({"message", "show", "12:101"}).value("signer", ""), pubkey);
  redis_.cli(1, {"HSET", "message:12:101", "status", "acknowledged", "transport_status", "delivered"});
  expect_result(mycojobs_({"message", "verify", "12:101"}), 0, "holds");
  redis_.cli(1, {"HSET", "message:12:101", "target_context", "8"});
  expect_result(mycojobs_({"message", "verify", "12:101"}), 1, "not of this content");
  redis_.cli(1, {"HSET", "message:12:101", "target_context", "7"});
  redis_.cli(0, {"HSET", "actor:12", "pubkey", make_key("new.key")});
  expect_result(mycojobs_({"message", "verify", "12:101"}), 1, "is not its key");
  expect_result(mycojobs_({"message", "show", "12:999"}), 66, "message:12:999");
  expect_result(mycojobs_({"message", "show", "nonsense"}), 65, "is not a message");
}

}  // namespace
}  // namespace mycojobs::test
