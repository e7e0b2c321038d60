// Shell completion scripts, generated from the tables of commands and options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

// An option of a command for completion.
struct CommandOption {
  std::string flag;  // "--lease"
  bool has_value = false;
  std::string choices;  // allowed values, separated by spaces; empty: file names are offered
};

// A command for completion.
struct CommandRow {
  std::string name;  // "run", "job", "job list"
  std::string help;
  std::vector<CommandOption> options;  // without --help, which every command has
  // Candidates for the first argument: fixed words, separated by spaces, or the list of `mycojobs complete` that has
  // them.
  std::string argument_words = {}, argument_list = {};
};
using CommandRows = std::vector<CommandRow>;

// Returns the options of this command, and --config.
std::vector<CommandOption> list_configuration_flags(std::string_view command);

// Returns a script for bash: `source <(mycojobs completion bash)`. Names and flags must consist of a-z, 0-9, '-' and
// '_'. Names in the store are queried at completion time, with the --redis, --context, --state-dir and --config of the
// command line.
std::string make_bash_completion(const CommandRows&);
// Returns the script for zsh; also usable as the file _mycojobs in a folder of fpath.
std::string make_zsh_completion(const CommandRows&);

}  // namespace mycojobs
