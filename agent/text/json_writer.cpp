#include "text/json_writer.h"

#include <nlohmann/json.hpp>

#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

bool is_plain(unsigned char c) { return c >= ' ' && c != '"' && c != '\\'; }

void append_escaped(std::string& out, unsigned char c) {
  static constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";  // pairs of a character and its escape letter
  for (std::size_t i = 0; i < kShort.size(); i += 2) {
    if (static_cast<unsigned char>(kShort[i]) == c) return void((out += '\\') += kShort[i + 1]);
  }
  static constexpr std::string_view kDigits = "0123456789abcdef";
  ((out += "\\u00") += kDigits[c >> 4]) += kDigits[c & 15];
}

}  // namespace

void append_json(std::string& out, std::string_view text) {
  if (!is_utf8(text)) {  // the library decides how many U+FFFD replace the invalid bytes
    out += dump_json(nlohmann::json(text));
    return;
  }
  out += '"';
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && is_plain(static_cast<unsigned char>(text[end]))) ++end;
    out.append(text, begin, end - begin);
    if (end < text.size()) append_escaped(out, static_cast<unsigned char>(text[end++]));
    begin = end;
  }
  out += '"';
}

void append_json(std::string& out, const std::map<std::string, std::string>& map) {
  JsonObject object(out);
  for (const auto& [name, text] : map) object.add(name, text);
  object.end();
}

}  // namespace mycojobs
