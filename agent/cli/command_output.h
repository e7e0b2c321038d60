// Output that many commands share: JSON for --json, and the same data as text for users. For colours, exit codes and
// the terminal see cli/terminal.h.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/invocation.h"
#include "cli/terminal.h"

namespace mycojobs {

// Prints an indented document. Returns EXIT_SUCCESS, so that a command can end with this call.
int print_json(const nlohmann::json& document);
// Prints the value on one line. Returns EXIT_SUCCESS.
int print_json_line(const nlohmann::json& value);
// Prints `object` on one line with --json, and otherwise `text` as a line. Returns EXIT_SUCCESS.
int print_answer(const Invocation&, const nlohmann::json& object, const std::string& text);

// complete: cells are never cut (print_table()). screen: long cells are cut at the width of the terminal
// (print_list()).
enum class TableFit { complete, screen };
// Prints `entries` as a document with --json, and otherwise the table. Returns EXIT_SUCCESS.
int print_listing(const Invocation&, const nlohmann::json& entries, const TableRows&,
                  TableFit fit = TableFit::complete);

// Output of every command that deletes a record. Returns EXIT_SUCCESS.
int print_deleted(const Invocation&, const std::string& key);

// Prints "warning: ..." on stderr.
void print_warning(const std::string& message);

// Prints the entries of a result on stderr, one line each. Long values are cut; --json prints them completely.
void print_result_messages(const std::map<std::string, std::string>& result);

// Prints the reason, the evidence and the next action of an explanation, indented below its headline. The texts may be
// untrusted.
void print_explanation(std::string_view reason, const std::vector<std::string>& evidence, std::string_view next_action);

// Returns "13:05:59.042" in the time zone of this host.
std::string time_of_day(std::uint64_t unix_ms);

}  // namespace mycojobs
