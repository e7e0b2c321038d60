// SOCKS5 (RFC 1928), the other protocol on the proxy's port: no authentication, CONNECT to a name or an address. Pure
// and thread-safe.
//
//   greeting  5 | count | methods                            reply  5 | 0 (no authentication) or 255
//   request   5 | command | 0 | type | address | port        reply  5 | reply | 0 | 1 | 0.0.0.0 | 0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "net/host.h"

namespace mycojobs::egress {

struct SocksRefusal {
  std::uint8_t reply;  // reply code of RFC 1928, section 6
  std::string reason;
};
template <class T>
using SocksResult = tl::expected<T, SocksRefusal>;

enum SocksReply : std::uint8_t {
  socks_granted = 0,
  socks_failure = 1,
  socks_not_allowed = 2,
  socks_unreachable = 4,
  socks_refused = 5,
  socks_no_command = 7,
  socks_no_address_type = 8,
};

// Returns the size of the greeting, or 0 if it is incomplete.
SocksResult<std::size_t> parse_socks_greeting(std::string_view bytes);
struct SocksRequest {
  HostPort target;
  std::size_t size = 0;  // 0 if the request is incomplete
};
SocksResult<SocksRequest> parse_socks_request(std::string_view bytes);
std::string encode_socks_reply(std::uint8_t reply);

}  // namespace mycojobs::egress
