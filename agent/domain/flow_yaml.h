// YAML to JSON, with the place of every value. Only what JSON can say: maps with text keys, lists, texts, numbers,
// booleans, null. Refused with line and column: syntax errors, duplicate keys, anchors and aliases (YAML bombs), tags,
// several documents, and what is over a bound: 64 levels, 500,000 keys and values (yaml_scanner.h), 4096 bytes of a
// path.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "mycojobs/result.h"

namespace mycojobs {

struct YamlText {
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;  // path "jobs.build.needs[0]" -> line, column; 1..
  // Numbers and switches that JSON writes differently (3.10, 1e3, True): path -> the text in the file.
  std::map<std::string, std::string> spellings = {};
};
struct PlanProblem;
// Sets line and column of the value at the problem's path, or of the closest value around it that has a place.
void locate(const YamlText&, PlanProblem&);
// Error invalid: "line 3, column 5: ...".
Result<nlohmann::json> yaml_to_json(std::string_view text, YamlText& places);
// Reads the definition of a flow. As yaml_to_json(), except that values that jobs receive as text keep their spelling:
// what `spellings` has of an `env` is a text, and so is a number that it has of an `each`.
Result<nlohmann::json> flow_yaml_to_json(std::string_view text, YamlText& places);

}  // namespace mycojobs
