// How long a call that waits may take.
#pragma once

#include <cstdint>

#include "api/services.h"

namespace mycojobs::api {

Param wait_param();                                      // wait_ms
std::uint64_t end_of_wait(const Call&);                  // by boot_ms() of the server's clock
void add_wait_methods(Services&, std::vector<Method>&);  // jobs.wait, flows.wait

}  // namespace mycojobs::api
