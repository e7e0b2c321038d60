#include "text/terminal_text.h"

#include <utf8proc.h>

#include <algorithm>

namespace mycojobs {
namespace {

struct Character {
  std::size_t bytes = 1;
  std::size_t columns = 1;
  utf8proc_int32_t point = -1;  // code point, or -1 for a byte that belongs to no character
};

Character read_character(std::string_view text) {
  utf8proc_int32_t point = 0;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &point);
  if (length <= 0) return {};
  if (point < ' ') return {1, 1, point};
  return {static_cast<std::size_t>(length), static_cast<std::size_t>(std::max(0, utf8proc_charwidth(point))), point};
}

// Returns whether a terminal displays the character. It does not display control characters of both ranges, invalid
// characters, line separators, and marks that change the writing direction.
bool is_shown(utf8proc_int32_t point) {
  if (point == '\n' || point == '\t') return true;
  const bool is_control = point < ' ' || (point >= 0x7f && point <= 0x9f);
  const bool changes_direction = point == 0x061c || point == 0x200e || point == 0x200f ||
                                 (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069);
  return !is_control && !changes_direction;
}

// Returns the length of the colour code at the front ("\033[1;31m"), or 0.
std::size_t find_colour_code_size(std::string_view text) {
  if (!text.starts_with("\033[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

std::string make_printable(std::string_view text, bool keeps_colours) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t size = keeps_colours ? find_colour_code_size(text) : 0;
    if (size == 0) {
      const Character character = read_character(text);
      size = character.bytes;
      if (!is_shown(character.point)) {
        out += '?';
        text.remove_prefix(size);
        continue;
      }
    }
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  return out;
}

// Returns the number of bytes at the end that may be an incomplete character or an incomplete line end "\r\n".
std::size_t count_incomplete_bytes(std::string_view text) {
  if (text.ends_with('\r')) return 1;
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    const std::size_t character_size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 0;
    if (character_size != 0) return character_size > back ? back : 0;
  }
  return 0;
}

// A restarted line ("\r") could overwrite earlier text, so each restart begins a new line.
std::string normalize_line_ends(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

}  // namespace

std::string to_printable(std::string_view text) { return make_printable(text, false); }

std::string to_printable_with_colours(std::string_view text) { return make_printable(text, true); }

std::string PrintableTextStream::add(std::string_view bytes) {
  incomplete_ += bytes;
  const std::size_t incomplete_size = count_incomplete_bytes(incomplete_);
  std::string out =
      to_printable(normalize_line_ends(std::string_view(incomplete_).substr(0, incomplete_.size() - incomplete_size)));
  incomplete_.erase(0, incomplete_.size() - incomplete_size);
  return out;
}

std::string PrintableTextStream::finish() {
  std::string out = to_printable(normalize_line_ends(incomplete_));
  incomplete_.clear();
  return out;
}

std::string to_printable_line(std::string_view text) {
  std::string out = to_printable(text);
  for (char& c : out) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return out;
}

std::size_t count_columns(std::string_view text) {
  std::size_t sum = 0;
  while (!text.empty()) {
    std::size_t size = 1;
    if (text.front() == '\033') {
      size = std::min(text.find('m'), text.size() - 1) + 1;
    } else {
      const Character character = read_character(text);
      size = character.bytes;
      sum += character.columns;
    }
    text.remove_prefix(size);
  }
  return sum;
}

std::string wrap_text(std::string_view text, std::size_t width) {
  std::string out;
  std::size_t used_columns = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(" \n"), text.size());
    const std::string_view word = text.substr(0, end);
    if (used_columns > 0 && used_columns + 1 + count_columns(word) > width) {
      out += '\n';
      used_columns = 0;
    } else if (used_columns > 0) {
      out += ' ';
      ++used_columns;
    }
    out += word;
    used_columns += count_columns(word);
    if (end < text.size() && text[end] == '\n') {
      out += '\n';
      used_columns = 0;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string shorten_text(std::string_view text, std::size_t max_columns, std::string_view ellipsis) {
  // A letter with thousands of combining marks has one column, so the number of bytes is bounded, too.
  const std::size_t max_bytes = 8 * max_columns;
  if (text.size() <= max_bytes && count_columns(text) <= max_columns) return std::string(text);
  const std::size_t available_columns = max_columns - std::min(max_columns, count_columns(ellipsis));
  std::size_t used_columns = 0, end = 0;
  while (end < text.size() && end < max_bytes) {
    const Character next = read_character(text.substr(end));
    if (used_columns + next.columns > available_columns) break;
    used_columns += next.columns;
    end += next.bytes;
  }
  return std::string(text.substr(0, end)) + std::string(max_columns == 0 ? "" : ellipsis);
}

std::string shorten_message(std::string_view text, std::size_t max_columns, std::string_view ellipsis) {
  std::string out = shorten_text(text, max_columns, ellipsis);
  if (out == text) return out;
  std::size_t kept_bytes = out.size() - std::min(out.size(), ellipsis.size());  // bytes of `text` that are in `out`
  for (std::size_t begin = text.find('`'); begin != std::string_view::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    if (end == std::string_view::npos) break;
    if (end >= kept_bytes) {
      if (begin < kept_bytes) {  // the command is cut in two: remove it from here
        out = std::string(text.substr(0, begin)) + std::string(ellipsis);
        kept_bytes = begin;
      }
      out += ' ' + std::string(text.substr(begin, end + 1 - begin));
    }
    begin = text.find('`', end + 1);
  }
  return out;
}

}  // namespace mycojobs
