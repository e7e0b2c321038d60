// Files of settings: the configuration file (TOML, each key one of the options), and policies in files of their own.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/config.h"
#include "cli/config/options.h"
#include "domain/profiles.h"

namespace mycojobs {

// A policy as text, and where each of its names stood.
struct PolicyText {
  std::string json;                           // as read_policy() has it
  std::map<std::string, std::string> places;  // "fs.read" -> "FILE:LINE:COLUMN", groups and items too; "": the whole
};
// Where a field stands ("fs.read[0]"), or else what it stands in.
std::string place_of(const PolicyText&, std::string field);

struct FileValues {
  std::vector<ConfigValue> options;             // in no order; source is "FILE:LINE:COLUMN"
  std::map<Id, ConfigValue> context_redis;      // [contexts.<id>] redis
  std::map<Id, PolicyText> ceilings;            // [contexts.<id>.ceiling]; 0: [ceiling]
  std::map<std::string, PolicyText> executors;  // [executors.<name>]: the whole table as JSON
  std::map<Id, PolicyText> context_python;      // [contexts.<id>.python], too
};

// Unknown keys and wrong types are refused: "FILE:LINE:COLUMN: lease: ...". Values of text are checked by set_option().
Result<FileValues> read_config_file(const std::string& path);

// The whole file. Error: not_found, io, too_large (over 1 MiB).
Result<std::string> read_text_file(const std::string& path);

// FILE.toml or FILE.json. Problems name file, line and field. Error: not_found, io, too_large; invalid (neither, or not
// TOML).
Result<PolicyRead> read_policy_file(const std::string& path);

}  // namespace mycojobs
