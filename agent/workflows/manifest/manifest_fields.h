// Reads a JSON document field by field. Unknown fields are rejected with their paths. Only workflow_*.cpp include this
// file.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "flows/flow_plan_reader.h"
#include "text/suggestion.h"

namespace mycojobs::workflows {

using Names = std::span<const std::string_view>;

// Checks that the value is a map, and rejects unknown fields.
inline bool read_fields(const plans::JsonPath& at, Names known) {
  if (!at.value.is_object()) return at.report_wrong_type("a map");
  for (const auto& [name, value] : at.value.items())
    if (std::find(known.begin(), known.end(), name) == known.end())
      at.at(value, name).report_problem("is an unknown field" + did_you_mean(name, known));
  return true;
}
// Calls see() if the field is present. A required field that is absent is reported.
template <class See>
void field(const plans::JsonPath& at, const char* name, bool required, See see) {
  if (const auto found = at.value.find(name); found != at.value.end()) return see(at.at(*found, name));
  if (required) at.report_problem(std::string(name) + " is missing");
}
inline void text_field(const plans::JsonPath& at, const char* name, bool required, std::string& out) {
  field(at, name, required, [&](const plans::JsonPath& found) { plans::read_text(found, out); });
}
template <class Each>
void each_in(const plans::JsonPath& at, const char* name, bool required, Each each) {
  field(at, name, required, [&](const plans::JsonPath& list) {
    if (!list.value.is_array()) {
      list.report_wrong_type("a list");
      return;
    }
    for (std::size_t i = 0; i < list.value.size(); ++i) each(list.at(list.value[i], i));
  });
}

}  // namespace mycojobs::workflows
