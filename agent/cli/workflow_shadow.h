// A shadow of a new manifest (domain/workflow_simulate.h) on the command line: what of `workflow simulate` is the same
// whether the copied world comes from a file or from Redis.
#pragma once

#include "cli/commands.h"
#include "domain/workflow_simulate.h"

namespace mycojobs {

// What --send, --receipt, --pending and --steps say. Errors: invalid, not_found (no such event or effect).
Result<ShadowSettings> shadow_settings(const Invocation&, const WorkflowManifest&);
void print_shadow(const Invocation&, const ShadowReport&);

}  // namespace mycojobs
