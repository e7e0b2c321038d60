// Converts YAML to JSON, with the position of every value. Accepts only what JSON can represent: maps with text keys,
// lists, texts, numbers, booleans, null. Rejects, with line and column: syntax errors, duplicate keys, anchors and
// aliases (YAML bombs), tags, several documents, and texts over a limit: 64 levels, 500,000 keys and values
// (yaml_scanner.h), 4096 bytes of a path.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace mycojobs {

struct YamlText {
  // Line and column (from 1) by path, for example "jobs.build.needs[0]".
  std::map<std::string, std::pair<std::size_t, std::size_t>> positions;
  // Text in the file by path, for numbers and booleans that JSON writes differently (3.10, 1e3, True).
  std::map<std::string, std::string> spellings = {};
};
// Returns the value, and sets `yaml_text`. Errors: invalid ("line 3, column 5: ..."), too_large.
Result<nlohmann::json> yaml_to_json(std::string_view text, std::size_t max_bytes, YamlText& yaml_text);

}  // namespace mycojobs
