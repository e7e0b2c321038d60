// Measures a workflow step, from request to answer, through the socket of the unprivileged workflow host.
//   ninja -C build workflow_engine_bench && build/bin/workflow_engine_bench [--steps N] [--threads N]
// Default: one thread and one process. The request is an event for the state of an order.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bench/support.h"
#include "support/build_paths.h"
#include "text/cbor.h"
#include "workflows/engine/engine.h"

using namespace mycojobs;
using namespace mycojobs::workflow;

namespace {

constexpr const char* kSmall = "function step(state, event, ctx) return {n = (state and state.n or 0) + 1} end";
constexpr const char* kOrder = R"(
function step(state, event, ctx)
  state = state or {pc = "idle", items = array {}, total = 0}
  local v = event.value
  if v.kind == "created" then
    for _, item in ipairs(v.items) do
      table.insert(state.items, {sku = item.sku, cents = item.cents})
      state.total = state.total + item.cents
    end
    state.pc = "charging"
    return state, {{schema = "shop/Charging@1", value = {order = v.order, total = state.total}}},
           {{kind = "payment/charge@1", params = {order = v.order, cents = state.total, at = ctx.now_ns}}}
  end
  return state
end)";

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  const char* source;
  nlohmann::json state, event;
};

void measure(const Case& each, int steps, int threads) {
  WorkflowEngine engine(
      {.program = mj::test::program_path("mycojobs-workflowhost"), .processes = static_cast<std::size_t>(threads)});
  const WorkflowProgram program = must(WorkflowProgram::make(1, "order.lua", "step", each.source));
  StepRequest request;
  if (!each.state.is_null()) request.state = must(encode_cbor(each.state));
  request.event = {"shop/OrderEvent@1", must(encode_cbor(each.event)), {}};
  nlohmann::json ctx{
      {"now_ns", 1760000000000000000LL}, {"height", 7}, {"workflow", "shop/order@1"}, {"cell_mode", false}};
  ctx["entropy"] = nlohmann::json::binary(std::vector<std::uint8_t>(32, 7));
  request.ctx = must(encode_cbor(ctx));
  std::vector<std::vector<double>> took(static_cast<std::size_t>(threads));
  const auto began = Clock::now();
  std::vector<std::thread> running;
  for (auto& own : took) {
    running.emplace_back([&] {
      for (int i = 0; i < steps; ++i) {
        const auto from = Clock::now();
        const StepAnswer answer = must(engine.step(program, request));
        if (const auto* error = std::get_if<StepError>(&answer)) {
          std::fprintf(stderr, "%s\n", error->message.c_str());
          std::exit(1);
        }
        own.push_back(std::chrono::duration<double, std::micro>(Clock::now() - from).count());
      }
    });
  }
  for (auto& thread : running) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::vector<double> all;
  for (const auto& own : took) all.insert(all.end(), own.begin(), own.end());
  std::sort(all.begin(), all.end());
  const auto at = [&](double part) {
    return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
  };
  std::printf("%-28s p50 %7.1f us  p99 %7.1f us  %9.0f steps/s\n", each.name, at(0.5), at(0.99),
              static_cast<double>(all.size()) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 50000, threads = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--steps") == 0) steps = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::atoi(argv[i + 1]);
  }
  nlohmann::json items = nlohmann::json::array();
  for (int i = 0; i < 5; ++i) items.push_back({{"sku", "sku-" + std::to_string(i)}, {"cents", 1999 + i}});
  nlohmann::json large{{"pc", "idle"}, {"total", 0}, {"items", nlohmann::json::array()}};
  for (int i = 0; i < 1000; ++i) large["items"].push_back({{"sku", "sku-" + std::to_string(i)}, {"cents", i}});
  const nlohmann::json created{{"kind", "created"}, {"order", "o-1"}, {"items", items}};
  measure({"counter", kSmall, {{"n", 1}}, {{"kind", "tick"}}}, steps, threads);
  measure({"order, 5 items", kOrder, nullptr, created}, steps, threads);
  measure({"order, 1000 items in state", kOrder, large, created}, std::max(steps / 20, 1), threads);
}
