#include "domain/encodings.h"

#include <algorithm>
#include <optional>

namespace mycojobs {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string_view trim(std::string_view text) {
  const auto blank = [](char c) { return is_blank(static_cast<unsigned char>(c)); };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// offset: bytes before the value in what is encoded.
std::string base64_core(std::string_view value, std::size_t offset, std::string& end) {
  std::string bytes(offset, '\0');
  bytes += value;
  const std::size_t bits = bytes.size() * 8;
  bytes.append(3, '\0');
  const auto letter = [&bytes](std::size_t i) {
    const std::size_t bit = i * 6;
    const auto byte = [&bytes](std::size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(bytes[at])); };
    const unsigned two = byte(bit / 8) << 8 | byte(bit / 8 + 1);
    return kBase64[two >> (10 - bit % 8) & 63];
  };
  std::string core;
  for (std::size_t i = (offset * 8 + 5) / 6; i < bits / 6; ++i) core.push_back(letter(i));
  end.clear();
  if (bits % 6 != 0) end = letter(bits / 6) + std::string(bits % 6 == 2 ? 2 : 1, '=');
  return core;
}

std::optional<unsigned> hex_value(std::string_view digits) {
  unsigned value = 0;
  for (char c : digits) {
    const char lower = static_cast<char>(c | 0x20);
    const bool letter = lower >= 'a' && lower <= 'f';
    if (!letter && (c < '0' || c > '9')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(letter ? lower - 'a' + 10 : c - '0');
  }
  return value;
}

void append_utf8(std::string& out, unsigned code) {
  const auto add = [&out](unsigned byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12), add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18), add(0x80 | (code >> 12 & 0x3F)), add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

using Is = Unescaped::Is;

// After the letter, `count` hex digits.
Unescaped byte_of(std::string_view digits) {
  const auto value = hex_value(digits);
  if (!value) return {};
  if (digits.size() < 2) return {Is::more, {}};
  return {Is::whole, std::string(1, static_cast<char>(*value))};
}

// uXXXX, or a pair of surrogates: uXXXX\uXXXX.
Unescaped character_of(std::string_view begun) {
  const auto first = hex_value(begun.substr(1, 4));
  if (!first) return {};
  if (begun.size() < 5) return {Is::more, {}};
  Unescaped meant{Is::whole, {}};
  if (*first < 0xD800 || *first > 0xDFFF) {
    append_utf8(meant.bytes, *first);
    return meant;
  }
  constexpr std::string_view kNext = "\\u";
  const std::string_view rest = begun.substr(5);
  if (*first > 0xDBFF || rest.substr(0, 2) != kNext.substr(0, rest.size())) return {};
  const auto second = hex_value(rest.substr(std::min<std::size_t>(2, rest.size())));
  if (!second) return {};
  if (rest.size() < 6) return {Is::more, {}};
  if (*second < 0xDC00 || *second > 0xDFFF) return {};
  append_utf8(meant.bytes, 0x10000 + ((*first - 0xD800) << 10) + (*second - 0xDC00));
  return meant;
}

Unescaped after_backslash(std::string_view begun) {
  if (begun.empty()) return {Is::more, {}};
  if (begun[0] == 'x') return byte_of(begun.substr(1));
  if (begun[0] == 'u') return character_of(begun);
  constexpr std::string_view kLetters = "\"'\\/bfnrt";
  constexpr std::string_view kMeant = "\"'\\/\b\f\n\r\t";
  const std::size_t at = kLetters.find(begun[0]);
  if (at == std::string_view::npos) return {};
  return {Is::whole, std::string(1, kMeant[at])};
}

std::string read_plain(std::string_view text) {
  std::string form;
  Decoder reader(Encoding::plain);
  const auto keep = [&form](unsigned char byte, std::uint64_t, std::uint64_t) {
    form.push_back(static_cast<char>(byte));
  };
  for (char c : text) reader.take(static_cast<unsigned char>(c), 0, keep);
  return form;
}

}  // namespace

Unescaped unescape(Encoding reading, std::string_view begun) {
  begun.remove_prefix(1);
  return reading == Encoding::url ? byte_of(begun) : after_backslash(begun);
}

std::string plain_form(std::string_view value) { return read_plain(trim(value)); }

std::string url_form(std::string_view value) {
  std::string text(trim(value));
  std::replace(text.begin(), text.end(), '+', ' ');
  return read_plain(text);
}

std::vector<std::string> packed_forms(std::string_view value) {
  std::vector<std::string> forms;
  for (std::size_t offset = 0; offset < 3; ++offset) {
    std::string end;
    const std::string core = base64_core(value, offset, end);
    forms.push_back(core);
    if (end.empty()) continue;
    forms.push_back(core + end[0]);
    forms.push_back(core + end);
  }
  for (const std::string_view digits : {"0123456789abcdef", "0123456789ABCDEF"}) {
    std::string hex;
    for (char c : value) {
      hex.push_back(digits[static_cast<unsigned char>(c) >> 4]);
      hex.push_back(digits[static_cast<unsigned char>(c) & 15]);
    }
    forms.push_back(std::move(hex));
  }
  return forms;
}

}  // namespace mycojobs
