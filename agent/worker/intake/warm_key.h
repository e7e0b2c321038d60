// Keys of warm processes (docs/warm.md). Two runs can share a process if context, caller, script, script type, policy,
// environment and the values of their secrets are equal.
#pragma once

#include <string>

#include "executors/executor.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

// Sets WarmReuse::key and WarmReuse::family of a run with a policy that allows warm processes. secret: random bytes of
// this agent, so that the launcher, which stores the keys, cannot test guesses of a secret's value.
void assign_warm_key(WarmReuse&, const JobFacts&, const std::string& secret);

}  // namespace mycojobs
