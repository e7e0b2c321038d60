// Which runs may be in one process, if their policy says warm (docs/warm.md): those of one context, caller, script,
// script type, policy and environment, with the same values of secrets.
#pragma once

#include <string>

#include "mycojobs/executor.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

// Fills Warm::key and Warm::family of a run whose policy says warm. secret: random, of this agent alone: the launcher
// holds keys, and is not to learn from one what a secret's value is.
void give_warm_key(Warm&, const JobFacts&, const std::string& secret);

}  // namespace mycojobs
