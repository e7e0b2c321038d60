// Lock files of environments: a line "name==version --hash=sha256:<64 hex>" for each package, sorted by name, or a
// comment if no package is needed. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "executors/executor_settings.h"

namespace mycojobs {

// Checks a lock file, which pip has computed from data of the index. Errors: invalid (not a lock file), denied (the
// settings do not allow a package, or a hash; the message names both and the remedy). context: for messages.
Result<void> check_lock_file(const std::string& lock, const PackageSettings&, Id context);

std::size_t count_locked_packages(const std::string& lock);

}  // namespace mycojobs
