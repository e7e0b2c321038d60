// Result values of a job or flow. The record holds them in two fields: `result` is a map of texts, which any client can
// read and write; `result_json` names the keys whose text is JSON, so that a number is returned as a number. For a
// client that writes only texts, all values are texts. Pure and thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/records.h"

namespace mycojobs {

struct ResultValues {
  TextMap texts;
  std::vector<std::string> json;  // keys of texts
  bool operator==(const ResultValues&) const = default;
};

// Returns an object in which each value has its original type. A text that is not JSON stays a text, even if
// `json_keys` names it. So does a value with an integer beyond 64 bits, which the tree could only round.
nlohmann::json to_typed_json(const TextMap& texts, const std::vector<std::string>& json_keys);
// Returns the same object as text. Numbers keep all their digits, because they are not converted to doubles.
std::string to_typed_json_text(const TextMap& texts, const std::vector<std::string>& json_keys);
// The inverse of to_typed_json(). Returns no values if `object` is not an object.
ResultValues parse_result_values(const nlohmann::json& object);

}  // namespace mycojobs
