// Commands for programs, not for people: what shells complete with, what the build makes man pages of. In no help.
#pragma once

#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace mycojobs {

const std::vector<Command>& hidden_commands();
bool is_hidden(std::string_view name);

}  // namespace mycojobs
