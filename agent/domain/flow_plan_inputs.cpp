// Inputs of a flow: what is declared, and what is given.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_inputs.h"
#include "domain/flow_plan_read.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace plans {
namespace {

struct InputType {
  std::string_view name, shown;
  bool (*fits)(const json&);
};
// Whole numbers as far as they are exact everywhere.
bool is_whole(const json& value) {
  if (const auto* plain = value.get_ptr<const json::number_unsigned_t*>()) return *plain <= INT64_MAX;
  return value.is_number_integer();
}
constexpr std::array kTypes = std::to_array<InputType>({
    {"string", "a string", [](const json& value) { return value.is_string(); }},
    {"integer", "an integer", is_whole},
    {"number", "a number", [](const json& value) { return value.is_number(); }},
    {"boolean", "true or false", [](const json& value) { return value.is_boolean(); }},
    {"list", "a list", [](const json& value) { return value.is_array(); }},
    {"object", "a map", [](const json& value) { return value.is_object(); }},
});

const InputType* type_of(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const InputType& each) { return each.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

// It is also the end of a variable's name, MYCOJOBS_INPUT_<NAME>: so no two differ in case alone.
bool is_input_name(std::string_view name) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && name.size() <= kMaxNameBytes && letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

bool is_allowed(const FlowInput& input, const json& value, const Spot& spot) {
  const std::string text = dump_json(value);
  const auto& all = input.allowed;
  if (all.empty() || std::find(all.begin(), all.end(), text) != all.end()) return true;
  std::string list;
  for (std::size_t i = 0; i < all.size() && i < 20; ++i) list += (i == 0 ? "" : ", ") + all[i].substr(0, 100);
  spot.refuse("input " + input.name + " is " + text.substr(0, 100) + ", which is none of " + list +
              (all.size() > 20 ? ", ..." : ""));
  return false;
}

bool read_type(const Spot& spot, FlowInput& input) {
  std::string name;
  if (!read_text(spot, name)) return false;
  if (type_of(name) == nullptr) {
    std::vector<std::string_view> names;
    for (const InputType& each : kTypes) names.push_back(each.name);
    spot.refuse(shown(name) + " is no type of an input: there are string, integer, number, boolean, list and object" +
                did_you_mean(name, names));
    return false;
  }
  input.type = std::move(name);
  return true;
}

bool fits(const FlowInput& input, const Spot& spot) {
  const InputType& type = *type_of(input.type);
  if (type.fits(spot.value)) return true;
  Problems told;
  const Spot asked{spot.value, "", told};
  asked.wrong(type.shown);
  spot.refuse("input " + input.name + ' ' + told.take().front().message +
              (input.type == "string" && spot.value.is_primitive() ? ": put it in quotes" : ""));
  return false;
}

void read_enum(const Spot& spot, FlowInput& input) {
  if (!spot.value.is_array() || spot.value.empty()) {
    spot.wrong("a list of the values that it may have");
    return;
  }
  for (std::size_t i = 0; i < spot.value.size(); ++i) {
    const Spot item = spot.at(spot.value[i], i);
    if (fits(input, item)) input.allowed.push_back(dump_json(item.value));
  }
}

// A type alone, or a map.
void declare(const Spot& spot, FlowInput& input) {
  if (spot.value.is_string()) {
    read_type(spot, input);
    return;
  }
  static constexpr std::string_view kNames[] = {"type", "default", "required", "enum", "comment"};
  if (!spot.value.is_object()) {
    spot.wrong("a type, or a map such as {type: string, default: eu}");
    return;
  }
  const auto type = spot.value.find("type");
  if (type == spot.value.end()) {
    return spot.refuse("type: is missing: give string, integer, number, boolean, list or object");
  }
  if (!read_type(spot.at(*type, "type"), input)) return;
  bool says_required = false;
  for (const auto& item : spot.value.items()) {
    const Spot field = spot.at(item.value(), item.key());
    if (item.key() == "default") {
      if (fits(input, field)) input.fallback = dump_json(item.value());
    } else if (item.key() == "required") {
      says_required = read_switch(field, input.required);
    } else if (item.key() == "enum") {
      read_enum(field, input);
    } else if (item.key() == "comment") {
      std::string comment;
      read_text(field, comment);
    } else if (item.key() != "type") {
      field.refuse("unknown field of an input: there are type, default, required, enum and comment" +
                   did_you_mean(item.key(), kNames));
    }
  }
  if (input.fallback.empty()) return;
  const Spot fallback = spot.at(spot.value.at("default"), "default");
  is_allowed(input, fallback.value, fallback);
  if (says_required && input.required)
    spot.at(spot.value.at("required"), "required").refuse("has a default: it is never missing");
  input.required = false;
}

void read_given(const Spot& spot, FlowPlan& plan) {
  if (!spot.value.is_object()) {
    spot.wrong("a map from names of inputs to values");
    return;
  }
  std::vector<std::string_view> names;
  for (const FlowInput& each : plan.inputs) names.push_back(each.name);
  for (const auto& item : spot.value.items()) {
    const Spot value = spot.at(item.value(), item.key());
    const auto input = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                    [&](const FlowInput& each) { return each.name == item.key(); });
    if (input == plan.inputs.end()) {
      value.refuse("there is no input " + shown(item.key()) +
                   (names.empty() ? ": the flow declares none (inputs)" : did_you_mean(item.key(), names)));
    } else if (!input->type.empty() && fits(*input, value) && is_allowed(*input, value.value, value)) {
      plan.values[input->name] = dump_json(value.value);
    }
  }
}

}  // namespace

namespace {

void read_declared(const Spot& spot, FlowPlan& plan) {
  if (!spot.value.is_object()) {
    spot.wrong("a map from names to types, such as {region: {type: string, default: eu}}");
    return;
  }
  for (const auto& item : spot.value.items()) {
    FlowInput input;
    input.name = item.key();
    const Spot declared = spot.at(item.value(), item.key());
    if (is_input_name(item.key())) {
      declare(declared, input);
    } else {
      declared.refuse(shown(item.key(), 70) + " is no name of an input: 1 to 64 of a-z, 0-9 and '_', a letter first");
    }
    plan.inputs.push_back(std::move(input));
  }
}

// What has a value, as conditions and jobs read it.
void settle_values(const Spot& flow, FlowPlan& plan) {
  std::size_t bytes = 0;
  for (const FlowInput& input : plan.inputs) {
    if (!input.fallback.empty()) plan.values.emplace(input.name, input.fallback);
    const auto value = plan.values.find(input.name);
    if (value == plan.values.end()) {
      if (input.required) plan.missing.push_back(input.name);
      continue;
    }
    bytes += value->second.size();
    const auto parsed = parse_json(value->second);
    const auto* text = parsed ? parsed->get_ptr<const std::string*>() : nullptr;
    plan.input_texts[input.name] = text != nullptr ? *text : value->second;
  }
  if (bytes > kMaxInputBytes) {
    flow.problems.add("inputs", "their values have " + std::to_string(bytes) + " bytes together, more than " +
                                    std::to_string(kMaxInputBytes) + ": hand over where large ones lie");
  }
}

}  // namespace

void read_inputs(const Spot& flow, FlowPlan& plan) {
  if (const auto inputs = flow.value.find("inputs"); inputs != flow.value.end())
    read_declared(flow.at(*inputs, "inputs"), plan);
  if (const auto given = flow.value.find("given"); given != flow.value.end())
    read_given(flow.at(*given, "given"), plan);
  settle_values(flow, plan);
}

}  // namespace plans

Result<void> give_inputs(nlohmann::json& definition, const nlohmann::json& values) {
  if (!values.is_object()) return fail(Code::invalid, "inputs: must be a map from names to values");
  if (values.empty() || !definition.is_object()) return {};
  auto& given = definition["given"];
  if (!given.is_object()) given = nlohmann::json::object();
  given.update(values);
  return {};
}

Result<nlohmann::json> input_of_text(const nlohmann::json& definition, const std::string& name,
                                     const std::string& text) {
  const auto inputs = definition.is_object() ? definition.find("inputs") : definition.end();
  const bool there = inputs != definition.end() && inputs->is_object() && inputs->contains(name);
  if (!there) {
    std::vector<std::string_view> names;
    if (inputs != definition.end() && inputs->is_object()) {
      for (const auto& item : inputs->items()) names.push_back(item.key());
    }
    return fail(Code::invalid, "the flow has no input " + shown(name) +
                                   (names.empty() ? ": it declares none" : did_you_mean(name, names)));
  }
  const auto& declared = (*inputs)[name];
  const auto type = declared.is_object() && declared.contains("type") ? declared["type"] : declared;
  if (type == "string") {
    if (!is_utf8(text)) return fail(Code::invalid, "input " + name + ": is not UTF-8");
    return nlohmann::json(text);
  }
  auto value = parse_json(text, kMaxInputBytes);
  if (!value) {
    return fail(Code::invalid, "input " + name + ": " + shown(text) + " is not " +
                                   (type == "list" || type == "object" ? "JSON: " + value.error().message
                                                                       : "of type " + dump_json(type)));
  }
  return value;
}

nlohmann::json inputs_json(const FlowPlan& plan) {
  auto out = nlohmann::json::object();
  for (const auto& [name, text] : plan.values) {
    if (auto value = parse_json(text)) out[name] = std::move(*value);
  }
  return out;
}

std::string missing_inputs(const FlowPlan& plan) {
  std::string names;
  for (const std::string& name : plan.missing) names += (names.empty() ? "" : ", ") + name;
  if (names.empty()) return names;
  const auto first = std::find_if(plan.inputs.begin(), plan.inputs.end(),
                                  [&](const FlowInput& each) { return each.name == plan.missing.front(); });
  return "inputs: " + names + (plan.missing.size() == 1 ? " is" : " are") + " required and not given; " +
         plan.missing.front() + " is of type " + first->type + " (--input " + plan.missing.front() + "=VALUE)";
}

}  // namespace mycojobs
