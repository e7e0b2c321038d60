// The command line: what it means by the tables of commands and options, what --help shows, and the error for a
// command or flag that is not there.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace mycojobs {

// The group of commands in which `mycojobs --help` shows a noun ("job"); empty: it is in none.
std::string_view command_group(std::string_view noun);

// What is wrong with the words up to the first that should be a command and is none ("rum"), with what may have been
// meant; empty: nothing is.
std::string unknown_command(int argc, const char* const* argv);

// A command and its flags.
struct CommandLine {
  const Command* command = nullptr;  // null: leave with exit_code (help was printed, or the line was wrong)
  int exit_code = 0;
  bool json = false;
  std::vector<std::string> arguments;
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
  FlagValues options;
};

CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace mycojobs
