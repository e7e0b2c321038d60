#include "cli/command_output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "text/json.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {

int print_json(const nlohmann::json& document) {
  print(dump_json(document, 2) + "\n");
  return EXIT_SUCCESS;
}

int print_json_line(const nlohmann::json& value) {
  print(dump_json(value) + "\n");
  return EXIT_SUCCESS;
}

int print_answer(const Invocation& call, const nlohmann::json& object, const std::string& text) {
  if (call.json) return print_json_line(object);
  print(text + "\n");
  return EXIT_SUCCESS;
}

int print_listing(const Invocation& call, const nlohmann::json& entries, const TableRows& rows, TableFit fit) {
  if (call.json) return print_json(entries);
  fit == TableFit::screen ? print_list(rows) : print_table(rows);
  return EXIT_SUCCESS;
}

int print_deleted(const Invocation& call, const std::string& key) {
  return print_answer(call, {{"key", key}, {"deleted", true}}, key + " is deleted");
}

void print_warning(const std::string& message) { print_message(paint(OutputStyle::warn, "warning: ", true) + message); }

void print_result_messages(const std::map<std::string, std::string>& result) {
  constexpr std::size_t kMaxValueBytes = 1000;
  for (const auto& [key, value] : result) {
    const std::string note =
        value.size() > kMaxValueBytes ? fmt::format("... ({} bytes; --json has all)", value.size()) : "";
    print_message(paint(OutputStyle::strong, to_printable_line(key), true) + " = " +
                  to_printable(whole_characters(value, kMaxValueBytes)) + note);
  }
}

void print_explanation(std::string_view reason, const std::vector<std::string>& evidence,
                       std::string_view next_action) {
  print(fmt::format("  {}   {}\n", paint(OutputStyle::strong, "reason"), to_printable_line(reason)));
  for (const std::string& line : evidence)
    print(fmt::format("  {} {}\n", paint(OutputStyle::faint, "evidence"), to_printable_line(line)));
  print(fmt::format("  {}     {}\n", paint(OutputStyle::strong, "next"), to_printable_line(next_action)));
}

std::string time_of_day(std::uint64_t unix_ms) {
  return fmt::format("{:%H:%M:%S}.{:03}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)), unix_ms % 1000);
}

}  // namespace mycojobs
