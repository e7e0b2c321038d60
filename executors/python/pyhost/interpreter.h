// The interpreter of a zygote (interpreter.cpp) as the other files of the script host see it. Includes pybind11: for
// them only.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

void install_signals();  // as python3 has them: SIGINT, SIGPIPE, SIGXFSZ

// What job.py may call, as a dict of its globals: send, cancelled, kinds of frames. Lives in run_job.cpp.
pybind11::dict job_services();

}  // namespace mycojobs
