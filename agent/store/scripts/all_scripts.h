// The list of all server-side scripts, for tests that check each of them.
#pragma once

#include <span>

#include "store/lua_scripts.h"

namespace mycojobs::scripts {

extern const std::span<const Script* const> all;

}  // namespace mycojobs::scripts
