#include "service/request_params.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "text/json.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;

bool is_integer(const json& value) { return value.is_number_integer() || value.is_number_unsigned(); }
bool is_non_negative(const json& value) {
  return is_integer(value) && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0);
}
bool is_record_id(const json& value) {
  return is_non_negative(value) && value.get<std::uint64_t>() >= 1 && value.get<std::uint64_t>() <= UINT32_MAX;
}

struct ParamType {
  std::string_view name, description;
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

bool is_content(const json& value) { return value.is_string() || value.is_object(); }
json content_schema() {
  return {{"type", json::array({"string", "object"})}, {"description", "a text, or {\"base64\": text}"}};
}

// The section "Types" of docs/rpc.md describes these types for clients.
const ParamType kParamTypes[] = {
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
    {"content", "a text, or an object with the text base64", is_content, content_schema},
    {"contents", "an object of texts or objects with the text base64", is_object,
     [] {
       return json{{"type", "object"}, {"additionalProperties", content_schema()}};
     }},
    {"key", "an id, or a text \"CALLER:ID\"", [](const json& v) { return v.is_string() || is_record_id(v); },
     [] {
       return json{{"type", json::array({"integer", "string"})}};
     }},
    {"any", "anything", [](const json&) { return true; }, [] { return json(true); }},
};

const ParamType& find_param_type(std::string_view name) {
  const auto* it = std::find_if(std::begin(kParamTypes), std::end(kParamTypes),
                                [&](const ParamType& type) { return type.name == name; });
  return it == std::end(kParamTypes) ? kParamTypes[std::size(kParamTypes) - 1] : *it;
}

bool is_list_type(std::string_view type) { return find_param_type(type).is_valid == is_list; }

std::string list_params(const Request& request) {
  std::string names;
  for (const Param& param : request.params) names += (names.empty() ? "" : ", ") + std::string(param.name);
  return names.empty() ? "it has no parameters" : "its parameters are " + names;
}

// REQUIRES: the value has the type of the parameter.
bool is_in_range(const Param& param, const json& value) {
  const bool is_huge = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  const std::int64_t number = value.is_array() ? static_cast<std::int64_t>(value.size())
                              : is_huge        ? INT64_MAX
                                               : value.get<std::int64_t>();
  return (!param.min || number >= *param.min) && (!param.max || number <= *param.max);
}

// Returns the problem of a rejected value: "must be a text, not 7".
std::string describe_rejected_value(const Param& param, const json& value) {
  std::string text = "must be " + describe_values(param);
  if (value.is_string()) text += ", not " + excerpt(value.get_ref<const std::string&>(), 80);
  if (value.is_number() || value.is_boolean()) text += ", not " + value.dump();
  return text;
}

// Returns an empty text if the value is valid.
std::string find_value_problem(const Param& param, const json& value) {
  if (!find_param_type(param.type).is_valid(value)) return describe_rejected_value(param, value);
  if (param.allows_empty && value == "") return "";
  if (!param.choices.empty() && !contains_word(param.choices, value.get_ref<const std::string&>()))
    return excerpt(value.get_ref<const std::string&>(), 80) + " is not one of: " + std::string(param.choices);
  const bool has_limits = param.min || param.max;
  return has_limits && !is_in_range(param, value) ? describe_rejected_value(param, value) : "";
}

}  // namespace

std::optional<ParamProblem> validate_params(const Request& request, const json& params) {
  for (const auto& item : params.items()) {
    const Param* param = find_param(request, item.key());
    const std::string field(whole_characters(item.key(), 100));
    if (param == nullptr) {
      return ParamProblem{field, field + ": " + std::string(request.name) + " does not have this parameter",
                          list_params(request)};
    }
    if (item.value().is_null()) continue;
    if (const std::string problem = find_value_problem(*param, item.value()); !problem.empty())
      return ParamProblem{field, field + ": " + problem, "give " + describe_values(*param)};
  }
  for (const Param& param : request.params) {
    if (!param.required) continue;
    const auto it = params.find(param.name);
    if (it != params.end() && !it->is_null()) continue;
    const std::string field(param.name);
    return ParamProblem{field, field + ": is missing", "give " + describe_values(param)};
  }
  return std::nullopt;
}

std::string describe_values(const Param& param) {
  if (!param.choices.empty()) return "one of: " + std::string(param.choices);
  std::string text(find_param_type(param.type).description);
  if (!param.min && !param.max) return text;
  text = text.substr(0, text.find(','));
  const std::string min = std::to_string(param.min.value_or(0));
  if (is_list_type(param.type)) return text + " with " + min + " to " + std::to_string(*param.max) + " entries";
  return param.max ? text + " from " + min + " to " + std::to_string(*param.max) : text + ", " + min + " or more";
}

std::string describe_param(const Param& param) {
  const bool has_max = param.max && *param.max < UINT32_MAX;  // the limit of 32 bits is left to the schema
  std::string values = has_max ? std::to_string(param.min.value_or(0)) + " to " + std::to_string(*param.max) : "";
  if (!values.empty() && is_list_type(param.type)) values += " entries";
  if (param.default_value) values += (values.empty() ? "" : ", ") + ("default " + std::to_string(*param.default_value));
  return std::string(param.help) + (values.empty() ? "" : " (" + values + ")");
}

json get_type_schema(std::string_view type) { return find_param_type(type).schema(); }

json get_param_schema(const Param& param) {
  json schema = get_type_schema(param.type);
  const bool is_array = is_list_type(param.type);
  if (param.min) schema[is_array ? "minItems" : "minimum"] = *param.min;
  if (param.max) schema[is_array ? "maxItems" : "maximum"] = *param.max;
  if (param.default_value) schema["default"] = *param.default_value;
  if (param.choices.empty()) return schema;
  schema["enum"] = split_words(param.choices);
  if (param.allows_empty) schema["enum"].push_back("");
  return schema;
}

bool is_param_type(std::string_view type) { return find_param_type(type).name == type; }

bool RequestParams::has_param(std::string_view name) const {
  const auto it = values_->find(name);
  return it != values_->end() && !it->is_null();
}

Id RequestParams::id(std::string_view name) const { return static_cast<Id>(number(name)); }

std::uint64_t RequestParams::number(std::string_view name) const {
  if (const auto it = values_->find(name); it != values_->end() && it->is_number_integer()) {
    const bool is_negative = !it->is_number_unsigned() && it->get<std::int64_t>() < 0;
    if (!is_negative) return it->get<std::uint64_t>();
  }
  const Param* param = request_ == nullptr ? nullptr : find_param(*request_, name);
  return param == nullptr ? 0 : param->default_value.value_or(0);
}

std::string RequestParams::text(std::string_view name) const { return text_field(*values_, name); }

bool RequestParams::flag(std::string_view name) const {
  const auto it = values_->find(name);
  return it != values_->end() && it->is_boolean() && it->get<bool>();
}

std::optional<Id> RequestParams::optional_id(std::string_view name) const {
  return has_param(name) ? std::optional(id(name)) : std::nullopt;
}

std::optional<std::string> RequestParams::optional_text(std::string_view name) const {
  return has_param(name) ? std::optional(text(name)) : std::nullopt;
}

}  // namespace mycojobs::service
