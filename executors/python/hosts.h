// What an operator gives the Python of a context ([contexts.N.python]), and the script hosts that come of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "executors/settings.h"
#include "mycojobs/sandbox.h"

namespace mycojobs {

inline constexpr const char* kVenvPlace = "/venv";  // where jobs see their virtual environment
inline constexpr const char* kVenvPython = "/venv/bin/python3";

// One for each context that has something of its own; the others have the general one.
std::vector<ScriptHost> python_hosts(const std::string& libexec_dir, const std::map<Id, PythonSettings>&);

}  // namespace mycojobs
