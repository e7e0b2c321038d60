#include "executors/lua/workflowhost/step_codec.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/cbor.h"
#include "text/cbor_map_reader.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using workflows::MapReader;
using workflows::to_binary;
using workflows::to_binary_or_null;

json event_to_json(const StepEvent& event) {
  json map{{"schema", event.schema}, {"value", to_binary(event.value)}};
  if (event.key) map["key"] = to_binary(*event.key);
  return map;
}
Result<StepEvent> parse_event(const json& map, const std::string& path, bool has_key) {
  MapReader fields(map, path);
  StepEvent event{fields.text("schema"), fields.bytes("value"), std::nullopt};
  if (has_key) event.key = fields.optional_bytes("key");
  MJ_CHECK(fields.end());
  return event;
}
json effect_to_json(const StepEffect& effect) {
  json map{{"kind", effect.kind}, {"params", to_binary(effect.params)}, {"index", effect.index}};
  if (!effect.issuer_ref.empty()) map["issuer_ref"] = effect.issuer_ref;
  return map;
}
Result<StepEffect> parse_effect(const json& map, std::size_t index) {
  MapReader fields(map, "effects[" + std::to_string(index) + ']');
  StepEffect effect{fields.text("kind"), fields.bytes("params"), fields.number("index"),
                    fields.text_or("issuer_ref", "")};
  if (effect.index != index) fields.add_problem("index", "is not its place in the list");
  MJ_CHECK(fields.end());
  return effect;
}
Result<StepError> parse_error(MapReader& answer) {
  MapReader fields(answer.map("error"), "error");
  StepError error{fields.text("kind"), fields.text("message"), fields.number_or("line", 0)};
  MJ_CHECK(answer.end());
  MJ_CHECK(fields.end());
  return error;
}
Result<void> check_count(std::size_t count, std::size_t max, const char* noun) {
  if (count <= max) return {};
  return fail(Code::too_large, "the step gave " + count_with_noun(count, noun) + "; at most " + std::to_string(max));
}

}  // namespace

Result<std::string> encode(const StepRequest& request) {
  return encode_cbor(json{{"version", kStepVersion},
                          {"state", to_binary_or_null(request.state)},
                          {"event", event_to_json(request.event)},
                          {"ctx", to_binary_or_null(request.ctx)}});
}

Result<std::string> encode(const StepAnswer& answer) {
  if (const auto* error = std::get_if<StepError>(&answer)) {
    json map{{"kind", error->kind}, {"message", error->message}};
    if (error->line != 0) map["line"] = error->line;
    return encode_cbor(json{{"error", std::move(map)}});
  }
  const auto& output = std::get<StepOutput>(answer);
  json events = json::array(), effects = json::array();
  for (const auto& event : output.domain_events) events.push_back(event_to_json(event));
  for (const auto& effect : output.effects) effects.push_back(effect_to_json(effect));
  json map{{"state", to_binary_or_null(output.state)},
           {"domain_events", std::move(events)},
           {"effects", std::move(effects)}};
  if (output.annotations) map["ann"] = to_binary(*output.annotations);
  return encode_cbor(map);
}

Result<StepRequest> decode_step_request(std::string_view bytes) {
  MJ_TRY(map, decode_cbor(bytes));
  MapReader fields(map, "");
  if (fields.number("version") != kStepVersion) fields.add_problem("version", "is not " + std::to_string(kStepVersion));
  StepRequest request;
  request.state = fields.bytes_or_null("state");
  request.ctx = fields.bytes_or_null("ctx");
  const json& event = fields.map("event");
  MJ_CHECK(fields.end());
  MJ_TRY(parsed_event, parse_event(event, "event", true));
  request.event = std::move(parsed_event);
  return request;
}

Result<StepAnswer> decode_step_answer(std::string_view bytes) {
  const auto size_error = [](std::size_t count, const char* noun, std::size_t max) {
    return fail(Code::too_large,
                "the step gave " + count_with_noun(count, "byte") + noun + "; at most " + std::to_string(max));
  };
  if (bytes.size() > kMaxStateBytes + kMaxStepBytes)
    return size_error(bytes.size(), "", kMaxStateBytes + kMaxStepBytes);
  MJ_TRY(map, decode_cbor(bytes));
  MapReader fields(map, "");
  if (fields.has("error")) {
    MJ_TRY(error, parse_error(fields));
    return StepAnswer(std::move(error));
  }
  StepOutput output;
  output.state = fields.bytes_or_null("state");
  const std::size_t state_bytes = output.state ? output.state->size() : 0;
  if (state_bytes > kMaxStateBytes) return size_error(state_bytes, " of state", kMaxStateBytes);
  if (bytes.size() - state_bytes > kMaxStepBytes)
    return size_error(bytes.size() - state_bytes, " beside its state", kMaxStepBytes);
  output.annotations = fields.optional_bytes("ann");
  const json &events = fields.list("domain_events"), &effects = fields.list("effects");
  MJ_CHECK(fields.end());
  MJ_CHECK(check_count(events.size(), kMaxStepEvents, "event"));
  MJ_CHECK(check_count(effects.size(), kMaxStepEffects, "effect"));
  for (std::size_t i = 0; i < events.size(); ++i) {
    MJ_TRY(event, parse_event(events[i], "domain_events[" + std::to_string(i) + ']', false));
    output.domain_events.push_back(std::move(event));
  }
  for (std::size_t i = 0; i < effects.size(); ++i) {
    MJ_TRY(effect, parse_effect(effects[i], i));
    output.effects.push_back(std::move(effect));
  }
  return StepAnswer(std::move(output));
}

}  // namespace mycojobs
