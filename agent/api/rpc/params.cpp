#include "api/rpc/params.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

bool is_whole(const json& value) { return value.is_number_integer() || value.is_number_unsigned(); }
bool is_amount(const json& value) {
  return is_whole(value) && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0);
}
bool is_record_id(const json& value) {
  return is_amount(value) && value.get<std::uint64_t>() >= 1 && value.get<std::uint64_t>() <= UINT32_MAX;
}

struct TypeRow {
  std::string_view type, words;
  bool (*fits)(const json&);
  json (*schema)();
};
json of_type(const char* type) { return {{"type", type}}; }
json count_schema() { return {{"type", "integer"}, {"minimum", 0}}; }
json amount(const char* unit) {
  json schema = count_schema();
  schema["description"] = unit;
  return schema;
}
json list_of(json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
json id_schema() { return {{"type", "integer"}, {"minimum", 1}, {"maximum", UINT32_MAX}}; }
bool is_list(const json& value) { return value.is_array(); }
bool is_object(const json& value) { return value.is_object(); }

// The section "Types" of docs/rpc.md describes these types for clients.
const TypeRow kTypes[] = {
    {"id", "a whole number from 1 to 4294967295", is_record_id, id_schema},
    {"text", "a text", [](const json& v) { return v.is_string(); }, [] { return of_type("string"); }},
    {"integer", "a whole number", is_whole, [] { return of_type("integer"); }},
    {"count", "a whole number, 0 or more", is_amount, count_schema},
    {"seconds", "a whole number of seconds, 0 or more", is_amount, [] { return amount("seconds"); }},
    {"ms", "a whole number of milliseconds, 0 or more", is_amount, [] { return amount("milliseconds"); }},
    {"unix_s", "a time: seconds since 1970", is_amount, [] { return amount("seconds since 1970-01-01 UTC"); }},
    {"unix_ms", "a time: milliseconds since 1970", is_amount,
     [] { return amount("milliseconds since 1970-01-01 UTC"); }},
    {"boolean", "true or false", [](const json& v) { return v.is_boolean(); }, [] { return of_type("boolean"); }},
    {"list", "a list", is_list, [] { return of_type("array"); }},
    {"ids", "a list of ids", is_list, [] { return list_of(id_schema()); }},
    {"texts", "a list of texts", is_list, [] { return list_of(of_type("string")); }},
    {"jobs", "a list of jobs", is_list, [] { return list_of(of_type("object")); }},
    {"object", "an object", is_object, [] { return of_type("object"); }},
    {"variables", "an object of texts", is_object,
     [] {
       return json{{"type", "object"}, {"additionalProperties", of_type("string")}};
     }},
    {"key", "an id, or a text \"CALLER:ID\"", [](const json& v) { return v.is_string() || is_record_id(v); },
     [] {
       return json{{"type", json::array({"integer", "string"})}};
     }},
    {"any", "anything", [](const json&) { return true; }, [] { return json(true); }},
};

const TypeRow& row_of(std::string_view type) {
  const auto* found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) { return r.type == type; });
  return found == std::end(kTypes) ? kTypes[std::size(kTypes) - 1] : *found;
}

std::string names_of(const Method& method) {
  std::string names;
  for (const Param& each : method.params) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names.empty() ? "it has no parameters" : "its parameters are " + names;
}

}  // namespace

std::optional<ParamProblem> validate_params(const Method& method, const json& params) {
  for (const auto& item : params.items()) {
    const auto known = std::find_if(method.params.begin(), method.params.end(),
                                    [&](const Param& each) { return each.name == item.key(); });
    const std::string field(whole_characters(item.key(), 100));
    if (known == method.params.end()) {
      return ParamProblem{field, field + ": " + std::string(method.name) + " does not have this parameter",
                          names_of(method)};
    }
    const TypeRow& row = row_of(known->type);
    if (!item.value().is_null() && !row.fits(item.value())) {
      const std::string words(row.words);
      return ParamProblem{field, field + ": must be " + words, "give " + words};
    }
  }
  for (const Param& each : method.params) {
    if (!each.required) continue;
    const auto given = params.find(each.name);
    if (given != params.end() && !given->is_null()) continue;
    const std::string field(each.name);
    return ParamProblem{field, field + ": is missing", "give " + std::string(row_of(each.type).words)};
  }
  return std::nullopt;
}

json schema_of(std::string_view type) { return row_of(type).schema(); }

bool is_type(std::string_view type) { return row_of(type).type == type; }

}  // namespace mycojobs::api
