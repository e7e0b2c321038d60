// Preloads the modules that the operator configured for a context, after the start of the interpreter. Includes
// pybind11, for the files of the interpreter only.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

// Adds before_hooks and after_hooks to job.py's globals, and stores the file names for loaded_modules().
Result<void> preload(const PythonSetup&, const pybind11::dict& globals);

}  // namespace mycojobs
