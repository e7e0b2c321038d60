#include "net/mycelium_address.h"

#include <algorithm>

namespace mycojobs {

std::optional<MyceliumAddress> parse_mycelium(std::string_view text) {
  constexpr std::string_view kScheme = "mycelium://";
  if (text.starts_with(kScheme)) text.remove_prefix(kScheme.size());
  if (text.size() == 64 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos) {
    MyceliumAddress address{std::string(text), std::nullopt};
    std::transform(address.key.begin(), address.key.end(), address.key.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
    return address;
  }
  static const std::optional<IpAddress> kOverlay = parse_ip("400::");
  const auto ip = parse_ip(text);
  if (!ip || !kOverlay || !is_in_range(*ip, *kOverlay, 7)) return std::nullopt;
  return MyceliumAddress{"", ip};
}

}  // namespace mycojobs
