// String patterns of Lua 5.4 (manual, section 6.4.1) for string.find, match, gmatch and gsub. Each step of a match is
// charged, so a match with exponential time ends the workflow step after the same number of steps on every machine.
#pragma once

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Adds the four functions to the table on top of the stack.
void add_patterns(lua_State*);

}  // namespace mycojobs::workflow
