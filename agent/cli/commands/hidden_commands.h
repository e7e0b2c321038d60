// Commands for other programs, which the help does not list: data for shell completion, and man page sources for the
// build.
#pragma once

#include <string_view>
#include <vector>

#include "cli/commands/command_table.h"

namespace mycojobs {

const std::vector<Command>& hidden_commands();
bool is_hidden_command(std::string_view name);

}  // namespace mycojobs
