// Selects which of two builds of a helper program is run. A program may contain system libraries that were linked from
// archives. Such a program is faster to fork, but does not receive updates of the system's libraries. A note of its ELF
// file therefore lists the libraries that were installed at link time, and the program to run after one of them has
// changed:
//
//   note, owner "mycojobs", type 1, text in lines:
//   else NAME          the same program with the system's shared libraries, in the same folder
//   never REASON       never run this program, because the archives already differed from the installed libraries at
//                      link time; only together with `else`
//   BUILD-ID PATH      for each library: its build id in hex, as it was installed
//
// cmake/linked_note.cmake writes the note at each build. A program without a note contains no system libraries.
#pragma once

#include <string>
#include <vector>

namespace mycojobs {

struct ProgramBuild {
  std::string program;                // program to run
  bool has_linked_libraries = false;  // contains system libraries, each of the same build as the installed library
  std::string reason;                 // reason why another program runs, for example a changed library; empty otherwise
  std::vector<std::string> compared_libraries;  // installed libraries that were compared
};

// Reads the program's note and the installed libraries in each call, which takes about 50 us. Unreadable files count as
// changed.
ProgramBuild select_program_build(const std::string& program);

// Returns the build id of an ELF file in hex, or an empty text if the file has no build id or cannot be read.
std::string read_build_id(const std::string& path);

}  // namespace mycojobs
