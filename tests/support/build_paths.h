/// Absolute paths of the source tree and of the built programs, for tests. A single generated source file holds the
/// paths, so that a compiler cache can serve all other objects of the tests in another clone. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace mj::test {

/// Returns the folder of the sources, without a trailing slash.
std::string source_folder();
/// Returns the path of a file or folder of the sources, such as "docs/flows.md".
std::string source_path(std::string_view relative);
/// Returns the folder of the built programs, without a trailing slash.
std::string programs_folder();
/// Returns the path of a built program, such as "mycojobs-launcher".
std::string program_path(std::string_view name);

}  // namespace mj::test
