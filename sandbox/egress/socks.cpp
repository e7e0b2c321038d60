#include "sandbox/egress/socks.h"

#include <algorithm>

namespace mycojobs::egress {
namespace {

constexpr std::uint8_t kNoMethod = 255;

std::uint8_t byte_at(std::string_view bytes, std::size_t index) { return static_cast<std::uint8_t>(bytes[index]); }

tl::unexpected<SocksRefusal> refuse(std::uint8_t reply, std::string reason) {
  return tl::unexpected<SocksRefusal>(SocksRefusal{reply, "SOCKS5: " + std::move(reason)});
}

IpAddress parse_address_bytes(std::string_view bytes) {
  IpAddress address{bytes.size() == 16, {}};
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(address.bytes.data()));
  return address;
}

}  // namespace

SocksResult<std::size_t> parse_socks_greeting(std::string_view bytes) {
  if (bytes.size() < 2 || bytes.size() < 2U + byte_at(bytes, 1)) return 0;
  const std::size_t size = 2U + byte_at(bytes, 1);
  if (bytes.substr(2, size - 2).find('\0') == std::string_view::npos) {
    return refuse(kNoMethod, "the client requires authentication; the proxy has none");
  }
  return size;
}

SocksResult<SocksRequest> parse_socks_request(std::string_view bytes) {
  SocksRequest out;
  if (bytes.size() < 5) return out;
  if (byte_at(bytes, 0) != 5 || byte_at(bytes, 2) != 0) return refuse(socks_failure, "malformed request");
  if (byte_at(bytes, 1) != 1) return refuse(socks_no_command, "only CONNECT is served, neither BIND nor UDP");
  std::size_t begin = 4;
  std::size_t length = 0;
  const std::uint8_t type = byte_at(bytes, 3);
  if (type == 1) {
    length = 4;
  } else if (type == 4) {
    length = 16;
  } else if (type == 3) {
    begin = 5;
    length = byte_at(bytes, 4);
  } else {
    return refuse(socks_no_address_type, "unknown type of address");
  }
  if (bytes.size() < begin + length + 2) return out;
  const std::string_view host = bytes.substr(begin, length);
  if (type == 3) {
    auto parsed = parse_host(host);
    if (!parsed) return refuse(socks_not_allowed, parsed.error().message);
    out.target.host = std::move(*parsed);
  } else {
    out.target.host.address = parse_address_bytes(host);
  }
  out.target.port =
      static_cast<std::uint16_t>(byte_at(bytes, begin + length) << 8 | byte_at(bytes, begin + length + 1));
  if (out.target.port == 0) return refuse(socks_failure, "port 0 is not a valid port");
  out.size = begin + length + 2;
  return out;
}

std::string encode_socks_reply(std::uint8_t reply) {
  if (reply == kNoMethod) return {'\x05', '\xff'};
  return {'\x05', static_cast<char>(reply), '\0', '\x01', '\0', '\0', '\0', '\0', '\0', '\0'};
}

}  // namespace mycojobs::egress
