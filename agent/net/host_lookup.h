// Resolves host names with a deadline, which getaddrinfo() does not have.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"

namespace mycojobs {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

// Returns the addresses of a host name or of an IP address, in the order of preference of the system. A name is
// resolved on a thread of its own. After a time-out this thread continues, and a later call for the same name and port
// waits for its result. Errors: not_found (no such host), unavailable (no name server answers, or none in time).
// Thread-safe.
Result<std::vector<SocketAddress>> resolve_host(const std::string& host, std::uint16_t port, Deadline);

// For tests: replaces getaddrinfo() for names that are no IP address. An empty function restores it.
using NameLookup = std::function<Result<std::vector<SocketAddress>>(const std::string& host, std::uint16_t port)>;
void set_name_lookup_for_test(NameLookup);

}  // namespace mycojobs
