// What the compiler wrote, as an error of the script. Pure.
#pragma once

#include <string>
#include <string_view>

#include "executors/answer.h"

namespace mycojobs {

inline constexpr std::string_view kSourceFile = "main.v";  // what the compiler knows the script as

// "greet.v": what messages call the script of a job with this name.
std::string source_name(std::string_view job_name);

// The first "main.v:3:5: error: text" is the message; else the first line with "error:" in it; else the last one.
// The traceback is the whole text. In both the script goes by `name`. Never asks for another attempt: the compiler
// would say the same.
ScriptError compile_error(std::string_view text, const std::string& name);

}  // namespace mycojobs
