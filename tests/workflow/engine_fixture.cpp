#include "workflow/engine_fixture.h"
#include "support/build_paths.h"

#include <cstdlib>

#include "text/cbor.h"

namespace mycojobs::workflow {

EngineOptions options() { return {.program = mj::test::program_path("mycojobs-workflowhost"), .time = {20000, 20000}}; }
std::vector<EngineOptions> all_options() {
  std::vector<EngineOptions> all(3, options());
  all[1].program = mj::test::program_path("plain_workflowhost");
  all[2].program = mj::test::program_path("elsewhere_workflowhost");
  return all;
}

std::string cbor(const nlohmann::json& value) { return encode_cbor(value).value(); }
nlohmann::json value(const std::string& cbor) { return decode_cbor(cbor).value(); }
WorkflowProgram program(const std::string& source) {
  return WorkflowProgram::make(1, "order.lua", "step", source).value();
}

StepRequest request() {
  StepRequest out;
  out.event = {"test/Event@1", cbor(nlohmann::json::object()), {}};
  out.ctx = cbor(nlohmann::json::object());
  return out;
}

std::string text(const StepAnswer& answer) {
  if (answer.failure) {
    const std::string line = answer.failure->line ? ", line " + std::to_string(*answer.failure->line) : "";
    return std::string(to_string(answer.failure->kind)) + line + ": " + answer.failure->message;
  }
  std::string out = answer.state ? value(*answer.state).dump() : "gone";
  for (const auto& each : answer.domain_events) out += " event " + each.schema + value(each.value).dump();
  for (const auto& each : answer.effects)
    out += " effect " + std::to_string(each.index) + each.kind + value(each.params).dump() +
           (each.issuer_ref.empty() ? "" : " as " + each.issuer_ref);
  if (answer.annotations) out += " ann " + value(*answer.annotations).dump();
  return out;
}

std::string ran(const std::string& source, const StepRequest& asked, EngineOptions with) {
  WorkflowEngine engine(std::move(with));
  auto answer = engine.step(program(source), asked);
  if (!answer) return "error: " + answer.error().message;
  return text(*answer);
}

std::string make_state(const std::string& body) { return ran("function step(state, event, ctx) " + body + " end"); }

}  // namespace mycojobs::workflow
