// Follows one job to its end.
#pragma once

#include "cli/opened.h"

namespace mycojobs {

// Prints its log as it comes, says why it waits if it does, passes one Ctrl-C on as a wish to cancel and leaves at the
// second; outlives a store that goes away for a while. Then prints result and receipt, or with --json one document.
// Returns the job as it ended.
Result<Job> follow_to_the_end(const Invocation&, Opened&, const std::string& job_key, bool with_agent);

}  // namespace mycojobs
