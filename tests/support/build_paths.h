#pragma once

#include <string>
#include <string_view>

namespace mj::test {

/// Absolute paths of the tree that a test program was built from and of the programs that were built. A single
/// generated source file holds the paths, so that a compiler cache serves every other object of the tests in another
/// clone.

/// Returns the folder of the sources, without a trailing slash.
std::string source_folder();
/// Returns the path of a file or folder of the sources, such as "docs/flows.md".
std::string source_path(std::string_view relative);
/// Returns the folder of the built programs, without a trailing slash.
std::string programs_folder();
/// Returns the path of a built program, such as "mycojobs-launcher".
std::string program_path(std::string_view name);

}  // namespace mj::test
