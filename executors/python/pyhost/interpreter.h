// Between interpreter.cpp (made once in the zygote) and run_job.cpp (a job). Includes pybind11: for the
// files of the interpreter only.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

void install_signals();  // as python3 has them: SIGINT, SIGPIPE, SIGXFSZ

// What job.py may call, as a dict of its globals: send, cancelled, kinds of frames. Lives in run_job.cpp.
pybind11::dict job_services();

// A namespace filled by one of our own files of Python.
void run_source(const char* source, const pybind11::dict& globals);

// preload.cpp: what the operator has set up, after the interpreter has started with it. Adds before_hooks and
// after_hooks to job.py's globals.
// And keeps the names for loaded_modules().
Result<void> preload(const PythonSetUp&, const pybind11::dict& globals);

}  // namespace mycojobs
