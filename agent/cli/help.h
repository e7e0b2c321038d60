// What --help shows, and what is said of a command or flag that is not there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace mycojobs {

// The group of commands in which `mycojobs --help` shows a noun ("job"); empty: it is in none.
std::string_view command_group(std::string_view noun);

// Wraps the help of this command and of all below it to so many columns; its commands in groups.
void shape_help(CLI::App& root, std::size_t columns);

// What is wrong with the words up to the first that should be a command and is none ("rum"), with what may have been
// meant; empty: nothing is.
std::string unknown_command(int argc, const char* const* argv);
// The same of flags ("--tpye") that this command does not take.
std::string unknown_flag(const CLI::App& command, std::string_view name, int argc, const char* const* argv);

}  // namespace mycojobs
