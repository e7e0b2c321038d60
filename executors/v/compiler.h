// Finds the V compiler of this host, its version and the folder that its runs need, and parses its error messages.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "executors/script_answer.h"

namespace mycojobs {

struct Compiler {
  std::string path;      // absolute, with symbolic links resolved
  std::string folder;    // folder of the compiler and its library, to be granted to its runs; empty: below /usr
  std::string identity;  // changes if the file is replaced
};

// configured: the setting v.compiler; empty: the first of /usr/bin/v, /usr/local/bin/v, /opt/v/v. Only inspects the
// file. Errors: not_found, no compiler is configured or found; unsupported, jobs could not run it. Both messages name
// the remedy.
Result<Compiler> find_compiler(const std::string& configured);

// Runs the compiler and returns its version, for example "V 0.4.8 a1b2c3d". Error: unsupported.
Result<std::string> version_of(const Compiler&);

inline constexpr std::string_view kSourceFile = "main.v";  // file name of the script for the compiler

// Returns the file name that messages use for the script of a job: "greet.v".
std::string source_name(std::string_view job_name);

// The message is the first line like "main.v:3:5: error: text", otherwise the first line with "error:", otherwise the
// last line. The traceback is the whole text. Both use `name` for the script. The error forbids a retry, which would
// fail the same way.
ScriptError compile_error(std::string_view text, const std::string& name);

}  // namespace mycojobs
