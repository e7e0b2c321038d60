#include "workflows/engine/program.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "text/cbor.h"
#include "text/cbor_items.h"

namespace mycojobs::workflow {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<StepFailureKind, std::string_view>, 6> kKinds = {{
    {StepFailureKind::script, "script"},
    {StepFailureKind::limit, "limit"},
    {StepFailureKind::memory, "memory"},
    {StepFailureKind::output, "output"},
    {StepFailureKind::load, "load"},
    {StepFailureKind::value, "value"},
}};

std::string bytes_of_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

void put_optional(std::string& out, const std::optional<std::string>& value) {
  if (value) {
    put_cbor_bytes(out, *value);
  } else {
    put_cbor_null(out);
  }
}

tl::unexpected<Error> wrong(const std::string& why) { return fail(Code::invalid, "answer: " + why); }

// Removes and returns a field of this type. Fields that are left at the end are unknown.
Result<json> take(json& from, const char* name, json::value_t type) {
  const auto found = from.find(name);
  if (found == from.end() || found->type() != type) return wrong(std::string(name) + " is missing or of another type");
  json value = std::move(*found);
  from.erase(found);
  return value;
}

Result<std::string> take_text(json& from, const char* name) {
  MJ_TRY(value, take(from, name, json::value_t::string));
  return std::move(value.get_ref<std::string&>());
}

Result<std::string> take_value(json& from, const char* name) {
  MJ_TRY(value, take(from, name, json::value_t::binary));
  const auto& bytes = value.get_binary();
  std::string cbor(bytes.begin(), bytes.end());
  if (auto checked = check_cbor(cbor); !checked) return wrong(std::string(name) + ": " + checked.error().message);
  return cbor;
}

Result<json> take_rows(json& from, const char* name, std::size_t max) {
  MJ_TRY(rows, take(from, name, json::value_t::array));
  if (rows.size() > max) return wrong(std::string(name) + ": too many");
  for (const json& row : rows) {
    if (!row.is_object()) return wrong(std::string(name) + ": one is no map");
  }
  return std::move(rows);
}

Result<void> nothing_else(const json& rest) {
  if (!rest.empty()) return wrong("unknown field " + rest.begin().key());
  return {};
}

Result<StepFailure> read_failure(json error) {
  StepFailure out;
  MJ_TRY(kind, take_text(error, "kind"));
  const auto* const row =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& each) { return each.second == kind; });
  if (row == kKinds.end()) return wrong("unknown kind of failure");
  out.kind = row->first;
  MJ_TRY(message, take_text(error, "message"));
  if (message.size() > kMaxMessageBytes) return wrong("a message that is too long");
  out.message = std::move(message);
  if (error.contains("line")) {
    MJ_TRY(line, take(error, "line", json::value_t::number_unsigned));
    out.line = static_cast<std::uint32_t>(std::min<std::uint64_t>(line.get<std::uint64_t>(), UINT32_MAX));
  }
  MJ_CHECK(nothing_else(error));
  return out;
}

Result<void> read_events(json& from, StepAnswer& out) {
  MJ_TRY(rows, take_rows(from, "domain_events", kMaxEvents));
  for (json& row : rows) {
    MJ_TRY(schema, take_text(row, "schema"));
    MJ_TRY(value, take_value(row, "value"));
    MJ_CHECK(nothing_else(row));
    out.domain_events.push_back({std::move(schema), std::move(value)});
  }
  return {};
}

Result<void> read_effects(json& from, StepAnswer& out) {
  MJ_TRY(rows, take_rows(from, "effects", kMaxEffects));
  for (json& row : rows) {
    MJ_TRY(kind, take_text(row, "kind"));
    MJ_TRY(params, take_value(row, "params"));
    MJ_TRY(index, take(row, "index", json::value_t::number_unsigned));
    std::string ref;
    if (row.contains("issuer_ref")) {
      MJ_TRY(text, take_text(row, "issuer_ref"));
      ref = std::move(text);
    }
    MJ_CHECK(nothing_else(row));
    if (index.get<std::uint64_t>() != out.effects.size()) return wrong("an effect has another one's index");
    const auto place = static_cast<std::uint32_t>(out.effects.size());
    out.effects.push_back({std::move(kind), std::move(params), place, std::move(ref)});
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
  out.hash_ = bytes_of_hex(sha256_hex(out.entrypoint_ + '\0' + out.name_ + '\0' + out.source_));
  return out;
}

std::string_view to_string(StepFailureKind kind) {
  for (const auto& [each, name] : kKinds) {
    if (each == kind) return name;
  }
  return "script";
}

Result<std::string> encode_request(const StepRequest& request) {
  std::string out;
  put_cbor_head(out, CborMajor::map, 4);
  put_cbor_text(out, "ctx");
  put_optional(out, request.ctx);
  put_cbor_text(out, "event");
  put_cbor_head(out, CborMajor::map, request.event.key ? 3 : 2);
  if (request.event.key) {
    put_cbor_text(out, "key");
    put_cbor_bytes(out, *request.event.key);
  }
  put_cbor_text(out, "value");
  put_cbor_bytes(out, request.event.value);
  put_cbor_text(out, "schema");
  put_cbor_text(out, request.event.schema);
  put_cbor_text(out, "state");
  put_optional(out, request.state);
  put_cbor_text(out, "version");
  put_cbor_integer(out, 1);
  if (out.size() > kMaxRequestBytes)
    return fail(Code::too_large, "a step is asked with " + std::to_string(out.size()) + " bytes of state, event and " +
                                     "ctx; at most " + std::to_string(kMaxRequestBytes >> 20) + " MiB");
  return out;
}

Result<StepAnswer> decode_answer(std::string_view cbor) {
  MJ_TRY(map, decode_cbor(cbor));
  if (!map.is_object()) return wrong("is no map");
  StepAnswer out;
  if (map.contains("error")) {
    MJ_TRY(error, take(map, "error", json::value_t::object));
    MJ_TRY(failure, read_failure(std::move(error)));
    out.failure = std::move(failure);
    MJ_CHECK(nothing_else(map));
    return out;
  }
  if (cbor.size() > kMaxStateBytes + kMaxOutputBytes) return wrong("it is over 11 MiB");
  if (const auto state = map.find("state"); state != map.end() && state->is_null()) {
    map.erase(state);
  } else {
    MJ_TRY(value, take_value(map, "state"));
    out.state = std::move(value);
  }
  const std::size_t state_bytes = out.state ? out.state->size() : 0;
  if (state_bytes > kMaxStateBytes) return wrong("its state is over 10 MiB");
  if (cbor.size() - state_bytes > kMaxOutputBytes) return wrong("beside its state it is over 1 MiB");
  MJ_CHECK(read_events(map, out));
  MJ_CHECK(read_effects(map, out));
  if (map.contains("ann")) {
    MJ_TRY(annotations, take_value(map, "ann"));
    out.annotations = std::move(annotations);
  }
  MJ_CHECK(nothing_else(map));
  return out;
}

}  // namespace mycojobs::workflow
