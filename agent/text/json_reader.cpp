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
      : at_(text.data()), end_(at_ + text.size()), remaining_levels_(max_depth) {}

  bool read_document(json& out) {
    skip_blanks();
    if (!value(out)) return false;
    skip_blanks();
    return at_ == end_;
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  bool skip(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool skip(std::string_view literal) {
    if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(literal)) return false;
    at_ += literal.size();
    return true;
  }
  bool is_digit() const { return at_ != end_ && *at_ >= '0' && *at_ <= '9'; }
  bool skip_digits() {
    const char* const start = at_;
    while (is_digit()) ++at_;
    return at_ != start;
  }

  bool value(json& out) {
    if (at_ == end_) return false;
    switch (*at_) {
      case '{':
        return object(out);
      case '[':
        return array(out);
      case '"':
        out = json::value_t::string;
        return string(out.get_ref<std::string&>());
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
        return number(out);
    }
  }

  bool object(json& out) {
    out = json::value_t::object;
    auto& members = out.get_ref<json::object_t&>();
    return list('}', [&] {
      std::string key;
      if (!string(key)) return false;
      skip_blanks();
      if (!skip(':')) return false;
      skip_blanks();
      const auto [member, is_new] = members.try_emplace(std::move(key));
      return is_new && value(member->second);
    });
  }

  bool array(json& out) {
    out = json::value_t::array;
    auto& items = out.get_ref<json::array_t&>();
    return list(']', [&] { return value(items.emplace_back()); });
  }

  template <class Item>
  bool list(char closing, Item item) {
    if (remaining_levels_-- == 0) return false;
    ++at_;
    skip_blanks();
    bool has_next = !skip(closing);
    while (has_next) {
      if (!item()) return false;
      skip_blanks();
      has_next = skip(',');
      skip_blanks();
      if (!has_next && !skip(closing)) return false;
    }
    ++remaining_levels_;
    return true;
  }

  // REQUIRES: the whole text is UTF-8, which read_json_text() has checked.
  bool string(std::string& out) {
    if (!skip('"')) return false;
    for (;;) {
      const char* const start = at_;
      while (at_ != end_ && static_cast<unsigned char>(*at_) >= ' ' && *at_ != '"' && *at_ != '\\') ++at_;
      out.append(start, at_);
      if (skip('"')) return true;
      if (!skip('\\') || at_ == end_ || !escape(*at_++, out)) return false;
    }
  }

  bool escape(char c, std::string& out) {
    // Pairs of an escape letter and its meaning.
    static constexpr std::string_view kLetters = "\"\"\\\\//b\bf\fn\nr\rt\t";
    if (c == 'u') return character(out);
    for (std::size_t i = 0; i < kLetters.size(); i += 2) {
      if (kLetters[i] != c) continue;
      out += kLetters[i + 1];
      return true;
    }
    return false;
  }

  bool four_digits(unsigned& out) {
    if (end_ - at_ < 4) return false;
    const auto [end, error] = std::from_chars(at_, at_ + 4, out, 16);
    at_ += 4;
    return error == std::errc() && end == at_;
  }

  bool character(std::string& out) {
    unsigned code = 0, low = 0;
    if (!four_digits(code) || (code >= 0xDC00 && code <= 0xDFFF)) return false;
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (!skip("\\u") || !four_digits(low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    const auto tail = [&](unsigned shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      (out += static_cast<char>(0xC0 | (code >> 6))) += tail(0);
    } else if (code < 0x10000) {
      ((out += static_cast<char>(0xE0 | (code >> 12))) += tail(6)) += tail(0);
    } else {
      (((out += static_cast<char>(0xF0 | (code >> 18))) += tail(12)) += tail(6)) += tail(0);
    }
    return true;
  }

  template <class Number>
  bool read_number(const char* start, json& out) {
    Number number{};
    const auto [end, error] = std::from_chars(start, at_, number);
    out = number;
    return error == std::errc() && end == at_;
  }

  bool number(json& out) {
    const char* const start = at_;
    const bool negative = skip('-');
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
    if (!is_integer) return read_number<double>(start, out);
    return negative ? read_number<std::int64_t>(start, out) : read_number<std::uint64_t>(start, out);
  }

  const char* at_;
  const char* const end_;
  std::size_t remaining_levels_;  // number of levels that may still be opened
};

}  // namespace

bool read_json_text(std::string_view text, std::size_t max_depth, nlohmann::json& out) {
  return is_utf8(text) && JsonReader(text, max_depth).read_document(out);
}

}  // namespace mycojobs
