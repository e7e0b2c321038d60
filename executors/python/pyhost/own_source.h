// Our own files of Python, which are texts of the program. Includes pybind11: for the files of the interpreter only.
#pragma once

#include <pybind11/embed.h>

namespace mycojobs {

// A namespace filled by one of them.
void run_source(const char* source, const pybind11::dict& globals);

}  // namespace mycojobs
