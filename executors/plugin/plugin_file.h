// Whose file a plugin is. It is code that decides what runs in jobs, so nobody but the operator may have a hand in it.
#pragma once

#include <string>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs::plugin {

// Opens it for reading: a regular file that root or our user owns and nobody else may write, in such a folder. Where we
// are root it must be readable for others, because it is loaded as user 65534. Error: invalid, with the remedy;
// not_found; io.
Result<Fd> open_plugin_file(const std::string& path);

}  // namespace mycojobs::plugin
