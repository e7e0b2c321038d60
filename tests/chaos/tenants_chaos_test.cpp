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
  TenantsChaos() : both_({"--appendonly", "yes", "--appendfsync", "always"}) {
    const unsigned seed = std::random_device()();
    std::cout << "tenants chaos: seed " << seed << std::endl;
    random_.seed(seed);
    both_.bob.start_coordinator();
    both_.alice.start_coordinator();
    to_alice_ = std::make_unique<Proxy>(both_.alice.port);
    to_bob_ = std::make_unique<Proxy>(both_.bob.port);
    both_.create_peer_records(to_bob_->url(), to_alice_->url());
    work();
  }
  void work() {
    both_.alice.agents.clear();
    both_.alice.work(20, {"--slots", "8", "--job-max-deliveries", "1000"});
  }
  // Sends like a client that repeats unconfirmed writes: record and key in one step.
  void send_batch(int first) {
    std::string lines;
    for (int id = first; id < first + kBatch; ++id) {
      Message message = message_of_bob(both_, static_cast<Id>(id), "result = {'n': '" + std::to_string(id) + "'}");
      message.target_address = to_alice_->url();
      message.timeout = 3600;
      ASSERT_TRUE(sign(message, both_.bob.key("bob")));
      lines += "MULTI\nHSET message:12:" + std::to_string(id);
      for (const auto& [name, value] : encode(message)) lines += " " + name + " " + quoted(value);
      lines += "\nLPUSH msg_out message:12:" + std::to_string(id) + "\nEXEC\n";
    }
    both_.bob.cli({}, lines);
  }
  bool is_there(int id) const { return both_.bob.cli({"EXISTS", "message:12:" + std::to_string(id)}) == "1"; }

  void kill(std::unique_ptr<Process>& process) {
    process->signal(SIGKILL);
    process->wait();
  }
  void harm() {
    switch (random_() % 8) {
      case 0:
        kill(both_.bob.coordinator);
        both_.bob.start_coordinator();
        break;
      case 1:
        kill(both_.alice.coordinator);
        both_.alice.start_coordinator();
        break;
      case 2:
        kill(both_.alice.agents.front());
        work();
        break;
      case 3:
        both_.bob.redis.kill();
        both_.bob.redis.start();
        break;
      case 4:
        both_.alice.redis.kill();
        both_.alice.redis.start();
        break;
      default: {
        constexpr Wire kWires[] = {Wire::refusing, Wire::silent, Wire::dropping, Wire::cutting, Wire::slow};
        Proxy& wire = random_() % 2 == 0 ? *to_alice_ : *to_bob_;
        wire.be(kWires[random_() % 5]);
        std::this_thread::sleep_for(std::chrono::milliseconds(200 + random_() % 1800));
        wire.be(Wire::whole);
      }
    }
    mend();
  }
  // Restarts programs that have exited because they did not find their Redis, as a service manager does.
  void mend() {
    if (!both_.bob.coordinator->is_running()) both_.bob.start_coordinator();
    if (!both_.alice.coordinator->is_running()) both_.alice.start_coordinator();
    if (!both_.alice.agents.front()->is_running()) work();
  }
  // Number of bob's processed messages; -1 if Redis did not answer.
  int processed() const {
    const std::string script =
        "local n = 0 for id = 1, 1000 do if redis.call('HGET', 'message:12:' .. id, 'status') == 'processed' then "
        "n = n + 1 end end return n";
    const std::string out = both_.bob.cli({"EVAL", script, "0"});
    return out.empty() || out.find_first_not_of("0123456789") != std::string::npos ? -1 : std::stoi(out);
  }

  Tenants both_;
  std::unique_ptr<Proxy> to_alice_, to_bob_;
  std::mt19937 random_;
};

TEST_F(TenantsChaos, EachOfAThousandMessagesRunsAndAnswersOnce) {
  const auto begun = std::chrono::steady_clock::now();
  const auto seconds = [&] { return Seconds(std::chrono::steady_clock::now() - begun).count(); };
  int harms = 0;
  for (int first = 1; first <= kMessages; first += kBatch) {
    for (int tries = 0; tries < 20 && !is_there(first + kBatch - 1); ++tries) send_batch(first);
    harm();
    ++harms;
  }
  // Continues if all messages were processed before enough faults happened.
  for (; processed() < kMessages && seconds() < 45; ++harms) harm();
  EXPECT_TRUE(eventually(
      [&] {
        mend();
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        return processed() == kMessages;
      },
      Seconds(120)))
      << processed() << " of " << kMessages << "\n"
      << both_.bob.coordinator->err() << both_.alice.coordinator->err() << both_.alice.agents.front()->err();
  std::cout << "tenants chaos: " << harms << " times killed or cut, " << processed() << " messages in " << seconds()
            << " s" << std::endl;

  const auto jobs = both_.alice.find_keys("job:5:*");
  EXPECT_EQ(jobs.size(), static_cast<std::size_t>(kMessages)) << "each has its job, and no other";
  const auto lines_of = [](const std::string& text) {
    std::istringstream lines(text);
    std::multiset<std::string> all;
    for (std::string each; std::getline(lines, each);) all.insert(each);
    return all;
  };
  const std::string of_jobs =
      "local out = {} for _, key in ipairs(redis.call('KEYS', ARGV[1])) do out[#out + 1] = "
      "redis.call('HGET', key, 'status') .. ' ' .. (redis.call('HGET', key, 'of_message') or '') "
      ".. ' ' .. (redis.call('HGET', key, 'result') or '') end return out";
  const auto there = lines_of(both_.alice.cli({"EVAL", of_jobs, "0", "job:5:*"}));
  const auto here = lines_of(both_.bob.cli({"EVAL", of_jobs, "0", "job:12:*"}));
  const auto answered = both_.bob.msg_in();
  const std::multiset<std::string> listed_ids(answered.begin(), answered.end());
  int wrong = 0;
  for (int id = 1; id <= kMessages; ++id) {
    const std::string n = std::to_string(id), result = " {\"n\":\"" + n + "\"}";
    wrong += there.count("finished message:5:" + n + result) == 1 ? 0 : 1;
    wrong += here.count("finished " + result) == 1 ? 0 : 1;
    wrong += listed_ids.count("message:12:" + n) == 1 ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(listed_ids.size(), static_cast<std::size_t>(kMessages));
  both_.bob.expect_verified();
  both_.alice.expect_verified();
}

// The time of each side is that of its Redis.
class TenantsClockSkew : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTenMinutes = 600;

  TenantsClockSkew() {
    give_clock(bob_, bobs_clock_);
    give_clock(alice_, alices_clock_);
    both_.start_both();
    alice_.work();
    script_ = bob_.folder.write("x.py", "import time\ntime.sleep(2)\nresult = {'n': '1'}");
  }
  static void give_clock(Tenant& tenant, const Skew& skew) {
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
  bool ends(const std::string& message, const std::string& as) {
    const bool ended = bob_.wait_for_value(message, "status", as, Seconds(90));
    EXPECT_TRUE(ended) << bob_.field(message, "status") << bob_.field(message, "error") << bob_.coordinator->err()
                       << alice_.coordinator->err();
    return ended;
  }
  void TearDown() override {
    bob_.expect_verified();
    alice_.expect_verified();
  }

  TempDir folder_;
  Skew bobs_clock_{folder_, "bob", 0}, alices_clock_{folder_, "alice", 0};
  Tenants both_;
  Tenant &bob_ = both_.bob, &alice_ = both_.alice;
  std::string script_;
};

TEST_F(TenantsClockSkew, HostThatIsDownForTenMinutesCatchesUp) {
  const std::string running = send();
  ASSERT_TRUE(eventually([&] {
    const auto jobs = alice_.find_keys("job:*");
    return jobs.size() == 1 && alice_.field(jobs[0], "status") == "started";
  }));
  for (Process* each : {alice_.coordinator.get(), alice_.agents.front().get()}) {
    each->signal(SIGKILL);
    each->wait();
  }
  alice_.agents.clear();
  const std::string waiting = send();
  ASSERT_TRUE(bob_.wait_for_value(waiting, "transport_status", "queued"));
  for (const Skew* each : {&bobs_clock_, &alices_clock_}) each->jump(kTenMinutes);
  alice_.start_coordinator();
  alice_.work();
  EXPECT_TRUE(ends(running, "processed") && ends(waiting, "processed"));
  EXPECT_EQ(alice_.find_keys("job:*").size(), 2U);
}

TEST_F(TenantsClockSkew, SkewOfTwentyMinutesDelaysMessagesUntilFixed) {
  const std::string running = send();
  ASSERT_TRUE(bob_.wait_for_value(running, "status", "acknowledged"));
  alices_clock_.jump(2 * kTenMinutes);
  const auto refusals = [&] { return bob_({"context", "refusals"}).out; };
  EXPECT_TRUE(eventually([&] { return refusals().find("ahead of the clock here") != std::string::npos; }))
      << refusals() << alice_.coordinator->err();
  EXPECT_EQ(bob_.field(running, "status"), "acknowledged");
  alices_clock_.jump(0);
  EXPECT_TRUE(ends(running, "processed"));
  bobs_clock_.jump(2 * kTenMinutes);
  const std::string ahead = send();
  EXPECT_TRUE(ends(ahead, "error"));
  EXPECT_NE(bob_.field(ahead, "error").find("correct the clocks"), std::string::npos) << bob_.field(ahead, "error");
}

// A node of bob's flow runs at alice. The coordinator that transports it is killed repeatedly.
TEST_F(TenantsClockSkew, KilledRouterLosesNothing) {
  ASSERT_EQ(alice_({"actor", "create", "--id", "15", "--key", both_.bobs_supervisor, "--address", bob_.url()}).code, 0);
  ASSERT_EQ(alice_({"context", "grant", "9", "--submitter", "15"}).code, 0);
  bob_.cli({"HSET", "runner:50", "target_context", "9"});
  bob_.work(30);
  const nlohmann::json flow{{"name", "far"},
                            {"jobs",
                             {{"far",
                               {{"script", "import time\ntime.sleep(1)\nresult = {'n': '7'}"},
                                {"type", "python"},
                                {"supervisor_url", alice_.url()}}},
                              {"near", {{"needs", {"far"}}, {"script", "result = {'n': '8'}"}, {"type", "python"}}}}}};
  const ProcessResult begun = bob_({"flow", "start", bob_.folder.write("flow.json", flow.dump()), "--json"});
  ASSERT_EQ(begun.code, 0) << begun.err;
  const std::string key = bob_.find_keys("flow:*").at(0);
  int kills = 0;
  for (; kills < 6 && bob_.field(key, "status") == "started"; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    bob_.coordinator->signal(SIGKILL);
    bob_.coordinator->wait();
    bob_.start_coordinator();
  }
  EXPECT_TRUE(bob_.wait_for_value(key, "status", "finished", Seconds(90)))
      << bob_.field(key, "error") << bob_.coordinator->err() << alice_.coordinator->err();
  EXPECT_GE(kills, 1);
  EXPECT_EQ(alice_.find_keys("job:15:*").size(), 1U) << "once";
  EXPECT_NE(bob_.field(key, "result").find("far.n"), std::string::npos) << bob_.field(key, "result");
}

}  // namespace
}  // namespace mycojobs::test
