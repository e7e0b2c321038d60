// An address of the socket interface as a plain one.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "domain/host.h"

namespace mycojobs {

// Nothing: of another family.
inline std::optional<IpAddress> ip_of(const sockaddr& address) {
  IpAddress out;
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof four);
    std::memcpy(out.bytes.data(), &four.sin_addr, sizeof four.sin_addr);
    return out;
  }
  if (address.sa_family != AF_INET6) return std::nullopt;
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof six);
  out.v6 = true;
  std::memcpy(out.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
  return out;
}

}  // namespace mycojobs
