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
  if (const auto* error = std::get_if<StepError>(&answer)) {
    const std::string line = error->line != 0 ? ", line " + std::to_string(error->line) : "";
    return error->kind + line + ": " + error->message;
  }
  const auto& output = std::get<StepOutput>(answer);
  std::string out = output.state ? value(*output.state).dump() : "gone";
  for (const auto& each : output.domain_events) out += " event " + each.schema + value(each.value).dump();
  for (const auto& each : output.effects)
    out += " effect " + std::to_string(each.index) + each.kind + value(each.params).dump() +
           (each.issuer_ref.empty() ? "" : " as " + each.issuer_ref);
  if (output.annotations) out += " ann " + value(*output.annotations).dump();
  return out;
}

std::optional<std::string> get_state(const Result<StepAnswer>& answer) {
  const auto* output = answer ? std::get_if<StepOutput>(&*answer) : nullptr;
  return output == nullptr ? std::nullopt : output->state;
}

std::string ran(const std::string& source, const StepRequest& asked, EngineOptions with) {
  WorkflowEngine engine(std::move(with));
  auto answer = engine.step(program(source), asked);
  if (!answer) return "error: " + answer.error().message;
  return text(*answer);
}

std::string make_state(const std::string& body) { return ran("function step(state, event, ctx) " + body + " end"); }

}  // namespace mycojobs::workflow
