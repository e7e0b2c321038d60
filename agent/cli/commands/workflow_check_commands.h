// Options and output of `workflow simulate`, for a copy of a deployment that is read from a file or from Redis. A
// shadow is a simulation of a new manifest on this copy (workflows/tools/shadow.h).
#pragma once

#include "cli/commands/command_table.h"
#include "workflows/tools/shadow.h"

namespace mycojobs {

// Parses --send, --receipt, --pending and --steps. Errors: invalid, not_found (no such event or effect).
Result<ShadowSettings> shadow_settings(const Invocation&, const WorkflowManifest&);
void print_shadow(const Invocation&, const ShadowReport&);

}  // namespace mycojobs
