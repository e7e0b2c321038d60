// Parses and writes JSON text. No function throws. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

// Parses JSON. Checks the limits on depth (64), size and number of values before parsing, because a short value needs
// many times its size in memory. Rejects duplicate keys. The error names line and column, or the limit.
Result<nlohmann::json> parse_json(std::string_view text, std::size_t max_bytes = 16U << 20,
                                  std::size_t max_values = SIZE_MAX);
// Returns the first integer of a JSON text that fits neither int64 nor uint64, or an empty text. parse_json() can only
// round such an integer to a double.
std::string_view find_integer_beyond_64_bits(std::string_view json_text);
// As parse_json(), except that such an integer is an error, which names its digits.
Result<nlohmann::json> parse_exact_json(std::string_view text, std::size_t max_bytes = 16U << 20,
                                        std::size_t max_values = SIZE_MAX);
// Returns whether parse_json() would accept the text, except that duplicate keys are not detected.
bool is_json(std::string_view text);
// Returns whether the brackets of a text nest deeper than `levels`.
bool nests_deeper_than(std::string_view text, std::size_t levels);
// Replaces bytes that are not UTF-8.
std::string dump_json(const nlohmann::json&, int indent = -1);
// Returns the text of a member, or an empty text if the object does not have the member or the member is not a text.
std::string text_field(const nlohmann::json& object, std::string_view name);

}  // namespace mycojobs
