// One job with a script host: the request that goes down its channel, the answer that comes up. Every executor whose
// scripts run in a host of ours (python, later sal and osis) uses it as it is.
#pragma once

#include <memory>
#include <string_view>

#include "mycojobs/executor.h"

namespace mycojobs {

// profile: the name of the sandbox profile, for messages.
// Error invalid or too_large: names the field; the job can never run.
Result<std::unique_ptr<Conversation>> begin_script(const JobFacts&, std::string_view profile);

// The environment of a job: env_vars (the flow's and the job's, merged), over them MYCOJOBS_JOB_ID, _CALLER_ID,
// _CONTEXT_ID, _JOB_NAME, _ATTEMPT, _DELIVERIES, _EPOCH, _DEADLINE_UNIX_MS, _RUNNER_ID; under them HOME, LANG, LOGNAME,
// PATH and USER. Nothing of the agent's.
TextMap job_environment(const JobFacts&);

}  // namespace mycojobs
