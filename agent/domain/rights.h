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

// What an actor may do with the records of a context, by whatever way it comes. Roles as the context's record lists
// them; a context without a record is open to everybody.
//
//   create      jobs, flows, messages of its own: every actor that the record lists
//   read        every actor that it lists, and whoever made the thing
//   control     cancel, start, retry, pause, approve ...: whoever made the thing, and admins
//   administer  the context itself, its queues and runners: admins
enum class Deed { create, read, control, administer };

// owner: who made the thing; 0: it has none. Error denied: names actor, deed, context, the list that would allow it.
Result<void> check_deed(const std::optional<Context>& record, Id context, Id actor, Deed, Id owner = 0);
bool is_admin(const std::optional<Context>& record, Id actor);  // of a context without a record: everybody

// Who may steer a flow (pause, approve, cancel ...): its creator, the context's admins and executors; in a context
// without a record anybody. Whether an approval names other approvers is the flow's to say. Returns whether the actor
// is an admin. Error denied: names actor, flow and remedy.
Result<bool> check_flow_right(const std::optional<Context>& record, Id context, Id creator, Id actor);

}  // namespace mycojobs
