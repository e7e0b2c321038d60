// Library of workflow programs: the standard Lua functions, except those with machine-dependent results, and
// deterministic replacements. Each function is a closure (for the reason, see library.cpp). docs/workflows/lua.md lists
// the functions for authors.
#pragma once

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Opens the libraries in a new state and replaces functions as described above. Must be called by lua_pcall.
int open_library(lua_State*);

}  // namespace mycojobs::workflow
