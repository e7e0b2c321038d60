// Patterns of strings as the manual of Lua 5.4 has them (section 6.4.1), each step of a match charged: one that
// explodes ends its step, after the same number of steps everywhere. string.find, match, gmatch and gsub.
#pragma once

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Puts the four functions into the table on top of the stack.
void add_patterns(lua_State*);

}  // namespace mycojobs::workflow
