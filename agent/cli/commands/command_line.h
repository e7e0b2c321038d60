// Parser of the command line, based on the tables of commands and options. It also prints --help and errors for unknown
// commands and flags.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands/command_table.h"

namespace mycojobs {

// Returns the group in which `mycojobs --help` lists a noun ("job"), or an empty text.
std::string_view get_command_group(std::string_view noun);

// Returns an error message for the first unknown command word ("rum"), with a suggestion, or an empty text if all words
// are known.
std::string find_unknown_command(int argc, const char* const* argv);

// A parsed command line.
struct CommandLine {
  const Command* command = nullptr;  // null: exit with exit_code (help was printed, or the line is invalid)
  int exit_code = 0;
  bool json = false;
  std::vector<std::string> arguments;  // with the words after `--`
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
  FlagValues options;
};

// Parses the line. Prints --help and the errors itself; see CommandLine::command.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace mycojobs
