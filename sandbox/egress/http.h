// What the proxy makes of HTTP/1: of the head of a job's request, and of that of the server's answer. Pure; any thread.
// Jobs are read strictly (domain/http_wire.h): what two programs could read in two ways is refused (request smuggling).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "domain/host.h"
#include "domain/http_wire.h"
#include "mycojobs/result.h"

namespace mycojobs::egress {

using Field = std::pair<std::string_view, std::string_view>;  // as it was written, without the spaces around the value

// The fields of a message that are for the next hop alone (RFC 9110, section 7.6.1): those known, and those that its
// Connection fields list. Those that frame the message (Host, Content-Length, Transfer-Encoding) never are.
class HopFields {
 public:
  explicit HopFields(const std::vector<Field>& all);
  bool contains(std::string_view name) const;

 private:
  std::set<std::string> listed_;  // lower case
};

inline constexpr std::size_t kMaxHeadBytes = 16U << 10;

struct RequestHead {
  HostPort target;
  bool tunnel = false;  // CONNECT
  std::string forward;  // else: what the server gets, hop-by-hop fields taken out, "Connection: close"
};
// Of a parser that has the head: CONNECT host:port, or an absolute http:// target. Errors: invalid, one line for the
// author of the job.
Result<RequestHead> read_request_head(const HttpRequestParser&);

// The server's answer to a plain HTTP request on its way to the job. Its head says "Connection: close" whatever the
// server thinks of it, because a second request on the same connection would be one that nobody has judged.
class ResponseHead {
 public:
  // What goes on to the job of these bytes: nothing until the head is whole, all after it.
  // Errors: invalid, no HTTP/1 answer, or a head over 16 KiB.
  Result<std::string> feed(std::string_view bytes);
  bool complete() const { return complete_; }  // the final head, not that of a 1xx answer

 private:
  std::string waiting_;
  bool complete_ = false;
};

}  // namespace mycojobs::egress
