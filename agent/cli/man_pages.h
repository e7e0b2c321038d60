// The man pages, as sources for scdoc(1): made of the tables of commands and settings that --help is made of.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace mycojobs {

inline constexpr std::array<std::string_view, 4> kManPages = {"mycojobs.1", "mycojobs-agent.8",
                                                              "mycojobs-coordinator.8", "mycojobs.toml.5"};
// Empty: there is no such page.
std::string man_page(std::string_view name);

}  // namespace mycojobs
