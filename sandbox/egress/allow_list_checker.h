// Decides where a job with an allow-list may connect. Both checks must succeed:
//
//   check_request before the lookup: the name or address is on the list, with its port
//   check_address for EACH address of the name: it is public, or an entry contains the address itself
//
// Special addresses (private, link-local, reserved, tunnelled, ...) are allowed only by an entry for a single address
// or for a range within their block: 10.1.0.0/16:5432 allows 10.1.2.3, 0.0.0.0/0:* does not. Addresses of the host
// itself (loopback, its interfaces) and of cloud metadata services are allowed only by a single address, never by a
// range. A name on the list never allows them, since its DNS may return any address. Pure and thread-safe.
#pragma once

#include <string>
#include <vector>

#include "net/allow_list.h"

namespace mycojobs::egress {

class AllowListChecker {
 public:
  AllowListChecker() = default;
  explicit AllowListChecker(std::vector<AllowEntry> entries) : entries_(std::move(entries)) {}
  // Error denied: one line for the job's author that contains the missing entry.
  Result<void> check_request(const HostPort&) const;
  // `host_addresses` has the addresses of this host's interfaces.
  Result<void> check_address(const HostPort& target, const IpAddress&,
                             const std::vector<IpAddress>& host_addresses) const;

 private:
  std::vector<AllowEntry> entries_;
};

// Returns the kind of a special address, for tests and messages, or an empty text if the address is public.
std::string find_special_kind(const IpAddress&);

}  // namespace mycojobs::egress
