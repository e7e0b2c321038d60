// What a caller may do with the objects of a context, by the roles that the context's record names: admins read and
// write, readers read. Without a record nobody has any right.
#pragma once

#include <optional>
#include <string>

#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class Right { read, write };

// record: nothing, if the context has none. Error denied: names caller, context, role and remedy.
Result<void> check_right(const std::optional<Context>& record, Id context, Id caller, Right);

}  // namespace mycojobs
