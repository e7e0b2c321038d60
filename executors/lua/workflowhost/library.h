// What the code of a workflow finds: Lua's own functions without those that would see the machine, each of them a
// closure (library.cpp says why), and what stands in their place. docs/workflows/lua.md is the list for authors.
#pragma once

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Opens the libraries and makes them ours, in a state that is new. Called by lua_pcall.
int open_library(lua_State*);

}  // namespace mycojobs::workflow
