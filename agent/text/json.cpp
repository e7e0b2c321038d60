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
constexpr std::size_t kNowhere = std::string_view::npos;

std::string describe_position(std::string_view text, std::size_t offset) {
  const std::string_view preceding = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(preceding.begin(), preceding.end(), '\n') + 1;
  const std::size_t line_start = preceding.rfind('\n') == kNowhere ? 0 : preceding.rfind('\n') + 1;
  return "line " + std::to_string(line) + " column " + std::to_string(preceding.size() - line_start + 1);
}

// Returns the offset after the string that begins at `quote`.
std::size_t skip_string(std::string_view text, std::size_t quote) {
  std::size_t i = quote + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

// Returns the offset at which brackets nest deeper than `max` levels, or kNowhere.
std::size_t find_too_deep(std::string_view text, std::size_t max) {
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
  return kNowhere;
}

// Returns an upper bound of the number of values: each value is at the beginning of the text, or follows a bracket or
// comma.
std::size_t most_values(std::string_view text) {
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
    if (next != kNowhere && text[next] == ':' && --n == 0) return start;
  }
  return text.size();
}

// Counts keys and remembers the first duplicate key within one object. Duplicates need a separate pass: with a
// callback, the library's parser searches the members of the parent at the end of each object, which takes hours for a
// hostile text.
class DuplicateKeys final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::size_t first() const { return first_; }  // 0: no duplicate

  bool start_object(std::size_t) override {
    open_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    ++count_;
    if (!open_.back().insert(name).second) first_ = count_;
    return first_ == 0;
  }
  bool end_object() override {
    open_.pop_back();
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
  std::vector<std::set<std::string>> open_;
  std::size_t count_ = 0, first_ = 0;
};

// Removes the text that the parser has read from its message, because that text may be long: "... syntax error while
// parsing value - invalid literal; last read: '...'".
std::string extract_reason(std::string_view message) {
  if (const auto read = message.find("; last read"); read != kNowhere) {
    const auto expected = message.rfind("; expected ");
    const std::string tail(expected != kNowhere && expected > read ? message.substr(expected) : "");
    message = message.substr(0, read);
    const auto dash = message.find(" - ");
    return std::string(dash == kNowhere ? message : message.substr(dash + 3)) + tail;
  }
  const auto dash = message.find(" - ");
  return std::string(dash == kNowhere ? std::string_view("cannot be read") : message.substr(dash + 3));
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, std::size_t max_bytes, std::size_t max_values) {
  if (text.size() > max_bytes) {
    return fail(Code::too_large, "JSON of " + std::to_string(text.size()) + " bytes is over the limit of " +
                                     std::to_string(max_bytes) + " bytes");
  }
  const bool has_allowed_count = max_values == SIZE_MAX || most_values(text) <= max_values;
  try {
    nlohmann::json parsed;
    if (has_allowed_count && read_json_text(text, kMaxDepth, parsed)) return parsed;
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "JSON needs more memory than there is");
  }
  // The fast reader rejected the text. The code below finds the reason, or parses input that only the library supports.
  if (const std::size_t deep = find_too_deep(text, kMaxDepth); deep != kNowhere) {
    return fail(Code::invalid,
                "JSON nests deeper than " + std::to_string(kMaxDepth) + " levels at " + describe_position(text, deep));
  }
  if (!has_allowed_count) {
    return fail(Code::too_large, "JSON has more than the " + std::to_string(max_values) + " values that are allowed");
  }
  if (text.empty()) return fail(Code::invalid, "not JSON at line 1 column 1: it is empty");
  try {
    auto parsed = nlohmann::json::parse(text);
    DuplicateKeys keys;
    (void)nlohmann::json::sax_parse(text, &keys);  // returns false for a duplicate key
    if (keys.first() != 0) {
      return fail(Code::invalid, "JSON has the same key twice in one object at " +
                                     describe_position(text, find_key(text, keys.first())));
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
bool fits(std::string_view digits) {
  Number number{};
  return std::from_chars(digits.data(), digits.data() + digits.size(), number).ec == std::errc();
}

}  // namespace

std::string_view integer_beyond_64_bits(std::string_view json_text) {
  constexpr std::size_t kSafeDigits = 18;  // every integer of this many digits fits 64 bits
  for (std::size_t at = 0; at < json_text.size();) {
    if (json_text[at] == '"') {
      at = skip_string(json_text, at);
      continue;
    }
    const std::size_t end = std::min(json_text.find_first_not_of("0123456789+-.eE", at), json_text.size());
    const std::string_view number = json_text.substr(at, end - at);
    const bool is_integer = number.find_first_of(".eE") == kNowhere;
    if (number.size() > kSafeDigits && is_integer && !fits<std::int64_t>(number) && !fits<std::uint64_t>(number)) {
      return number;
    }
    at = std::max(end, at + 1);
  }
  return {};
}

Result<nlohmann::json> parse_exact_json(std::string_view text, std::size_t max_bytes, std::size_t max_values) {
  MJ_TRY(parsed, parse_json(text, max_bytes, max_values));
  const std::string_view digits = integer_beyond_64_bits(text);
  if (!digits.empty()) {
    return fail(Code::invalid, "the integer " + excerpt(digits) + " does not fit 64 bits: quote it as text");
  }
  return std::move(parsed);
}

bool nests_deeper_than(std::string_view text, std::size_t levels) { return find_too_deep(text, levels) != kNowhere; }

bool is_json(std::string_view text) {
  return !nests_deeper_than(text, kMaxDepth) && nlohmann::json::accept(text.begin(), text.end());
}

std::string dump_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace mycojobs
