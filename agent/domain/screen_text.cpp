#include "domain/screen_text.h"

#include <utf8proc.h>

#include <algorithm>

namespace mycojobs {
namespace {

struct Character {
  std::size_t bytes = 1;
  std::size_t columns = 1;
};

Character character_at(std::string_view text) {
  utf8proc_int32_t point = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &point);
  if (length <= 0 || point < ' ') return {};
  return {static_cast<std::size_t>(length), static_cast<std::size_t>(std::max(0, utf8proc_charwidth(point)))};
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < ' ' && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  // U+0080 to U+009F, and the marks that turn the direction of writing: "\xC2\x80", "\xE2\x80\xAA" and the like.
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    const auto at = [&out](std::size_t n) { return n < out.size() ? static_cast<unsigned char>(out[n]) : 0U; };
    const bool c1 = at(i) == 0xc2 && at(i + 1) >= 0x80 && at(i + 1) <= 0x9f;
    const bool bidi = at(i) == 0xe2 && ((at(i + 1) == 0x80 && at(i + 2) >= 0xaa && at(i + 2) <= 0xae) ||
                                        (at(i + 1) == 0x81 && at(i + 2) >= 0xa6 && at(i + 2) <= 0xa9));
    if (c1 || bidi) out.replace(i, c1 ? 2 : 3, "?");
  }
  return out;
}

std::string one_line(std::string_view text) {
  std::string out = printable(text);
  for (char& c : out) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return out;
}

std::size_t columns(std::string_view text) {
  std::size_t sum = 0;
  while (!text.empty()) {
    std::size_t taken = 1;
    if (text.front() == '\033') {
      taken = std::min(text.find('m'), text.size() - 1) + 1;
    } else {
      const Character character = character_at(text);
      taken = character.bytes;
      sum += character.columns;
    }
    text.remove_prefix(taken);
  }
  return sum;
}

std::string shortened(std::string_view text, std::size_t max_columns, std::string_view more) {
  // A letter with thousands of marks on it has one column and is no name: bytes are bounded too.
  const std::size_t max_bytes = 8 * max_columns;
  if (text.size() <= max_bytes && columns(text) <= max_columns) return std::string(text);
  const std::size_t room = max_columns - std::min(max_columns, columns(more));
  std::size_t used = 0, end = 0;
  while (end < text.size() && end < max_bytes) {
    const Character next = character_at(text.substr(end));
    if (used + next.columns > room) break;
    used += next.columns;
    end += next.bytes;
  }
  return std::string(text.substr(0, end)) + std::string(max_columns == 0 ? "" : more);
}

std::string shortened_talk(std::string_view text, std::size_t max_columns, std::string_view more) {
  std::string out = shortened(text, max_columns, more);
  if (out == text) return out;
  std::size_t kept = out.size() - std::min(out.size(), more.size());  // bytes of text that stand in out
  for (std::size_t begin = text.find('`'); begin != std::string_view::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string_view::npos) break;
    if (end >= kept) {
      if (begin < kept) {  // it is cut in two: it goes from here
        out = std::string(text.substr(0, begin)) + std::string(more);
        kept = begin;
      }
      out += ' ' + std::string(text.substr(begin, end + 1 - begin));
    }
    begin = text.find('`', end + 1);
  }
  return out;
}

}  // namespace mycojobs
