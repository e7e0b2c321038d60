// Where a job with an allow-list may connect. Two questions, both must be answered well:
//
//   may_ask      before anything is looked up: the name or address itself is on the list, with its port
//   may_connect  for EACH address that the name has: public, or opened by an entry for the address itself
//
// Special addresses (private, link-local, reserved, tunnelled, ...) are open only to an entry for a single address or
// for a range that lies wholly in their block: 10.1.0.0/16:5432 opens 10.1.2.3, 0.0.0.0/0:* does not. Those of the host
// itself (loopback, its interfaces) and of cloud metadata services are open to a single address alone, never to a
// range. A name on the list does not open them: whoever serves its DNS could say anything. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "domain/allow_list.h"

namespace mycojobs::egress {

class Judge {
 public:
  Judge() = default;
  explicit Judge(std::vector<AllowEntry> entries) : entries_(std::move(entries)) {}
  // Errors: denied, one line for the job's author that names the entry which would allow it.
  Result<void> may_ask(const HostPort&) const;
  // `own`: the addresses of this host's interfaces.
  Result<void> may_connect(const HostPort& asked, const IpAddress&, const std::vector<IpAddress>& own) const;

 private:
  std::vector<AllowEntry> entries_;
};

// What makes an address special; for tests and messages. Empty: public.
std::string special_kind(const IpAddress&);

}  // namespace mycojobs::egress
