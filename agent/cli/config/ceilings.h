// The ceilings of the configuration: what stands in the file over what is built in.
#pragma once

#include "cli/config/config_file.h"

namespace mycojobs {

// Fills settings.ceilings and appends a value for each field of [ceiling], and for those that a context names itself.
// The options must be set before. Error invalid: "FILE:LINE:COLUMN: ceiling.memory: ...".
Result<void> set_ceilings(const FileValues&, Config&);

}  // namespace mycojobs
