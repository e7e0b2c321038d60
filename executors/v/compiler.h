// The V compiler of this host: where it is, who it is, and what of the host its runs have to see.
#pragma once

#include <string>

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

}  // namespace mycojobs
