// Functions of interpreter.cpp for the other files of the script host. Includes pybind11, so other components must not
// include this header.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

void install_signals();  // SIGINT, SIGPIPE, SIGXFSZ, as in python3

// Returns a dict with the functions and constants that job.py uses: send, cancelled, frame kinds. Defined in
// run_job.cpp.
pybind11::dict job_services();

}  // namespace mycojobs
