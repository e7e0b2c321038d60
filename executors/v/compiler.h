// The V compiler of this host: where it is, which version it is, what its runs have to see of the host, and what its
// errors say about a script.
#pragma once

#include <string>
#include <string_view>

#include "executors/answer.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct Compiler {
  std::string path;      // without links
  std::string folder;    // to be granted to its runs: its own, with its library; empty: it lies in /usr
  std::string identity;  // differs once the file is another one
};

// configured: the setting v.compiler; empty: the first of /usr/bin/v, /usr/local/bin/v, /opt/v/v. Cheap: looks at the
// file. Error not_found: there is none, and none was named; unsupported: a job could not run it. Both name the remedy.
Result<Compiler> find_compiler(const std::string& configured);

// "V 0.4.8 a1b2c3d", as it says itself. Runs it. Error unsupported.
Result<std::string> version_of(const Compiler&);

inline constexpr std::string_view kSourceFile = "main.v";  // what the compiler knows the script as

// "greet.v": what messages call the script of a job with this name.
std::string source_name(std::string_view job_name);

// The first "main.v:3:5: error: text" is the message; else the first line with "error:" in it; else the last one.
// The traceback is the whole text. In both the script goes by `name`. Never asks for another attempt: the compiler
// would say the same.
ScriptError compile_error(std::string_view text, const std::string& name);

}  // namespace mycojobs
