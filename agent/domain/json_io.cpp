// The one file that parses and prints JSON, and so the one that meets nlohmann's exceptions.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "domain/codec.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kNowhere = std::string_view::npos;

std::string place(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t line_start = before.rfind('\n') == kNowhere ? 0 : before.rfind('\n') + 1;
  return "line " + std::to_string(line) + " column " + std::to_string(before.size() - line_start + 1);
}

// Offset behind the string that begins at `quote`.
std::size_t skip_string(std::string_view text, std::size_t quote) {
  std::size_t i = quote + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return std::min(i + 1, text.size());
}

// Where brackets nest deeper than the parser's stack may go.
std::size_t too_deep_at(std::string_view text) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = skip_string(text, i);
      continue;
    }
    if ((text[i] == '[' || text[i] == '{') && ++depth > kMaxDepth) return i;
    if ((text[i] == ']' || text[i] == '}') && depth > 0) --depth;
    ++i;
  }
  return kNowhere;
}

// At least as many as there are values: each begins the text, or stands behind a bracket or a comma.
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

// Where the n-th key (from 1) of a text that parses stands: a string with a colon behind it.
std::size_t key_at(std::string_view text, std::size_t n) {
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

// Counts keys and remembers the first one that its object had already. A pass of its own: the library's parser, given a
// callback, looks through the parent's members at the end of each object, which takes hours for a hostile text.
class DuplicateKeys final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::size_t first() const { return first_; }  // 0: none

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

// "... syntax error while parsing value - invalid literal; last read: '...'" without what it read: that may be long.
std::string reason_of(std::string_view what) {
  if (const auto read = what.find("; last read"); read != kNowhere) {
    const auto expected = what.rfind("; expected ");
    const std::string tail(expected != kNowhere && expected > read ? what.substr(expected) : "");
    what = what.substr(0, read);
    const auto dash = what.find(" - ");
    return std::string(dash == kNowhere ? what : what.substr(dash + 3)) + tail;
  }
  const auto dash = what.find(" - ");
  return std::string(dash == kNowhere ? std::string_view("cannot be read") : what.substr(dash + 3));
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, std::size_t max_bytes, std::size_t max_values) {
  if (text.size() > max_bytes) {
    return fail(Code::too_large, "JSON of " + std::to_string(text.size()) + " bytes is over the limit of " +
                                     std::to_string(max_bytes) + " bytes");
  }
  if (const std::size_t deep = too_deep_at(text); deep != kNowhere) {
    return fail(Code::invalid,
                "JSON nests deeper than " + std::to_string(kMaxDepth) + " levels at " + place(text, deep));
  }
  if (max_values != SIZE_MAX && most_values(text) > max_values) {
    return fail(Code::too_large, "JSON has more than the " + std::to_string(max_values) + " values that are allowed");
  }
  try {
    auto parsed = nlohmann::json::parse(text);
    DuplicateKeys keys;
    (void)nlohmann::json::sax_parse(text, &keys);  // false: a key came twice
    if (keys.first() != 0) {
      return fail(Code::invalid,
                  "JSON has the same key twice in one object at " + place(text, key_at(text, keys.first())));
    }
    return parsed;
  } catch (const nlohmann::json::parse_error& error) {
    return fail(Code::invalid,
                "not JSON at " + place(text, error.byte == 0 ? 0 : error.byte - 1) + ": " + reason_of(error.what()));
  } catch (const nlohmann::json::exception&) {
    return fail(Code::invalid, "JSON has a number that is out of range");
  } catch (const std::bad_alloc&) {
    return fail(Code::too_large, "JSON needs more memory than there is");
  }
}

bool is_json(std::string_view text) {
  return too_deep_at(text) == kNowhere && nlohmann::json::accept(text.begin(), text.end());
}

std::string dump_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace mycojobs
