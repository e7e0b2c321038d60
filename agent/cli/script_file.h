// Scripts in files, and what is known of them before anything is stored.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cli/commands.h"

namespace mycojobs {

// "-": standard input. Errors: not_found, invalid (a folder), too_large, io.
Result<std::string> read_script(const std::string& file, std::size_t max_bytes);
// Whether it can be a job's script: text, and some. Error invalid: names the file, and the first byte that is no UTF-8.
Result<void> check_script(const std::string& file, std::string_view script);
// By the ending of its name: "python" of "build.py"; empty: it does not tell.
std::string script_type_of(const std::string& file);
// What the job's policy asks for, against the ceiling of its context. What is refused is what was asked for, whichever
// profile stands below: the executors are not asked for it here.
Result<void> check_ceiling(const Invocation&, const Job&);

}  // namespace mycojobs
