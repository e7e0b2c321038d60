#include "api/rpc/params.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

bool is_integer(const json& value) { return value.is_number_integer() || value.is_number_unsigned(); }
bool is_non_negative(const json& value) {
  return is_integer(value) && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0);
}
bool is_record_id(const json& value) {
  return is_non_negative(value) && value.get<std::uint64_t>() >= 1 && value.get<std::uint64_t>() <= UINT32_MAX;
}

struct TypeRow {
  std::string_view type, description;
  bool (*is_valid)(const json&);
  json (*schema)();
};
json type_schema(const char* type) { return {{"type", type}}; }
json count_schema() { return {{"type", "integer"}, {"minimum", 0}}; }
json unit_schema(const char* unit) {
  json schema = count_schema();
  schema["description"] = unit;
  return schema;
}
json list_schema(json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
json id_schema() { return {{"type", "integer"}, {"minimum", 1}, {"maximum", UINT32_MAX}}; }
bool is_list(const json& value) { return value.is_array(); }
bool is_object(const json& value) { return value.is_object(); }

// The section "Types" of docs/rpc.md describes these types for clients.
const TypeRow kTypes[] = {
    {"id", "a whole number from 1 to 4294967295", is_record_id, id_schema},
    {"text", "a text", [](const json& v) { return v.is_string(); }, [] { return type_schema("string"); }},
    {"integer", "a whole number", is_integer, [] { return type_schema("integer"); }},
    {"count", "a whole number, 0 or more", is_non_negative, count_schema},
    {"seconds", "a whole number of seconds, 0 or more", is_non_negative, [] { return unit_schema("seconds"); }},
    {"ms", "a whole number of milliseconds, 0 or more", is_non_negative, [] { return unit_schema("milliseconds"); }},
    {"unix_s", "a time: seconds since 1970", is_non_negative,
     [] { return unit_schema("seconds since 1970-01-01 UTC"); }},
    {"unix_ms", "a time: milliseconds since 1970", is_non_negative,
     [] { return unit_schema("milliseconds since 1970-01-01 UTC"); }},
    {"boolean", "true or false", [](const json& v) { return v.is_boolean(); }, [] { return type_schema("boolean"); }},
    {"list", "a list", is_list, [] { return type_schema("array"); }},
    {"ids", "a list of ids", is_list, [] { return list_schema(id_schema()); }},
    {"texts", "a list of texts", is_list, [] { return list_schema(type_schema("string")); }},
    {"jobs", "a list of jobs", is_list, [] { return list_schema(type_schema("object")); }},
    {"object", "an object", is_object, [] { return type_schema("object"); }},
    {"variables", "an object of texts", is_object,
     [] {
       return json{{"type", "object"}, {"additionalProperties", type_schema("string")}};
     }},
    {"key", "an id, or a text \"CALLER:ID\"", [](const json& v) { return v.is_string() || is_record_id(v); },
     [] {
       return json{{"type", json::array({"integer", "string"})}};
     }},
    {"any", "anything", [](const json&) { return true; }, [] { return json(true); }},
};

const TypeRow& find_type(std::string_view type) {
  const auto* it = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) { return r.type == type; });
  return it == std::end(kTypes) ? kTypes[std::size(kTypes) - 1] : *it;
}

std::string list_params(const Method& method) {
  std::string names;
  for (const Param& param : method.params) names += (names.empty() ? "" : ", ") + std::string(param.name);
  return names.empty() ? "it has no parameters" : "its parameters are " + names;
}

}  // namespace

std::optional<ParamProblem> validate_params(const Method& method, const json& params) {
  for (const auto& item : params.items()) {
    const auto param = std::find_if(method.params.begin(), method.params.end(),
                                    [&](const Param& entry) { return entry.name == item.key(); });
    const std::string field(whole_characters(item.key(), 100));
    if (param == method.params.end()) {
      return ParamProblem{field, field + ": " + std::string(method.name) + " does not have this parameter",
                          list_params(method)};
    }
    const TypeRow& row = find_type(param->type);
    if (!item.value().is_null() && !row.is_valid(item.value())) {
      const std::string description(row.description);
      return ParamProblem{field, field + ": must be " + description, "give " + description};
    }
  }
  for (const Param& param : method.params) {
    if (!param.required) continue;
    const auto it = params.find(param.name);
    if (it != params.end() && !it->is_null()) continue;
    const std::string field(param.name);
    return ParamProblem{field, field + ": is missing", "give " + std::string(find_type(param.type).description)};
  }
  return std::nullopt;
}

json get_type_schema(std::string_view type) { return find_type(type).schema(); }

bool is_param_type(std::string_view type) { return find_type(type).type == type; }

}  // namespace mycojobs::api
