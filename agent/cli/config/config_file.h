// The configuration file: TOML, each key one of the options.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/config/config.h"

namespace mycojobs {

struct FileValues {
  std::vector<ConfigValue> options;         // in no order; source is "FILE:LINE:COLUMN"
  std::map<Id, ConfigValue> context_redis;  // [contexts.<id>] redis
};

// Unknown keys and wrong types are refused: "FILE:LINE:COLUMN: lease: ...". Values of text are checked by set_option().
Result<FileValues> read_config_file(const std::string& path);

}  // namespace mycojobs
