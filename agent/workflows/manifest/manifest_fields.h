// Reads a JSON document field by field. Unknown fields are rejected with their paths. Included only by
// workflow_manifest.cpp and tools/scenario_reader.cpp.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "text/document_reader.h"
#include "text/suggestion.h"

namespace mycojobs::workflows {

using Names = std::span<const std::string_view>;

// Checks that the value is a map, and rejects unknown fields.
inline bool check_fields(const DocumentValue& node, Names allowed) {
  if (!node.value.is_object()) return node.report_wrong_type("a map");
  for (const auto& [name, value] : node.value.items())
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end())
      node.at(value, name).report_problem("is an unknown field" + did_you_mean(name, allowed));
  return true;
}
// Calls read() with the field if it is present. Reports a required field that is absent.
template <class Reader>
void read_field(const DocumentValue& node, const char* name, bool required, Reader read) {
  if (const auto value = node.value.find(name); value != node.value.end()) return read(node.at(*value, name));
  if (required) node.report_problem(std::string(name) + " is missing");
}
inline void read_text_field(const DocumentValue& node, const char* name, bool required, std::string& out) {
  read_field(node, name, required, [&](const DocumentValue& text) { read_text(text, out); });
}
// Calls read_item() for each item of a list.
template <class Reader>
void for_each_item(const DocumentValue& node, const char* name, bool required, Reader read_item) {
  read_field(node, name, required, [&](const DocumentValue& list) {
    if (!list.value.is_array()) {
      list.report_wrong_type("a list");
      return;
    }
    for (std::size_t i = 0; i < list.value.size(); ++i) read_item(list.at(list.value[i], i));
  });
}

}  // namespace mycojobs::workflows
