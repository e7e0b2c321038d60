// Runs the host's own Python files, which are embedded as strings. Includes pybind11, for the files of the interpreter
// only.
#pragma once

#include <pybind11/embed.h>

namespace mycojobs {

// Runs the source in the given namespace.
void run_source(const char* source, const pybind11::dict& globals);

}  // namespace mycojobs
