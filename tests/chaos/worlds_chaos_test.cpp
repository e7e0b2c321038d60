// Orders pass through jobs, timers and cancelled deadlines while coordinators, agents and Redis are killed repeatedly.
// At the end each order is complete, each of its jobs was started once, a replay gives the same bytes, and the store is
// consistent.
#include <signal.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;

constexpr int kOrders = 120, kMaxOrdersBatch = 6;

constexpr const char* kManifest = R"json({
  "name": "shop/order@1",
  "schemas": {
    "shop/Placed@1": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 1}}},
    "shop/Event@1": {"oneOf": [{"title": "Placed", "$ref": "shop/Placed@1"},
      {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
  "state": {"type": "object", "additionalProperties": {}}, "event": "shop/Event@1", "key_schema": {"type": "integer"},
  "effects_emitted": ["shop/pay@1", "shop/pack@1", "sys/timer@1", "sys/cancel@1"],
  "impl": {"module": "order.lua", "entrypoint": "step"},
  "effects": [
    {"name": "shop/pay@1", "script_type": "python", "module": "pay.py", "params": {"type": "object",
     "required": ["id"], "properties": {"id": {"type": "integer"}}}, "receipt": {"type": "object",
     "required": ["paid"], "properties": {"paid": {"type": "integer"}}}},
    {"name": "shop/pack@1", "script_type": "python", "module": "pay.py", "params": {"type": "object",
     "required": ["id"], "properties": {"id": {"type": "integer"}}}, "receipt": {}}],
  "routing": {"subscriptions": [{"event": "shop/Placed@1", "workflow": "shop/order@1", "key_field": "$value.id"}]}
})json";

constexpr const char* kCode = R"lua(
local on = {}
function on.pay(state, receipt)
  if receipt.status ~= 'ok' then state.lost = (state.lost or 0) + 1 end
  state.pc = 'pausing'
  return state, nil, {{kind = 'sys/cancel@1', ref = 'cancel', params = {ref = 'deadline'}},
                      {kind = 'sys/timer@1', ref = 'pause', params = {after_ms = 50}}}
end
function on.deadline(state, receipt)
  state.deadline = receipt.status
  return state
end
function on.cancel(state) return state end
function on.pause(state)
  state.pc = 'packing'
  return state, nil, {{kind = 'shop/pack@1', ref = 'pack', params = {id = state.id}}}
end
function on.pack(state)
  state.pc = 'done'
  return state
end
function step(state, event)
  local value = event.value['$value']
  if event.value['$tag'] == 'Receipt' then return on[value.issuer_ref](state, value) end
  if state then
    state.again = (state.again or 0) + 1
    return state
  end
  return {pc = 'paying', id = value.id, bulk = string.rep('x', value.id % 10 == 0 and 70000 or 1)}, nil,
    {{kind = 'shop/pay@1', ref = 'pay', params = {id = value.id}},
     {kind = 'sys/timer@1', ref = 'deadline', params = {after_ms = 3600000}}}
end
)lua";

class DeploymentsChaos : public ::testing::Test {
 protected:
  DeploymentsChaos() {
    const unsigned seed = std::random_device()();
    std::cout << "worlds chaos: seed " << seed << std::endl;
    random_.seed(seed);
    redis_.cli(1, {"SET", "here", "1"});
    folder_.write("order.json", kManifest);
    folder_.write("order.lua", kCode);
    folder_.write("pay.py", "import json, os\nresult['paid'] = json.loads(os.environ['MYCOJOBS_PARAMS'])['id']\n");
    start_coordinator(0);
    start_coordinator(1);
    start_runner();
  }
  ProcessResult run_mycojobs(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    return run(folder_, words);
  }
  void expect_output(const std::vector<std::string>& words, const std::string& expected_text) const {
    const ProcessResult result = run_mycojobs(words);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_NE(result.out.find(expected_text), std::string::npos) << result.out << result.err;
  }
  void start_coordinator(std::size_t index) {
    coordinators_[index] = std::make_unique<Process>(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-lease",
                                          "1s", "--state-dir", folder_ / ("coordinator" + std::to_string(index))});
  }
  void start_runner() {
    agent_ = std::make_unique<Process>(start_agent(
        folder_, redis_, 20,
        {"--slots", "4", "--lease", "2s", "--job-max-deliveries", "1000", "--state-dir", folder_ / "agent"}));
  }
  // Sends like a client that repeats unconfirmed requests with the same key.
  void send_order(int id) {
    const std::string number = std::to_string(id);
    for (int attempt = 0; attempt < 100; ++attempt) {
      const ProcessResult result = run_mycojobs({"workflow", "send", "shop/Placed", json{{"id", id}}.dump(),
                                                 "--idempotency-key", "order " + number, "--json"});
      if (result.code == 0) return;
      restart_ended_programs();
    }
    FAIL() << "order " << id << " cannot be sent";
  }
  static void kill(Process& process) {
    process.signal(SIGKILL);
    process.wait();
  }
  void inject_fault() {
    const std::size_t index = random_() % 6;
    if (index < 3) {
      kill(*coordinators_[index % 2]);
      start_coordinator(index % 2);
    } else if (index < 5) {
      kill(*agent_);
      start_runner();
    } else {
      redis_.kill();
      redis_.start();
    }
    restart_ended_programs();
  }
  // Restarts programs that have exited because they did not find their Redis, as a service manager does.
  void restart_ended_programs() {
    for (const std::size_t index : {0U, 1U})
      if (!coordinators_[index]->is_running()) start_coordinator(index);
    if (!agent_->is_running()) start_runner();
  }
  json list_cells() {
    const ProcessResult result = run_mycojobs({"workflow", "cells", "order", "--limit", "1000", "--json"});
    json rows = json::parse(result.out, nullptr, false);
    return result.code == 0 && rows.is_array() ? rows : json::array();
  }
  // Counts the waiting instances with nothing pending.
  int count_idle_instances() {
    int count = 0;
    for (const json& row : list_cells()) count += row["status"] == "waiting" && row["pending"] == 0 ? 1 : 0;
    return count;
  }

  TempDir folder_;
  RedisServer redis_{folder_, {"--appendonly", "yes", "--appendfsync", "always"}};
  std::unique_ptr<Process> coordinators_[2], agent_;
  std::mt19937 random_;
};

TEST_F(DeploymentsChaos, EachOrderCompletesOnceUnderKills) {
  const ProcessResult applied = run_mycojobs({"workflow", "apply", folder_ / "order.json"});
  ASSERT_EQ(applied.code, 0) << applied.err;
  int fault_count = 0;
  for (int id = 1; id <= kOrders; ++id) {
    send_order(id);
    if (id % kMaxOrdersBatch != 0) continue;
    inject_fault();
    ++fault_count;
  }
  EXPECT_TRUE(eventually(
      [&] {
        restart_ended_programs();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return count_idle_instances() == kOrders;
      },
      Seconds(120)))
      << count_idle_instances() << " of " << kOrders << "\n"
      << coordinators_[0]->err() << coordinators_[1]->err() << agent_->err();
  std::cout << "worlds chaos: " << fault_count << " times killed, " << count_idle_instances() << " orders" << std::endl;
  for (int id = 1; id <= kOrders; ++id) {
    const ProcessResult output = run_mycojobs({"workflow", "show", "order", std::to_string(id), "--json"});
    const json order = json::parse(output.out, nullptr, false);
    ASSERT_TRUE(order.is_object()) << id << output.out << output.err;
    const json state = order.value("state", json::object());
    EXPECT_EQ(state.value("pc", ""), "done") << id;
    EXPECT_EQ(state.value("deadline", ""), "cancelled") << id;
    EXPECT_FALSE(state.contains("again")) << id << " was placed twice";
    EXPECT_FALSE(state.contains("lost")) << id;
  }
  const std::string jobs = redis_.cli(
      1, {"EVAL", "local n = 0 for _, key in ipairs(redis.call('KEYS', 'job:1:*')) do n = n + 1 end return n", "0"});
  EXPECT_EQ(jobs, std::to_string(2 * kOrders)) << "two jobs an order, and no other";
  expect_output({"workflow", "verify-replay", "order"}, "the same outputs");
  expect_output({"verify", "--context", "1"}, "clean");
  expect_output({"doctor", "--rebuild", "--dry-run", "--context", "1"}, "0 differences");
}

}  // namespace
}  // namespace mycojobs::test
