// Addresses of nodes of the Mycelium overlay: the public key of a node, or an address in 400::/7 that the node derives
// from it. Pure and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/host.h"

namespace mycojobs {

struct MyceliumAddress {
  std::string key;              // 64 characters of lower-case hex; empty if `ip` is set
  std::optional<IpAddress> ip;  // in 400::/7
  bool operator==(const MyceliumAddress&) const = default;
};

// Parses "<64 hex>" or "4ab::1", each with or without "mycelium://" in front. Returns no value for any other text.
std::optional<MyceliumAddress> parse_mycelium(std::string_view text);

}  // namespace mycojobs
