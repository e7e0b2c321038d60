// The two lists of steps (init_steps.cpp, confine.cpp), by name as they appear in Outcome::setup and SetupError.
#pragma once

#include <span>

#include "sandbox/job.h"

namespace mycojobs::sandbox {

std::span<const Step> init_steps();     // before init forks the job
std::span<const Step> confine_steps();  // in the job's process, before the filter

// Soft and hard alike, or what the hard limit leaves. 0 or errno.
int limit_resource(int resource, std::uint64_t value);

}  // namespace mycojobs::sandbox
