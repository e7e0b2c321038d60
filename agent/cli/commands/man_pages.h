// Sources of the man pages for scdoc(1), generated from the same tables of commands and settings as --help.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace mycojobs {

// Names of the man pages. The suffix is the section of the manual: mycojobs.1 is the page mycojobs(1).
inline constexpr std::array<std::string_view, 4> kManPages = {"mycojobs.1", "mycojobs-agent.8",
                                                              "mycojobs-coordinator.8", "mycojobs.toml.5"};
// Returns the source of a page of kManPages, or an empty text for another name.
std::string make_man_page(std::string_view name);

}  // namespace mycojobs
