// What a connection may be asked for: a plain host name or an address in its one canonical spelling. Every other
// notation (127.1, 0x7f.1, 2130706433, 0177.0.0.1, %31, user@host, [fe80::1%eth0], "a.") is refused, so that who checks
// a text and who connects by it cannot read two different things. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

// An address as data, and its one canonical spelling.
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

struct Host {
  std::string name;  // lower case, no trailing dot; empty: `address` it is
  std::optional<IpAddress> address;
  bool operator==(const Host&) const = default;
};
// Error: invalid, saying which character or rule. An IPv6 address stands without brackets here.
Result<Host> parse_host(std::string_view text);

struct HostPort {
  Host host;
  std::uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};
// "host:port" or "[address]:port"; `default_port` 0: the port must be there.
Result<HostPort> parse_host_port(std::string_view text, std::uint16_t default_port = 0);
std::string to_text(const HostPort&);  // "api.example.org:443", "[2001:db8::1]:443"

// Of an address, what stands between scheme and path, without a user, in lower case: "http://There:1/a" -> "there:1",
// "mycelium://<64 hex>" -> that key. For telling hosts apart: nothing is checked.
std::string host_of_address(std::string_view address);

// 1 to 65535, decimal digits without leading zeros.
std::optional<std::uint16_t> parse_port(std::string_view text);

}  // namespace mycojobs
