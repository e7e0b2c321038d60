// Completion for shells, generated from the tables of commands and options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

struct CommandOption {
  std::string flag;     // "--lease"
  bool value = false;   // a value follows
  std::string choices;  // the words it may be, separated by blanks; empty with a value: a file name is offered
};

struct CommandRow {
  std::string name;  // "run", "job", "job list"
  std::string help;
  std::vector<CommandOption> options;  // without --help, which every command has
  // What its first argument may be: words, separated by blanks; or what `mycojobs complete` has under this word.
  std::string argument_words = {}, argument_from = {};
};
using Commands = std::vector<CommandRow>;

// The rows of the options table that this command takes, and --config.
std::vector<CommandOption> configuration_flags(std::string_view command);

// A script for bash: `source <(mycojobs completion bash)`. Names and flags must be words of a-z, 0-9, '-' and '_'. What
// stands in the store it asks for when it is wanted, with the --redis, --context, --state-dir and --config of the line.
std::string bash_completion(const Commands&);
// The same for zsh, also as the file _mycojobs of a folder in fpath.
std::string zsh_completion(const Commands&);

}  // namespace mycojobs
