// Access to the layout of Lua tables, for the counting of work.
#pragma once

#include <cstddef>

#include "executors/lua/lua_names.h"

namespace mycojobs::workflow {

// Returns the number of slots that a traversal of the table visits, including empty slots. `index` is the stack index
// of the table.
std::size_t count_table_slots(lua_State*, int index);

}  // namespace mycojobs::workflow
