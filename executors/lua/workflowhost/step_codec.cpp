#include "executors/lua/workflowhost/step_codec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/cbor.h"
#include "text/cbor_items.h"
#include "text/cbor_map_reader.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using workflows::MapReader;
using workflows::to_binary;
using workflows::to_binary_or_null;

// The kinds of errors that an answer may have.
constexpr std::array<std::string_view, 6> kErrorKinds{kStepErrorScript, kStepErrorLimit, kStepErrorMemory,
                                                      kStepErrorOutput, kStepErrorLoad,  kStepErrorValue};

void append_optional_bytes(std::string& out, const std::optional<std::string>& bytes) {
  if (bytes) {
    append_cbor_bytes(out, *bytes);
  } else {
    append_cbor_null(out);
  }
}

// Checks the encoding of a value in an answer.
Result<void> check_value(std::string_view value, const std::string& path) {
  auto checked = check_cbor(value);
  if (!checked) return fail(std::move(checked).error(), path);
  return {};
}
Result<void> check_optional_value(const std::optional<std::string>& value, const char* name) {
  return value ? check_value(*value, name) : Result<void>();
}

// Encodes an event of an answer, which never has a key.
json event_to_json(const StepEvent& event) { return {{"schema", event.schema}, {"value", to_binary(event.value)}}; }
Result<StepEvent> parse_event(const json& map, std::size_t index) {
  MapReader fields(map, "domain_events[" + std::to_string(index) + ']');
  StepEvent event{fields.text("schema"), fields.bytes("value"), std::nullopt};
  MJ_CHECK(fields.end());
  MJ_CHECK(check_value(event.value, fields.path("value")));
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
  MJ_CHECK(check_value(effect.params, fields.path("params")));
  return effect;
}
Result<StepError> parse_error(MapReader& answer) {
  MapReader fields(answer.map("error"), "error");
  StepError error{fields.text("kind"), fields.text("message"), 0};
  error.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(fields.number_or("line", 0), UINT32_MAX));
  if (std::find(kErrorKinds.begin(), kErrorKinds.end(), error.kind) == kErrorKinds.end())
    fields.add_problem("kind", "is not a known kind of failure");
  MJ_CHECK(answer.end());
  MJ_CHECK(fields.end());
  if (error.message.size() > kMaxStepMessageBytes)
    return fail(Code::too_large, "error.message has " + count_with_noun(error.message.size(), "byte") + "; at most " +
                                     std::to_string(kMaxStepMessageBytes));
  return error;
}
Result<void> check_count(std::size_t count, std::size_t max, const char* noun) {
  if (count <= max) return {};
  return fail(Code::too_large, "the step gave " + count_with_noun(count, noun) + "; at most " + std::to_string(max));
}

}  // namespace

// The fields of a map are in the order of their encoded names. A request may have a state of kMaxStateBytes, so it is
// not copied into a JSON value.
Result<std::string> encode(const StepRequest& request) {
  if (!is_utf8(request.event.schema)) return fail(Code::invalid, "event.schema is not UTF-8");
  std::string out;
  append_cbor_head(out, CborMajor::map, 4);
  append_cbor_text(out, "ctx");
  append_optional_bytes(out, request.ctx);
  append_cbor_text(out, "event");
  append_cbor_head(out, CborMajor::map, request.event.key ? 3 : 2);
  if (request.event.key) {
    append_cbor_text(out, "key");
    append_cbor_bytes(out, *request.event.key);
  }
  append_cbor_text(out, "value");
  append_cbor_bytes(out, request.event.value);
  append_cbor_text(out, "schema");
  append_cbor_text(out, request.event.schema);
  append_cbor_text(out, "state");
  append_optional_bytes(out, request.state);
  append_cbor_text(out, "version");
  append_cbor_integer(out, kStepVersion);
  if (out.size() > kMaxStepRequestBytes)
    return fail(Code::too_large, "a step is asked with " + std::to_string(out.size()) + " bytes of state, event and " +
                                     "ctx; at most " + std::to_string(kMaxStepRequestBytes >> 20) + " MiB");
  return out;
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
  MJ_CHECK(check_optional_value(output.state, "state"));
  MJ_CHECK(check_optional_value(output.annotations, "ann"));
  MJ_CHECK(check_count(events.size(), kMaxStepEvents, "event"));
  MJ_CHECK(check_count(effects.size(), kMaxStepEffects, "effect"));
  for (std::size_t i = 0; i < events.size(); ++i) {
    MJ_TRY(event, parse_event(events[i], i));
    output.domain_events.push_back(std::move(event));
  }
  for (std::size_t i = 0; i < effects.size(); ++i) {
    MJ_TRY(effect, parse_effect(effects[i], i));
    output.effects.push_back(std::move(effect));
  }
  return StepAnswer(std::move(output));
}

}  // namespace mycojobs
