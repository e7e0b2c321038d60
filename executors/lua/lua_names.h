// Declares Lua's functions with the linkage of the installed library (checked in CMakeLists.txt): Debian 12's C++
// library has C linkage, as its lua.hpp declares; Debian 13's has C++ linkage.
#pragma once

#ifdef MYCOJOBS_LUA_NAMES_OF_CPP
#include <lua.h>

#include <lauxlib.h>
#include <lualib.h>
#else
#include <lua.hpp>
#endif
