// The rules beyond types that the fields of a job must meet before it may run. Pure and thread-safe.
#pragma once

#include <vector>

#include "model/field_problem.h"
#include "model/records.h"

namespace mycojobs {

// Checks all fields, for example: ids are above 0, script and script_type are present, timeout is not 0, names in
// env_vars have no '=' or NUL. Returns an empty list for a valid job.
std::vector<FieldProblem> validate(const Job&);
// Checks only the fields that a script host needs: ids, script, script_type, timeout, name, env_vars,
// args.
std::vector<FieldProblem> validate_script(const Job&);

}  // namespace mycojobs
