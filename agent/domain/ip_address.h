// An address as data, and its one canonical spelling (host.cpp). Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mycojobs {

struct IpAddress {
  bool v6 = false;
  std::array<std::uint8_t, 16> bytes{};  // network order; of an IPv4 address the first four
  bool operator==(const IpAddress&) const = default;
  unsigned bits() const { return v6 ? 128 : 32; }
};

// Canonical spellings only: 192.0.2.7, 2001:db8::1 (RFC 5952; upper case is taken too). No brackets, no zone.
std::optional<IpAddress> parse_ip(std::string_view text);
std::string to_text(const IpAddress&);
// Whether the first `prefix` bits are the same. Never for addresses of two families.
bool in_range(const IpAddress& address, const IpAddress& base, unsigned prefix);

}  // namespace mycojobs
