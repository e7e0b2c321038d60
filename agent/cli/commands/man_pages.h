// Sources of the man pages for scdoc(1), generated from the same tables of commands and settings as --help.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::array<std::string_view, 4> kManPages = {"mycojobs.1", "mycojobs-agent.8",
                                                              "mycojobs-coordinator.8", "mycojobs.toml.5"};
// Returns the source of a page, or an empty text if there is no such page.
std::string make_man_page(std::string_view name);

}  // namespace mycojobs
