// Workflows in normal use: a manifest and its code in files, with real Redis, and with coordinators and agents that are
// killed.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kSagaManifest = R"json({
  "name": "shop/saga@1",
  "schemas": {
    "shop/Placed@1": {"type": "object", "required": ["id"], "properties": {
      "id": {"type": "integer", "minimum": 1}, "gate": {"type": "integer"}, "big": {"type": "boolean"}}},
    "shop/Event@1": {"oneOf": [{"title": "Placed", "$ref": "shop/Placed@1"},
      {"title": "Receipt", "$ref": "sys/EffectReceiptEnvelope@1"}]}},
  "state": {"type": "object", "additionalProperties": {}}, "event": "shop/Event@1", "key_schema": {"type": "integer"},
  "effects_emitted": ["shop/pay@1", "sys/timer@1", "sys/approval@1", "sys/flow@1", "sys/signal@1"],
  "impl": {"module": "saga.lua", "entrypoint": "step"},
  "effects": [{"name": "shop/pay@1", "script_type": "python", "module": "pay.py", "timeout_s": 60,
    "params": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
    "receipt": {"type": "object", "required": ["paid"], "properties": {"paid": {"type": "integer"}}}}],
  "routing": {"subscriptions": [{"event": "shop/Placed@1", "workflow": "shop/saga@1", "key_field": "$value.id"}]}
})json";

constexpr const char* kSagaCode = R"lua(
local function ask(kind, params) return {{kind = kind, params = params}} end
local after = {}
function after.pay(state, receipt)
  state.paid = receipt.payload.paid
  return 'timer', ask('sys/timer@1', {after_ms = 100})
end
function after.timer(state)
  if not state.big then return 'done' end
  return 'approval', ask('sys/approval@1', {title = 'a large one', approvers = array {1}})
end
function after.approval(state, receipt)
  if not receipt.payload.approved then return 'refused' end
  return 'flow', ask('sys/flow@1', {flow = 'pack'})
end
function after.flow(state) return 'signal', ask('sys/signal@1', {flow_id = state.gate, name = 'go'}) end
function after.signal() return 'done' end

function step(state, event)
  local value = event.value['$value']
  if event.value['$tag'] == 'Placed' then
    if state then return state end
    return {pc = 'pay', gate = value.gate, big = value.big or false}, nil, ask('shop/pay@1', {id = value.id})
  end
  if value.status ~= 'ok' then
    state.pc, state.why = 'failed', value.payload.detail
    return state
  end
  local pc, effects = after[state.pc](state, value)
  state.pc = pc
  return state, nil, effects
end
)lua";

constexpr const char* kPayScript = R"(
import json, os
result["paid"] = json.loads(os.environ["MYCOJOBS_PARAMS"])["id"] * 10
)";

// The state of an instance has 10 MiB and is replaced after each event.
constexpr const char* kHeapManifest = R"json({
  "name": "yard/heap@1",
  "schemas": {"yard/Added@1": {"type": "object", "required": ["heap"], "properties": {"heap": {"type": "integer"}}}},
  "state": {"type": "object", "additionalProperties": {}}, "event": "yard/Added@1", "key_schema": {"type": "integer"},
  "effects_emitted": [], "impl": {"module": "heap.lua", "entrypoint": "step"}, "effects": [],
  "routing": {"subscriptions": [{"event": "yard/Added@1", "workflow": "yard/heap@1", "key_field": "heap"}]}
})json";
constexpr const char* kHeapCode = R"lua(
function step(state, event)
  local n = state and state.n + 1 or 1
  local bulk = string.char(96 + n):rep(10 * 2^20 - 100)
  if state then assert(state.bulk == string.char(95 + n):rep(#bulk)) end
  return {n = n, bulk = bulk}
end
)lua";

class WorkflowsE2e : public Operator {
 protected:
  WorkflowsE2e() {
    redis_.cli(1, {"SET", "here", "1"});
    write("saga.json", kSagaManifest);
    write("saga.lua", kSagaCode);
    write("pay.py", kPayScript);
    write("pack.json", R"({"name": "pack", "jobs": {"one": {"type": "python", "script": "pass"}}})");
    write("gate.json", R"({"name": "gate", "jobs": {"one": {"log": "open", "prerequisites": "signal:go"}}})");
  }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  Process start_coordinator(const std::string& name = "coordinator") {
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-lease", "1s",
                             "--state-dir", folder_ / name});
  }
  Process start_worker(int runner = 20) {
    return start_agent(folder_, redis_, runner,
                       {"--slots", "4", "--lease", "2s", "--state-dir", folder_ / ("agent" + std::to_string(runner))});
  }
  void apply_saga() {
    const ProcessResult command_result = mycojobs_({"workflow", "apply", folder_ / "saga.json"});
    ASSERT_EQ(command_result.code, 0) << command_result.out << command_result.err;
  }
  void send_placed(const json& value) {
    const ProcessResult command_result = mycojobs_({"workflow", "send", "shop/Placed", value.dump()});
    ASSERT_EQ(command_result.code, 0) << command_result.out << command_result.err;
  }
  std::string read_pc(int id) {
    const ProcessResult command_result = mycojobs_({"workflow", "show", "saga", std::to_string(id), "--json"});
    const json instance = json::parse(command_result.out, nullptr, false);
    // An instance has no state before its first step.
    return command_result.code == 0 && instance.is_object() && instance["state"].is_object()
               ? instance["state"].value("pc", "")
               : "";
  }
  bool wait_for_value(int id, const std::string& expected, Seconds limit = Seconds(60)) {
    return eventually([&] { return read_pc(id) == expected; }, limit);
  }
  // Checks that a replay gives the same outputs, and that `verify` finds no violation.
  void expect_consistent() {
    const ProcessResult replayed = mycojobs_({"workflow", "verify-replay", "saga"});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
    EXPECT_THAT(replayed.out, HasSubstr("the same outputs"));
    const ProcessResult verified = mycojobs_({"verify", "--context", "1"});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  }
  int count_payments() {
    int instance = 0;
    for (int id = 1; id <= 200; ++id)
      instance += redis_.cli(1, {"HGET", "job:1:" + std::to_string(id), "name"}) == "shop/pay@1" ? 1 : 0;
    return instance;
  }
};

TEST_F(WorkflowsE2e, OrderUsesEveryKindOfEffect) {
  const Process coordinator = start_coordinator(), worker = start_worker();
  ASSERT_TRUE(wait_until_registered(redis_, 20)) << worker.err();
  const ProcessResult pack = mycojobs_({"flow", "start", folder_ / "pack.json", "--detach"});
  ASSERT_EQ(pack.code, 0) << pack.err;
  const ProcessResult gate = mycojobs_({"flow", "start", folder_ / "gate.json", "--detach"});
  ASSERT_EQ(gate.code, 0) << gate.err;
  apply_saga();
  send_placed({{"id", 7}, {"big", true}, {"gate", 2}});
  ASSERT_TRUE(wait_for_value(7, "approval")) << coordinator.err();
  EXPECT_EQ(mycojobs_.run_json({"workflow", "explain", "saga", "7"})["reasons"][0]["cause"], "approval");
  expect_result(mycojobs_({"workflow", "approve", "saga", "7", "--comment", "fine"}), 0, "is approved");
  ASSERT_TRUE(wait_for_value(7, "done")) << coordinator.err();
  EXPECT_TRUE(eventually([&] {
    return redis_.cli(1, {"HGET", "flow:2", "status"}) == "finished";
  })) << "the signal must end the flow";
  EXPECT_EQ(redis_.cli(1, {"HGET", "flow:3", "name"}), "pack") << "the effect must start this flow";

  const json rows = mycojobs_.run_json({"workflow", "list"});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["instances"]["waiting"], 1);
  EXPECT_EQ(mycojobs_.run_json({"workflow", "cells", "saga"})[0]["key"], 7);
  expect_result(mycojobs_({"workflow", "timeline", "saga", "7"}), 0, "by job:1:");
  expect_result(mycojobs_({"workflow", "tail", "saga"}), 0, "shop/saga@1[7]");
  EXPECT_EQ(mycojobs_.run_piped({"workflow", "tail", "saga", "--follow"}, "head -1").code, 141)
      << "the command must end with SIGPIPE";
  expect_result(mycojobs_({"workflow", "show", "saga", "7"}), 0, "\"paid\":70");
  expect_consistent();
}

TEST_F(WorkflowsE2e, InvalidInputIsRejectedAndNotJournaled) {
  apply_saga();
  const std::string height = redis_.cli(1, {"XLEN", "mj:deployment:shop/saga@1"});
  const auto expect_rejected = [&](std::vector<std::string> words, const std::string& expected_text) {
    words.insert(words.begin(), "workflow");
    const ProcessResult command_result = mycojobs_(words);
    EXPECT_NE(command_result.code, 0) << command_result.out;
    EXPECT_THAT(command_result.err, HasSubstr(expected_text));
  };
  expect_rejected({"send", "shop/None@1", "{}"}, "shop/None@1");
  expect_rejected({"send", "shop/Placed", R"({"gate": 1})"}, "id");
  expect_rejected({"send", "shop/Placed", R"({"id": "seven"})"}, "id");
  expect_rejected({"send", "shop/Placed", R"({"id": 0})"}, "id");
  expect_rejected({"send", "shop/Placed", R"({"id": 7, "colour": 1})"}, "colour");
  expect_rejected({"send", "shop/Placed", "{"}, "value");
  expect_rejected({"send", "sys/EffectReceiptEnvelope@1", "{}"}, "sys/EffectReceiptEnvelope@1");
  expect_rejected({"send", "shop/Placed", R"({"id": 7})", "--workflow", "none"}, "shop/Placed");
  expect_rejected({"show", "saga", "7"}, "the instance does not exist");
  expect_rejected({"show", "saga"}, "key");
  expect_rejected({"cells", "sage"}, "sage");
  expect_rejected({"cells", "saga", "--status", "odd"}, "odd");
  expect_rejected({"approve", "saga", "7"}, "approval");
  write("bad.json",
        std::string(kSagaManifest).replace(std::string(kSagaManifest).find("shop/pay@1\""), 11, "shop/other@1\""));
  expect_rejected({"apply", folder_ / "bad.json"}, "effects_emitted[0]");
  write("saga.lua", "function step(state event)");
  expect_rejected({"apply", folder_ / "saga.json"}, "saga.lua:1");
  EXPECT_EQ(redis_.cli(1, {"XLEN", "mj:deployment:shop/saga@1"}), height);
  EXPECT_EQ(redis_.cli(1, {"XLEN", "mj:deployment-inbox:shop/saga@1"}), "0");
}

TEST_F(WorkflowsE2e, ApplyIsRejectedWhileInstancesAreBusy) {
  const Process coordinator = start_coordinator(), worker = start_worker();
  ASSERT_TRUE(wait_until_registered(redis_, 20)) << worker.err();
  apply_saga();
  send_placed({{"id", 1}, {"big", true}});
  ASSERT_TRUE(wait_for_value(1, "approval")) << coordinator.err();
  write("saga.lua", std::string(kSagaCode) + "-- the next one\n");
  const ProcessResult rejected = mycojobs_({"workflow", "apply", folder_ / "saga.json"});
  EXPECT_NE(rejected.code, 0);
  EXPECT_THAT(rejected.err, HasSubstr("shop/saga@1[1]: 1 intent in flight"));
  expect_result(mycojobs_({"workflow", "reject", "saga", "1"}), 0, "is rejected");
  ASSERT_TRUE(wait_for_value(1, "refused")) << coordinator.err();
  apply_saga();
  send_placed({{"id", 2}});
  ASSERT_TRUE(wait_for_value(2, "done")) << coordinator.err();
  const json cells = mycojobs_.run_json({"workflow", "cells", "saga"});
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_NE(cells[0]["manifest"], cells[1]["manifest"]) << "the old instance keeps its code";
  expect_consistent();
}

TEST_F(WorkflowsE2e, KilledProcessesLoseAndRepeatNothing) {
  constexpr int kOrders = 16;
  std::minstd_rand random(static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  std::optional<Process> coordinators[2], worker;
  coordinators[0].emplace(start_coordinator("one"));
  coordinators[1].emplace(start_coordinator("two"));
  worker.emplace(start_worker());
  ASSERT_TRUE(wait_until_registered(redis_, 20)) << worker->err();
  apply_saga();
  for (int id = 1; id <= kOrders; ++id) {
    send_placed({{"id", id}});
    if (id % 4 != 0) continue;
    const std::size_t index = random() % 2;
    coordinators[index].reset();  // destroying the process sends SIGKILL
    coordinators[index].emplace(start_coordinator(index == 0 ? "one" : "two"));
    if (id % 8 != 0) continue;
    worker.reset();
    worker.emplace(start_worker());
  }
  for (int id = 1; id <= kOrders; ++id)
    EXPECT_TRUE(wait_for_value(id, "done", Seconds(90))) << id << ' ' << read_pc(id);
  EXPECT_EQ(count_payments(), kOrders);
  expect_consistent();
}

// All properties of the host differ: name, Redis, locale, time zone, folders, coordinator and agent.
TEST_F(WorkflowsE2e, DeploymentMovedToAnotherHostContinues) {
  {
    const Process coordinator = start_coordinator(), worker = start_worker();
    ASSERT_TRUE(wait_until_registered(redis_, 20)) << worker.err();
    apply_saga();
    send_placed({{"id", 1}});
    send_placed({{"id", 2}, {"big", true}});
    ASSERT_TRUE(wait_for_value(1, "done")) << coordinator.err();
    ASSERT_TRUE(wait_for_value(2, "approval")) << coordinator.err();
  }
  const ProcessResult exported = mycojobs_({"workflow", "export", "saga"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  redis_.kill();
  const TempDir folder;
  std::filesystem::copy(folder_ / "appendonlydir", folder / "appendonlydir", std::filesystem::copy_options::recursive);
  const RedisServer redis(folder);
  const bool can_set_hostname = run(folder, {"unshare", "--uts", "hostname", "elsewhere"}).code == 0;
  const auto start_on_new_host = [&](std::vector<std::string> words) {
    words.insert(words.begin(), program_path());
    if (can_set_hostname)
      words.insert(words.begin(), {"unshare", "--uts", "sh", "-c", "hostname elsewhere && exec \"$@\"", "sh"});
    words.insert(words.end(), {"--redis", redis.url(), "--state-dir", folder / "state"});
    return Process(folder, words, {"LC_ALL=tr_TR.UTF-8", "TZ=Pacific/Chatham", "HOME=" + folder.path().string()});
  };
  const auto run_on_new_host = [&](const std::vector<std::string>& words, const std::string& expected) {
    const ProcessResult command_result = start_on_new_host(words).wait();
    expect_result(command_result, 0, expected);
    return command_result.out;
  };
  run_on_new_host({"workflow", "verify-replay", "saga"}, "the same outputs");
  EXPECT_EQ(run_on_new_host({"workflow", "export", "saga"}, ""), exported.out);

  const Process coordinator = start_on_new_host({"coordinator", "--coordinator-lease", "1s"});
  const Process worker = start_agent(folder, redis, 21, {"--lease", "2s", "--state-dir", folder / "agent"});
  ASSERT_TRUE(wait_until_registered(redis, 21)) << worker.err();
  run_on_new_host({"workflow", "reject", "saga", "2"}, "is rejected");
  run_on_new_host({"workflow", "send", "shop/Placed", R"({"id": 3})"}, "shop/saga@1[3]");
  const auto has_pc = [&](const char* id, const char* expected) {
    const json instance =
        json::parse(start_on_new_host({"workflow", "show", "saga", id, "--json"}).wait().out, nullptr, false);
    return instance.is_object() && instance.value("/state/pc"_json_pointer, "") == expected;
  };
  EXPECT_TRUE(eventually([&] { return has_pc("2", "refused") && has_pc("3", "done"); }))
      << coordinator.err() << worker.err();
  run_on_new_host({"workflow", "verify-replay", "saga"}, "the same outputs");
  run_on_new_host({"verify", "--context", "1"}, "");
}

// The data that waits for a deployment exceeds the maximum size of a Redis reply.
TEST_F(WorkflowsE2e, ManyFourMebibyteEventsReachOneCell) {
  constexpr int kEvents = 40;  // 160 MiB
  write("heap.json", kHeapManifest);
  write("heap.lua", "function step(state, event) return {n = (state and state.n or 0) + 1, at = event.value.heap} end");
  const ProcessResult applied = mycojobs_({"workflow", "apply", folder_ / "heap.json"});
  ASSERT_EQ(applied.code, 0) << applied.out << applied.err;
  const std::string value = R"({"heap": 1})" + std::string((4U << 20) - 11, ' ');
  for (int i = 0; i < kEvents; ++i) {
    const ProcessResult send_result = mycojobs_({"workflow", "send", "yard/Added", "-"}, value);
    ASSERT_EQ(send_result.code, 0) << send_result.out << send_result.err;
  }
  EXPECT_EQ(mycojobs_.run_json({"workflow", "list"})[0]["inbox"], kEvents);
  EXPECT_EQ(mycojobs_.run_json({"workflow", "explain", "heap", "1"})["reasons"][0]["cause"], "no_coordinator");
  const Process coordinator = start_coordinator();
  const auto count_steps = [&] {
    const json rows = mycojobs_.run_json({"workflow", "cells", "heap"});
    return rows.empty() ? 0 : rows[0]["steps"].get<int>();
  };
  EXPECT_TRUE(eventually([&] { return count_steps() == kEvents; }, Seconds(60))) << coordinator.err();
  EXPECT_EQ(mycojobs_.run_json({"workflow", "show", "heap", "1"})["state"]["n"], kEvents);
  EXPECT_EQ(redis_.cli(1, {"XLEN", "mj:deployment-inbox:yard/heap@1"}), "0");
  const ProcessResult replayed = mycojobs_({"workflow", "verify-replay", "heap"});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

TEST_F(WorkflowsE2e, TenMebibyteStatesSurviveKillsAndAreReplaced) {
  constexpr int kEventsPerInstance = 12;
  write("heap.json", kHeapManifest);
  write("heap.lua", kHeapCode);
  std::optional<Process> coordinator(start_coordinator());
  const ProcessResult applied = mycojobs_({"workflow", "apply", folder_ / "heap.json"});
  ASSERT_EQ(applied.code, 0) << applied.out << applied.err;
  const auto steps = [&](int heap) {
    for (const json& row : mycojobs_.run_json({"workflow", "cells", "heap"}))
      if (row["key"] == heap) return row["steps"].get<int>();
    return 0;
  };
  for (int n = 1; n <= kEventsPerInstance; ++n) {
    for (const int heap : {1, 2}) {
      const ProcessResult send_result = mycojobs_({"workflow", "send", "yard/Added", json{{"heap", heap}}.dump()});
      ASSERT_EQ(send_result.code, 0) << send_result.out << send_result.err;
    }
    if (n % 3 == 0) {
      coordinator.reset();  // destroying the process sends SIGKILL at a random point of its work
      coordinator.emplace(start_coordinator());
    }
    if (n % 4 == 0) {
      EXPECT_TRUE(eventually([&] { return steps(1) == n && steps(2) == n; }, Seconds(60))) << coordinator->err();
    }
  }
  for (const int heap : {1, 2}) {
    const json result = mycojobs_.run_json({"workflow", "show", "heap", std::to_string(heap)});
    EXPECT_EQ(result["state"]["n"], kEventsPerInstance);
    EXPECT_EQ(result["state"]["bulk"], std::string((10U << 20) - 100, static_cast<char>(96 + kEventsPerInstance)));
  }
  // 24 blobs were written.
  const auto blobs = [&] { return std::stoi(redis_.cli(1, {"HLEN", "mj:deployment-blobs:yard/heap@1"})); };
  EXPECT_LE(blobs(), 9) << "two current blobs, and at most 64 MiB of replaced blobs";
  const ProcessResult replayed = mycojobs_({"workflow", "verify-replay", "heap"});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  EXPECT_THAT(replayed.out, HasSubstr("the same outputs"));
  const ProcessResult verified = mycojobs_({"verify", "--context", "1"});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

}  // namespace
}  // namespace mycojobs::test
