// Hosts and addresses of connections: a plain host name, or an address in its canonical spelling. Every other notation
// (127.1, 0x7f.1, 2130706433, 0177.0.0.1, %31, user@host, [fe80::1%eth0], "a.") is rejected, so that the code that
// checks a text and the code that connects cannot interpret it differently. Pure and thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace mycojobs {

// An IPv4 or IPv6 address, which has one canonical spelling.
struct IpAddress {
  bool is_v6 = false;
  std::array<std::uint8_t, 16> bytes{};  // network order; the first four bytes for IPv4
  bool operator==(const IpAddress&) const = default;
  unsigned bits() const { return is_v6 ? 128 : 32; }
};

// Accepts canonical spellings only: 192.0.2.7, 2001:db8::1 (RFC 5952; upper case is accepted). No brackets, no zone.
std::optional<IpAddress> parse_ip(std::string_view text);
std::string to_text(const IpAddress&);
// Returns whether the first `prefix` bits are equal. Addresses of different families are not equal.
bool is_in_range(const IpAddress& address, const IpAddress& base, unsigned prefix);

struct Host {
  std::string name;  // lower case, no trailing dot; empty if `address` is set
  std::optional<IpAddress> address;
  bool operator==(const Host&) const = default;
};
// Error invalid: names the character or rule. An IPv6 address has no brackets here.
Result<Host> parse_host(std::string_view text);

struct HostPort {
  Host host;
  std::uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};
// Parses "host:port" or "[address]:port". default_port is used if there is no port; if it is 0, the port is required.
Result<HostPort> parse_host_port(std::string_view text, std::uint16_t default_port = 0);
std::string to_text(const HostPort&);  // "api.example.org:443", "[2001:db8::1]:443"

// Returns the part of an address between scheme and path, without a user, in lower case: "http://There:1/a" ->
// "there:1", "mycelium://<64 hex>" -> the key. Used to distinguish hosts; performs no checks.
std::string extract_host(std::string_view address);

// Parses 1 to 65535: decimal digits without leading zeros.
std::optional<std::uint16_t> parse_port(std::string_view text);

}  // namespace mycojobs
