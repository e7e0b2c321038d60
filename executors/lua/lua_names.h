// Lua's functions under the names that the installed library has (CMakeLists.txt looks): Debian 12's library in C++ has
// names of C, as its lua.hpp says; Debian 13's has names of C++.
#pragma once

#ifdef MYCOJOBS_LUA_NAMES_OF_CPP
#include <lua.h>

#include <lauxlib.h>
#include <lualib.h>
#else
#include <lua.hpp>
#endif
