// What a job asks of the proxy, in the two languages of its one port. Pure; any thread. Readers are strict: what two
// programs could read in two ways is refused (request smuggling).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "domain/host.h"
#include "sandbox/egress/body.h"

namespace mycojobs::egress {

inline constexpr std::size_t kMaxHeadBytes = 16U << 10;

// Bytes up to and with the empty line; 0: not there yet.
std::size_t head_size(std::string_view bytes);

struct RequestHead {
  HostPort target;
  bool tunnel = false;  // CONNECT
  std::string forward;  // else: what the server gets, hop-by-hop fields taken out, "Connection: close"
  Body body;
};
// `head` as long as head_size() said. HTTP/1.0 and 1.1: CONNECT host:port, or an absolute http:// target.
// Errors: invalid, one line for the author of the job.
Result<RequestHead> parse_request_head(std::string_view head);

// SOCKS5 (RFC 1928): no authentication, CONNECT to a name or an address.
struct SocksRefusal {
  std::uint8_t reply;  // of RFC 1928, section 6
  std::string why;
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

// Size of the greeting; 0: more must come.
SocksResult<std::size_t> parse_socks_greeting(std::string_view bytes);
struct SocksRequest {
  HostPort target;
  std::size_t size = 0;  // 0: more must come
};
SocksResult<SocksRequest> parse_socks_request(std::string_view bytes);
std::string socks_answer(std::uint8_t reply);

}  // namespace mycojobs::egress
