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
    coordinate(0);
    coordinate(1);
    work();
  }
  ProcessResult mycojobs(std::vector<std::string> words) const {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    return run(folder_, words);
  }
  void expect_says(const std::vector<std::string>& words, const std::string& says) const {
    const ProcessResult result = mycojobs(words);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_NE(result.out.find(says), std::string::npos) << result.out << result.err;
  }
  void coordinate(std::size_t which) {
    coordinators_[which] = std::make_unique<Process>(
        folder_, std::vector<std::string>{program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-lease",
                                          "1s", "--state-dir", folder_ / ("coordinator" + std::to_string(which))});
  }
  void work() {
    agent_ = std::make_unique<Process>(start_agent(
        folder_, redis_, 20,
        {"--slots", "4", "--lease", "2s", "--job-max-deliveries", "1000", "--state-dir", folder_ / "agent"}));
  }
  // Sends like a client that repeats unconfirmed requests with the same key.
  void place(int id) {
    const std::string number = std::to_string(id);
    for (int tries = 0; tries < 100; ++tries) {
      const ProcessResult result = mycojobs({"workflow", "send", "shop/Placed", json{{"id", id}}.dump(),
                                             "--idempotency-key", "order " + number, "--json"});
      if (result.code == 0) return;
      mend();
    }
    FAIL() << "order " << id << " cannot be sent";
  }
  static void kill(Process& process) {
    process.signal(SIGKILL);
    process.wait();
  }
  void harm() {
    const std::size_t which = random_() % 6;
    if (which < 3) {
      kill(*coordinators_[which % 2]);
      coordinate(which % 2);
    } else if (which < 5) {
      kill(*agent_);
      work();
    } else {
      redis_.kill();
      redis_.start();
    }
    mend();
  }
  // Restarts programs that have exited because they did not find their Redis, as a service manager does.
  void mend() {
    for (const std::size_t which : {0U, 1U})
      if (!coordinators_[which]->is_running()) coordinate(which);
    if (!agent_->is_running()) work();
  }
  json cells() {
    const ProcessResult result = mycojobs({"workflow", "cells", "order", "--limit", "1000", "--json"});
    json rows = json::parse(result.out, nullptr, false);
    return result.code == 0 && rows.is_array() ? rows : json::array();
  }
  // Counts the waiting instances with nothing pending.
  int at_rest() {
    int found = 0;
    for (const json& row : cells()) found += row["status"] == "waiting" && row["pending"] == 0 ? 1 : 0;
    return found;
  }

  TempDir folder_;
  RedisServer redis_{folder_, {"--appendonly", "yes", "--appendfsync", "always"}};
  std::unique_ptr<Process> coordinators_[2], agent_;
  std::mt19937 random_;
};

TEST_F(DeploymentsChaos, EachOrderCompletesOnceUnderKills) {
  const ProcessResult applied = mycojobs({"workflow", "apply", folder_ / "order.json"});
  ASSERT_EQ(applied.code, 0) << applied.err;
  int harms = 0;
  for (int id = 1; id <= kOrders; ++id) {
    place(id);
    if (id % kMaxOrdersBatch != 0) continue;
    harm();
    ++harms;
  }
  EXPECT_TRUE(eventually(
      [&] {
        mend();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return at_rest() == kOrders;
      },
      Seconds(120)))
      << at_rest() << " of " << kOrders << "\n"
      << coordinators_[0]->err() << coordinators_[1]->err() << agent_->err();
  std::cout << "worlds chaos: " << harms << " times killed, " << at_rest() << " orders" << std::endl;
  for (int id = 1; id <= kOrders; ++id) {
    const ProcessResult output = mycojobs({"workflow", "show", "order", std::to_string(id), "--json"});
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
  expect_says({"workflow", "verify-replay", "order"}, "the same outputs");
  expect_says({"verify", "--context", "1"}, "clean");
  expect_says({"doctor", "--rebuild", "--dry-run", "--context", "1"}, "0 differences");
}

}  // namespace
}  // namespace mycojobs::test
