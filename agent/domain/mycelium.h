// Where a node of the Mycelium overlay is: by its public key, or by an address in 400::/7 that the node derives from
// it. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "domain/host.h"

namespace mycojobs {

struct MyceliumAddress {
  std::string key;              // 64 characters of lower-case hex; empty: by `ip`
  std::optional<IpAddress> ip;  // in 400::/7
  bool operator==(const MyceliumAddress&) const = default;
};

// "<64 hex>", "4ab::1", and both with "mycelium://" in front. Nothing: it is no such address.
std::optional<MyceliumAddress> parse_mycelium(std::string_view text);

}  // namespace mycojobs
