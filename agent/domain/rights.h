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

// Who may steer a flow (pause, approve, cancel ...): its creator, the context's admins and executors; in a context
// without a record anybody. Whether an approval names other approvers is the flow's to say. Returns whether the actor
// is an admin. Error denied: names actor, flow and remedy.
Result<bool> check_flow_right(const std::optional<Context>& record, Id context, Id creator, Id actor);

}  // namespace mycojobs
