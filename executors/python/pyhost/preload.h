// What the operator has set up for the jobs of a context, after the interpreter has started with it. Includes pybind11:
// for the files of the interpreter only.
#pragma once

#include <pybind11/embed.h>

#include "executors/python/pyhost/pyhost.h"

namespace mycojobs {

// Adds before_hooks and after_hooks to job.py's globals, and keeps the names for loaded_modules().
Result<void> preload(const PythonSetUp&, const pybind11::dict& globals);

}  // namespace mycojobs
