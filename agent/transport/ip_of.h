// An address of the socket interface as a plain one.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>

#include "domain/ip_address.h"

namespace mycojobs {

// to: a sockaddr with as many bytes as its family has. Nothing: of a family that is not IP.
inline std::optional<IpAddress> ip_of(int family, const void* to) {
  IpAddress out;
  if (family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, to, sizeof four);
    std::memcpy(out.bytes.data(), &four.sin_addr, sizeof four.sin_addr);
    return out;
  }
  if (family != AF_INET6) return std::nullopt;
  sockaddr_in6 six{};
  std::memcpy(&six, to, sizeof six);
  out.v6 = true;
  std::memcpy(out.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
  return out;
}

}  // namespace mycojobs
