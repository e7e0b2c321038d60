#include "model/flow_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Returns the suffix of the variable's name, or an empty text if the name cannot be part of a variable.
std::string make_variable_suffix(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    const bool is_lower_case = c >= 'a' && c <= 'z';
    if (!is_lower_case && c != '_' && !(c >= '0' && c <= '9')) return "";
    if (is_lower_case) c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

void parse_expanded_texts(const json& values, FlowData& data) {
  const auto texts = values.find("expand");
  if (texts == values.end() || !texts->is_object()) return;
  const json names = texts->value("env", json::array()), indexes = texts->value("args", json::array());
  for (const json& name : names.is_array() ? names : json::array()) {
    if (name.is_string()) data.expanded_variables.push_back(name.get<std::string>());
  }
  for (const json& index : indexes.is_array() ? indexes : json::array()) {
    if (index.is_number_unsigned()) data.expanded_args.push_back(index.get<std::size_t>());
  }
}

}  // namespace

FlowData parse_flow_data(const Job& job) {
  const auto data_json = std::make_shared<json>(json::object());
  FlowData data{data_json, {}};
  const auto field = std::find_if(job.unknown.begin(), job.unknown.end(),
                                  [](const auto& entry) { return entry.first == kFlowDataField; });
  if (field == job.unknown.end()) return data;
  const auto parsed = parse_json(field->second);
  if (!parsed || !parsed->is_object()) return data;
  for (const char* name : {"inputs", "signals", "each"}) {
    if (const auto values = parsed->find(name); values != parsed->end() && values->is_object())
      (*data_json)[name] = *values;
  }
  data.flow_name = text_field(*parsed, "flow");
  parse_expanded_texts(*parsed, data);
  const auto joins = parsed->find("joins");
  if (joins == parsed->end() || !joins->is_object()) return data;
  for (const auto& item : joins->items()) {
    auto& ids = data.joins[item.key()];
    for (const json& id : item.value().is_array() ? item.value() : json::array()) {
      const bool is_id = id.is_number_unsigned() && id.get<std::uint64_t>() <= UINT32_MAX;
      const bool is_dependency =
          is_id && std::find(job.dependends.begin(), job.dependends.end(), id.get<Id>()) != job.dependends.end();
      if (is_dependency) ids.push_back(id.get<Id>());
    }
  }
  return data;
}

std::string to_variable_text(const json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text != nullptr ? *text : dump_json(value);
}

TextMap flow_environment(const FlowData& data) {
  TextMap variables;
  const auto add = [&](const std::string& name, const json& value) {
    std::string text = to_variable_text(value);
    // An environment variable cannot hold a NUL.
    if (text.find('\0') == std::string::npos) variables[name] = std::move(text);
  };
  if (const auto inputs = data.values->find("inputs"); inputs != data.values->end()) {
    for (const auto& item : inputs->items()) {
      if (const std::string suffix = make_variable_suffix(item.key()); !suffix.empty())
        add("MYCOJOBS_INPUT_" + suffix, item.value());
    }
  }
  if (const auto item = data.values->find("each"); item != data.values->end()) {
    if (const auto value = item->find("value"); value != item->end()) add("MYCOJOBS_EACH", *value);
    if (const auto index = item->find("index"); index != item->end()) add("MYCOJOBS_EACH_INDEX", *index);
  }
  return variables;
}

nlohmann::json parse_flow_inputs(const Flow& flow) {
  const auto field =
      std::find_if(flow.unknown.begin(), flow.unknown.end(), [](const auto& entry) { return entry.first == "inputs"; });
  if (field == flow.unknown.end()) return nullptr;
  auto parsed = parse_json(field->second);
  return parsed && parsed->is_object() ? std::move(*parsed) : json();
}

}  // namespace mycojobs
