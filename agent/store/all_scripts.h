// Every server-side script of the product, for who tries each of them.
#pragma once

#include <span>

#include "store/scripts.h"

namespace mycojobs::scripts {

extern const std::span<const Script* const> all;

}  // namespace mycojobs::scripts
