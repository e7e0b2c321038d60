// Tables of Lua, as far as the count of work needs to know how they are made.
#pragma once

#include <cstddef>

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Places for values that a walk over the table passes, the empty ones too. index: of a table.
std::size_t table_places(lua_State*, int index);

}  // namespace mycojobs::workflow
