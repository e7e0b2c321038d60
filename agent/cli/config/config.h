// The configuration of a process. Flags override environment variables, which override the file, which overrides the
// defaults. Each value is stored with its source.
#pragma once

#include <string>
#include <vector>

#include "cli/config/options.h"

namespace mycojobs {

// Inputs of load_config().
struct ConfigSources {
  FlagValues flags;
  HostFacts host;  // includes the MYCOJOBS_* variables
};
// Returns the flags with the properties of this host and the environment of this process.
ConfigSources read_system_sources(FlagValues flags);

// The effective value of an option.
struct ConfigValue {
  std::string name;
  std::string text;      // unparsed text
  std::string source;    // "default", "/etc/mycojobs/config.toml:3:9", "MYCOJOBS_LEASE" or "--lease"
  bool is_json = false;  // the text is JSON, as for ceilings
};

// Result of load_config().
struct Config {
  Settings settings;
  // The options in the order of the table, then the ceilings and the other tables of the file.
  std::vector<ConfigValue> values;
  std::string file;                   // the file that was read; empty: no file
  std::vector<std::string> warnings;  // such as variables with the prefix MYCOJOBS_ that are not options
};

// Reads the file from --config, else from MYCOJOBS_CONFIG, else from /etc/mycojobs/config.toml for root and
// $XDG_CONFIG_HOME/mycojobs/config.toml (or below ~/.config) for other users. A file at the latter two paths is
// optional. Errors: invalid ("FILE:LINE:COLUMN: lease: ...", "MYCOJOBS_LEASE: ..." or "--lease: ..."), not_found (the
// file does not exist), io (the file cannot be read).
Result<Config> load_config(const ConfigSources&);

// A setting that has a valid type but that a service would reject at its start, with the reason.
struct RejectedSetting {
  std::string name;
  Error error;
};
// Looks up the owners of volumes and files on this host. This can wait for a directory service, so only commands that
// use the owners or check the settings call it. Returns the owners of these contexts that do not exist (not_found) or
// that no job may have (invalid).
std::vector<RejectedSetting> resolve_owners(Settings&, const std::vector<Id>& contexts);

// Applies only the file to the defaults, for `config check`.
Result<Config> check_config_file(const std::string& path, const HostFacts& host);

// Returns the configuration as JSON or as text. The text is a configuration file with the same settings and each
// value's source as a comment. Passwords in addresses are removed.
std::string format_config(const Config&, bool as_json);

}  // namespace mycojobs
