// Converts YAML to JSON, with the position of every value. Accepts only what JSON can represent: maps with text keys,
// lists, texts, numbers, booleans, null. Rejects, with line and column: syntax errors, duplicate keys, anchors and
// aliases (YAML bombs), tags, several documents, and texts over a limit: 64 levels, 500,000 keys and values
// (yaml_scanner.h), 4096 bytes of a path.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace mycojobs {

struct YamlText {
  // Path "jobs.build.needs[0]" -> line, column; from 1.
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;
  // Numbers and booleans that JSON writes differently (3.10, 1e3, True): path -> the text in the file.
  std::map<std::string, std::string> spellings = {};
};
struct PlanProblem;
// Sets line and column of the value at the problem's path, or of the closest enclosing value with a known position.
void locate(const YamlText&, PlanProblem&);
// Error invalid: "line 3, column 5: ...".
Result<nlohmann::json> yaml_to_json(std::string_view text, YamlText& places);
// Reads the definition of a flow. As yaml_to_json(), except that values that jobs receive as text keep their spelling:
// values of an `env` with an entry in `spellings` become texts, and so do numbers of an `each`.
Result<nlohmann::json> flow_yaml_to_json(std::string_view text, YamlText& places);

}  // namespace mycojobs
