// From the command line to a command and its flags, as the tables of commands and options say.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace mycojobs {

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
