// A step by the engine's processes, in the kernel's words.
#pragma once

#include "domain/workflow_decide.h"
#include "mycojobs/records.h"
#include "workflow/engine.h"

namespace mycojobs {

// A request that is too large fails its step, as it would every time. Errors say nothing of the step: unavailable (its
// processes died), unsupported (they cannot be confined here), not_found (its code is not in the manifest).
Result<StepAnswer> take_step(workflow::WorkflowEngine&, Id context, const WorkflowManifest&, const WorkflowSpec&,
                             const StepRequest&);

}  // namespace mycojobs
