// Checks lock files of Python environments. A lock file has a line "name==version --hash=sha256:<64 hex>" for each
// package, sorted by name. If no package is needed, the file has only the comment of EMPTY_LOCK_FILE in install.py.
// The functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "executors/executor_settings.h"

namespace mycojobs {

// Checks the syntax of a lock file, and whether the settings allow its packages and hashes. Lock files are untrusted:
// pip computes them from data of the index, and other clients can write to the store. context: number of the context in
// messages. Errors: invalid (a line has another syntax, or the file is too long), denied (a package or hash is not
// allowed; the message names it and the setting to change).
Result<void> check_lock_file(const std::string& lock_file, const PackageSettings&, Id context);

// Returns the number of packages in a valid lock file.
std::size_t count_locked_packages(const std::string& lock_file);

}  // namespace mycojobs
