// The methods jobs.wait and flows.wait, and the parameter wait_ms of these methods and job.run.
#pragma once

#include <cstdint>

#include "api/services.h"

namespace mycojobs::api {

std::uint64_t get_wait_deadline(const MethodCall&);      // deadline of the call, in the time of Clock::boot_ms()
void add_wait_methods(Services&, std::vector<Method>&);  // jobs.wait, flows.wait

}  // namespace mycojobs::api
