#include "base/ids.h"

#include <sys/random.h>

#include <charconv>
#include <cstdlib>

namespace mycojobs {

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (unsigned char c : bytes) {
    out.push_back(kDigits[c >> 4]);
    out.push_back(kDigits[c & 15]);
  }
  return out;
}

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned value = 0;
    const char* end = hex.data() + i + 2;
    const auto read = std::from_chars(hex.data() + i, end, value, 16);
    if (read.ptr != end || read.ec != std::errc()) return "";
    out.push_back(static_cast<char>(value));
  }
  return hex.size() % 2 == 0 ? out : "";
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string random_bytes(std::size_t bytes) {
  std::string raw(bytes, '\0');
  // Up to 256 bytes come whole once the generator is seeded; without it nothing here can be trusted.
  if (bytes > 256 || ::getrandom(raw.data(), bytes, 0) != static_cast<ssize_t>(bytes)) std::abort();
  return raw;
}

std::string random_hex(std::size_t bytes) { return to_hex(random_bytes(bytes)); }

bool parse_u64(std::string_view text, std::uint64_t& out) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace mycojobs
