// [executors.<name>]: script types from configuration alone.
#pragma once

#include "cli/config/config_file.h"

namespace mycojobs {

// From the file into the settings, and into what `config print` shows. Error invalid: "FILE:LINE:COLUMN: ...".
Result<void> set_executors(const FileValues&, Config&);

}  // namespace mycojobs
