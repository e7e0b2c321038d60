// The configuration: flags over environment over file over defaults, each value with the place it came from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config/options.h"

namespace mycojobs {

struct Sources {
  FlagValues flags;
  HostFacts host;  // its environment holds the MYCOJOBS_* variables too
};
// What this process was started with.
Sources system_sources(FlagValues flags);

struct ConfigValue {
  std::string name;
  std::string text;      // as it was written
  std::string source;    // "default", "/etc/mycojobs/config.toml:3:9", "MYCOJOBS_LEASE" or "--lease"
  bool literal = false;  // the text is JSON already (ceilings)
};

struct Config {
  Settings settings;
  // Every option, in the table's order; the ceilings; the contexts with a Redis of their own.
  std::vector<ConfigValue> values;
  std::string file;                   // the file that was read; empty: none
  std::vector<std::string> warnings;  // variables that look like options and are none
};

// The file: --config, else MYCOJOBS_CONFIG, else /etc/mycojobs/config.toml for root and
// $XDG_CONFIG_HOME/mycojobs/config.toml (or below ~/.config) for others; only the last two may be missing.
// Error invalid: "FILE:LINE:COLUMN: lease: ..." or "MYCOJOBS_LEASE: ..." or "--lease: ...". not_found: there is
// no such file. io: it cannot be read.
Result<Config> load_config(const Sources&);

// The file alone over the defaults, for `config check`.
Result<Config> check_config_file(const std::string& path, const HostFacts& host);

// Text: a file that reads back alike, with each value's source as a comment. Passwords in addresses are left out.
std::string print_config(const Config&, bool as_json);

}  // namespace mycojobs
