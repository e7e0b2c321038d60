// What a job or a flow has handed back. The record holds it twice over: `result` is a map of texts, which any client
// reads and writes; `result_json` names the keys whose text is JSON, so that a number comes back as one. A client that
// writes only texts has handed back texts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mycojobs/records.h"

namespace mycojobs {

struct HandedBack {
  TextMap texts;
  std::vector<std::string> json;  // keys of texts
  bool operator==(const HandedBack&) const = default;
};

// An object, each value with the type that it was handed back with. A text that is no JSON, whatever `json_keys` says,
// stays a text. So does a value with an integer beyond 64 bits, which the tree could only round.
nlohmann::json typed_values(const TextMap& texts, const std::vector<std::string>& json_keys);
// The same as text, digit by digit: no number passes through a double.
std::string typed_text(const TextMap& texts, const std::vector<std::string>& json_keys);
// The way back. Not an object: nothing was handed back.
HandedBack handed_back(const nlohmann::json& object);

}  // namespace mycojobs
