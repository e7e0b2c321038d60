// HTTP/1 processing of the proxy: the head of a job's request and of the server's response. Pure and thread-safe.
// Requests are parsed strictly (net/http_wire.h): ambiguous messages are refused (request smuggling).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "net/host.h"
#include "net/http_wire.h"

namespace mycojobs::egress {

using Field = std::pair<std::string_view, std::string_view>;  // as written, without spaces around the value

// The hop-by-hop fields of a message (RFC 9110, section 7.6.1): known ones, and those listed in its Connection fields.
// Fields that frame the message (Host, Content-Length, Transfer-Encoding) are never included.
class HopFields {
 public:
  explicit HopFields(const std::vector<Field>& fields);
  bool contains(std::string_view name) const;

 private:
  std::set<std::string> listed_;  // lower case
};

inline constexpr std::size_t kMaxHeadBytes = 16U << 10;

struct RequestHead {
  HostPort target;
  bool is_tunnel = false;  // true for CONNECT
  // The head for the server, without hop-by-hop fields and with "Connection: close". Empty for a tunnel.
  std::string forwarded_head;
};
// REQUIRES: the parser has the whole head. Accepts CONNECT host:port, or an absolute http:// target. Error: invalid,
// one line for the author of the job.
Result<RequestHead> read_request_head(const HttpRequestParser&);

// Rewrites the head of the server's response to a plain HTTP request. "Connection: close" is always set, since a second
// request on the same connection would bypass the access check.
class ResponseHead {
 public:
  // Returns the bytes to forward to the job: none until the head is whole, then all. Errors: invalid, not an HTTP/1
  // response; too_large, a head over 16 KiB.
  Result<std::string> feed(std::string_view bytes);
  bool is_complete() const { return is_complete_; }  // the final head, not that of a 1xx response

 private:
  std::string buffered_;
  bool is_complete_ = false;
};

}  // namespace mycojobs::egress
