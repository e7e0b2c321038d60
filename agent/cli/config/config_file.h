// Readers for configuration files (TOML, with options as keys) and for policy files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/config/config.h"
#include "cli/config/options.h"
#include "security/profiles.h"

namespace mycojobs {

// A policy as text, with the position of each name. Other tables of the file are stored in the same form.
struct PolicyText {
  std::string json;  // as accepted by read_policy()
  // Maps "fs.read" to "FILE:LINE:COLUMN", also for groups and items; the key "" is the whole policy.
  std::map<std::string, std::string> positions;
};
// Returns the position of a field ("fs.read[0]"), or of its nearest parent.
std::string find_position(const PolicyText&, std::string field);

// Content of a configuration file.
struct FileValues {
  std::vector<ConfigValue> options;             // unordered; source is "FILE:LINE:COLUMN"
  std::map<Id, ConfigValue> context_redis;      // [contexts.<id>] redis
  std::map<Id, PolicyText> ceilings;            // [contexts.<id>.ceiling]; the key 0 is [ceiling]
  std::map<std::string, PolicyText> executors;  // [executors.<name>]: the whole table as JSON
  std::map<Id, PolicyText> context_python;      // [contexts.<id>.python]: the whole table as JSON
  std::map<Id, PolicyText> context_volumes;     // [contexts.<id>.volumes]: the whole table as JSON
  std::map<Id, PolicyText> context_files;       // [contexts.<id>.files]: the whole table as JSON
  std::map<Id, PolicyText> context_redis_tls;   // [contexts.<id>.redis_tls]: the whole table as JSON
};

// Error invalid for unknown keys and wrong types: "FILE:LINE:COLUMN: lease: ...". The values of texts are checked
// later, by set_option().
Result<FileValues> read_config_file(const std::string& path);

// Returns the whole file. Errors: not_found, io, too_large (over 1 MiB).
Result<std::string> read_text_file(const std::string& path);

// Reads FILE.toml or FILE.json. Problems name the file, line and field. Errors: not_found, io, too_large, invalid
// (another file type, or invalid TOML).
Result<ParsedPolicy> read_policy_file(const std::string& path);

}  // namespace mycojobs
