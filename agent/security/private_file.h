// Files with secrets of the operator, which no other user may read.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/result.h"

namespace mycojobs {

// Returns why a regular file is refused, with the remedy: it must be owned by root or by the user of this process, and
// give no permissions to group and others. Returns an empty text if it is accepted.
std::string find_private_file_problem(const struct stat&);

// Reads a file of at most 16 KiB that find_private_file_problem() accepts. Links are not followed. A managed credential
// (base/service_manager.h) can be a link and be readable for its owner and group. Errors: not_found,
// io, invalid (not a regular file, or refused). The message begins with the path and never has content of the file.
Result<std::string> read_private_file(const std::string& path);

}  // namespace mycojobs
