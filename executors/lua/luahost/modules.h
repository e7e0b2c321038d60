// The modules in Lua, embedded by CMake from the files in lua/. Each runs once, in this order, with the table of the
// host's functions and the table of what the modules before it returned.
#pragma once

#include <span>

namespace mycojobs::lua {

struct Module {
  const char* name;
  const char* source;
};
std::span<const Module> modules();

}  // namespace mycojobs::lua
