// Only this file handles the exceptions of nlohmann::json.
#include "text/json.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "text/json_reader.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kNotFound = std::string_view::npos;

std::string describe_position(std::string_view text, std::size_t offset) {
  const std::string_view preceding = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(preceding.begin(), preceding.end(), '\n') + 1;
  const std::size_t line_start = preceding.rfind('\n') == kNotFound ? 0 : preceding.rfind('\n') + 1;
  return "line " + std::to_string(line) + " column " + std::to_string(preceding.size() - line_start + 1);
}

// Returns the offset after the string that begins at `quote`.
std::size_t skip_string(std::string_view text, std::size_t quote) {
  std::size_t i = quote + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

// Returns the offset at which brackets nest deeper than `max` levels, or kNotFound.
std::size_t find_excessive_nesting(std::string_view text, std::size_t max) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = skip_string(text, i);
      continue;
    }
    if ((text[i] == '[' || text[i] == '{') && ++depth > max) return i;
    if ((text[i] == ']' || text[i] == '}') && depth > 0) --depth;
    ++i;
  }
  return kNotFound;
}

// Returns an upper bound of the number of values: each value is at the beginning of the text, or follows a bracket or
// comma.
std::size_t estimate_max_values(std::string_view text) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = skip_string(text, i);
      continue;
    }
    if (text[i] == '[' || text[i] == '{' || text[i] == ',') ++count;
    ++i;
  }
  return count;
}

// Returns the offset of the n-th key (from 1) of a valid JSON text. A key is a string that a colon follows.
std::size_t find_key(std::string_view text, std::size_t n) {
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '"') {
      ++i;
      continue;
    }
    const std::size_t start = i;
    i = skip_string(text, i);
    const std::size_t next = text.find_first_not_of(" \t\r\n", i);
    if (next != kNotFound && text[next] == ':' && --n == 0) return start;
  }
  return text.size();
}

// Counts keys and remembers the first duplicate key within one object. Duplicates need a separate pass: with a
// callback, the library's parser searches the members of the parent at the end of each object, which takes hours for a
// hostile text.
class DuplicateKeys final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // Returns the number of the key, from 1, or 0 if there is no duplicate.
  std::size_t first_duplicate() const { return first_duplicate_; }

  bool start_object(std::size_t) override {
    open_objects_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    ++key_count_;
    if (!open_objects_.back().insert(name).second) first_duplicate_ = key_count_;
    return first_duplicate_ == 0;
  }
  bool end_object() override {
    open_objects_.pop_back();
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> open_objects_;
  std::size_t key_count_ = 0, first_duplicate_ = 0;
};

// Removes the text that the parser has read from its message, because that text may be long: "... syntax error while
// parsing value - invalid literal; last read: '...'".
std::string extract_reason(std::string_view message) {
  if (const auto read_text_start = message.find("; last read"); read_text_start != kNotFound) {
    const auto expected_start = message.rfind("; expected ");
    const std::string tail(
        expected_start != kNotFound && expected_start > read_text_start ? message.substr(expected_start) : "");
    message = message.substr(0, read_text_start);
    const auto dash = message.find(" - ");
    return std::string(dash == kNotFound ? message : message.substr(dash + 3)) + tail;
  }
  const auto dash = message.find(" - ");
  return std::string(dash == kNotFound ? std::string_view("cannot be read") : message.substr(dash + 3));
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, std::size_t max_bytes, std::size_t max_values) {
  if (text.size() > max_bytes) {
    return fail(Code::too_large, "JSON of " + std::to_string(text.size()) + " bytes is over the limit of " +
                                     std::to_string(max_bytes) + " bytes");
  }
  const bool has_allowed_value_count = max_values == SIZE_MAX || estimate_max_values(text) <= max_values;
  try {
    nlohmann::json parsed;
    if (has_allowed_value_count && read_json_text(text, kMaxDepth, parsed)) return parsed;
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "JSON needs more memory than there is");
  }
  // The fast reader rejected the text. The code below finds the reason, or parses input that only the library supports.
  if (const std::size_t offset = find_excessive_nesting(text, kMaxDepth); offset != kNotFound) {
    return fail(Code::invalid, "JSON nests deeper than " + std::to_string(kMaxDepth) + " levels at " +
                                   describe_position(text, offset));
  }
  if (!has_allowed_value_count) {
    return fail(Code::too_large, "JSON has more than the " + std::to_string(max_values) + " values that are allowed");
  }
  if (text.empty()) return fail(Code::invalid, "not JSON at line 1 column 1: it is empty");
  try {
    auto parsed = nlohmann::json::parse(text);
    DuplicateKeys keys;
    (void)nlohmann::json::sax_parse(text, &keys);  // returns false for a duplicate key
    if (keys.first_duplicate() != 0) {
      return fail(Code::invalid, "JSON has the same key twice in one object at " +
                                     describe_position(text, find_key(text, keys.first_duplicate())));
    }
    return parsed;
  } catch (const nlohmann::json::parse_error& error) {
    return fail(Code::invalid, "not JSON at " + describe_position(text, error.byte == 0 ? 0 : error.byte - 1) + ": " +
                                   extract_reason(error.what()));
  } catch (const nlohmann::json::exception&) {
    return fail(Code::invalid, "JSON has a number out of range");
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "JSON needs more memory than there is");
  }
}

namespace {

template <class Number>
bool fits_number(std::string_view digits) {
  Number number{};
  return std::from_chars(digits.data(), digits.data() + digits.size(), number).ec == std::errc();
}

}  // namespace

std::string_view find_integer_beyond_64_bits(std::string_view json_text) {
  constexpr std::size_t kSafeDigits = 18;  // every integer of this many digits fits 64 bits
  for (std::size_t begin = 0; begin < json_text.size();) {
    if (json_text[begin] == '"') {
      begin = skip_string(json_text, begin);
      continue;
    }
    const std::size_t end = std::min(json_text.find_first_not_of("0123456789+-.eE", begin), json_text.size());
    const std::string_view number = json_text.substr(begin, end - begin);
    const bool is_integer = number.find_first_of(".eE") == kNotFound;
    if (number.size() > kSafeDigits && is_integer && !fits_number<std::int64_t>(number) &&
        !fits_number<std::uint64_t>(number)) {
      return number;
    }
    begin = std::max(end, begin + 1);
  }
  return {};
}

Result<nlohmann::json> parse_exact_json(std::string_view text, std::size_t max_bytes, std::size_t max_values) {
  MJ_TRY(parsed, parse_json(text, max_bytes, max_values));
  const std::string_view digits = find_integer_beyond_64_bits(text);
  if (!digits.empty()) {
    return fail(Code::invalid, "the integer " + excerpt(digits) + " does not fit 64 bits: quote it as text");
  }
  return std::move(parsed);
}

bool nests_deeper_than(std::string_view text, std::size_t levels) {
  return find_excessive_nesting(text, levels) != kNotFound;
}

bool is_json(std::string_view text) {
  return !nests_deeper_than(text, kMaxDepth) && nlohmann::json::accept(text.begin(), text.end());
}

std::string dump_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string text_field(const nlohmann::json& object, std::string_view name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

}  // namespace mycojobs
