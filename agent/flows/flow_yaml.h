// Reads definitions of flows that are written in YAML. Thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "text/yaml.h"

namespace mycojobs {

// As yaml_to_json() with the limit kMaxDefinitionBytes, except that values that jobs receive as text keep their
// spelling: values of an `env` and `args` with an entry in `spellings` become texts, and so do numbers of an `each`.
Result<nlohmann::json> flow_yaml_to_json(std::string_view text, YamlText& yaml);

}  // namespace mycojobs
