// Between interpreter.cpp (made once in the zygote) and run_job.cpp (a job). Includes pybind11: for the
// files of the interpreter only.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

void install_signals();  // as python3 has them: SIGINT, SIGPIPE, SIGXFSZ

// What job.py may call, as a dict of its globals: send, cancelled, kinds of frames. Lives in run_job.cpp.
pybind11::dict job_services();

}  // namespace mycojobs
