// Options and output of `workflow simulate`, for a copy of a deployment that is read from a file or from Redis. A
// shadow is a simulation of a new manifest on this copy (workflows/tools/shadow.h).
#pragma once

#include "cli/invocation.h"
#include "workflows/tools/shadow.h"

namespace mycojobs {

// Parses --send, --receipt, --pending and --steps. Errors: invalid, not_found (no such event or effect).
Result<ShadowSettings> parse_shadow_flags(const Invocation&, const WorkflowManifest&);
// Prints the report as text, or as JSON with --json.
void print_shadow_report(const Invocation&, const ShadowReport&);

}  // namespace mycojobs
