// [contexts.<id>.python]: the virtual environment and the modules of one context's Python.
#pragma once

#include "cli/config/config_file.h"

namespace mycojobs {

// From the file into the settings, and into what `config print` shows. Error invalid: "FILE:LINE:COLUMN: ...".
Result<void> set_context_python(const FileValues&, Config&);

}  // namespace mycojobs
