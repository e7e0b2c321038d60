#include "text/json_reader.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

class JsonReader {
 public:
  JsonReader(std::string_view text, std::size_t max_depth)
      : position_(text.data()), end_(position_ + text.size()), remaining_levels_(max_depth) {}

  bool read_document(json& out) {
    skip_blanks();
    if (!read_value(out)) return false;
    skip_blanks();
    return position_ == end_;
  }

 private:
  void skip_blanks() {
    while (position_ != end_ && (*position_ == ' ' || *position_ == '\n' || *position_ == '\r' || *position_ == '\t'))
      ++position_;
  }
  bool skip(char c) {
    if (position_ == end_ || *position_ != c) return false;
    ++position_;
    return true;
  }
  bool skip(std::string_view literal) {
    if (!std::string_view(position_, static_cast<std::size_t>(end_ - position_)).starts_with(literal)) return false;
    position_ += literal.size();
    return true;
  }
  bool is_digit() const { return position_ != end_ && *position_ >= '0' && *position_ <= '9'; }
  bool skip_digits() {
    const char* const start = position_;
    while (is_digit()) ++position_;
    return position_ != start;
  }

  bool read_value(json& out) {
    if (position_ == end_) return false;
    switch (*position_) {
      case '{':
        return read_object(out);
      case '[':
        return read_array(out);
      case '"':
        out = json::value_t::string;
        return read_string(out.get_ref<std::string&>());
      case 't':
        out = true;
        return skip("true");
      case 'f':
        out = false;
        return skip("false");
      case 'n':
        out = nullptr;
        return skip("null");
      default:
        return read_number(out);
    }
  }

  // Rejects duplicate keys.
  bool read_object(json& out) {
    out = json::value_t::object;
    auto& members = out.get_ref<json::object_t&>();
    return read_delimited_list('}', [&] {
      std::string key;
      if (!read_string(key)) return false;
      skip_blanks();
      if (!skip(':')) return false;
      skip_blanks();
      const auto [member, is_new] = members.try_emplace(std::move(key));
      return is_new && read_value(member->second);
    });
  }

  bool read_array(json& out) {
    out = json::value_t::array;
    auto& items = out.get_ref<json::array_t&>();
    return read_delimited_list(']', [&] { return read_value(items.emplace_back()); });
  }

  // Reads items that are separated by commas, up to and including the closing bracket. REQUIRES: the current character
  // is the opening bracket.
  template <class ReadItem>
  bool read_delimited_list(char closing, ReadItem read_item) {
    if (remaining_levels_-- == 0) return false;
    ++position_;
    skip_blanks();
    bool has_next = !skip(closing);
    while (has_next) {
      if (!read_item()) return false;
      skip_blanks();
      has_next = skip(',');
      skip_blanks();
      if (!has_next && !skip(closing)) return false;
    }
    ++remaining_levels_;
    return true;
  }

  // REQUIRES: the whole text is UTF-8, which read_json_text() has checked.
  bool read_string(std::string& out) {
    if (!skip('"')) return false;
    for (;;) {
      const char* const start = position_;
      while (position_ != end_ && static_cast<unsigned char>(*position_) >= ' ' && *position_ != '"' &&
             *position_ != '\\')
        ++position_;
      out.append(start, position_);
      if (skip('"')) return true;
      if (!skip('\\') || position_ == end_ || !read_escape(*position_++, out)) return false;
    }
  }

  bool read_escape(char c, std::string& out) {
    // Pairs of an escape letter and its meaning.
    static constexpr std::string_view kLetters = "\"\"\\\\//b\bf\fn\nr\rt\t";
    if (c == 'u') return read_unicode_escape(out);
    for (std::size_t i = 0; i < kLetters.size(); i += 2) {
      if (kLetters[i] != c) continue;
      out += kLetters[i + 1];
      return true;
    }
    return false;
  }

  bool read_four_hex_digits(unsigned& out) {
    if (end_ - position_ < 4) return false;
    const auto [end, error] = std::from_chars(position_, position_ + 4, out, 16);
    position_ += 4;
    return error == std::errc() && end == position_;
  }

  // Reads the hex digits after "\u", joins a surrogate pair, and appends the code point as UTF-8. Rejects lone
  // surrogates.
  bool read_unicode_escape(std::string& out) {
    unsigned code = 0, low = 0;
    if (!read_four_hex_digits(code) || (code >= 0xDC00 && code <= 0xDFFF)) return false;
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (!skip("\\u") || !read_four_hex_digits(low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    const auto continuation_byte = [&](unsigned shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      (out += static_cast<char>(0xC0 | (code >> 6))) += continuation_byte(0);
    } else if (code < 0x10000) {
      ((out += static_cast<char>(0xE0 | (code >> 12))) += continuation_byte(6)) += continuation_byte(0);
    } else {
      (((out += static_cast<char>(0xF0 | (code >> 18))) += continuation_byte(12)) += continuation_byte(6)) +=
          continuation_byte(0);
    }
    return true;
  }

  template <class Number>
  bool convert_number(const char* start, json& out) {
    Number number{};
    const auto [end, error] = std::from_chars(start, position_, number);
    out = number;
    return error == std::errc() && end == position_;
  }

  // Rejects numbers outside of the range of their type: int64 for negative integers, uint64 for other integers, else
  // double.
  bool read_number(json& out) {
    const char* const start = position_;
    const bool is_negative = skip('-');
    if (!skip('0') && !skip_digits()) return false;
    bool is_integer = true;
    if (skip('.')) {
      is_integer = false;
      if (!skip_digits()) return false;
    }
    if (skip('e') || skip('E')) {
      is_integer = false;
      if (!skip('+')) skip('-');
      if (!skip_digits()) return false;
    }
    if (!is_integer) return convert_number<double>(start, out);
    return is_negative ? convert_number<std::int64_t>(start, out) : convert_number<std::uint64_t>(start, out);
  }

  const char* position_;
  const char* const end_;
  std::size_t remaining_levels_;  // number of levels that may still be opened
};

}  // namespace

bool read_json_text(std::string_view text, std::size_t max_depth, nlohmann::json& out) {
  return is_utf8(text) && JsonReader(text, max_depth).read_document(out);
}

}  // namespace mycojobs
