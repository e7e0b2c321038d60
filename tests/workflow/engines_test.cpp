// The kernel with the real engine: requests and answers are passed on, and each workflow has its own limits.
#include "workflows/engine/engine_pool.h"

#include <unistd.h>

#include <fstream>

#include "workflow/engine_fixture.h"
#include "workflow/stage.h"
#include "workflows/engine/code_check.h"

namespace mycojobs::workflow {
namespace {

using nlohmann::json;

constexpr const char* kOrders = R"lua(
function order(state, event, ctx)
  local value = event.value
  if value['$tag'] == 'Created' then
    return {pc = 'charging', cents = value['$value'].cents, seen = {key = event.key, now = ctx.now_ms, n = #ctx.entropy}},
      nil, {{kind = 'payment/charge@1', params = {cents = value['$value'].cents}, ref = 'pay'}}, 'asked'
  end
  local receipt = value['$value']
  return {pc = receipt.issuer_ref .. ' ' .. receipt.status, cents = state.cents},
    {{schema = 'com.acme/Paid@1', value = {order_id = event.key, cents = state.cents}}}
end
function ledger(state, event) return (state or 0) + event.value.cents end
)lua";

TEST(WorkflowEngines, KernelRunsOnTheRealEngine) {
  workflow_tests::Stage stage;
  EnginePool engines(options(), 1);
  stage.engine = engines.as_step_engine();
  stage.apply(stage.add(workflow_tests::orders_manifest(), kOrders));
  stage.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}});
  stage.settle();
  const InstanceId cell = workflow_tests::order("a");
  const json seen = stage.state(cell)["seen"];
  EXPECT_EQ(seen["key"], "a");
  EXPECT_EQ(seen["n"], 32);
  EXPECT_GT(seen["now"], 0);
  ASSERT_EQ(stage.cell(cell).pending_intents.size(), 1U);
  stage.receipt(stage.cell(cell).pending_intents.begin()->first, {{"ok", true}});
  stage.settle();
  EXPECT_EQ(stage.state(cell)["pc"], "pay ok");
  EXPECT_EQ(stage.state(workflow_tests::kLedger), 500);
  EXPECT_FALSE(engines.first_error());
  DeploymentState again;
  again.id = stage.deployment.id;
  const auto verdict = verify_replay(again, stage.catalog, stage.journal, EnginePool(options(), 1).as_step_engine());
  EXPECT_EQ(verdict.steps, 3U);
  EXPECT_FALSE(verdict.mismatch || verdict.problem);
  EXPECT_EQ(again, stage.deployment);
}

// Returns the number of children of this process.
std::size_t children() {
  std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  std::size_t count = 0;
  for (pid_t pid = 0; file >> pid;) ++count;
  return count;
}

TEST(WorkflowEngines, ManyLimitsUseFewProcesses) {
  EngineOptions few = options();
  few.processes = 3;
  EnginePool engines(few, 1);
  WorkflowManifest manifest;
  manifest.code["code.lua"] = "function step() return {1} end";
  WorkflowSpec spec;
  spec.module = "code.lua", spec.entrypoint = "step";
  StepRequest asked;
  asked.event = {"sys/Any@1", cbor(json::object()), std::nullopt};
  const std::size_t before = children();
  for (std::size_t i = 0; i < 2 * few.processes; ++i) {
    spec.limits.instructions = 1'000'000 + i;
    const auto answer = engines.step(spec, manifest, asked);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_TRUE(std::holds_alternative<StepOutput>(*answer));
  }
  EXPECT_EQ(children() - before, few.processes);
}

// Journals from the time when not all work was counted: a step that reached its limit by the old count, and a step that
// reaches the limit only by the new count.
TEST(WorkflowEngines, JournalsWithOldCostsAreReplayed) {
  const char* const codes[] = {
      "function order(s, e)\nlocal x = ('x'):rep(1e5)\nfor i = 1, 600 do\nutf8.len(x)\nend\nwhile true do\nend\nend "
      "function ledger() end",
      "function order(s, e) local x = ('x'):rep(1e5) for i = 1, 1e3 do utf8.len(x) end return {pc = 'x', cents = 1} "
      "end "
      "function ledger() end"};
  for (const char* code : codes) {
    workflow_tests::Stage stage;
    EnginePool engines(options(), 1);
    const StepEngine present = engines.as_step_engine();
    stage.engine = [&](const WorkflowSpec& spec, const WorkflowManifest& manifest, StepRequest request) {
      request.counting = 1;
      return present(spec, manifest, request);
    };
    json limited = workflow_tests::orders_manifest();
    limited["workflows"][0]["limits"] = {{"instructions", 2'000'000}};
    stage.apply(stage.add(limited, code));
    stage.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}});
    stage.settle();
    for (const std::uint32_t counting : {1U, 2U}) {
      DeploymentState again;
      again.id = stage.deployment.id;
      int steps = 0;
      const auto verdict =
          verify_replay(again, stage.catalog, stage.journal,
                        [&](const WorkflowSpec& spec, const WorkflowManifest& manifest, const StepRequest& request) {
                          ++steps;
                          auto asked = request;
                          if (counting == 1) asked.counting = 1;
                          return present(spec, manifest, asked);
                        });
      EXPECT_FALSE(verdict.mismatch || verdict.problem) << code;
      EXPECT_EQ(again, stage.deployment);
      EXPECT_EQ(steps, counting) << "the current program returns another answer";
    }
    EXPECT_FALSE(engines.first_error());
  }
}

TEST(WorkflowEngines, EachWorkflowHasItsLimits) {
  workflow_tests::Stage stage;
  EnginePool engines(options(), 1);
  stage.engine = engines.as_step_engine();
  json manifest = workflow_tests::orders_manifest();
  manifest["workflows"][1]["limits"] = {{"instructions", 1000}};
  const std::string slow = "for i = 1, 10000 do end ";
  stage.apply(stage.add(manifest, "function order(s, e) " + slow +
                                      "return {pc = 'x', cents = 1}, {{schema = 'com.acme/Paid@1', value = {order_id = "
                                      "e.key, cents = 1}}} end function ledger() " +
                                      slow + "end"));
  stage.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}});
  stage.settle();
  EXPECT_EQ(stage.state(workflow_tests::order("a"))["pc"], "x");
  EXPECT_TRUE(stage.cell(workflow_tests::kLedger).failed);
  EXPECT_NE(stage.cell(workflow_tests::kLedger).message.find("more than 1000 instructions"), std::string::npos)
      << stage.cell(workflow_tests::kLedger).message;
}

TEST(WorkflowEngines, MissingEngineIsAnErrorWithoutAnAnswer) {
  workflow_tests::Stage stage;
  EngineOptions none = options();
  none.program = "/nonexistent/workflowhost";
  EnginePool engines(none, 1);
  stage.engine = engines.as_step_engine();
  stage.apply(stage.add(workflow_tests::orders_manifest(), kOrders));
  stage.send("com.acme/OrderCreated@1", {{"order_id", "a"}, {"cents", 500}});
  stage.settle();
  ASSERT_TRUE(engines.first_error());
  EXPECT_EQ(engines.first_error()->code, Code::io);
}

// Regression test: JSON-RPC accepted code that could not be run, and each instance failed.
TEST(WorkflowEngines, InvalidCodeIsReportedByNameAndLine) {
  CodeChecker look(options());
  const auto fault = [&](const std::string& source) {
    auto found = look.check_code("count.lua", "step", source);
    if (!found) return "error: " + found.error().message;
    return *found ? std::to_string((*found)->line) + ": " + (*found)->message : std::string();
  };
  EXPECT_EQ(fault("function step() return 1 end"), "");
  EXPECT_EQ(fault("function step() while true do end end"), "") << "the fault belongs to a step, not to the code";
  EXPECT_NE(fault("function other() end").find("it defines no function step"), std::string::npos);
  EXPECT_EQ(fault("\nfunction step(a b) end").substr(0, 3), "2: ");
  EXPECT_EQ(fault("\n\nerror('at the top')"), "3: at the top");
  EXPECT_NE(fault("while true do end").find("its top level takes more than"), std::string::npos);

  const auto check = [&](const std::string& source) {
    const auto made = read_manifest(workflow_tests::orders_manifest(), {{"shop.lua", source}});
    EXPECT_TRUE(made.manifest) << join(made.problems);
    const auto done = look.check(*made.manifest);
    return done ? "" : done.error().message;
  };
  EXPECT_EQ(check("function order() end function ledger() end"), "");
  EXPECT_NE(check("function order() end").find("com.acme/ledger@1: impl: shop.lua: it defines no function ledger"),
            std::string::npos)
      << check("function order() end");
}

}  // namespace
}  // namespace mycojobs::workflow
