// Encodings in which programs print a value, for tests of the redactor. Implemented independently of the redactor.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace mycojobs::test {

inline constexpr std::string_view kStandardAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
inline constexpr std::string_view kUrlSafeAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

inline std::string base64(std::string_view bytes, std::string_view letters, bool padded) {
  std::string out;
  unsigned bits = 0;
  unsigned pending_bits = 0;
  for (char c : bytes) {
    pending_bits = pending_bits << 8 | static_cast<unsigned char>(c);
    for (bits += 8; bits >= 6; bits -= 6) out.push_back(letters[pending_bits >> (bits - 6) & 63]);
  }
  if (bits > 0) out.push_back(letters[pending_bits << (6 - bits) & 63]);
  while (padded && out.size() % 4 != 0) out.push_back('=');
  return out;
}

// Formats each byte with `format`, except for `unescaped_letters` and, if `blank` is not null, blanks.
inline std::string escape_bytes(std::string_view bytes, const char* format, std::string_view unescaped_letters,
                                const char* blank) {
  std::string out;
  for (char c : bytes) {
    char text[16];
    std::snprintf(text, sizeof text, format, static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (c == ' ' && blank != nullptr) {
      out += blank;
    } else if (unescaped_letters.find(c) != std::string_view::npos) {
      out.push_back(c);
    } else {
      out += text;
    }
  }
  return out;
}

// Escapes the text as JSON does. Characters outside ASCII become \uXXXX if `ascii` is set, and stay UTF-8 otherwise.
// `text` must be valid UTF-8.
inline std::string json_text(std::string_view text, bool ascii) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    char escape[16] = "";
    if (c == '"' || c == '\\') {
      out += std::string("\\") + text[i];
    } else if (c == '\n' || c == '\t') {
      out += c == '\n' ? "\\n" : "\\t";
    } else if (c < ' ') {
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
    } else if (c < 0x80 || !ascii) {
      out.push_back(text[i]);
    } else {
      const unsigned continuation_bytes = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
      std::uint32_t code = c & (0x3FU >> continuation_bytes);
      for (unsigned k = 0; k < continuation_bytes; ++k)
        code = code << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
      if (code < 0x10000) {
        std::snprintf(escape, sizeof escape, "\\u%04X", code);
      } else {
        std::snprintf(escape, sizeof escape, "\\u%04x\\u%04X", 0xD800 + ((code - 0x10000) >> 10),
                      0xDC00 + (code & 0x3FF));
      }
    }
    out += escape;
  }
  return out;
}

inline std::string url_decode(const std::string& text, bool plus_is_blank) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0) {
      out.push_back(static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i] == '+' && plus_is_blank ? ' ' : text[i]);
    }
  }
  return out;
}

// Decodes the escapes that stand for a single byte; other text is unchanged.
inline std::string unescape(const std::string& text) {
  static const std::map<char, char> kLetters = {{'"', '"'},  {'\'', '\''}, {'\\', '\\'}, {'/', '/'}, {'n', '\n'},
                                                {'t', '\t'}, {'b', '\b'},  {'f', '\f'},  {'r', '\r'}};
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 1 < text.size();
    const std::size_t digits = is_escape && text[i + 1] == 'x'                   ? 2
                               : is_escape && text.compare(i + 1, 3, "u00") == 0 ? 4
                                                                                 : 0;
    const auto end_index = i + 2 + digits;
    if (is_escape && kLetters.contains(text[i + 1])) {
      out.push_back(kLetters.at(text[++i]));
    } else if (digits > 0 && end_index <= text.size() &&
               text.find_first_not_of("0123456789abcdefABCDEF", i + 2) >= end_index &&
               (digits == 2 || text[i + 4] < '8')) {
      out.push_back(static_cast<char>(std::stoi(text.substr(end_index - 2, 2), nullptr, 16)));
      i = end_index - 1;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// Returns the encodings of the value that the redactor must find, each with its name.
inline std::vector<std::pair<std::string, std::string>> list_spellings(const std::string& value) {
  constexpr std::string_view kUnreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  const std::string component = std::string(kUnreserved) + "!*'()";
  const std::string path = std::string(kUnreserved) + "/:@&=+$,;";
  std::vector<std::pair<std::string, std::string>> all = {
      {"plain", value},
      {"base64", base64(value, kStandardAlphabet, true)},
      {"base64 without padding", base64(value, kStandardAlphabet, false)},
      {"URL-safe base64", base64(value, kUrlSafeAlphabet, true)},
      {"URL-safe base64 without padding", base64(value, kUrlSafeAlphabet, false)},
      {"hex", escape_bytes(value, "%02x", "", nullptr)},
      {"upper hex", escape_bytes(value, "%02X", "", nullptr)},
      {"URL", escape_bytes(value, "%%%02X", kUnreserved, nullptr)},
      {"lower URL", escape_bytes(value, "%%%02x", kUnreserved, nullptr)},
      {"URL component", escape_bytes(value, "%%%02X", component, nullptr)},
      {"URL form", escape_bytes(value, "%%%02X", kUnreserved, "+")},
      {"URL path", escape_bytes(value, "%%%02X", path, nullptr)},
      {"all of it as URL", escape_bytes(value, "%%%02x", "", nullptr)},
      {"repr of bytes",
       escape_bytes(value, "\\x%02x", std::string(kUnreserved) + " !#$%&()*+,/:;<=>?@[]^`{|}", nullptr)},
      {"JSON", json_text(value, false)},
  };
  if (is_utf8(value)) all.emplace_back("ASCII JSON", json_text(value, true));
  std::string slashes = json_text(value, false);
  for (std::size_t at = 0; (at = slashes.find('/', at)) != std::string::npos; at += 2) slashes.insert(at, 1, '\\');
  all.emplace_back("JSON with escaped slashes", slashes);
  return all;
}

}  // namespace mycojobs::test
