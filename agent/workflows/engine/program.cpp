#include "workflows/engine/program.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "text/cbor.h"
#include "text/cbor_items.h"

namespace mycojobs::workflow {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<StepFailureKind, std::string_view>, 6> kFailureKinds = {{
    {StepFailureKind::script, "script"},
    {StepFailureKind::limit, "limit"},
    {StepFailureKind::memory, "memory"},
    {StepFailureKind::output, "output"},
    {StepFailureKind::load, "load"},
    {StepFailureKind::value, "value"},
}};

void append_optional(std::string& out, const std::optional<std::string>& value) {
  if (value) {
    append_cbor_bytes(out, *value);
  } else {
    append_cbor_null(out);
  }
}

tl::unexpected<Error> answer_error(const std::string& reason) { return fail(Code::invalid, "answer: " + reason); }

// Removes a field of this type from the map and returns it. Fields that remain in the map at the end are unknown.
Result<json> pop_field(json& map, const char* name, json::value_t type) {
  const auto field = map.find(name);
  if (field == map.end() || field->type() != type)
    return answer_error(std::string(name) + " is missing or of another type");
  json value = std::move(*field);
  map.erase(field);
  return value;
}

Result<std::string> pop_text(json& map, const char* name) {
  MJ_TRY(value, pop_field(map, name, json::value_t::string));
  return std::move(value.get_ref<std::string&>());
}

Result<std::string> pop_cbor(json& map, const char* name) {
  MJ_TRY(value, pop_field(map, name, json::value_t::binary));
  const auto& bytes = value.get_binary();
  std::string cbor(bytes.begin(), bytes.end());
  if (auto checked = check_cbor(cbor); !checked)
    return answer_error(std::string(name) + ": " + checked.error().message);
  return cbor;
}

Result<json> pop_maps(json& map, const char* name, std::size_t max) {
  MJ_TRY(rows, pop_field(map, name, json::value_t::array));
  if (rows.size() > max) return answer_error(std::string(name) + ": too many");
  for (const json& row : rows) {
    if (!row.is_object()) return answer_error(std::string(name) + ": one is no map");
  }
  return std::move(rows);
}

Result<void> reject_unknown_fields(const json& fields) {
  if (!fields.empty()) return answer_error("unknown field " + fields.begin().key());
  return {};
}

Result<StepFailure> read_failure(json error) {
  StepFailure out;
  MJ_TRY(kind, pop_text(error, "kind"));
  const auto* const row =
      std::find_if(kFailureKinds.begin(), kFailureKinds.end(), [&](const auto& entry) { return entry.second == kind; });
  if (row == kFailureKinds.end()) return answer_error("unknown kind of failure");
  out.kind = row->first;
  MJ_TRY(message, pop_text(error, "message"));
  if (message.size() > kMaxMessageBytes) return answer_error("a message that is too long");
  out.message = std::move(message);
  if (error.contains("line")) {
    MJ_TRY(line, pop_field(error, "line", json::value_t::number_unsigned));
    out.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line.get<std::uint64_t>(), UINT32_MAX));
  }
  MJ_CHECK(reject_unknown_fields(error));
  return out;
}

Result<void> read_events(json& map, StepAnswer& out) {
  MJ_TRY(rows, pop_maps(map, "domain_events", kMaxStepEvents));
  for (json& row : rows) {
    MJ_TRY(schema, pop_text(row, "schema"));
    MJ_TRY(value, pop_cbor(row, "value"));
    MJ_CHECK(reject_unknown_fields(row));
    out.domain_events.push_back({std::move(schema), std::move(value)});
  }
  return {};
}

Result<void> read_effects(json& map, StepAnswer& out) {
  MJ_TRY(rows, pop_maps(map, "effects", kMaxStepEffects));
  for (json& row : rows) {
    MJ_TRY(kind, pop_text(row, "kind"));
    MJ_TRY(params, pop_cbor(row, "params"));
    MJ_TRY(index, pop_field(row, "index", json::value_t::number_unsigned));
    std::string ref;
    if (row.contains("issuer_ref")) {
      MJ_TRY(text, pop_text(row, "issuer_ref"));
      ref = std::move(text);
    }
    MJ_CHECK(reject_unknown_fields(row));
    if (index.get<std::uint64_t>() != out.effects.size()) return answer_error("an effect has another one's index");
    const auto position = static_cast<std::uint32_t>(out.effects.size());
    out.effects.push_back({std::move(kind), std::move(params), position, std::move(ref)});
  }
  return {};
}

}  // namespace

Result<WorkflowProgram> WorkflowProgram::make(std::uint64_t context, std::string name, std::string entrypoint,
                                              std::string source) {
  if (entrypoint.empty() || name.find('\0') != name.npos || entrypoint.find('\0') != entrypoint.npos)
    return fail(Code::invalid, "a program has a name and an entrypoint, without NUL");
  if (source.size() + name.size() + entrypoint.size() > kMaxSourceBytes)
    return fail(Code::too_large, name + ": " + std::to_string(source.size()) + " bytes; at most " +
                                     std::to_string(kMaxSourceBytes >> 20) + " MiB");
  WorkflowProgram out;
  out.context_ = context;
  out.name_ = std::move(name);
  out.entrypoint_ = std::move(entrypoint);
  out.source_ = std::move(source);
  out.hash_ = from_hex(sha256_hex(out.entrypoint_ + '\0' + out.name_ + '\0' + out.source_));
  return out;
}

std::string_view to_string(StepFailureKind kind) {
  for (const auto& [failure_kind, name] : kFailureKinds) {
    if (failure_kind == kind) return name;
  }
  return "script";
}

Result<std::string> encode_request(const StepRequest& request) {
  std::string out;
  append_cbor_head(out, CborMajor::map, 4);
  append_cbor_text(out, "ctx");
  append_optional(out, request.ctx);
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
  append_optional(out, request.state);
  append_cbor_text(out, "version");
  append_cbor_integer(out, 1);
  if (out.size() > kMaxRequestBytes)
    return fail(Code::too_large, "a step is asked with " + std::to_string(out.size()) + " bytes of state, event and " +
                                     "ctx; at most " + std::to_string(kMaxRequestBytes >> 20) + " MiB");
  return out;
}

Result<StepAnswer> decode_answer(std::string_view cbor) {
  MJ_TRY(map, decode_cbor(cbor));
  if (!map.is_object()) return answer_error("is no map");
  StepAnswer out;
  if (map.contains("error")) {
    MJ_TRY(error, pop_field(map, "error", json::value_t::object));
    MJ_TRY(failure, read_failure(std::move(error)));
    out.failure = std::move(failure);
    MJ_CHECK(reject_unknown_fields(map));
    return out;
  }
  if (cbor.size() > kMaxStateBytes + kMaxStepBytes) return answer_error("it is over 11 MiB");
  if (const auto state = map.find("state"); state != map.end() && state->is_null()) {
    map.erase(state);
  } else {
    MJ_TRY(value, pop_cbor(map, "state"));
    out.state = std::move(value);
  }
  const std::size_t state_bytes = out.state ? out.state->size() : 0;
  if (state_bytes > kMaxStateBytes) return answer_error("its state is over 10 MiB");
  if (cbor.size() - state_bytes > kMaxStepBytes) return answer_error("beside its state it is over 1 MiB");
  MJ_CHECK(read_events(map, out));
  MJ_CHECK(read_effects(map, out));
  if (map.contains("ann")) {
    MJ_TRY(annotations, pop_cbor(map, "ann"));
    out.annotations = std::move(annotations);
  }
  MJ_CHECK(reject_unknown_fields(map));
  return out;
}

}  // namespace mycojobs::workflow
