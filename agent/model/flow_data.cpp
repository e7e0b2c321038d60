#include "model/flow_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  const auto* text = value.get_ptr<const std::string*>();
  return text != nullptr ? *text : dump_json(value);
}

// Returns the suffix of the variable's name, or an empty text if the name cannot be part of a variable.
std::string variable_of(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    const bool lower = c >= 'a' && c <= 'z';
    if (!lower && c != '_' && !(c >= '0' && c <= '9')) return "";
    if (lower) c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

}  // namespace

FlowData flow_data_of(const Job& job) {
  const auto data_json = std::make_shared<json>(json::object());
  FlowData data{data_json, {}};
  const auto field = std::find_if(job.unknown.begin(), job.unknown.end(),
                                  [](const auto& each) { return each.first == kFlowDataField; });
  if (field == job.unknown.end()) return data;
  const auto parsed = parse_json(field->second);
  if (!parsed || !parsed->is_object()) return data;
  for (const char* name : {"inputs", "signals", "each"}) {
    if (const auto found = parsed->find(name); found != parsed->end() && found->is_object())
      (*data_json)[name] = *found;
  }
  const auto joins = parsed->find("joins");
  if (joins == parsed->end() || !joins->is_object()) return data;
  for (const auto& item : joins->items()) {
    auto& ids = data.joins[item.key()];
    for (const json& id : item.value().is_array() ? item.value() : json::array()) {
      const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= UINT32_MAX;
      const bool read =
          fits && std::find(job.dependends.begin(), job.dependends.end(), id.get<Id>()) != job.dependends.end();
      if (read) ids.push_back(id.get<Id>());
    }
  }
  return data;
}

TextMap flow_environment(const FlowData& data) {
  TextMap variables;
  const auto add = [&](const std::string& name, const json& value) {
    std::string text = text_of(value);
    // An environment variable cannot hold a NUL.
    if (text.find('\0') == std::string::npos) variables[name] = std::move(text);
  };
  if (const auto inputs = data.values->find("inputs"); inputs != data.values->end()) {
    for (const auto& item : inputs->items()) {
      if (const std::string end = variable_of(item.key()); !end.empty()) add("MYCOJOBS_INPUT_" + end, item.value());
    }
  }
  if (const auto each = data.values->find("each"); each != data.values->end()) {
    if (const auto value = each->find("value"); value != each->end()) add("MYCOJOBS_EACH", *value);
    if (const auto index = each->find("index"); index != each->end()) add("MYCOJOBS_EACH_INDEX", *index);
  }
  return variables;
}

nlohmann::json inputs_of(const Flow& flow) {
  const auto field =
      std::find_if(flow.unknown.begin(), flow.unknown.end(), [](const auto& each) { return each.first == "inputs"; });
  if (field == flow.unknown.end()) return nullptr;
  auto parsed = parse_json(field->second);
  return parsed && parsed->is_object() ? std::move(*parsed) : json();
}

}  // namespace mycojobs
