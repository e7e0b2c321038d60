// An address and port as a sockaddr.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "net/host.h"

namespace mycojobs::egress {

class SocketAddress {
 public:
  SocketAddress(const IpAddress& address, std::uint16_t port) : is_v6_(address.is_v6) {
    in6_.sin6_family = AF_INET6;
    in_.sin_family = AF_INET;
    in6_.sin6_port = in_.sin_port = htons(port);
    std::memcpy(&in6_.sin6_addr, address.bytes.data(), 16);
    std::memcpy(&in_.sin_addr, address.bytes.data(), 4);
  }
  const sockaddr* get() const {
    return is_v6_ ? reinterpret_cast<const sockaddr*>(&in6_) : reinterpret_cast<const sockaddr*>(&in_);
  }
  socklen_t size() const { return is_v6_ ? sizeof in6_ : sizeof in_; }

 private:
  bool is_v6_;
  sockaddr_in6 in6_{};
  sockaddr_in in_{};
};

}  // namespace mycojobs::egress
