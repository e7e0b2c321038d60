// Which build of a helper program runs. A program may hold libraries of the system that were linked from archives: it
// is cheaper to fork, and goes on running old code when the system's libraries are updated. So it says in a note of
// its ELF file what was installed when it was linked, and what is to run instead once that has changed:
//
//   note, owner "mycojobs", type 1, text in lines:
//   else NAME          the same program with the system's shared libraries, in the same folder
//   never REASON       the archives were not of the installed build even then
//   BUILD-ID PATH      of each library, in hex: as it was installed
//
// The note is written by cmake/linked_note.cmake at each build. A program without one has nothing linked in.
#pragma once

#include <string>
#include <vector>

namespace mycojobs {

struct Build {
  std::string program;             // what is to run
  bool linked = false;             // with libraries of the system in it, each the same build as the installed one
  std::string why_not;             // another one runs: which library has changed, or why none was the same
  std::vector<std::string> files;  // of the installed libraries that it was compared with
};

// Reads the program's note and the installed libraries, each time anew: some 50 us. What cannot be read counts as
// changed.
Build installed_build(const std::string& program);

// Of an ELF file, in hex; empty: it has none, or cannot be read.
std::string build_id(const std::string& path);

}  // namespace mycojobs
