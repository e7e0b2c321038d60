// 1,000 messages are sent from bob's side to alice's while coordinators, agents and both Redis servers are killed and
// the connection between them is interrupted repeatedly. At the end each message has exactly one job at alice, each
// answer has arrived once, and both stores are consistent.
#include <signal.h>

#include <iostream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "chaos/proxy.h"
#include "chaos/wrong_clock.h"
#include "e2e/tenants.h"
#include "model/codec.h"
#include "security/signatures.h"

namespace mycojobs::test {
namespace {

constexpr int kMessages = 1000, kBatch = 50;

// Quotes the text for redis-cli.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

class TenantsChaos : public ::testing::Test {
 protected:
  TenantsChaos() : tenants_({"--appendonly", "yes", "--appendfsync", "always"}) {
    const unsigned seed = std::random_device()();
    std::cout << "tenants chaos: seed " << seed << std::endl;
    random_.seed(seed);
    tenants_.bob.start_coordinator();
    tenants_.alice.start_coordinator();
    to_alice_ = std::make_unique<Proxy>(tenants_.alice.port);
    to_bob_ = std::make_unique<Proxy>(tenants_.bob.port);
    tenants_.create_peer_records(to_bob_->url(), to_alice_->url());
    restart_runner();
  }
  void restart_runner() {
    tenants_.alice.agents.clear();
    tenants_.alice.start_runner(20, {"--slots", "8", "--job-max-deliveries", "1000"});
  }
  // Sends like a client that repeats unconfirmed writes: record and key in one step.
  void send_batch(int first) {
    std::string lines;
    for (int id = first; id < first + kBatch; ++id) {
      Message message =
          make_message_from_bob(tenants_, static_cast<Id>(id), "result = {'n': '" + std::to_string(id) + "'}");
      message.target_address = to_alice_->url();
      message.timeout = 3600;
      ASSERT_TRUE(sign(message, tenants_.bob.load_key("bob")));
      lines += "MULTI\nHSET message:12:" + std::to_string(id);
      for (const auto& [name, value] : encode(message)) lines += " " + name + " " + quoted(value);
      lines += "\nLPUSH msg_out message:12:" + std::to_string(id) + "\nEXEC\n";
    }
    tenants_.bob.cli({}, lines);
  }
  bool has_message(int id) const { return tenants_.bob.cli({"EXISTS", "message:12:" + std::to_string(id)}) == "1"; }

  void kill(std::unique_ptr<Process>& process) {
    process->signal(SIGKILL);
    process->wait();
  }
  void inject_fault() {
    switch (random_() % 8) {
      case 0:
        kill(tenants_.bob.coordinator);
        tenants_.bob.start_coordinator();
        break;
      case 1:
        kill(tenants_.alice.coordinator);
        tenants_.alice.start_coordinator();
        break;
      case 2:
        kill(tenants_.alice.agents.front());
        restart_runner();
        break;
      case 3:
        tenants_.bob.redis.kill();
        tenants_.bob.redis.start();
        break;
      case 4:
        tenants_.alice.redis.kill();
        tenants_.alice.redis.start();
        break;
      default: {
        constexpr LinkState kWires[] = {LinkState::refusing, LinkState::silent, LinkState::dropping, LinkState::cutting,
                                        LinkState::slow};
        Proxy& proxy = random_() % 2 == 0 ? *to_alice_ : *to_bob_;
        proxy.set_state(kWires[random_() % 5]);
        std::this_thread::sleep_for(std::chrono::milliseconds(200 + random_() % 1800));
        proxy.set_state(LinkState::whole);
      }
    }
    restart_ended_programs();
  }
  // Restarts programs that have exited because they did not find their Redis, as a service manager does.
  void restart_ended_programs() {
    if (!tenants_.bob.coordinator->is_running()) tenants_.bob.start_coordinator();
    if (!tenants_.alice.coordinator->is_running()) tenants_.alice.start_coordinator();
    if (!tenants_.alice.agents.front()->is_running()) restart_runner();
  }
  // Number of bob's processed messages; -1 if Redis did not answer.
  int count_processed() const {
    const std::string script =
        "local n = 0 for id = 1, 1000 do if redis.call('HGET', 'message:12:' .. id, 'status') == 'processed' then "
        "n = n + 1 end end return n";
    const std::string out = tenants_.bob.cli({"EVAL", script, "0"});
    return out.empty() || out.find_first_not_of("0123456789") != std::string::npos ? -1 : std::stoi(out);
  }

  Tenants tenants_;
  std::unique_ptr<Proxy> to_alice_, to_bob_;
  std::mt19937 random_;
};

TEST_F(TenantsChaos, EachOfAThousandMessagesRunsAndAnswersOnce) {
  const auto start_time = std::chrono::steady_clock::now();
  const auto seconds = [&] { return Seconds(std::chrono::steady_clock::now() - start_time).count(); };
  int fault_count = 0;
  for (int first = 1; first <= kMessages; first += kBatch) {
    for (int tries = 0; tries < 20 && !has_message(first + kBatch - 1); ++tries) send_batch(first);
    inject_fault();
    ++fault_count;
  }
  // Continues if all messages were processed before enough faults happened.
  for (; count_processed() < kMessages && seconds() < 45; ++fault_count) inject_fault();
  EXPECT_TRUE(eventually(
      [&] {
        restart_ended_programs();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return count_processed() == kMessages;
      },
      Seconds(120)))
      << count_processed() << " of " << kMessages << "\n"
      << tenants_.bob.coordinator->err() << tenants_.alice.coordinator->err() << tenants_.alice.agents.front()->err();
  std::cout << "tenants chaos: " << fault_count << " times killed or cut, " << count_processed() << " messages in "
            << seconds() << " s" << std::endl;

  const auto jobs = tenants_.alice.find_keys("job:5:*");
  EXPECT_EQ(jobs.size(), static_cast<std::size_t>(kMessages)) << "each has its job, and no other";
  const auto split_lines = [](const std::string& text) {
    std::istringstream lines(text);
    std::multiset<std::string> all;
    for (std::string each; std::getline(lines, each);) all.insert(each);
    return all;
  };
  const std::string list_jobs_script =
      "local out = {} for _, key in ipairs(redis.call('KEYS', ARGV[1])) do out[#out + 1] = "
      "redis.call('HGET', key, 'status') .. ' ' .. (redis.call('HGET', key, 'of_message') or '') "
      ".. ' ' .. (redis.call('HGET', key, 'result') or '') end return out";
  const auto remote_lines = split_lines(tenants_.alice.cli({"EVAL", list_jobs_script, "0", "job:5:*"}));
  const auto local_lines = split_lines(tenants_.bob.cli({"EVAL", list_jobs_script, "0", "job:12:*"}));
  const auto answered_messages = tenants_.bob.list_msg_in();
  const std::multiset<std::string> listed_ids(answered_messages.begin(), answered_messages.end());
  int mismatch_count = 0;
  for (int id = 1; id <= kMessages; ++id) {
    const std::string n = std::to_string(id), result = " {\"n\":\"" + n + "\"}";
    mismatch_count += remote_lines.count("finished message:5:" + n + result) == 1 ? 0 : 1;
    mismatch_count += local_lines.count("finished " + result) == 1 ? 0 : 1;
    mismatch_count += listed_ids.count("message:12:" + n) == 1 ? 0 : 1;
  }
  EXPECT_EQ(mismatch_count, 0);
  EXPECT_EQ(listed_ids.size(), static_cast<std::size_t>(kMessages));
  tenants_.bob.expect_verify_succeeds();
  tenants_.alice.expect_verify_succeeds();
}

// The time of each side is that of its Redis.
class TenantsClockSkew : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTenMinutes = 600;

  TenantsClockSkew() {
    set_clock(bob_, bobs_clock_);
    set_clock(alice_, alices_clock_);
    tenants_.start_both();
    alice_.start_runner();
    script_ = bob_.folder.write("x.py", "import time\ntime.sleep(2)\nresult = {'n': '1'}");
  }
  static void set_clock(Tenant& tenant, const SkewedClock& skew) {
    tenant.redis.kill();
    ::setenv("LD_PRELOAD", MJ_SKEW, 1);
    ::setenv("MJ_SKEW_FILE", skew.path().c_str(), 1);
    tenant.redis.start();
    ::unsetenv("LD_PRELOAD");
    ::unsetenv("MJ_SKEW_FILE");
  }
  std::string send() {
    const ProcessResult command_result =
        bob_({"message", "send", script_, "--to", "9", "--address", alice_.url(), "--key", "bob", "--caller", "12"});
    EXPECT_EQ(command_result.code, 0) << command_result.err;
    return "message:" + command_result.out.substr(0, command_result.out.find('\n'));
  }
  bool wait_for_status_of(const std::string& message, const std::string& as) {
    const bool ended = bob_.wait_for_value(message, "status", as, Seconds(90));
    EXPECT_TRUE(ended) << bob_.read_field(message, "status") << bob_.read_field(message, "error")
                       << bob_.coordinator->err() << alice_.coordinator->err();
    return ended;
  }
  void TearDown() override {
    bob_.expect_verify_succeeds();
    alice_.expect_verify_succeeds();
  }

  TempDir folder_;
  SkewedClock bobs_clock_{folder_, "bob", 0}, alices_clock_{folder_, "alice", 0};
  Tenants tenants_;
  Tenant &bob_ = tenants_.bob, &alice_ = tenants_.alice;
  std::string script_;
};

TEST_F(TenantsClockSkew, HostThatIsDownForTenMinutesCatchesUp) {
  const std::string first_message = send();
  ASSERT_TRUE(eventually([&] {
    const auto jobs = alice_.find_keys("job:*");
    return jobs.size() == 1 && alice_.read_field(jobs[0], "status") == "started";
  }));
  for (Process* process : {alice_.coordinator.get(), alice_.agents.front().get()}) {
    process->signal(SIGKILL);
    process->wait();
  }
  alice_.agents.clear();
  const std::string second_message = send();
  ASSERT_TRUE(bob_.wait_for_value(second_message, "transport_status", "queued"));
  for (const SkewedClock* clock : {&bobs_clock_, &alices_clock_}) clock->set_shift_s(kTenMinutes);
  alice_.start_coordinator();
  alice_.start_runner();
  EXPECT_TRUE(wait_for_status_of(first_message, "processed") && wait_for_status_of(second_message, "processed"));
  EXPECT_EQ(alice_.find_keys("job:*").size(), 2U);
}

TEST_F(TenantsClockSkew, SkewOfTwentyMinutesDelaysMessagesUntilFixed) {
  const std::string first_message = send();
  ASSERT_TRUE(bob_.wait_for_value(first_message, "status", "acknowledged"));
  alices_clock_.set_shift_s(2 * kTenMinutes);
  const auto refusals = [&] { return bob_({"context", "refusals"}).out; };
  EXPECT_TRUE(eventually([&] { return refusals().find("ahead of the clock here") != std::string::npos; }))
      << refusals() << alice_.coordinator->err();
  EXPECT_EQ(bob_.read_field(first_message, "status"), "acknowledged");
  alices_clock_.set_shift_s(0);
  EXPECT_TRUE(wait_for_status_of(first_message, "processed"));
  bobs_clock_.set_shift_s(2 * kTenMinutes);
  const std::string ahead = send();
  EXPECT_TRUE(wait_for_status_of(ahead, "error"));
  EXPECT_NE(bob_.read_field(ahead, "error").find("correct the clocks"), std::string::npos)
      << bob_.read_field(ahead, "error");
}

// A node of bob's flow runs at alice. The coordinator that transports it is killed repeatedly.
TEST_F(TenantsClockSkew, KilledRouterLosesNothing) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", tenants_.bobs_supervisor, "--address", bob_.url()}).code,
            0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  bob_.start_runner(30);
  const nlohmann::json flow{{"name", "far"},
                            {"jobs",
                             {{"far",
                               {{"script", "import time\ntime.sleep(1)\nresult = {'n': '7'}"},
                                {"type", "python"},
                                {"supervisor_url", alice_.url()}}},
                              {"near", {{"needs", {"far"}}, {"script", "result = {'n': '8'}"}, {"type", "python"}}}}}};
  const ProcessResult start_result = bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"});
  ASSERT_EQ(start_result.code, 0) << start_result.err;
  const std::string key = bob_.find_keys("flow:*").at(0);
  int kills = 0;
  for (; kills < 6 && bob_.read_field(key, "status") == "started"; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    bob_.coordinator->signal(SIGKILL);
    bob_.coordinator->wait();
    bob_.start_coordinator();
  }
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished", Seconds(90)))
      << bob_.read_field(key, "error") << bob_.coordinator->err() << alice_.coordinator->err();
  EXPECT_GE(kills, 1);
  EXPECT_EQ(alice_.find_keys("job:15:*").size(), 1U) << "once";
  EXPECT_NE(bob_.read_field(key, "result").find("far.n"), std::string::npos) << bob_.read_field(key, "result");
}

}  // namespace
}  // namespace mycojobs::test
