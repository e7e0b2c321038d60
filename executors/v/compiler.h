// Finds the V compiler of this host, its version and the folder that its runs need, and parses its error messages.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "executors/script_answer.h"

namespace mycojobs {

struct VCompiler {
  std::string path;      // absolute, with symbolic links resolved
  std::string folder;    // folder of the compiler and its library, to be granted to its runs; empty if it is below /usr
  std::string identity;  // changes if the file is replaced
};

// Returns the compiler at the path of the setting v.compiler. If the setting is empty, returns the first of /usr/bin/v,
// /usr/local/bin/v and /opt/v/v that exists. Does not run the compiler. Errors: not_found if there is no compiler;
// unsupported if jobs could not run the compiler. Both messages name the remedy.
Result<VCompiler> find_compiler(const std::string& setting);

// Runs the compiler and returns its version, for example "V 0.4.8 a1b2c3d". Error: unsupported.
Result<std::string> query_version(const VCompiler&);

inline constexpr std::string_view kSourceFile = "main.v";  // file name of the script for the compiler

// Returns the file name that messages use for the script of a job: "greet.v".
std::string get_source_name(std::string_view job_name);

// Converts the output of the compiler. The message is the first line like "main.v:3:5: error: text", otherwise the
// first line with "error:", otherwise the last line. The traceback is the whole text. Both use `name` for the script.
// The error forbids a retry, which would fail in the same way.
ScriptError parse_compile_error(std::string_view text, const std::string& name);

}  // namespace mycojobs
