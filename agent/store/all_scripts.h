// The list of all server-side scripts, for tests that check each of them.
#pragma once

#include <span>

#include "store/scripts.h"

namespace mycojobs::scripts {

extern const std::span<const Script* const> all;

}  // namespace mycojobs::scripts
