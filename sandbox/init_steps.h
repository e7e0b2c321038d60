// The two lists of steps (init_steps.cpp, confine.cpp), by name as they appear in Outcome::setup and SetupError.
#pragma once

#include <span>

#include "sandbox/job.h"

namespace mycojobs::sandbox {

std::span<const Step> init_steps();     // of init: what needs rights
std::span<const Step> confine_steps();  // of init: gives them up
int load_first_filter(ChildRun&);       // of init, and of all below it; sends Confined. 0 or errno

// Soft and hard alike, or what the hard limit leaves. 0 or errno.
int limit_resource(int resource, std::uint64_t value);

}  // namespace mycojobs::sandbox
